"""Two processes with uneven shards give the value of one. Run as a script, this file is such a process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ssl_vision.metrics import Alignment, KNNAccuracy, LiDAR, Ranking, Representation

SHARDS = (slice(0, 23), slice(23, 60))


def measure(rows):
    """All metrics of these rows of one data set; the first shard's queries are all unlabelled."""
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (60,), generator=g)
    features = torch.randn(4, 6, generator=g)[labels] + torch.randn(60, 6, generator=g)
    other, truth = features + torch.randn(60, 6, generator=g), labels.clone()
    truth[SHARDS[0]] = -1
    alignment, representation, lidar = Alignment(), Representation(extended=True), LiDAR()
    knn, ranking = KNNAccuracy(num_classes=4, k=9), Ranking()
    for part in torch.arange(60)[rows].split(8):
        alignment.update(features[part], other[part])
        lidar.update(features[part], other[part])
        representation.update(features[part], labels[part])
        knn.update(features[part], labels[part], "bank")
        ranking.update(features[part], torch.stack([labels // 2, labels], dim=1)[part])
        knn.update(other[part], truth[part], "query")
    values = {"alignment": alignment.compute(), "lidar": lidar.compute(), **representation.compute()}
    values |= ranking.compute()
    table = {f"knn, k = {s.k}, T = {s.temperature}": s.top1 for s in knn.table((1, 9), (0.1, None))}
    return {name: value.item() for name, value in values.items()} | table | {"knn": knn.compute().item()}


def test_two_processes_equal_one(tmp_path):
    command = [sys.executable, __file__, f"file://{tmp_path}/store"]
    ranks = [subprocess.Popen([*command, str(rank), f"{tmp_path}/{rank}.json"]) for rank in range(2)]
    try:
        assert [process.wait(timeout=120) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    expected = measure(slice(0, 60))
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == pytest.approx(expected, abs=1e-6)
    assert measure(SHARDS[1]) != pytest.approx(expected, abs=1e-3)


if __name__ == "__main__":
    store, rank, result = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    result.write_text(json.dumps(measure(SHARDS[rank])))
    torch.distributed.destroy_process_group()
