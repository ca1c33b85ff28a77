"""Tests of sweep directories with hostile symbolic links: nothing is written outside the directory."""

import pytest


def test_tables_and_plot_replace_symbolic_links(sweep, sweep_path, tmp_path):
    precious, folder = tmp_path / "precious", tmp_path / "runs" / "trial"
    (folder / ".locks").mkdir(parents=True)
    precious.write_text("precious")
    names = ["sweep.csv", "sweep.md", "sweep.html"]
    for name in names:
        (folder / name).symlink_to(precious)
    assert sweep(sweep_path({"x": {"values": [1]}}), f"--runs_dir={tmp_path}/runs") == 0
    assert not any((folder / name).is_symlink() for name in names)
    assert precious.read_text() == "precious"


@pytest.mark.parametrize(
    "name",
    [
        ".locks",
        ".locks/queue",
        ".locks/cell.cell",
        "logs",
        "logs/cell.log",
        "sweep.db",
        "sweep.db-journal",
        "cell",
    ],
)
def test_symbolic_links_are_rejected_for_files_written_in_place(name, sweep, sweep_path, tmp_path, capsys):
    """A directory is linked to another directory, a file to an existing or a missing file."""
    folder, outside = tmp_path / "runs" / "trial", tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    (folder / ".locks").mkdir(parents=True)
    (folder / "logs").mkdir()
    link = folder / name
    if link.is_dir():
        link.rmdir()
    is_folder = name in (".locks", "logs", "cell")
    for target in [outside] if is_folder else [outside / "file", outside / "absent"]:
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert sweep(sweep_path({"x": {"values": [1]}}), f"--runs_dir={tmp_path}/runs") == 2
        assert "symbolic link" in capsys.readouterr().err
    assert [file.name for file in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "precious"
