"""Handling of Ctrl-C, SIGTERM and the requeue signal of a scheduler between two steps."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch

from ssl_vision.errors import Interrupted
from ssl_vision.lightning_private import take_sigterm

_ENDS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Records signals during training, so that the run acts on them when its state is consistent.

    A second Ctrl-C stops the run immediately. If Lightning requeues a SLURM job on a signal, its handler,
    which saves a checkpoint, is called between two steps instead of immediately.
    """

    def __init__(self) -> None:
        self._received = 0
        self._asked = False
        self._before: dict[int, Any] = {}
        self._requeue: dict[int, Callable[[int, None], None]] = {}

    def listen(self, trainer: pl.Trainer) -> None:
        """Start to record signals."""
        if threading.current_thread() is not threading.main_thread():
            return
        environment: Any = getattr(trainer.strategy, "cluster_environment", None)
        auto_requeue = getattr(environment, "auto_requeue", False)
        requeue = getattr(environment, "requeue_signal", None) if auto_requeue else None
        if requeue is not None and callable(signal.getsignal(requeue)):
            self._requeue[requeue] = signal.getsignal(requeue)  # type: ignore[assignment]
        for number in (*_ENDS, *self._requeue):
            self._before[number] = signal.signal(number, self._note)
        if take_sigterm(trainer):  # since Lightning has handled signals
            self._note(signal.SIGTERM, None)

    def stop_listening(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def agreed(self, trainer: pl.Trainer) -> int:
        """Return the signal that any process has received since the last call, or 0."""
        number, self._received = self._received, 0
        if trainer.world_size > 1:
            flag = torch.tensor(number, device=trainer.strategy.root_device)
            number = int(trainer.strategy.reduce(flag, reduce_op="max"))  # type: ignore[arg-type]
        return number

    def ends(self, number: int) -> bool:
        """Return True if a signal ends the run."""
        return number in _ENDS

    def act(self, number: int) -> None:
        """Requeue the job or end the run, whose state has been saved.

        Raises:
            Interrupted: the signal ends the run.
        """
        if number in self._requeue:
            self._requeue[number](number, None)
        elif number:
            raise Interrupted(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._asked:
            raise KeyboardInterrupt
        self._received = number
        if self.ends(number):
            self._asked = True
            name = signal.Signals(number).name
            os.write(2, f"\n{name}: saving a checkpoint and stopping after this step\n".encode())
