"""A test file that starts itself as the processes of one Gloo group."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist


def assert_ranks_succeed(script: str, world: int, folder: Path, timeout: float = 120) -> None:
    """Starts `python script rank world rendezvous` for each rank; all must exit with 0."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(world), f"file://{folder}/rendezvous"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(world)
    ]
    outputs = [rank.communicate(timeout=timeout)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, "\n".join(outputs)


def leave_group() -> NoReturn:
    """Waits for the other processes and exits with 0.

    The interpreter is not finalized: threads of Gloo that outlive it sometimes abort the process
    ("terminate called without an active exception") after everything has been checked.
    """
    dist.barrier()  # a process that leaves early aborts the others
    os._exit(0)
