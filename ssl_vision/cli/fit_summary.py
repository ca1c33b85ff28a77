"""Summary printed at the end of ``fit``: duration, outputs, results and next steps."""

import shlex
from collections.abc import Iterator
from statistics import median

from ssl_vision.cli.config_objects import outside_classes
from ssl_vision.data import ImageData, ImageFolder, Shards
from ssl_vision.descriptions import described, description_of
from ssl_vision.metrics.accuracy_difference import wilson_interval
from ssl_vision.progress import duration, epochs_text, number
from ssl_vision.runs.files import last_value
from ssl_vision.runs.registry import Run
from ssl_vision.tables import aligned


def summary(
    run: Run, *, images: int | None = None, data: ImageData | None = None, report: bool = False
) -> str:
    """Return the summary of a finished run, from the files in its run directory.

    Args:
        run: the run.
        images: number of images in a batch over all processes; None omits the speed.
        data: data of the run; without labels, evaluation is not suggested.
        report: True if the report is written, so that its command is left out.
    """
    seconds = "" if run.seconds is None else f" in {duration(run.seconds)}"
    settings = f"{run.setting('objective')} on {run.setting('data')}, seed {run.setting('seed')}"
    epochs = epochs_text(run.epoch if run.epochs is None else run.epochs)
    lines = [f"{run.name}: {epochs}{seconds} ({settings})"]
    lines += [f"  {line}" for line in aligned(list(_facts(run, images)), left=2).splitlines()]
    lines += validation_lines(run)
    folder = shlex.quote(str(run.folder.path))
    for name in outside_classes([run.config["model"], run.config["data"]]):
        folder += f" --allow_class {name}"
    if data is None or data.num_classes:
        tested = data is None or data.test_share or data.has("test") or data.has("val")
        test = "" if tested else f" --data.test {'FOLDER' if isinstance(data, ImageFolder) else 'PATTERN'}"
        if tested or isinstance(data, (ImageFolder, Shards)):
            lines.append(f"next: ssl-vision evaluate {folder}{test}   kNN and a linear probe")
    if not report:
        lines.append(f"next: ssl-vision report {folder}     an HTML report with a map of the images")
    return "\n".join(lines)


def _facts(run: Run, images: int | None) -> Iterator[tuple[str, str]]:
    yield "written to", str(run.folder.path)
    timed = [row for row in run.times if row.get("time/train_seconds", 0) > 0]
    rates = [
        row["time/train_batches"] / row["time/train_seconds"] for row in timed if "time/train_batches" in row
    ]
    if images and rates:
        yield "speed", f"{number(images * median(rates))} images/s, without validation"
    memory = [
        f"{number(value)} MiB {place}"
        for place, name in (("on the host", "process"), ("on the device", "device"))
        if (value := last_value(run.times, f"memory/{name}_mb")) is not None
    ]
    if memory:
        yield "peak memory", ", ".join(memory)
    if (loss := run.last("train/loss")) is not None:
        yield "last loss", f"{loss:.4g}"
    yield "skipped steps", f"{run.last('train/skipped_steps') or 0:.0f}"
    yield "collapsed", _occurrences(run, "val/collapsed", measured="val/rankme")
    if run.folder.start.exists():
        yield "below start", _occurrences(run, "val/below_start", measured="val/knn_top1")


def _occurrences(run: Run, metric: str, *, measured: str) -> str:
    """Return at how many validations of trained weights a metric was logged that is otherwise absent."""
    validations = [step for step, _, _ in run.curve(measured) if step >= 0]
    found = [step for step, _, _ in run.curve(metric) if step >= 0]
    if not validations:
        return "not measured"
    if not found:
        return "no"
    position = "the last one among them" if found[-1] == validations[-1] else "not at the last one"
    return f"at {len(found)} of {len(validations)} validations, {position}"


def validation_lines(run: Run) -> Iterator[str]:
    """Iterate over the lines of the table of `validations`, the first of which names the images."""
    table = validations(run)
    if table:
        knn = any(name == "val/knn_top1" for name, *_ in table) and run.validated_k
        yield f"  validation on {run.validated_on}" + (f", kNN with k = {knn}" if knn else "")
        yield from (f"  {line}" for line in aligned(table).splitlines())


def validations(run: Run) -> list[list[str]]:
    """Return the first and the last validation as a table of cells, the headings first; empty without any."""
    names = [metric.logged_name for metric in described("summary")]
    curves = {name: curve for name in names if (curve := run.curve(name))}
    if not curves:
        return []
    longest = max(curves.values(), key=len)
    shown, images = longest[:: max(1, len(longest) - 1)], run.validated_images  # the first and the last
    table = [["", *(f"epoch {epoch + 1}" for _, epoch, _ in shown)]]
    for name, curve in curves.items():
        at = {step: value for step, _, value in curve}
        values = (at.get(step) for step, *_ in shown)
        table.append([name, *("" if x is None else validation_value(name, x, images) for x in values)])
    return table


def validation_value(name: str, value: float, images: float | None) -> str:
    """Format a value of a validation, an accuracy with half its 95 % interval and the number of images.

    Args:
        name: name under which the value is logged.
        value: the value.
        images: number of images that were classified; None omits the interval.
    """
    text = description_of(name).text(value, ".4g")
    if images is None or not name.endswith("_top1"):
        return text
    low, high = wilson_interval(value, images)
    return f"{text} ± {50 * (high - low):.1f} ({images:,.0f} images)"
