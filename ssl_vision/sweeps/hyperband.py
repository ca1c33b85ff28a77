"""W&B's early termination of trials that are not among the best."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssl_vision.cli.suggestions import check_keys
from ssl_vision.errors import InputError


@dataclass(frozen=True)
class Hyperband:
    """Rule of early termination with brackets.

    At each bracket, a trial continues if it is among the best n/eta + 1, rounded down, of the n trials that
    have reached the bracket so far. A bracket is a number of logged values of the metric: min_iter · eta^k,
    or max_iter / eta^k for k = 1 … s.
    """

    eta: float
    min_iter: int | None
    max_iter: int | None
    s: int | None
    strict: bool
    """True compares the value at the bracket, False the best value so far."""

    def brackets(self, count: int) -> list[int]:
        """List the brackets that a trial with ``count`` values has reached, in ascending order."""
        if self.max_iter is not None:
            counts = [int(self.max_iter / self.eta**k) for k in range(self.s or 0, 0, -1)]
        else:
            counts, bracket = [], float(self.min_iter or 1)
            while int(bracket) <= count:
                counts.append(int(bracket))
                bracket *= self.eta
        return [bracket for bracket in dict.fromkeys(counts) if 1 <= bracket <= count]

    def value(self, values: Sequence[float], bracket: int, sign: int) -> float:
        """Return the value that is compared at a bracket; NaN is the worst."""
        signed = [-math.inf if math.isnan(value) else sign * value for value in values[:bracket]]
        return sign * (signed[-1] if self.strict else max(signed))

    def goes_on(self, value: float, others: Sequence[float], sign: int) -> bool:
        """Return True if a trial continues after a bracket.

        Args:
            value: value of the trial.
            others: values of all other trials that reached the bracket before.
            sign: 1 if higher is better, otherwise −1.
        """
        ranked = sorted(-sign * other for other in (value, *others))
        return -sign * value <= ranked[int(len(ranked) / self.eta)]


def read_hyperband(where: str, given: Any) -> Hyperband:
    """Read the section ``early_terminate`` of a sweep file.

    Raises:
        InputError: the type is not hyperband, a key is unknown, or a value is out of range.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"{where}: expected a table of keys and values, got {given!r}")
    check_keys(where, given, ("type", "min_iter", "max_iter", "s", "eta", "strict"))
    if given.get("type") != "hyperband":
        raise InputError(f"{where}.type: expected hyperband, got {given.get('type')!r}")
    for key in ("min_iter", "max_iter", "s"):
        if key in given and (type(given[key]) is not int or given[key] < 1):
            raise InputError(f"{where}.{key}: expected an integer above 0, got {given[key]!r}")
    eta, strict = given.get("eta", 3), given.get("strict", True)
    if isinstance(eta, bool) or not isinstance(eta, (int, float)) or eta <= 1:
        raise InputError(f"{where}.eta: expected a number above 1, got {eta!r}")
    if not isinstance(strict, bool):
        raise InputError(f"{where}.strict: expected true or false, got {strict!r}")
    if ("min_iter" in given) == ("max_iter" in given) or ("max_iter" in given) != ("s" in given):
        raise InputError(f"{where}: give min_iter, or max_iter and s")
    read = Hyperband(eta, given.get("min_iter"), given.get("max_iter"), given.get("s"), strict)
    if read.max_iter is not None and not read.brackets(read.max_iter):
        raise InputError(f"{where}: max_iter {read.max_iter} / eta {eta} leaves no bracket")
    return read
