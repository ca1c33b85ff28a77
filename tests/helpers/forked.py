"""Calling a function in a forked process, which needs no imports of its own."""

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch
from threadpoolctl import threadpool_limits


def forked(function: Callable[..., object], *args: object) -> Any:
    """Start a process that calls ``function(*args)``."""
    process = multiprocessing.get_context("fork").Process(target=_call, args=(function, *args))
    process.start()
    return process


def _call(function: Callable[..., object], *args: object) -> None:
    torch.set_num_threads(1)
    with threadpool_limits(1):  # threads do not survive a fork
        function(*args)
