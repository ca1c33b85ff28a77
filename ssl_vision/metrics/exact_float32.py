"""Full float32 precision for metrics, regardless of the settings of training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Run a block without gradients, without autocast, and with true float32 matrix products.

    Training often allows TF32 or bfloat16 products, whose errors of 1e-3 in cosines are enough to change
    neighbours. The settings are restored afterwards.
    """
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    try:
        common = torch.get_float32_matmul_precision()
    except RuntimeError:  # the backends have been set one by one
        common = "highest"
    try:
        torch.set_float32_matmul_precision("highest")  # with fp32_precision, reading allow_tf32 is an error
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(common)
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
