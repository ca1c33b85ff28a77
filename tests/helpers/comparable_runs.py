"""Hand-made run directories with evaluation rows, and the output of ``ssl-vision compare`` for them."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_vision.main import main

CONFIG: dict[str, Any] = {
    "seed_everything": 0,
    "model": {
        "class_path": "SimCLR",
        "init_args": {
            "encoder": {"class_path": "ssl_vision.encoders.ResNet", "init_args": {"width": 64}},
            "objective": None,
        },
    },
    "data": {"class_path": "ssl_vision.data.Digits", "init_args": {"batch_size": 64, "root": "x"}},
    "trainer": {"max_epochs": 2, "max_steps": -1},
}


def set_option(config: dict[str, Any], key: str, value: object) -> None:
    *path, last = key.split(".")
    for part in path:
        config = config[part]
    config[last] = value


def make_run(
    path: str | Path,
    objective: str = "MACL",
    seed: int = 0,
    score: float = 0.5,
    *,
    epochs: int = 2,
    rows: list[dict[str, Any]] | None = None,
    temperature: float = 0.1,
    **changes: object,
) -> None:
    config = copy.deepcopy(CONFIG)
    spec = {"class_path": f"ssl_vision.objectives.{objective}", "init_args": {"temperature": temperature}}
    config["model"]["init_args"]["objective"] = spec
    config["seed_everything"] = seed
    for key, value in changes.items():
        set_option(config, key, value)
    path = Path(path)
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [f"{4 * i + 3},{i},{score - 0.1 * (epochs - 1 - i)}" for i in range(epochs)]
    (path / "metrics.csv").write_text("\n".join(["step,epoch,val/knn_top1", *lines]) + "\n")
    lines = [f"{4 * i + 3},{i},1" for i in range(epochs)]
    (path / "times.csv").write_text("\n".join(["step,epoch,time/train_seconds", *lines]) + "\n")
    if rows is None:
        rows = [row(score), row(score / 2, layer="projector"), row(score, features="untrained")]
    (path / "evaluation.json").write_text(json.dumps(rows))


def row(value: float, **fields: object) -> dict[str, Any]:
    defaults = {"features": "trained", "layer": "backbone", "metric": "knn_top1", "split": "test"}
    data = {"data": "Digits", "root": "x"}
    return defaults | data | {"value": value, "protocol": "macl", "epoch": 2, "k": 200} | fields


def compare_runs(*args: object) -> Any:
    assert main(["compare", *map(str, args), "--output=out.json"]) == 0
    with open("out.json", encoding="utf-8") as file:
        return json.load(file)


def compare_error(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    assert main(["compare", *map(str, args)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("ssl-vision compare: ")
