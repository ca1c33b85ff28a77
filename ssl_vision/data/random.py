"""Random numbers as a function of (key, id, column): no state to save, equal on every device and world size.

The generator is splitmix64 (Steele, Lea & Flood, OOPSLA 2014) with one stream for each id.
"""

from enum import IntEnum

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_WORD = 2**64


class Stream(IntEnum):
    """The part of a key that keeps uses of one seed apart."""

    ORDER = 1
    VIEWS = 2
    QUERIES = 3
    CORRUPTIONS = 4


def fold(*parts: int) -> int:
    """Hash in [0, 2**63) of integers (each mod 2**64) and their order: fit for a torch seed.

    Example:
        >>> fold(0, 1) == fold(0, 1), fold(0, 1) == fold(1, 0)
        (True, False)
    """
    state = 0
    for part in parts:
        state = ((state ^ (part % _WORD)) + _GOLDEN) % _WORD
        state = (state ^ (state >> 30)) * _FIRST % _WORD
        state = (state ^ (state >> 27)) * _SECOND % _WORD
        state ^= state >> 31
    return state >> 1


def uniforms(ids: Tensor, *, key: tuple[int, ...], count: int) -> Tensor:
    """Uniform numbers in [0, 1), multiples of 2**-24: a pure function of (key, id, column).

    With mix the output function of splitmix64 and g its increment, column c of id i is the top 24 bits of
    mix(mix(i + fold(key)) + (c + 1) g), all mod 2**64.

    Args:
        ids: (N,) int64 on any device; the work is done there, without a synchronisation.
        key: For example (seed, stream, epoch).
        count: Number of columns.

    Returns:
        (N, count) float32.

    Example:
        >>> import torch
        >>> ids = torch.tensor([5, 7, 9])
        >>> numbers = uniforms(ids, key=(0, 1), count=2)
        >>> numbers.shape
        torch.Size([3, 2])
        >>> bool((numbers[1] == uniforms(ids[1:2], key=(0, 1), count=2)[0]).all())
        True
    """
    return numbers(states(ids, key), count=count)


def states(ids: Tensor, *keys: tuple[int, ...]) -> Tensor:
    """id + fold(key) mod 2**64: all that the numbers of an id depend on.

    Args:
        ids: (N,) int64.
        *keys: K keys.

    Returns:
        (N · K,) int64: the first id under all keys, then the next.
    """
    return torch.stack([ids + fold(*key) for key in keys], dim=1).flatten()


def numbers(states: Tensor, *, count: int) -> Tensor:
    """(N, count) float32: the `uniforms` of (N,) `states`."""
    columns = torch.arange(1, count + 1, device=states.device)
    if torch.compiler.is_compiling():  # else Inductor takes the product for an index, which has 32 bits
        columns = columns + (states & 0).unsqueeze(1)
    bits = _mix(_mix(states).unsqueeze(1) + columns * _signed(_GOLDEN))
    return _shifted(bits, 40).to(torch.float32) * 2.0**-24


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shifted(state, 30)) * _signed(_FIRST)
    state = (state ^ _shifted(state, 27)) * _signed(_SECOND)
    return state ^ _shifted(state, 31)


def _shifted(state: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64, whose own shift copies the sign."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The int64 with the bits of an unsigned 64-bit word."""
    return word - _WORD if word >= _WORD // 2 else word
