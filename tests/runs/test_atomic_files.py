"""Tests of atomic writes, which replace links, and of the files that a run deletes."""

import os

import pytest
import torch

from ssl_vision.errors import InputError
from ssl_vision.evaluation.feature_extractor import FeatureCache
from ssl_vision.export.export import _file_name
from ssl_vision.export.formats import FORMATS
from ssl_vision.runs.checkpoint import AtomicCheckpointIO
from ssl_vision.runs.files import atomic_write, write_text
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.lock import Lock
from ssl_vision.runs.log import RunLog

CONTENT = "precious"


@pytest.fixture
def precious(tmp_path):
    """A file outside the folder that the test writes to; it must keep its content."""
    file = tmp_path / "precious.txt"
    file.write_text(CONTENT)
    yield file
    assert file.read_text() == CONTENT


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    return path


def test_atomic_write_replaces_link_and_uses_unpredictable_name(folder, precious):
    for name in ("out.json", f".{os.getpid()}-out.json"):
        (folder / name).symlink_to(precious)
    with atomic_write(folder / "out.json") as partial:
        partial.write_text("new")
    assert not (folder / "out.json").is_symlink()
    assert (folder / "out.json").read_text() == "new"


def test_atomic_write_gives_default_permissions(folder):
    (folder / "plain").touch()
    with atomic_write(folder / "out.json"):
        pass
    assert (folder / "out.json").stat().st_mode == (folder / "plain").stat().st_mode


@pytest.mark.parametrize("target", ["precious.txt", "absent.txt"])
def test_a_lock_that_is_a_link_is_refused(target, folder, precious, tmp_path):
    (folder / ".lock").symlink_to(tmp_path / target)
    lock = Lock(folder / ".lock")
    for act in (lock.take, lock.check):
        with pytest.raises(InputError, match=r"\.lock cannot be used as a lock"):
            act()
    assert not lock.held
    assert not (tmp_path / "absent.txt").exists()


def test_logs_replace_links(folder, precious):
    for name in ("metrics.csv", "times.csv", "weights.csv"):
        (folder / name).symlink_to(precious)
        (folder / f"{name}.partial").symlink_to(precious)
    log = RunLog(folder / "metrics.csv")
    log.keep_until(0)
    log.log_metrics({"loss": 1.0, "time/s": 2.0, "weight/0": 3.0}, step=0)
    log.log_metrics({"loss": 1.5}, step=1)
    assert (folder / "metrics.csv").read_text().splitlines() == ["step,epoch,loss", "0,,1", "1,,1.5"]
    assert not any((folder / name).is_symlink() for name in ("metrics.csv", "times.csv", "weights.csv"))


def test_checkpoints_replace_links_and_use_no_predictable_name(folder, precious):
    files = AtomicCheckpointIO(folder / "last.ckpt", folder / "previous-last.ckpt")
    for name in ("last.ckpt", "previous-last.ckpt", f".last.ckpt.{os.getpid()}.partial"):
        (folder / name).symlink_to(precious)
    for n in (1, 2):
        files.save_checkpoint({"n": n}, files.last)
        files.commit()
    assert not files.last.is_symlink()
    assert not files.previous.is_symlink()


def test_clear_deletes_only_files_written_by_the_package(folder, precious):
    run = RunFolder(folder)
    row = '[{"protocol": "macl", "metric": "knn_top1", "value": 1}]'
    exports = [_file_name(name) for name in FORMATS]
    package_files = [run.metrics_file, run.times_file, run.weights_file, run.skipped_file]
    package_files += [run.evaluation_file, run.report_file, run.last, run.previous]
    package_files += [
        *(folder / f"{name}{end}" for name in exports for end in ("", ".md")),
    ]
    user_files = [
        "backbone_notes.txt",
        "backbone.txt",
        "backbones/x.md",
        "evaluation_notes.json",
        "checkpoints/notes.md",
        "checkpoints/mine.ckpt",
    ]
    user_files += ["features/notes.pt", "config.yaml.old", "metrics.csv.bak", "evaluation_stl10.json"]
    run.checkpoints.mkdir()
    for file in (run.config_file, *package_files):
        file.write_text(row)
    FeatureCache(run.features).get("test-views", ("x",), ("a",), lambda: {"a": torch.ones(1, 1)})
    package_files += run.features.iterdir()
    for name in user_files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    run.clear()
    assert [str(file) for file in package_files if file.exists()] == []
    remaining = {str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir()}
    assert remaining == {*user_files, "config.yaml"}


def test_remove_partial_deletes_only_unfinished_training_files(folder):
    unfinished = [".0123abcd-last.ckpt.partial", ".0123abcd-metrics.csv", ".89abcdef-config.yaml"]
    user_files = [".notes.partial", "last.ckpt.partial", ".0123abcd-notes.csv", "0123abcd-metrics.csv"]
    (folder / ".dir.ckpt.4711.partial").mkdir()
    for name in unfinished + user_files:
        (folder / name).touch()
    RunFolder(folder).remove_partial()
    assert {file.name for file in folder.iterdir() if file.is_file()} == set(user_files)


def test_names_that_are_not_utf8_are_written_with_escapes(tmp_path):
    write_text(tmp_path / "page.html", os.fsdecode(b"<p>caf\xe9 caf\xc3\xa9</p>"))
    assert (tmp_path / "page.html").read_bytes() == b"<p>caf\\udce9 caf\xc3\xa9</p>"
