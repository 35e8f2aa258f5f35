"""Weights for which every number in Winograd's algorithm is an integer that f32 holds."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

SCALE: Final = 576  # 24 x 24: what G w G^T divides by at most
# Channels of a filter that are not zero. With |x| <= 1 a sum and all its partial sums stay within
# 576 x 48 x 48 a channel (48: the largest row sum of |A^T| times those of |G| and |B^T|).
MOST: Final = 12


def exact_weights(w: Floats) -> Floats:
    """``w`` of -1, 0 and 1, (K, C, 3, 3), times SCALE, zero but for MOST channels of each filter.

    Every channel serves some filter. With inputs up to 1 results are exact in any order of sums.
    """
    filters, channels = w.shape[:2]
    at = (np.arange(channels)[None, :] - MOST * np.arange(filters)[:, None]) % channels
    return np.asarray(SCALE * w * (at < MOST)[:, :, None, None], np.float32)
