"""Count kernel launches and host waits of a training step on CUDA, on a fake device that runs no kernel.

The network is a ResNet-18 of width 4, and the batch has 64 images. The script requires gcc, a CUDA build of
PyTorch and CUDA headers, but no GPU. The columns of version 0.1 are those of results/launches_0_1.json, which
was counted once on the same fake device.
"""

import json
import sys
from pathlib import Path

from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.errors import InputError

TESTS = Path(__file__).parents[1] / "tests"
sys.path.append(str(TESTS / "helpers"))
import fake_device  # noqa: E402
from provenance import RESULTS  # noqa: E402

CASES = {
    "infonce": "InfoNCE",
    "supcon": "SupCon",
    "reclaim": "RECLAIM",
    "method moco_v2": "MoCo v2",
    "bn per_view": "`bn per_view`",
    "chunks": "`chunk_size` of a quarter of the batch",
    "lars, bf16-mixed": "LARS",
    "compiled views": "compiled views",
    "compiled views and encoder": "compiled views and encoder",
    "graph, adam, bf16-mixed": "`cuda_graph`",
    "graph, method moco_v2": "`cuda_graph`, MoCo v2",
    "graph, compiled views and encoder": "`cuda_graph`, compiled views and encoder",
    "graph, compiled loss": "`cuda_graph`, compiled views, encoder and loss",
    "graph, all options": "`cuda_graph`, all options of docs/gpu.md",
}
PARTS = ("forward", "backward", "optimizer", "next views")


def main() -> None:
    """Print a table of the cases."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path(".pytest_cache/d/fake_device"), help="builds")
    args = parser.parse_args()
    if reason := fake_device.reason_to_skip():
        raise InputError(reason)
    args.cache.mkdir(parents=True, exist_ok=True)
    libraries = fake_device.build(args.cache.resolve())
    results = fake_device.run(libraries, TESTS / "device" / "test_training.py", CASES, seconds=1800)
    first = json.loads((RESULTS / "launches_0_1.json").read_text())["rows"]
    columns = ["case", *PARTS, "together", "graphs", "kernels in graph", "waits", "together in 0.1"]
    print(f"| {' | '.join(columns)} | waits in 0.1 |")
    print("|---" * (len(columns) + 1) + "|")
    for case, title in CASES.items():
        result = results[case]
        if "error" in result:
            print(f"| {title} | {result['error']} |")
            continue
        ends = [
            result.get(part, {"launch": 0})["launch"] for part in ("forward", "backward", "update", "whole")
        ]
        parts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        whole_step = result["whole"]
        numbers = [*parts, ends[-1], whole_step["graph"], result["captured"], whole_step["wait"]]
        before = [f"{number:,}" for number in first[case].values()] if case in first else ["–", "–"]
        print(f"| {title} | " + " | ".join([*(f"{number:,}" for number in numbers), *before]) + " |")


if __name__ == "__main__":
    main()
