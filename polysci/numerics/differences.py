"""How far arrays are from others, all together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from polysci.errors import CheckError
from polysci.numerics.arrays import Array


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between outputs and others, all together.

    ``error`` is max |ours - theirs| / max(1, max |theirs|), the largest of all outputs; infinite
    where one side alone has a NaN or an infinity. ``finite`` elements are numbers on both sides,
    ``alike`` the same NaN or infinity on both, ``apart`` not finite on one side, or not the same.
    """

    error: float = 0.0
    finite: int = 0
    alike: int = 0
    apart: int = 0

    @property
    def number(self) -> float | None:
        """The error; None where there is no finite one, or nothing was compared."""
        compared = self.finite or not self.alike
        return self.error if compared and not self.apart else None

    def __str__(self) -> str:
        """Return the error, and how many elements are no finite numbers."""
        counts = [(self.alike, "in both"), (self.apart, "on one side or not the same")]
        text = ", ".join(f"{count} {where}" for count, where in counts if count)
        parts = [] if self.number is None else [f"{self.number:.2g}"]
        return "; ".join([*parts, *[f"NaN or infinite: {text}"] * bool(text)])


def compare_outputs(
    ours: Sequence[Array], theirs: Sequence[Array], name: str = "the peer"
) -> Difference:
    """Return how far all outputs are from those of ``name``.

    Raises CheckError where numbers or shapes of outputs differ.
    """
    if len(ours) != len(theirs):
        raise CheckError(f"{name} has {len(theirs)} outputs, ours are {len(ours)}")
    parts = list[Difference]()
    for index, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        if own.shape != other.shape:
            raise CheckError(
                f"output {index} of {name} has shape {list(other.shape)}, ours {list(own.shape)}"
            )
        parts.append(_difference(own.astype(np.float64), other.astype(np.float64)))
    return Difference(
        max((part.error for part in parts), default=0.0),
        *(sum(getattr(part, count) for part in parts) for count in ("finite", "alike", "apart")),
    )


def largest_error(ours: Sequence[Array], theirs: Sequence[Array], name: str = "the peer") -> float:
    """The error of ``compare_outputs``: NaNs and infinities in the same places are no error."""
    return compare_outputs(ours, theirs, name).error


def _difference(own: Array, other: Array) -> Difference:
    finite = np.isfinite(own) & np.isfinite(other)
    count = int(finite.sum())
    alike = int((~finite & ((own == other) | (np.isnan(own) & np.isnan(other)))).sum())
    if apart := own.size - count - alike:
        return Difference(inf, count, alike, apart)
    if not count:
        return Difference(0.0, 0, alike)
    largest = float(np.max(np.abs(other[finite])))
    error = float(np.max(np.abs(own[finite] - other[finite])))
    return Difference(error / max(1.0, largest), count, alike)
