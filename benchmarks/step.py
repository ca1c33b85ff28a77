"""Measure the parts of a pretraining step, the overhead of Lightning, and the use of the device.

    python benchmarks/step.py                                           on the CPU
    python benchmarks/step.py --device cuda --compile_mode default      on a GPU
    python benchmarks/step.py --width 16 --batch 64 --steps 10          a smaller network

A ResNet-18 with the small-image stem trains on random images on the device. The parts are measured one after
the other in a plain loop. The undivided step is then measured in that loop and under Lightning's Trainer with
the additions of ``ssl-vision fit``. Times are medians over ``--rounds`` of ``--steps`` steps. The script
writes benchmarks/results/step_<device>.json.
"""

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from provenance import provenance, save
from torch.utils.flop_counter import FlopCounterMode

from ssl_vision.callbacks import ObjectiveStatistics
from ssl_vision.data import Batch, ImageData, Images, Views
from ssl_vision.encoders import ResNet
from ssl_vision.methods import SimCLR

PARTS = ("views", "forward", "objective", "backward", "optimizer")


class RandomImages(ImageData):
    """Random images for timing."""

    def __init__(self, *, count: int, size: int, batch_size: int) -> None:
        super().__init__(root=".", views=Views(size=size), batch_size=batch_size)
        g = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 256, (count, 3, size, size), generator=g, dtype=torch.uint8)
        self.images = Images(pixels, torch.zeros(count, dtype=torch.int64), ("noise",))

    def read(self, split: str) -> Images:
        """Return the same images for every split."""
        return self.images


class Marks(pl.Callback):
    """Records the time at which each step of a Trainer ends."""

    def __init__(self, wait: Callable[[], None], warm: int, steps: int) -> None:
        self.wait, self.warm, self.steps = wait, warm, steps
        self.seconds: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """Read the clock after the warm-up and after each round."""
        if trainer.global_step >= self.warm and (trainer.global_step - self.warm) % self.steps == 0:
            self.wait()
            self.seconds.append(time.perf_counter())


