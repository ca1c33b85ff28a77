"""Fixtures of the evaluation tests."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """libtorch 2.15 corrupts memory where several threads go back through convolutions of 4 or 8 channels.

    It takes an odd number of images, as fine-tuning the tests' narrow networks has; from 16 channels on it
    was not seen.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
