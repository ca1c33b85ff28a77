"""Tests of what a W&B mirror contains besides metrics: axes, best values, alerts, artifacts and media."""

import base64
import hashlib
import json
from types import SimpleNamespace

import pytest
import torch
from settings import TINY
from wandb_records import inspect, parts, records

from ssl_vision.errors import InputError, Interrupted
from ssl_vision.main import main
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.registry import Run
from ssl_vision.tracking.wandb import fetched_checkpoint, requeued_by_agent
from ssl_vision.tracking.wandb_callback import WandbCallback

SHORT = [*TINY, "--trainer.limit_train_batches=2", "--wandb=offline", "--wandb_artifacts=last"]


@pytest.fixture(autouse=True, scope="module")
def pages(no_pages):
    """Write report pages in these tests, because their images are uploaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ssl_vision.main._REPORT", "ssl_vision.experiments.report.report")
        yield


@pytest.fixture(scope="module")
def run(pages, tmp_path_factory):
    """A run of two epochs with all optional uploads, whose encoder was exported."""
    runs = tmp_path_factory.mktemp("wandb")
    options = ["--trainer.max_epochs=2", "--wandb_media=true", "--report=true"]
    assert main(["fit", f"--runs_dir={runs}", "--name=run", *SHORT, *options]) == 0
    assert main(["export", str(runs / "run")]) == 0
    return runs / "run"


def artifacts(part):
    return {record["artifact"]["name"]: record["artifact"] for record in records(part, "artifact")}


def md5(file):
    return base64.b64encode(hashlib.md5(file.read_bytes(), usedforsecurity=False).digest()).decode()


def test_validation_metrics_have_epoch_as_axis(run):
    metrics = [record["metric"] for record in records(parts(run)[0], "metric")]
    logged = {name for row in Run(run).history for name in row if name.startswith("val/")}
    assert {"val/knn_top1", "val/uniformity_projector"} < logged
    assert {each["name"] for each in metrics if each.get("step_metric") == "epoch"} == logged


def test_summary_contains_last_and_best_value(run):
    summary = json.loads(inspect(parts(run)[0], "--summary"))["summary"]
    curve = Run(run).curve("val/knn_top1")
    assert summary["val/knn_top1"] == pytest.approx(curve[-1][2])
    assert summary["best/knn_top1"] == pytest.approx(max(value for *_, value in curve))
    assert curve[summary["best/epoch"] - 1][2] == pytest.approx(summary["best/knn_top1"])


def test_checkpoint_is_artifact(run):
    uploaded, last = artifacts(parts(run)[0]), run / "checkpoints/last.ckpt"
    (run_id,) = {record["run"]["run_id"] for record in records(parts(run)[0], "run")}
    checkpoint = uploaded[f"checkpoint-{run_id}"]
    assert set(checkpoint["aliases"]) == {"last", "epoch-2", "latest"}
    (content,) = checkpoint["manifest"]["contents"]
    assert (content["path"], content["digest"]) == ("last.ckpt", md5(last))
    assert len(uploaded) == 1


def test_exported_encoder_is_artifact_of_same_run(run):
    (part,) = [part for part in parts(run) if any("encoder" in name for name in artifacts(part))]
    ((name, encoder),) = artifacts(part).items()
    assert name == f"encoder-{part.name.split('-')[3]}"
    contents = {each["path"]: each["digest"] for each in encoder["manifest"]["contents"]}
    files = ("backbone.safetensors", "backbone.safetensors.md")
    assert contents == {file: md5(run / file) for file in files}


def test_report_page_is_uploaded_by_fit_and_evaluate(run):
    options = ["--protocol=solo", "--baselines=false", "--cache=false", "--device=cpu"]
    assert main(["evaluate", str(run), *options]) == 0
    pages = [page for part in parts(run) for page in part.glob("files/media/html/media/report_*.html")]
    assert len(pages) == 2
    assert (run / "report.html").read_text() in [page.read_text() for page in pages]


def test_artifacts_and_media_are_not_uploaded_by_default(tmp_path):
    options = [*TINY, "--trainer.limit_train_batches=2", "--trainer.max_epochs=1", "--report=true"]
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", *options, "--wandb=offline"]) == 0
    (part,) = parts(tmp_path / "run")
    assert records(part, "artifact") == []
    assert not (part / "files/media").exists()


class Recorder:
    """A W&B run that records its calls."""

    def __init__(self):
        self.calls, self.summary = [], {}

    def __getattr__(self, name):
        return lambda *args, **options: self.calls.append((name, options))

    def alerts(self):
        return [options["title"] for name, options in self.calls if name == "alert"]


def callback(tmp_path, **options):
    recorder = Recorder()
    logger = SimpleNamespace(experiment=recorder)
    return recorder, WandbCallback(logger, RunFolder(tmp_path / "run"), **options)


def trainer(epoch=0, **metrics):
    values = {name: torch.tensor(value) for name, value in metrics.items()}
    return SimpleNamespace(callback_metrics=values, current_epoch=epoch, is_global_zero=True)


def test_collapse_and_harm_send_one_alert_each(tmp_path):
    recorder, tracked = callback(tmp_path)
    for epoch, found in enumerate((0.0, 1.0, 1.0)):
        values = {"val/collapsed": found, "val/below_start": found}
        tracked.on_validation_end(trainer(epoch, **values), None)
    assert recorder.alerts() == ["run: collapsed", "run: worse than its initial weights"]


def test_interrupted_run_is_marked_preempting_and_failed_run_is_not(tmp_path, monkeypatch):
    codes = []
    monkeypatch.setattr("wandb.finish", lambda exit_code=0: codes.append(exit_code))
    recorder, tracked = callback(tmp_path)
    tracked.on_exception(trainer(), None, ValueError())
    assert recorder.calls == []
    tracked.on_exception(trainer(), None, Interrupted(15))
    assert recorder.calls == [("mark_preempting", {})]
    tracked.teardown(trainer(), None, "fit")
    assert codes == [1, 128 + 15, 0]


def test_callback_does_nothing_on_other_processes(tmp_path):
    recorder, tracked = callback(tmp_path, artifacts="last")
    other = trainer(1, **{"val/collapsed": 1.0, "val/knn_top1": 0.5})
    other.is_global_zero = False
    tracked.on_train_start(other, None)
    tracked.on_validation_end(other, None)
    tracked.on_fit_end(other, None)
    tracked.on_exception(other, None, Interrupted(15))
    tracked.teardown(other, None, "fit")
    assert (recorder.calls, recorder.summary) == ([], {})


@pytest.mark.parametrize("artifacts", ["last", "none"])
def test_finished_and_interrupted_runs_upload_their_last_checkpoint(tmp_path, monkeypatch, artifacts):
    uploaded = []
    checkpoint = SimpleNamespace(path="last.ckpt")
    monkeypatch.setattr("ssl_vision.tracking.wandb_callback.read_checkpoint", lambda file: checkpoint)
    monkeypatch.setattr(
        "ssl_vision.tracking.wandb_callback.log_files",
        lambda run, name, files, **options: uploaded.extend(files),
    )
    _, tracked = callback(tmp_path, artifacts=artifacts)
    tracked.on_exception(trainer(), None, Interrupted(15))
    tracked.on_fit_end(trainer(), None)
    assert uploaded == (["last.ckpt"] * 2 if artifacts == "last" else [])


def test_failed_checkpoint_upload_warns_without_ending_run(tmp_path):
    _, tracked = callback(tmp_path, artifacts="last")
    tracked.folder.last.parent.mkdir(parents=True)
    tracked.folder.last.write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="was not uploaded to W&B"):
        tracked.on_fit_end(trainer(), None)


def test_run_requeued_by_agent_continues(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep")
    monkeypatch.setenv("WANDB_RUN_ID", "cell1")
    options = [f"--runs_dir={tmp_path}", *TINY, "--trainer.limit_train_batches=2", "--wandb=offline"]
    assert main(["fit", *options, "--trainer.max_epochs=1"]) == 0
    (folder,) = tmp_path.iterdir()
    assert requeued_by_agent(RunFolder(folder))
    last = folder / "checkpoints/last.ckpt"
    last.rename(last.with_suffix(".away"))
    assert not requeued_by_agent(RunFolder(folder))  # no checkpoint to continue from
    last.with_suffix(".away").rename(last)
    assert main(["fit", *options, "--trainer.max_epochs=2"]) == 0
    assert Run(folder).epoch == 2
    assert len({record["run"]["run_id"] for part in parts(folder) for record in records(part, "run")}) == 1
    monkeypatch.setenv("WANDB_RUN_ID", "cell2")
    capsys.readouterr()
    assert main(["fit", *options, "--trainer.max_epochs=3"]) == 2  # another cell with the same settings
    assert not requeued_by_agent(RunFolder(folder))


@pytest.mark.parametrize("address", ["wandb://name:last", "wandb://a/b/c/d:last"])
def test_invalid_checkpoint_address_raises_input_error(address):
    with pytest.raises(InputError, match="expected wandb://ENTITY/PROJECT/NAME:ALIAS"):
        fetched_checkpoint(address)
