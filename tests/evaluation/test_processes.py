"""Tests of embedding in several processes: the output does not depend on their number."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from multiprocessing import Pipe

import numpy as np
import pytest
from PIL import Image

from ssl_vision.errors import InputError
from ssl_vision.evaluation.processes import ALONE, Processes, results_of_all, sharing
from ssl_vision.main import main


def three_processes():
    """Return three connected processes, which the tests run as threads."""
    pipes = {rank: Pipe() for rank in (1, 2)}
    first = Processes(0, 3, {rank: ends[0] for rank, ends in pipes.items()})
    return [first, *(Processes(rank, 3, {0: ends[1]}) for rank, ends in pipes.items())]


def in_threads(function, processes):
    """Call a function with each process in a thread of its own. Return the results, and raise errors."""
    with ThreadPoolExecutor(len(processes)) as pool:
        futures = [pool.submit(copy_context().run, function, each) for each in processes]
        return [future.result() for future in futures]


@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_first_process_gathers_results_in_order(count):
    items = list(range(count))

    def run(processes):
        own = (item * item for item in items[processes.share])
        return list(processes.gathered(own, count))

    assert in_threads(run, three_processes()) == [[item * item for item in items], [], []]
    assert run(ALONE) == [item * item for item in items]


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(
    ("error", "raised"), [(InputError("a.png is damaged"), InputError), (KeyError("a.png"), RuntimeError)]
)
def test_error_of_any_process_is_raised_in_first_process(rank, error, raised):
    def run(processes):
        def own():
            yield 0
            if processes.rank == rank:
                raise error
            yield 1

        if processes.rank:
            list(processes.gathered(own(), 6))
            return
        with pytest.raises(raised, match=r"a\.png"):
            list(processes.gathered(own(), 6))

    in_threads(run, three_processes())


def test_agreed_returns_the_value_of_the_first_process():
    assert in_threads(lambda processes: processes.agreed(processes.rank + 5), three_processes()) == [5, 5, 5]


def test_other_processes_exit_if_first_process_has_ended():
    first, other, _ = three_processes()
    first.connections[1].close()
    for wait in (other.agreed, lambda: list(other.gathered(iter([1]), 3))):
        with pytest.raises(SystemExit) as exit_info:
            wait()
        assert exit_info.value.code == 1


def test_first_process_reports_ended_process():
    first, other, _ = three_processes()
    other.connections[0].close()
    for wait in (first.agreed, lambda: list(first.gathered(iter([1]), 3))):
        with pytest.raises(RuntimeError, match="process 1 of 3 has ended"):
            wait()


COMPUTED = []


def squares(network, data, power, share):
    """Stand in for the batches of a network."""
    for number, item in list(enumerate(data))[share]:
        COMPUTED.append(number)
        yield network * item**power


def test_only_known_networks_and_images_are_shared():
    COMPUTED.clear()
    network, data, other = 3.5, [1, 2, 3, 4], [5, 6]

    def run(processes):
        known = (network, data)
        with sharing(processes, [known[0]], [known[1]]):
            first = list(results_of_all(squares, network, data, 2, total=4))
            return first, list(results_of_all(squares, network, other, 1, total=2))

    first, *others = three_processes()
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(copy_context().run, run, each) for each in (first, *others)]
    assert futures[0].result() == ([3.5, 14.0, 31.5, 56.0], [17.5, 21.0])
    assert sorted(COMPUTED) == [0, 0, 1, 1, 2, 3]
    assert [future.exception().code for future in futures[1:]] == [0, 0]


def test_request_after_unfinished_request_has_its_own_results():
    data = [1, 2, 3, 4, 5]

    def run(processes):
        with sharing(processes, [10, 20], [data]):
            for network in (10, 20):
                for first in results_of_all(squares, network, data, 1, total=5):
                    assert first == network
                    break
            return list(results_of_all(squares, 10, data, 2, total=5))

    first, *others = three_processes()
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(copy_context().run, run, each) for each in (first, *others)]
    assert futures[0].result() == [10, 40, 90, 160, 250]
    assert [future.exception().code for future in futures[1:]] == [0, 0]


def undecodable(network, data, share):
    """Stand in for batches that cannot be decoded."""
    raise InputError("a.png cannot be decoded")
    yield


def test_input_error_in_shared_batches_ends_evaluation():
    data = []

    def run(processes):
        with sharing(processes, [1], [data]):
            with suppress(ValueError):  # as for impossible measurements
                list(results_of_all(undecodable, 1, data, total=3))
            pytest.fail("the evaluation went on")

    first, *others = three_processes()
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(copy_context().run, run, each) for each in (first, *others)]
        with pytest.raises(InputError, match="cannot be decoded"):
            futures[0].result()
        for connection in first.connections.values():
            connection.close()


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
import os, sys
from datetime import timedelta
from ssl_vision.errors import InputError
from ssl_vision.evaluation import processes

for _ in range(2):
    with processes.process_group() as group:
        assert group.agreed(group.rank + 5) == 5
processes._LONGEST_WAIT = timedelta(seconds=2)
if group.rank == 0:
    try:
        with processes.process_group():
            pass
    except InputError as error:
        print(error)
"""


@pytest.mark.long
def test_processes_reconnect_and_time_out(tmp_path):
    (tmp_path / "calls.py").write_text(CALLS)
    code, out, error = torchrun(2, tmp_path / "calls.py", module=())
    assert code == 0, error
    assert out == "torchrun started 2 processes, which must all run the same command\n"
