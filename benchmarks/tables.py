"""Tables of README and docs/results.md, made from the rows that ``benchmarks/results.py collect`` writes."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

import choosing
from adaptation_tables import continued_pretraining, statistics_of_batch_norm
from paper_tables import dissipation, reclaim, reclaim_differences, unified_gradient
from provenance import RESULTS
from rows import (
    ACCURACIES,
    CRITIC,
    LABEL_SHARES,
    Row,
    Setting,
    difference_cell,
    heading,
    markdown,
    mean_cell,
    rows_of,
    settings,
)

from ssl_vision.descriptions import description_of
from ssl_vision.experiments.compare.statistics import holm, paired

GEOMETRY = ("alignment", "uniformity", "tolerance", "sensitivity", "rankme")


def means(names: Sequence[str], metrics: Sequence[str]) -> str:
    """Return a table of means and standard deviations over seeds, a line for each method and objective.

    Args:
        names: files of rows.
        metrics: metrics on the test split at the encoder, which are the columns.
    """
    lines = [["method", "objective", *map(heading, metrics), "seeds"]]
    for (method, objective), group in settings(names).items():
        values = [[row["test"].get(f"test/{metric}") for row in group.values()] for metric in metrics]
        cells = [mean_cell(each, metric) for each, metric in zip(values, metrics, strict=True)]
        lines.append([method, objective, *cells, str(len(group))])
    return markdown(lines)


def differences(name: str, pairs: Sequence[tuple[Setting, Setting]], metric: str) -> str:
    """Return a table of the differences within each seed between pairs of settings.

    The p values are those of paired t tests, corrected for the number of pairs in the table (Holm 1979).

    Args:
        name: file of rows.
        pairs: settings that are compared, first − second; those without rows are left out.
        metric: metric on the test split at the encoder.
    """
    groups, description = settings([name]), description_of(metric)
    pairs = [pair for pair in pairs if groups.keys() >= set(pair)]
    compared = []
    for first, second in pairs:
        seeds = sorted(groups[first].keys() & groups[second].keys())
        values = (
            [description.scale * groups[each][seed]["test"][f"test/{metric}"] for seed in seeds]
            for each in (first, second)
        )
        compared.append(paired(*values, tests=len(pairs)))
    corrected = holm([1.0 if each.t_p is None else each.t_p for each in compared])
    lines = [["first", "second", "first − second", "95 % interval", "Holm p", "resolvable"]]
    for (first, second), result, p in zip(pairs, compared, corrected, strict=True):
        low, high = result.interval or (math.nan, math.nan)
        resolvable = "" if result.resolvable is None else f"{result.resolvable:.2f}"
        shown = [f"{result.mean:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{p:.2g}", resolvable]
        lines.append([", ".join(first), ", ".join(second), *(cell.replace("-", "−") for cell in shown)])
    return markdown(lines)


def temperature_differences(metrics: Sequence[str]) -> list[list[str]]:
    """Return differences in points between τ = 0.05 and 0.1 within each seed, with 95 % intervals.

    Args:
        metrics: names of accuracies below ``test/``, which are the columns.
    """
    low, usual = settings([LOW_TEMPERATURE]), settings([OBJECTIVES])
    lines = [["objective", *(heading(metric).removesuffix(" %") for metric in metrics)]]
    for setting, group in low.items():
        lines.append([setting[1], *(difference_cell(group, usual[setting], metric) for metric in metrics)])
    return lines


def over_epochs(name: str) -> list[list[str]]:
    """Return kNN accuracies over training by objective, and their differences to InfoNCE within each seed.

    Args:
        name: file of rows, whose validations are after the same epochs.
    """
    accuracies: dict[str, dict[int, list[float]]] = defaultdict(dict)
    epochs: list[int] = []
    for row in rows_of(name):
        curve = row["curves"]["val/knn_top1"]
        epochs = [round(row["epochs"] * (step + 1) / (curve[-1][0] + 1)) for step, _ in curve]
        accuracies[row["objective"]][row["seed"]] = [value for _, value in curve]
    lines = [["objective", *(f"{epoch} epochs" for epoch in epochs), "seeds"]]
    for objective, seeds in accuracies.items():
        cells = [mean_cell(values, "knn_top1") for values in zip(*seeds.values(), strict=True)]
        lines.append([objective, *cells, str(len(seeds))])
    for objective, seeds in accuracies.items():
        shared = sorted(seeds.keys() & accuracies.get("InfoNCE", {}).keys())
        if objective == "InfoNCE" or not shared:
            continue
        cells = []
        for place in range(len(epochs)):
            values = [[100 * each[seed][place] for seed in shared] for each in (seeds, accuracies["InfoNCE"])]
            result = paired(*values)
            interval = " ({:+.2f} to {:+.2f})".format(*result.interval) if result.interval else ""
            cells.append(f"{result.mean:+.2f}{interval}".replace("-", "−"))
        lines.append([f"{objective} − InfoNCE", *cells, str(len(shared))])
    return lines


def few_labels() -> str:
    """Return a table of the demo: accuracy with few and with all labels, beside the baselines."""
    runs = json.loads((RESULTS / "demo.json").read_text())["runs"]
    lines = [["test accuracy, %", *FEW_LABELS.values()]]
    for source, name in BASELINES.items():
        values = [
            [
                row["value"]
                for run in runs
                for row in run["rows"]
                if (row["features"], row["layer"]) == source and (row["metric"], row.get("labels")) == column
            ]
            for column in FEW_LABELS
        ]
        cells = (mean_cell(each, metric) for each, (metric, _) in zip(values, FEW_LABELS, strict=True))
        lines.append([name, *cells])
    return markdown(lines)


def temperatures(name: str) -> list[list[str]]:
    """Return the kNN accuracy on held-out training images at each temperature, with the best in bold.

    Args:
        name: file of rows, one for each objective and temperature.
    """
    accuracies = {
        (row["objective"], row["temperature"]): row["validation"]["knn_top1"] for row in rows_of(name)
    }
    columns = sorted({temperature for _, temperature in accuracies})
    lines = [["objective", *(f"τ = {temperature:g}" for temperature in columns)]]
    for objective in sorted({objective for objective, _ in accuracies}):
        values = [accuracies.get((objective, temperature)) for temperature in columns]
        best = max(value for value in values if value is not None)
        cells = [mean_cell([value], "knn_top1") for value in values]
        marked = [f"**{cell}**" if value == best else cell for cell, value in zip(cells, values, strict=True)]
        lines.append([objective, *marked])
    return lines if accuracies else []


def recipes(rows: Sequence[Row], baseline: str) -> list[list[str]]:
    """Return epochs and validation accuracies of recipes, the most accurate first.

    Args:
        rows: rows of cpu_recipes.py, or others with "recipe", "epochs" and "knn_top1".
        baseline: recipe that the others are compared with.
    """
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["recipe"]].append(row)
    means = {name: fmean(row["knn_top1"] for row in group) for name, group in groups.items()}
    lines = [["recipe", "epochs", "kNN (k = 10) %", f"difference from {baseline}", "seeds"]]
    for name, accuracy in sorted(means.items(), key=lambda item: -item[1]):
        values = [row["knn_top1"] for row in groups[name]]
        points = f"{100 * (accuracy - means[baseline]):+.2f}".replace("-", "−")
        difference = points if name != baseline else ""
        epochs = str(groups[name][0]["epochs"])
        lines.append([name, epochs, mean_cell(values, "knn_top1"), difference, str(len(values))])
    return lines if groups else []


def recipes_of(core_seconds: float) -> list[Row]:
    """Return the rows of cpu_recipes.py for runs of a length."""
    return [row for row in rows_of("cpu_recipes") if row["core_seconds"] == core_seconds]


def cpu_recipe_validations() -> list[Row]:
    """Return the runs of configs/sweep/cifar10_cpu.yaml as rows of a recipe, with validation accuracies."""
    return [
        {"recipe": "SGD, smaller", "epochs": row["epochs"], "knn_top1": row["validation"]["knn_top1"]}
        for row in rows_of("cifar10_cpu")
    ]


def cpu_recipe(recipes: Mapping[str, str]) -> list[list[str]]:
    """Return epochs, minutes and test accuracies of cifar10_cpu.yaml and lightly's loop.

    The minutes are those of the fastest and the slowest run.

    Args:
        recipes: name of the recipe by the file of its rows. A file that does not exist has no line.
    """
    lines = [["recipe", "epochs", "minutes", *map(heading, CPU_RECIPE_METRICS), "seeds"]]
    for file, recipe in recipes.items():
        if rows := rows_of(file):
            minutes = [round((row.get("cpu_seconds") or row["seconds"]) / 60) for row in rows]
            duration = " to ".join(str(each) for each in sorted({min(minutes), max(minutes)}))
            accuracies = [
                mean_cell([row["test"].get(f"test/{metric}") for row in rows], metric)
                for metric in CPU_RECIPE_METRICS
            ]
            lines.append([recipe, str(rows[0]["epochs"]), duration, *accuracies, str(len(rows))])
    return lines


def best() -> list[list[str]]:
    """Return epochs, minutes and test accuracies of the best recipes and of lightly's loop."""
    titles, *lines = cpu_recipe({
        "cifar10_cpu": "`cifar10_cpu.yaml`, one CPU core",
        "lightly_cifar10_cpu": "lightly's loop, one CPU core",
        "cifar10_cpu_hour": "`cifar10_cpu.yaml` with 40 epochs, one CPU core",
        "lightly_objectives_cifar10": "lightly's loop with 15 epochs, one CPU core",
    })  # fmt: skip
    row = max(rows_of("cifar10_h100"), key=lambda row: row["test"].get("test/knn10/knn_top1", 0.0))
    accuracies = [mean_cell([row["test"][f"test/{metric}"]], metric) for metric in CPU_RECIPE_METRICS]
    minutes = f"{row['seconds'] / 60:.1f}"
    first = ["`cifar10_speedrun.yaml`, one H100", str(row["epochs"]), minutes, *accuracies, "1"]
    return [titles, first, *lines]


