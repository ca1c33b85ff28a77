"""Compare recipes that train SimCLR on CIFAR-10 for the same time on one CPU core.

    python benchmarks/cpu_recipes.py --data data --seconds 1200
    python benchmarks/cpu_recipes.py --data data --recipes start smaller --seeds 0 1 2

The recipe ``start`` is configs/pretrain/cifar10_narrow.yaml with another number of epochs, and each of the
others changes one or more ingredients. A recipe is trained by ``ssl-vision fit`` for as many epochs as take
the given number of core-seconds, by the time of a step at each size of the views. That time is measured once
for each width and batch size, so that recipes with equal steps have equal numbers of epochs. The accuracy is
that of kNN (k = 10) on held-out training images. Adds a row for each recipe and seed to
benchmarks/results/cpu_recipes.json as soon as it is finished, and leaves out those that have a row. A stopped
recipe continues.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from provenance import provenance
from rows import add_row, rows_of

from ssl_vision.data import Views
from ssl_vision.encoders import ResNet
from ssl_vision.methods import SimCLR
from ssl_vision.runs.registry import Run

IMAGES = 50_000


class Recipe(NamedTuple):
    """Differences from ``start``."""

    options: tuple[str, ...] = ()
    """Options of ``ssl-vision fit``."""
    sizes: tuple[tuple[float, int], ...] = ((1.0, 32),)
    """Share of the time and size of the views, one after the other."""
    width: int = 16
    batch: int = 256


SMALLER = ((0.4, 16), (0.3, 24), (0.3, 32))
SMALLER_FOR_LONGER = ((0.6, 16), (0.2, 24), (0.2, 32))
SGD = (
    "--model.optimizer.name=sgd",
    "--model.optimizer.lr=0.1",
    "--model.optimizer.weight_decay=5e-4",
)
LARGER = "--data.views.scale=[0.2, 1.0]"
RECIPES = {
    "start": Recipe(),
    "smaller": Recipe(sizes=SMALLER),
    "larger crops": Recipe((LARGER,)),
    "temperature 0.2": Recipe(("--model.objective.temperature=0.2",)),
    "learning rate 3e-3": Recipe(("--model.optimizer.lr=3e-3",)),
    "AdamW": Recipe(("--model.optimizer.name=adamw", "--model.optimizer.weight_decay=0.05")),
    "SGD": Recipe(SGD),
    "LARS": Recipe(("--model.optimizer.name=lars", "--model.optimizer.lr=1.0")),
    "Muon": Recipe(("--model.optimizer.name=muon",)),
    "Muon, learning rate 3e-3": Recipe(("--model.optimizer.name=muon", "--model.optimizer.lr=3e-3")),
    "averaged weights": Recipe(
        (
            "--trainer.callbacks+=pytorch_lightning.callbacks.EMAWeightAveraging",
            "--trainer.callbacks.decay=0.998",
        )
    ),
    "DCL": Recipe(("--model.objective=DCL",)),
    "BatchNorm in the whole head": Recipe(("--model.head_batch_norm=all",)),
    "batch size 128": Recipe(batch=128),
    "width 32": Recipe(width=32),
    "width 32, smaller": Recipe(sizes=SMALLER, width=32),
    "SGD, smaller": Recipe(SGD, SMALLER),
    "SGD, smaller, larger crops": Recipe((*SGD, LARGER), SMALLER),
    "SGD, smaller, batch size 128": Recipe(SGD, SMALLER, batch=128),
    "SGD, smaller, BatchNorm in the whole head": Recipe((*SGD, "--model.head_batch_norm=all"), SMALLER),
    "SGD, smaller, temperature 0.2": Recipe((*SGD, "--model.objective.temperature=0.2"), SMALLER),
    "SGD, smaller, learning rate 0.3": Recipe((*SGD, "--model.optimizer.lr=0.3"), SMALLER),
    "SGD, smaller for longer": Recipe(SGD, SMALLER_FOR_LONGER),
    "SGD, smaller, DCL": Recipe((*SGD, "--model.objective=DCL"), SMALLER),
    "SGD, smaller, width 24": Recipe(SGD, SMALLER, width=24),
    "SGD, smaller, width 32": Recipe(SGD, SMALLER, width=32),
}


def step_seconds(recipe: Recipe, size: int) -> float:
    """Measure the CPU seconds of a training step with random images: the shortest of four."""
    torch.set_num_threads(1)
    model = SimCLR(encoder=partial(ResNet, width=recipe.width), seed=0)
    model.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    views, indices = Views(size=size), torch.arange(recipe.batch)
    images = torch.randint(256, (recipe.batch, 3, 32, 32), dtype=torch.uint8)
    seconds = []
    for epoch in range(5):
        start = time.process_time()
        both = views(images, indices, seed=0, epoch=epoch, memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            embeddings = model(both).projector
        model.objective(*embeddings.float().chunk(2)).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - start)
    return min(seconds[1:])


def steps_of(recipe: Recipe, rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Return the seconds of a step at each size of the views: those of the first row that has them."""
    measured: dict[int, float] = {}
    for row in rows:
        if RECIPES[row["recipe"]][2:] == recipe[2:]:
            for size, seconds in row["step_seconds"].items():
                measured.setdefault(int(size), seconds)
    return {size: measured.get(size) or round(step_seconds(recipe, size), 4) for _, size in recipe.sizes}


