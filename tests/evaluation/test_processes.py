"""Tests of embedding in several processes: the output does not depend on their number."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image
from threadpoolctl import threadpool_limits
from torchmetrics import MeanMetric

from ssl_vision.data import Views
from ssl_vision.errors import InputError
from ssl_vision.evaluation import features
from ssl_vision.evaluation.measurement import Measurement, Value
from ssl_vision.evaluation.processes import (
    ProcessEnded,
    agreed,
    first_before_others,
    gathered,
    is_first,
    process_group,
    sharing,
)
from ssl_vision.evaluation.protocol import Protocol, read_protocol
from ssl_vision.evaluation.subject import Subject, run_protocols
from ssl_vision.main import main


def in_processes(function, count=3):
    """Call a function within `sharing` in forked processes, and return the results or errors of all.

    Killed processes have the result None, as have those that wait after an error in the first one, when
    torchrun would end them.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(count)]

    def run(rank):
        torch.set_num_threads(1)
        with threadpool_limits(1):  # threads do not survive a fork
            os.environ |= {
                "RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port), "TORCHELASTIC_RUN_ID": "test",
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            }  # fmt: skip
            try:
                with sharing():
                    result = function(rank)
            except BaseException as error:
                result = error
            pipes[rank][1].send(result)
            os._exit(0)

    processes = [context.Process(target=run, args=(rank,)) for rank in range(count)]
    for process in processes:
        process.start()
    for _, end in pipes:
        end.close()
    try:
        results = []
        for end, _ in pipes:
            failed = bool(results) and isinstance(results[0], Exception)
            if not end.poll(1 if failed else 60):
                assert failed, "a process does not end"
            try:
                results.append(end.recv() if end.poll() else None)
            except EOFError:
                results.append(None)
        return results
    finally:
        for process in processes:
            process.kill()


def squares(items, share):
    return (item * item for item in items[share])


def test_first_process_gathers_results_in_order():
    def run(rank):
        results = []
        for count in (0, 1, 3, 7):
            items = list(range(count))
            with process_group():
                results.append(list(gathered(partial(squares, items), count)))
        return results

    expected = run(0)
    assert expected[-1] == [0, 1, 4, 9, 16, 25, 36]
    assert in_processes(run) == [expected, [[]] * 4, [[]] * 4]


def test_results_are_gathered_in_a_process_group_only():
    def run(rank):
        with process_group():
            pass
        return list(gathered(partial(squares, [rank, 5]), 2)), agreed(rank), is_first()

    assert in_processes(run) == [([0, 25], 0, True), ([1, 25], 1, False), ([4, 25], 2, False)]


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("error", [InputError("a.png is damaged"), KeyError("a.png")])
def test_error_of_any_process_is_raised_in_first_process(rank, error):
    def run(own_rank):
        def own(share):
            yield 0
            if own_rank == rank:
                raise error
            yield 1

        with process_group():
            return list(gathered(own, 9))

    first, *others = in_processes(run)
    assert (type(first), str(first)) == (type(error), str(error))
    assert [type(each) for each in others] == [ProcessEnded, ProcessEnded]


def test_agreed_returns_the_value_of_the_first_process():
    def run(rank):
        with process_group():
            return agreed(rank + 5)

    assert in_processes(run) == [5, 5, 5]


def test_first_process_runs_before_others(tmp_path):
    def run(rank):
        with first_before_others():
            (tmp_path / str(rank)).touch()
            return (tmp_path / "0").exists()

    assert in_processes(run) == [True, True, True]


@pytest.mark.parametrize("killed", [0, 1])
def test_killed_process_is_an_error_in_the_others(killed):
    def run(rank):
        def own(share):
            yield 0
            if rank == killed:
                os.kill(os.getpid(), signal.SIGKILL)
            yield 1

        with process_group():
            return list(gathered(own, 6))

    results = in_processes(run)
    assert results.pop(killed) is None
    assert [str(each) for each in results] == [
        "another process has ended, probably because it ran out of memory"
    ] * 2