def gpu_epochs(names: Mapping[str, str]) -> list[list[str]]:
    """Return the seconds of the first and of later epochs with each size of views.

    Args:
        names: files of records with several epochs for each size, by the heading of their columns.
    """
    titles, cells = ["pixels of the views"], defaultdict[int, list[str]](list)
    for title, name in names.items():
        titles += [f"{title}: first epoch, s", "later epochs, s"]
        seconds: dict[int, list[float]] = defaultdict(list)
        for epoch in json.loads((RESULTS / f"{name}.json").read_text())["epochs"]:
            seconds[epoch["size"]].append(epoch["seconds"])
        for size, (first, *later) in seconds.items():
            cells[size] += [f"{first:.1f}", f"{median(later):.2f}"]
    return [titles, *([str(size), *values] for size, values in cells.items())]


def gpu_runs(name: str) -> list[list[str]]:
    """Return options, time, memory and accuracies of runs on a GPU.

    Args:
        name: file of their rows.
    """
    accuracies = {
        "validation, kNN (k = 10) %": ("validation", "knn_top1"),
        "test, kNN (k = 10) %": ("test", "test/knn10/knn_top1"),
        "test, kNN %": ("test", "test/knn_top1"),
        "test, linear %": ("test", "test/linear_top1"),
    }
    lines = [
        [
            "epochs",
            "pixels",
            "learning rate",
            "CUDA graph",
            "minutes",
            "images/s",
            "GPU memory, MiB",
            *accuracies,
        ]
    ]
    for row in rows_of(name):
        options = [
            str(row["epochs"]),
            row.get("pixels", "–"),
            str(row["lr"]),
            "yes" if row["cuda_graph"] else "no",
        ]
        speed = [f"{row['seconds'] / 60:.1f}", f"{row['images_per_second']:,}", f"{row['device_mb']:,}"]
        values = [row[split].get(metric) for split, metric in accuracies.values()]
        cells = ["–" if value is None else mean_cell([value], "knn_top1") for value in values]
        lines.append([*options, *speed, *cells])
    return lines


