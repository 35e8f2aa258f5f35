"""The numbers that an example of an input may hold for a network to compute with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

# How much a range binds: a mask is guessed where nothing says which of its values leaves most of a
# tensor in use, wanted where something does; a place in a table is needed.
GUESSED, WANTED, NEEDED = range(3)


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Numbers from ``low`` to ``high``, but for those of ``without``.

    ``weight`` is one of GUESSED, WANTED, NEEDED; ``whole``: real inputs hold whole numbers too.
    """

    low: float = -inf
    high: float = inf
    without: tuple[float, ...] = ()
    weight: int = NEEDED
    whole: bool = False

    @property
    def single(self) -> bool:
        """Return whether it holds one number."""
        return self.low == self.high

    def join(self, other: ValueRange) -> ValueRange:
        """Return what both hold; where that is nothing or one is a guess, the stricter one."""
        if self.weight < other.weight:
            return other.join(self)
        low, high = max(self.low, other.low), min(self.high, other.high)
        if low > high or (other.weight == GUESSED and self.weight > GUESSED):
            return self
        without = tuple(sorted({*self.without, *other.without}))
        return replace(self, low=low, high=high, without=without, whole=self.whole or other.whole)


def truth(value: bool, weight: int) -> ValueRange:
    """The range of 1 alone, or of 0."""
    return ValueRange(float(value), float(value), (), weight)
