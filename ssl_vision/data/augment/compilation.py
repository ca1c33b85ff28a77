"""Compilation of functions, where it is possible."""

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

import torch
from pytorch_lightning.utilities import rank_zero_info

P = ParamSpec("P")
T = TypeVar("T")


class CompiledOrEager(Generic[P, T]):
    """A function that is compiled for each shape of its inputs, or runs eagerly where the compiler fails.

    Args:
        function: Function of tensors and hashable values.
        name: Name in the message that states why it runs eagerly.
    """

    def __init__(self, function: Callable[P, T], *, name: str) -> None:
        self._eager = function
        self._name = name
        # Inductor cannot lower embedding_bag, which resampling uses, with symbolic shapes on a CUDA device.
        self.compiled: Callable[P, T] = torch.compile(function, dynamic=False)
        self._works = True

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the compiled function; from its first failure on, log the reason and call the eager one."""
        if self._works:
            try:
                return self.compiled(*args, **kwargs)
            except Exception as error:  # a missing compiler, Triton or header; each has its own exception
                reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
                rank_zero_info(f"{self._name} are not compiled: {reason}")
                self._works = False
        return self._eager(*args, **kwargs)
