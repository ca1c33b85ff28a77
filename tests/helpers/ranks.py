"""Running a function in the processes of one Gloo group."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits


def assert_ranks_succeed(
    process: Callable[[int, int], None], world: int, folder: Path, timeout: float = 120
) -> None:
    """Call ``process(rank, world)`` in each process of a group, and assert that all exit with 0.

    Processes are forked to avoid repeated imports, but spawned with a GPU, for which autograd has threads.
    """
    context: Any = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")
    workers = [
        context.Process(target=_in_group, args=(process, rank, world, folder)) for rank in range(world)
    ]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join(timeout)
        assert [worker.exitcode for worker in workers] == [0] * world
    finally:
        for worker in workers:
            worker.kill()


def _in_group(process: Callable[[int, int], None], rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    with threadpool_limits(1):  # threads do not survive a fork
        dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=world)
        process(rank, world)
        dist.barrier()  # a process that leaves early aborts the others
        # Threads of Gloo that outlive the interpreter sometimes abort the process ("terminate called without
        # an active exception") after everything has been checked.
        os._exit(0)