BASELINES = {
    ("trained", "backbone"): "trained backbone",
    ("untrained", "backbone"): "untrained backbone",
    ("pixels", "raw"): "raw pixels",
}
FEW_LABELS = {
    ("linear_top1", "1%"): "linear, 1 % of the labels",
    ("linear_top1", "10%"): "linear, 10 % of the labels",
    ("linear_top1", None): "linear, all labels",
    ("knn_top1", None): "kNN, all labels",
}
CPU_RECIPE = {
    "cifar10_cpu": "cifar10_cpu.yaml",
    "cifar10_cpu_two_threads": "cifar10_cpu.yaml, two threads",
    "lightly_cifar10_cpu": "lightly's loop",
    "cifar10_cpu_hour": "cifar10_cpu.yaml, 40 epochs",
    "lightly_objectives_cifar10": "lightly's loop, 15 epochs",
}
CPU_RECIPE_METRICS = ("knn10/knn_top1", *ACCURACIES)
NARROW = ("methods_cifar10_narrow", "lightly_cifar10_narrow")
DUAL, INFO = "DualTemperature", "InfoNCE"
NARROW_PAIRS = [
    *(((method, DUAL), (method, INFO)) for method in ("SimCLR", "SimCo", "SimMoCo", "MoCo")),
    (("SimCo", DUAL), ("MoCo", INFO)),
    *(
        ((first, objective), (second, objective))
        for first, second in (("SimCo", "MoCo"), ("SimCo", "SimMoCo"), ("SimMoCo", "MoCo"))
        for objective in (DUAL, INFO)
    ),
]
OBJECTIVES, STL10 = "objectives_cifar10_narrow", "objectives_stl10"
LOW_TEMPERATURE = "objectives_best_temperature_cifar10_narrow"
OBJECTIVE_METRICS = ("knn_top1", "knn20/knn_top1", "linear_top1")
OBJECTIVES_AND_LIGHTLY = (OBJECTIVES, "lightly_objectives_cifar10")
OBJECTIVE_PAIRS = [
    (("SimCLR", first), ("SimCLR", second))
    for first, second in (
        (DUAL, INFO),
        ("DCL", INFO),
        ("MACL", INFO),
        ("DCL", DUAL),
        (DUAL, "MACL"),
        ("DCL", "MACL"),
    )
]
RECLAIM = (*ACCURACIES, *LABEL_SHARES)
TABLES: dict[str, Callable[[], str]] = {
    "few labels": few_labels,
    "accuracy of methods": lambda: means(NARROW, ACCURACIES),
    "geometry of methods": lambda: means(NARROW, GEOMETRY),
    "accuracy of objectives": lambda: means(OBJECTIVES_AND_LIGHTLY, OBJECTIVE_METRICS),
    "geometry of objectives": lambda: means(OBJECTIVES_AND_LIGHTLY, GEOMETRY),
    "differences of objectives by kNN accuracy": lambda: differences(OBJECTIVES, OBJECTIVE_PAIRS, "knn_top1"),
    "differences of objectives by kNN accuracy with k = 20": lambda: differences(
        OBJECTIVES, OBJECTIVE_PAIRS, "knn20/knn_top1"
    ),
    "differences of objectives by linear accuracy": lambda: differences(
        OBJECTIVES, OBJECTIVE_PAIRS, "linear_top1"
    ),
    "accuracy of objectives on STL-10": lambda: means([STL10], ACCURACIES),
    "differences of objectives on STL-10": lambda: differences(STL10, OBJECTIVE_PAIRS, "linear_top1"),
    "choosing by linear accuracy": lambda: markdown(choosing.evidence_table("linear_top1")),
    "choosing by kNN accuracy": lambda: markdown(choosing.evidence_table("knn_top1")),
    "choosing with colour jitter by linear accuracy": lambda: markdown(
        choosing.evidence_table("linear_top1", "same")
    ),
    "choosing with colour jitter by kNN accuracy": lambda: markdown(
        choosing.evidence_table("knn_top1", "same")
    ),
    "linear accuracy by temperature": lambda: markdown(choosing.temperature_table("InfoNCE", "linear_top1")),
    "kNN accuracy by temperature": lambda: markdown(choosing.temperature_table("InfoNCE", "knn_top1")),
    "accuracy of objectives at τ = 0.05": lambda: means([LOW_TEMPERATURE], OBJECTIVE_METRICS),
    "differences between τ = 0.05 and 0.1": lambda: markdown(temperature_differences(OBJECTIVE_METRICS)),
    "differences of objectives at τ = 0.05 by kNN accuracy": lambda: differences(
        LOW_TEMPERATURE, OBJECTIVE_PAIRS, "knn_top1"
    ),
    "differences of objectives at τ = 0.05 by kNN accuracy with k = 20": lambda: differences(
        LOW_TEMPERATURE, OBJECTIVE_PAIRS, "knn20/knn_top1"
    ),
    "differences of objectives at τ = 0.05 by linear accuracy": lambda: differences(
        LOW_TEMPERATURE, OBJECTIVE_PAIRS, "linear_top1"
    ),
    "geometry of objectives at τ = 0.05": lambda: means([LOW_TEMPERATURE], GEOMETRY),
    "temperatures of objectives": lambda: markdown(temperatures("objectives_temperature_cifar10_narrow")),
    "objectives over 200 epochs": lambda: markdown(over_epochs("macl_epochs")),
    "RECLAIM": lambda: markdown(reclaim(ACCURACIES, CRITIC)),
    "RECLAIM with few labels": lambda: markdown(reclaim(list(LABEL_SHARES))),
    "differences of RECLAIM by negatives": lambda: markdown(reclaim_differences(RECLAIM, "negatives")),
    "differences of RECLAIM by weight": lambda: markdown(reclaim_differences(RECLAIM, "weight")),
    "recipes for a CPU": lambda: markdown(recipes(recipes_of(1200), "start")),
    "width of the CPU recipe": lambda: markdown(
        recipes([*recipes_of(6400), *cpu_recipe_validations()], "SGD, smaller")
    ),
    "CPU recipe": lambda: markdown(cpu_recipe(CPU_RECIPE)),
    "best recipes": lambda: markdown(best()),
    "epochs on a GPU": lambda: markdown(
        gpu_epochs({"no CUDA graph": "epoch_speedrun_cuda", "CUDA graph": "epoch_speedrun_graph_cuda"})
    ),
    "run on a GPU": lambda: markdown(gpu_runs("cifar10_h100")),
    "gradient dissipation": lambda: markdown(dissipation()),
    "margin of the unified gradient": lambda: markdown(unified_gradient("margin")),
    "temperature of the unified gradient": lambda: markdown(unified_gradient("negatives_temperature")),
    "ratio of the unified gradient": lambda: markdown(unified_gradient("ratio")),
    "sensitivity over temperature": lambda: markdown(choosing.sensitivity_table()),
    "continued pretraining": lambda: markdown(continued_pretraining()),
    "statistics of continued pretraining": lambda: markdown(statistics_of_batch_norm()),
    "differences of methods": lambda: differences("methods_cifar10_narrow", NARROW_PAIRS, "knn_top1"),
}
"""Tables by the name that a page gives."""
