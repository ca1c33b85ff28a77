"""A callback that records the batches of a run and can interrupt it.

``SSL_VISION_RECORD`` names the file of the records, one JSON list for each batch: epoch, batch, optimizer
step, image indices, and a digest of the views. ``SSL_VISION_INTERRUPT`` is ``N:SIGNAL`` or ``N:sleep``: at
the N-th batch that this process records, it sends itself the signal, or sleeps past ``--trainer.max_time``.
"""

import hashlib
import json
import os
import signal
import time

import pytorch_lightning as pl

from ssl_vision.data import Batch

SECONDS = 1.0
"""The value of ``--trainer.max_time`` that a sleep outlasts."""


class Recorder(pl.Callback):
    def __init__(self) -> None:
        self.batches = 0
        self.begin = time.monotonic()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        assert batch.indices is not None
        assert batch.views is not None
        row = [trainer.current_epoch, batch_idx, trainer.global_step, batch.indices.tolist()]
        row.append(hashlib.sha256(batch.views.contiguous().numpy().tobytes()).hexdigest()[:16])
        with open(f"{os.environ['SSL_VISION_RECORD']}.{trainer.global_rank}", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self.batches += 1
        number, _, action = os.environ.get("SSL_VISION_INTERRUPT", "0:").partition(":")
        if self.batches != int(number) or trainer.global_rank:
            return
        if action == "sleep":
            time.sleep(max(0.0, SECONDS + 0.1 - (time.monotonic() - self.begin)))
        else:
            os.kill(os.getpid(), getattr(signal, action))
