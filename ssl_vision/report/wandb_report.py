"""``ssl-vision wandb-report``: a W&B report of objectives over the temperature."""

from collections.abc import Sequence
from typing import Any

from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.errors import InputError
from ssl_vision.optional import needed

OBJECTIVE = "model.init_args.objective.class_path"
TEMPERATURE = "model.init_args.objective.init_args.temperature"
BATCH_SIZE = "data.init_args.batch_size"

_ACCURACIES = ("val/knn_top1", "best/knn_top1", "test/knn_top1", "test/linear_top1")


def run(args: Sequence[str]) -> None:
    """Create a W&B report that shows the accuracies of the objectives over the temperature.

    It contains a scatter plot of each accuracy over the temperature, the validation curves by objective, and
    parallel coordinates of temperature, batch size and accuracies. The values below test/ are those of
    ssl-vision evaluate.

    Raises:
        InputError: wandb-workspaces is not installed, or W&B refuses the report.
    """
    parser = ArgumentParser(prog="ssl-vision wandb-report", description=run.__doc__)
    parser.add_argument("project", type=str, help="Project of the runs, as PROJECT or ENTITY/PROJECT.")
    parser.add_argument(
        "--group", type=str | None, default=None, help="Only runs of this group, such as a sweep."
    )
    parser.add_argument("--title", type=str, default="Objectives over the temperature")
    options = parser.parse_args(list(args))
    entity, _, project = options.project.rpartition("/")
    needed("wandb_workspaces", extra="wandb_report")
    try:
        report = temperature_report(entity, project, group=options.group, title=options.title)
        report.save()
    except Exception as error:  # the library raises plain exceptions
        raise InputError(f"{options.project}: {' '.join(str(error).split())}") from error
    print(report.url)


def temperature_report(entity: str, project: str, *, group: str | None = None, title: str) -> Any:
    """The report, as an object of ``wandb_workspaces`` that is not saved yet.

    Args:
        entity: owner of the project; empty for the default one.
        project: project of the runs.
        group: group of the runs; None for all.
        title: title of the report.
    """
    wr = needed("wandb_workspaces.reports.v2", extra="wandb_report")
    owner = {"entity": entity} if entity else {}
    filters = {"filters": f'Metric("Group") == "{group}"'} if group else {}
    runs = wr.Runset(project=project, name="runs", groupby=[f"config.{OBJECTIVE}"], **owner, **filters)
    return wr.Report(
        project=project,
        title=title,
        blocks=[
            wr.P("Runs are grouped by their objective. Accuracies are shares of 1."),
            wr.PanelGrid(runsets=[runs], panels=panels(wr)),
        ],
        **owner,
    )


def panels(wr: Any) -> list[Any]:
    """The charts, in two columns."""
    temperature, batch_size = wr.Config(TEMPERATURE), wr.Config(BATCH_SIZE)
    half = [wr.Layout(x=12 * (i % 2), y=8 * (i // 2), w=12, h=8) for i in range(len(_ACCURACIES))]
    charts = [
        wr.ScatterPlot(
            title=f"{name} over the temperature",
            x=temperature,
            y=wr.SummaryMetric(name),
            log_x=True,
            layout=layout,
        )
        for name, layout in zip(_ACCURACIES, half, strict=True)
    ]
    curves = wr.LinePlot(
        title="val/knn_top1 over the epochs", x="epoch", y=["val/knn_top1"], groupby=wr.Config(OBJECTIVE),
        groupby_rangefunc="minmax", layout=wr.Layout(x=0, y=16, w=12, h=8),
    )  # fmt: skip
    columns = [temperature, batch_size, *map(wr.SummaryMetric, ("val/knn_top1", "test/linear_top1"))]
    coordinates = wr.ParallelCoordinatesPlot(
        title="temperature, batch size and accuracy",
        columns=[wr.ParallelCoordinatesPlotColumn(column) for column in columns],
        layout=wr.Layout(x=12, y=16, w=12, h=8),
    )
    return [*charts, curves, coordinates]