def schedule(recipe: Recipe, seconds: float, steps: Mapping[int, float]) -> tuple[dict[int, int], int]:
    """Divide the time among the sizes of the views.

    Args:
        recipe: the recipe.
        seconds: core-seconds of training.
        steps: seconds of a step by the size of the views.

    Returns:
        The value of ``progressive_resizing``, and the number of epochs.
    """
    end, ends = 0.0, []
    for share, size in recipe.sizes:
        end += share * seconds / (steps[size] * (IMAGES // recipe.batch))
        ends.append((max(1, round(end)), size))
    return dict(ends[:-1]), ends[-1][0]


def options_of(recipe: Recipe, sizes: Mapping[int, int], epochs: int) -> list[str]:
    """Return the options of ``ssl-vision fit`` besides those of the place and the seed."""
    resizing = [f"--data.progressive_resizing={json.dumps(sizes)}"] if sizes else []
    return [
        "--config=configs/pretrain/cifar10_narrow.yaml", "--trainer.accelerator=cpu",
        f"--data.batch_size={recipe.batch}",
        f"--model.encoder.width={recipe.width}", "--metrics.k=10", f"--trainer.max_epochs={epochs}",
        f"--trainer.check_val_every_n_epoch={epochs}", *resizing, *recipe.options,
    ]  # fmt: skip


def trained(
    name: str, chosen: argparse.Namespace, seed: int, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Train a recipe, or continue it, and return its row."""
    recipe = RECIPES[name]
    steps = steps_of(recipe, rows)
    place = f"{name.replace(' ', '_')}-{chosen.seconds:g}-{seed}"
    run = Run(chosen.runs_dir / place)
    if run.folder.config_file.exists():
        sizes, epochs = run.setting("data.progressive_resizing"), run.setting("trainer.max_epochs")
    else:
        sizes, epochs = schedule(recipe, chosen.seconds, steps)
    options = options_of(recipe, sizes, epochs)
    run_options = [f"--runs_dir={chosen.runs_dir}", f"--name={place}", f"--data.root={chosen.data}"]
    run_options += [f"--seed_everything={seed}", "--ckpt_path=last", "--report=false"]
    fit = [
        sys.executable,
        "-m",
        "ssl_vision",
        "fit",
        *options,
        *run_options,
        "--trainer.enable_progress_bar=false",
    ]
    subprocess.run(fit, check=True, stdout=sys.stderr)
    run = Run(chosen.runs_dir / place)
    return {
        "recipe": name,
        "seed": seed,
        "core_seconds": chosen.seconds,
        "step_seconds": {str(size): each for size, each in steps.items()},
        "epochs": epochs,
        "sizes": sizes,
        "knn_top1": run.last("val/knn_top1"),
        "validated_on": run.validated_on,
        "options": options,
        **provenance("torchvision", "pytorch-lightning"),
    }


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory of CIFAR-10")
    parser.add_argument("--seconds", type=float, default=1200, help="core-seconds of training")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--runs_dir", type=Path, default=Path("runs/cpu_recipes"))
    chosen = parser.parse_args()
    for seed in chosen.seeds:
        for name in chosen.recipes:
            key = (name, seed, chosen.seconds)
            rows = rows_of("cpu_recipes")
            if all((each["recipe"], each["seed"], each["core_seconds"]) != key for each in rows):
                add_row("cpu_recipes", trained(name, chosen, seed, rows))


if __name__ == "__main__":
    main()
