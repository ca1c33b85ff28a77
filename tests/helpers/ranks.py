"""Processes of one Gloo group."""

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
    """Calls ``process(rank, world)`` in each process of a group; all must exit with 0.

    They are forked, which spares the imports, except where there is a GPU, for which autograd has threads.
    """
    context: Any = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")
    ranks = [context.Process(target=_in_group, args=(process, rank, world, folder)) for rank in range(world)]
    for each in ranks:
        each.start()
    try:
        for each in ranks:
            each.join(timeout)
        assert [each.exitcode for each in ranks] == [0] * world
    finally:
        for each in ranks:
            each.kill()


def _in_group(process: Callable[[int, int], None], rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    with threadpool_limits(1):  # threads do not survive a fork
        dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=world)
        process(rank, world)
        dist.barrier()  # a process that leaves early aborts the others
        # Threads of Gloo that outlive the interpreter sometimes abort the process ("terminate called without
        # an active exception") after everything has been checked.
        os._exit(0)
