"""Tests of what the W&B report of objectives over the temperature would send, without W&B."""

import json

import pytest

from ssl_vision.main import main
from ssl_vision.report import wandb_report

wr = pytest.importorskip("wandb_workspaces.reports.v2")


def panel_config(panel):
    return json.loads(panel._to_model().model_dump_json(by_alias=True, exclude_none=True))["config"]


def test_scatter_plots_show_each_accuracy_over_temperature():
    scatter = [panel_config(panel) for panel in wandb_report.panels(wr) if isinstance(panel, wr.ScatterPlot)]
    path = "config:model.value.init_args.objective.init_args.temperature"
    assert {each["xAxis"] for each in scatter} == {path}
    assert all(each["xAxisLogScale"] for each in scatter)
    names = ["val/knn_top1", "best/knn_top1", "test/knn_top1", "test/linear_top1"]
    assert [each["yAxis"] for each in scatter] == [f"summary:{name}" for name in names]


def test_curves_are_grouped_by_objective():
    (curves,) = [panel_config(panel) for panel in wandb_report.panels(wr) if isinstance(panel, wr.LinePlot)]
    assert (curves["xAxis"], curves["metrics"]) == ("epoch", ["val/knn_top1"])
    assert curves["groupBy"] == "model.value.init_args.objective.class_path"


def test_the_panels_do_not_overlap():
    layouts = [panel.layout for panel in wandb_report.panels(wr)]
    cells = [(x, y) for a in layouts for x in range(a.x, a.x + a.w) for y in range(a.y, a.y + a.h)]
    assert len(cells) == len(set(cells))


def test_command_saves_report_and_prints_its_address(monkeypatch, capsys):
    saved = []
    monkeypatch.setattr(wr.Report, "save", lambda report: saved.append(report))
    monkeypatch.setattr(wr.Report, "url", property(lambda report: "https://example.org/report"))
    assert main(["wandb-report", "team/project", "--group=sweep"]) == 0
    assert capsys.readouterr().out == "https://example.org/report\n"
    (report,) = saved
    (runs,) = report.blocks[-1].runsets
    assert (report.entity, report.project, runs.entity, runs.project) == ("team", "project") * 2
    assert "sweep" in str(runs.filters)


def test_wandb_error_is_reported_in_one_line(monkeypatch, capsys):
    def fail(report):
        raise Exception("not logged in\nto W&B")

    monkeypatch.setattr(wr.Report, "save", fail)
    assert main(["wandb-report", "team/project"]) == 2
    assert capsys.readouterr().err == "ssl-vision wandb-report: team/project: not logged in to W&B\n"
