"""A sweep's folder with hostile links: what is written there stays there."""

import pytest


def test_tables_and_copies_replace_links(sweep, sweep_path, tmp_path):
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
def test_what_is_written_in_place_is_refused_as_a_link(name, sweep, sweep_path, tmp_path, capsys):
    """Of a folder to another folder, of a file to one that is there or is not."""
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