@pytest.fixture
def subject():
    """Two networks and labelled images."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(128, (150, 3, 8, 8), dtype=torch.uint8, generator=generator)
    data = [(image + 60 * (row % 3), row % 3) for row, image in enumerate(images)]
    torch.manual_seed(0)
    one, two = (
        Subject.of_module(
            torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 5)),
            train=data, test=data[:70], views=Views(size=8),
        ).networks[0]
        for _ in range(2)
    )  # fmt: skip
    return Subject((one, one.with_network(two.encoder, name="other")), one.splits, "two networks")


@pytest.fixture
def protocol(tmp_path):
    (tmp_path / "mine.yaml").write_text("measurements: [knn: {k: 5}, linear: {epochs: 2}, geometry: {}]")
    return read_protocol(str(tmp_path / "mine.yaml"))


def rows(subject, protocol):
    return [row.as_dict() for row in run_protocols(subject, [protocol]).rows]


@pytest.fixture
def batches_of_16(monkeypatch):
    monkeypatch.setattr(features, "images_at_once", lambda *_: 16)


def test_rows_do_not_depend_on_the_number_of_processes(subject, protocol, batches_of_16):
    embedded = []

    def run(rank):
        outputs = features._outputs

        def counted(network, data, prepare, batches, share):
            embedded.append(len(batches[share]))
            return outputs(network, data, prepare, batches, share)

        features._outputs = counted
        try:
            return rows(subject, protocol), embedded
        except SystemExit as end:
            return end.code, embedded

    expected, _ = in_processes(run, 1)[0]
    assert {row["features"] for row in expected} == {"trained", "other"}
    for count in (2, 3):
        (first, own), *others = in_processes(run, count)
        assert first == expected
        assert own[:2] == [len(range(0, 5, count)), len(range(0, 10, count))]  # queries, and then the bank
        assert [code for code, _ in others] == [0] * (count - 1)
        assert [len(shares) for _, shares in others] == [len(own)] * (count - 1)


@dataclass(frozen=True)
class Mean(Measurement):
    def measure(self, source, splits, seed):
        metric = MeanMetric()
        metric.update(source.queries)
        yield Value("mean", float(metric.compute()))


def test_metric_of_torchmetrics_is_computed_in_the_first_process_alone(subject):
    protocol = Protocol("mine", ("backbone",), (Mean(),))
    first, other = in_processes(lambda rank: rows(subject, protocol), 2)
    assert [row["metric"] for row in first] == ["mean", "mean"]
    assert first == in_processes(lambda rank: rows(subject, protocol), 1)[0]
    assert isinstance(other, SystemExit)


def test_evaluation_continues_with_all_processes_after_an_error_of_the_first(
    subject, protocol, batches_of_16
):
    def run(rank):
        empty_rows, failures = features.empty_rows, [torch.OutOfMemoryError("no memory")]

        def failing(*args, **options):
            if failures:
                raise failures.pop()
            return empty_rows(*args, **options)

        features.empty_rows = failing
        return rows(subject, protocol)

    left_out = {"features": "trained", "metric": "knn_top1"}
    all_rows = in_processes(lambda rank: rows(subject, protocol), 1)[0]
    expected = [row for row in all_rows if not left_out.items() <= row.items()]
    assert len(expected) == len(all_rows) - 1
    first, *others = in_processes(run)
    assert first == expected
    assert [each.code for each in others] == [0, 0]


@pytest.mark.parametrize("rank", [0, 1])
def test_undecodable_image_in_any_process_ends_evaluation(subject, protocol, batches_of_16, rank):
    def run(own_rank):
        def undecodable(*_):
            raise InputError("a.png cannot be decoded")

        if own_rank == rank:
            features.by_layer = undecodable
        return rows(subject, protocol)

    first, _ = in_processes(run, 2)
    assert str(first) == "a.png cannot be decoded"


def torchrun(count, *args, module=("-m", "ssl_vision")):
    """Run a command in several processes. Return the exit code, and stdout and stderr of all processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*command, *module, *map(str, args)],
        capture_output=True, text=True, check=False, timeout=240, env=environment,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.long
def test_evaluate_has_same_output_from_one_and_two_processes(tiny_run, tmp_path, capsys):
    runs = [shutil.copytree(tiny_run, tmp_path / name) for name in ("one", "two")]
    for run in runs:
        shutil.rmtree(run / "features", ignore_errors=True)
    protocols = ["--protocol=macl", "--protocol=check", "--report=false"]
    capsys.readouterr()
    assert main(["evaluate", str(runs[0]), *protocols]) == 0
    printed = capsys.readouterr().out
    code, out, error = torchrun(2, "evaluate", runs[1], *protocols)
    assert code == 0, error
    assert out.replace(str(runs[1]), str(runs[0])) == printed
    one, two = ((run / "evaluation.json").read_bytes() for run in runs)
    assert one == two
    assert len(json.loads(one)) > 40
    names = [sorted(path.name for path in (run / "features").iterdir()) for run in runs]
    assert names[0] == names[1]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for number in range(11):
        Image.fromarray(random.integers(256, size=(20, 20, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    (folder / "5.png").write_bytes(b"damaged")
    (folder / "50.png").write_bytes(b"damaged")
    return folder


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4])
def test_embed_has_same_output_from_one_and_several_processes(images, tiny_run, tmp_path, count):
    options = [f"--weights={tiny_run}", "--batch_size=2"]
    with pytest.warns(UserWarning, match="skipped 2 of 12"):
        assert main(["embed", str(images), *options, f"--output={tmp_path / 'one.npz'}"]) == 0
    code, out, error = torchrun(count, "embed", images, *options, f"--output={tmp_path / 'all.npz'}")
    assert code == 0, error
    assert out.count("\n") == 1
    assert error.count("skipped 2 of 12") == 1
    with np.load(tmp_path / "one.npz") as one, np.load(tmp_path / "all.npz") as other:
        assert one["names"].tolist() == other["names"].tolist()
        np.testing.assert_array_equal(one["features"], other["features"])


@pytest.mark.long
def test_damaged_file_is_reported_once_by_several_processes(images, tiny_run, tmp_path):
    options = [f"--weights={tiny_run}", "--batch_size=2", f"--output={tmp_path / 'f.npz'}", "--strict=true"]
    code, _, error = torchrun(2, "embed", images, *options)
    assert code != 0
    assert sum(line.startswith("ssl-vision embed: ") for line in error.splitlines()) == 1
    assert "cannot be decoded" in error
    assert list(tmp_path.iterdir()) == []


CALLS = """
import os
from ssl_vision.evaluation import processes

rank = int(os.environ["RANK"])
for _ in range(2):
    with processes.sharing(), processes.process_group():
        assert processes.agreed(rank + 5) == 5
"""


@pytest.mark.long
def test_processes_reconnect(tmp_path):
    (tmp_path / "calls.py").write_text(CALLS)
    code, _, error = torchrun(2, tmp_path / "calls.py", module=())
    assert code == 0, error
