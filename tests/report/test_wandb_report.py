"""The W&B report of objectives over the temperature, without W&B: what it would send."""

import json

import pytest

from ssl_vision.main import main
from ssl_vision.report import wandb_report

wr = pytest.importorskip("wandb_workspaces.reports.v2")


def sent(panel):
    return json.loads(panel._to_model().model_dump_json(by_alias=True, exclude_none=True))["config"]


def test_each_accuracy_is_drawn_over_the_temperature_of_the_config():
    scatter = [sent(panel) for panel in wandb_report.panels(wr) if isinstance(panel, wr.ScatterPlot)]
    path = "config:model.value.init_args.objective.init_args.temperature"
    assert {each["xAxis"] for each in scatter} == {path}
    assert all(each["xAxisLogScale"] for each in scatter)
    names = ["val/knn_top1", "best/knn_top1", "test/knn_top1", "test/linear_top1"]
    assert [each["yAxis"] for each in scatter] == [f"summary:{name}" for name in names]


def test_curves_are_grouped_by_objective():
    (curves,) = [sent(panel) for panel in wandb_report.panels(wr) if isinstance(panel, wr.LinePlot)]
    assert (curves["xAxis"], curves["metrics"]) == ("epoch", ["val/knn_top1"])
    assert curves["groupBy"] == "model.value.init_args.objective.class_path"


def test_the_panels_do_not_overlap():
    layouts = [panel.layout for panel in wandb_report.panels(wr)]
    cells = [(x, y) for a in layouts for x in range(a.x, a.x + a.w) for y in range(a.y, a.y + a.h)]
    assert len(cells) == len(set(cells))


def test_the_command_saves_it_and_prints_its_address(monkeypatch, capsys):
    saved = []
    monkeypatch.setattr(wr.Report, "save", lambda report: saved.append(report))
    monkeypatch.setattr(wr.Report, "url", property(lambda report: "https://example.org/report"))
    assert main(["wandb-report", "team/project", "--group=sweep"]) == 0
    assert capsys.readouterr().out == "https://example.org/report\n"
    (report,) = saved
    (runs,) = report.blocks[-1].runsets
    assert (report.entity, report.project, runs.entity, runs.project) == ("team", "project") * 2
    assert "sweep" in str(runs.filters)


def test_a_refusal_is_one_line(monkeypatch, capsys):
    def refused(report):
        raise Exception("not logged in\nto W&B")

    monkeypatch.setattr(wr.Report, "save", refused)
    assert main(["wandb-report", "team/project"]) == 2
    assert capsys.readouterr().err == "ssl-vision wandb-report: team/project: not logged in to W&B\n"