class Bench:
    """A model, a batch and a clock on one device."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen, self.device = chosen, torch.device(chosen.device)
        self.wait: Callable[[], None] = torch.cuda.synchronize if self.device.type == "cuda" else lambda: None
        self.data = RandomImages(count=4 * chosen.batch, size=chosen.size, batch_size=chosen.batch)
        self.rows = torch.arange(chosen.batch, device=self.device)
        self.pixels = self.data.images.images[: chosen.batch].to(self.device)
        self.views = Views(size=chosen.size, compile=chosen.compile_mode is not None)
        self.count = 0

    def model(self, *, cuda_graph: bool = False) -> SimCLR:
        """Create a new network on the device."""
        chosen = self.chosen
        model = SimCLR(
            encoder=partial(ResNet, width=chosen.width, stem=chosen.stem),
            compile_mode=chosen.compile_mode,
            cuda_graph=cuda_graph,
        )
        return model.to(self.device)

    def autocast(self) -> Any:
        """Return a context with bfloat16 autocast, or without autocast."""
        if self.chosen.precision == "32-true":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def make_views(self) -> torch.Tensor:
        """Generate new views of the batch."""
        self.count += 1
        dtype = torch.float32 if self.chosen.precision == "32-true" else torch.bfloat16
        return self.views(
            self.pixels, self.rows, seed=0, epoch=self.count, dtype=dtype, memory_format=torch.channels_last
        )

    def parts(self) -> dict[str, float]:
        """Measure the seconds of each part of a step, with synchronisations in between."""
        model = self.model()
        model.setup("fit")
        optimizer = model.optimizer_rule.optimizer(model)
        seconds: dict[str, list[float]] = {part: [] for part in PARTS}
        for step in range(self.chosen.warm + self.chosen.rounds * self.chosen.steps):
            marks: list[float] = []

            def mark(marks: list[float] = marks) -> None:
                self.wait()
                marks.append(time.perf_counter())

            mark()
            views = self.make_views()
            mark()
            with self.autocast():
                z1, z2 = model(views).projector.chunk(2)
                mark()
                loss = model.objective(z1, z2)
            mark()
            loss.backward()
            mark()
            optimizer.step()
            optimizer.zero_grad()
            mark()
            if step >= self.chosen.warm:
                for part, start, stop in zip(PARTS, marks[:-1], marks[1:], strict=True):
                    seconds[part].append(stop - start)
        return {part: statistics.median(values) for part, values in seconds.items()}

    def bare(self) -> Callable[[int], float]:
        """Measure the seconds per step in a plain loop."""
        model = self.model()
        model.setup("fit")
        optimizer = model.optimizer_rule.optimizer(model)

        def run(steps: int) -> float:
            self.wait()
            start = time.perf_counter()
            for _ in range(steps):
                batch = Batch(self.pixels, self.rows, self.rows, self.make_views())
                with self.autocast():
                    loss = model.training_step(batch, 0)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            self.wait()
            return (time.perf_counter() - start) / steps

        return run

    def lightning(self, *, cuda_graph: bool = False) -> list[float]:
        """Measure the seconds per step under the Trainer, a value for each round."""
        marks = Marks(self.wait, self.chosen.warm, self.chosen.steps)
        self.data.views = self.views
        with tempfile.TemporaryDirectory() as folder:
            trainer = pl.Trainer(
                max_steps=self.chosen.warm + self.chosen.rounds * self.chosen.steps,
                accelerator="gpu" if self.device.type == "cuda" else "cpu",
                devices=1,
                precision=self.chosen.precision,
                limit_val_batches=0,
                log_every_n_steps=10,
                enable_progress_bar=False,
                enable_checkpointing=False,
                enable_model_summary=False,
                logger=False,
                callbacks=[ObjectiveStatistics(), marks],
                default_root_dir=folder,
            )
            trainer.fit(self.model(cuda_graph=cuda_graph), self.data)
        return [(b - a) / self.chosen.steps for a, b in zip(marks.seconds, marks.seconds[1:], strict=False)]

    def flops(self) -> float:
        """Count the floating-point operations of a step, forward and backward, of both views."""
        model = SimCLR(encoder=partial(ResNet, width=self.chosen.width, stem=self.chosen.stem))
        few = torch.zeros(4, 3, self.chosen.size, self.chosen.size)
        with FlopCounterMode(display=False) as counter:
            model(few).projector.sum().backward()
        flops: float = counter.get_total_flops() / len(few) * 2 * self.chosen.batch
        return flops


def table(record: dict[str, Any]) -> str:
    """Format the parts with their shares, the step, and the rate."""
    parts, step, options = record["parts_ms"], record["bare_ms"], record["options"]
    lines = ["| part | ms | share |", "|---|---|---|"]
    lines += [f"| {part} | {ms:.1f} | {100 * ms / sum(parts.values()):.1f} % |" for part, ms in parts.items()]
    lines.append(f"| the step, undivided | {step:.1f} | |")
    lines.append(
        f"| the same under Lightning | {record['lightning_ms']:.1f} | {record['lightning_ms'] / step:.3f} × |"
    )
    if "graph_ms" in record:
        lines.append(f"| under Lightning, as one CUDA graph | {record['graph_ms']:.1f} | |")
    rate = f"{record['tflops']:.2f} TFLOP/s"
    if options["device"] != "cpu":
        rate += f", {100 * record['tflops'] / options['peak']:.0f} % of the peak"
    return "\n".join([*lines, f"| arithmetic | {rate} | |"])


def main() -> None:
    """Measure, print the tables and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--stem", default="small", choices=["small", "imagenet"])
    parser.add_argument("--precision", default="bf16-mixed", choices=["bf16-mixed", "32-true"])
    parser.add_argument("--compile_mode", choices=["default", "reduce-overhead", "max-autotune"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument(
        "--peak", type=float, default=790.0, help="peak rate of the device in bfloat16, TFLOP/s"
    )
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    bench = Bench(chosen)
    parts = bench.parts()
    loop = bench.bare()
    loop(chosen.warm)
    bare = [loop(chosen.steps) for _ in range(chosen.rounds)]
    trained = bench.lightning()
    step, under = statistics.median(bare), statistics.median(trained)
    rate = bench.flops() / step / 1e12
    record = provenance("pytorch-lightning", "torchvision", device=chosen.device) | {
        "options": vars(chosen),
        "parts_ms": {part: round(1e3 * value, 3) for part, value in parts.items()},
        "bare_ms": round(1e3 * step, 3),
        "lightning_ms": round(1e3 * under, 3),
        "tflops": round(rate, 3),
    }
    if chosen.device == "cuda" and chosen.compile_mode in (None, "default"):
        record["graph_ms"] = round(1e3 * statistics.median(bench.lightning(cuda_graph=True)), 3)
    save(f"step_{chosen.device}", record)
    print(table(record))


if __name__ == "__main__":
    main()
