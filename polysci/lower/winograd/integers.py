"""Inputs for which every number in Winograd's algorithm is an integer that f32 holds."""

from __future__ import annotations

from typing import Final

from polysci.lower.algorithm import ExactInputs

# 24 x 24 is what G w G^T divides by at most. With |x| <= 1 a sum and all its partial sums stay
# within 576 x 48 x 48 a channel (48: the largest row sum of |A^T| times those of |G| and |B^T|).
EXACT: Final = ExactInputs(largest=1, scale=576, channels=12)
