"""Stateless random numbers, equal on every device and for every world size.

Each number is a function of (key, id, column). The generator is splitmix64 (Steele, Lea & Flood, OOPSLA 2014)
with one stream per id.
"""

from enum import IntEnum

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_WORD = 2**64


class Stream(IntEnum):
    """Part of a key that separates different uses of one seed."""

    ORDER = 1
    VIEWS = 2
    QUERIES = 3
    STEPS = 5


def fold(*parts: int) -> int:
    """Hash integers (each mod 2**64), in order, to a number in [0, 2**63), such as a torch seed.

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
    """Draw uniform numbers in [0, 1), multiples of 2**-24, as a pure function of (key, id, column).

    Column c of id i is the top 24 bits of mix(mix(i + fold(key)) + (c + 1) g), all mod 2**64, where mix is
    the output function of splitmix64 and g its increment.

    Args:
        ids: (N,) int64 on any device; the numbers are computed there, without synchronisation.
        key: Integers, for example (seed, stream, epoch).
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
    """Return the state id + fold(key) mod 2**64 of each id, from which its numbers are computed.

    Args:
        ids: (N,) int64.
        *keys: K keys.

    Returns:
        (N · K,) int64: the states of the first id for all keys, then those of the next.
    """
    return torch.stack([ids + fold(*key) for key in keys], dim=1).flatten()


def numbers(states: Tensor, *, count: int) -> Tensor:
    """Return the `uniforms` of (N,) `states`, (N, count) float32."""
    columns = torch.arange(1, count + 1, device=states.device)
    if torch.compiler.is_compiling():  # otherwise Inductor treats the product as an index with 32 bits
        columns = columns + (states & 0).unsqueeze(1)
    bits = _mix(_mix(states).unsqueeze(1) + columns * _signed(_GOLDEN))
    return _shifted(bits, 40).to(torch.float32) * 2.0**-24


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shifted(state, 30)) * _signed(_FIRST)
    state = (state ^ _shifted(state, 27)) * _signed(_SECOND)
    return state ^ _shifted(state, 31)


def _shifted(state: Tensor, bits: int) -> Tensor:
    """Shift int64 right logically; torch's own shift copies the sign bit."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """Return the int64 with the bits of an unsigned 64-bit integer."""
    return word - _WORD if word >= _WORD // 2 else word
