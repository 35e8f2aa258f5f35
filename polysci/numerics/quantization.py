"""Requantization of integer sums to 8-bit results: scales, zero points, rounding; in NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.border.arguments import describe
from polysci.numerics.dtypes import DType

FAR = np.float32(2.0**30)  # beyond any 8-bit result; a zero point still fits beside it
MOST = 2.0**100  # largest scale of the residual: no product with 8 bits is infinite


@dataclass(frozen=True, slots=True, eq=False)
class Scales:
    """``y = saturate(rint(clamp(sum * scale + other)) + y_zero)``, in f32.

    ``scale``: x scale * w scale / y scale, a number or one a channel; ``other`` is (residual -
    residual_zero) * residual_scale, which is residual scale / y scale; the bias is in the sum.
    Every operation rounds to f32, ``rint`` to the nearest, ties to even. Raises ValueError for a
    scale that is not finite and a zero point that does not fit 8 bits.
    """

    scale: Any = 1.0
    y_zero: int = 0
    residual_scale: float = 1.0
    residual_zero: int = 0
    values: NDArray[np.float32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        values = _finite(self.scale)
        if values is None or values.ndim > 1 or not values.size:
            raise ValueError(
                f"scale: expected a finite number or one a channel, got {_describe(self.scale)}"
            )
        share = _finite(self.residual_scale)
        if share is None or share.ndim or abs(share) > MOST:
            raise ValueError(
                "residual_scale: expected a number of at most 2^100, got "
                f"{describe(self.residual_scale)}"
            )
        for name in ("y_zero", "residual_zero"):
            zero = getattr(self, name)
            if not isinstance(zero, int | np.integer) or not -128 <= zero <= 255:
                raise ValueError(f"{name}: expected -128 to 255, got {describe(zero)}")
        object.__setattr__(self, "values", values)

    def by_channel(self, channels: int) -> NDArray[np.float32]:
        """One scale a channel. Raises ValueError for another number of them."""
        if self.values.ndim and self.values.shape != (channels,):
            raise ValueError(f"scale: expected shape ({channels},), got {self.values.shape}")
        return np.ascontiguousarray(np.broadcast_to(self.values, (channels,)), np.float32)

    def result(
        self,
        sums: NDArray[Any],
        along: tuple[int, ...],
        dtype: DType,
        residual: NDArray[Any] | None = None,
        clamp: tuple[float, float] | None = None,
    ) -> NDArray[Any]:
        """The result of a primitive from integer ``sums``; ``along``: shape of the scales."""
        channels = max(along, default=1)
        with np.errstate(over="ignore"):  # infinities are clipped at FAR
            real = sums.astype(np.int64).astype(np.float32)
            real = real * self.by_channel(channels).reshape(along)
            if residual is not None:
                other = (residual.astype(np.int32) - int(self.residual_zero)).astype(np.float32)
                real = real + other * np.float32(self.residual_scale)
            low, high = np.clip(np.array(clamp or (-FAR, FAR), np.float32), -FAR, FAR)
        real = np.minimum(np.maximum(real, low), high)
        limits = np.iinfo(dtype.numpy)
        rounded = np.rint(real).astype(np.int64) + int(self.y_zero)
        stored: NDArray[Any] = np.clip(rounded, limits.min, limits.max).astype(dtype.numpy)
        return stored


def _finite(value: Any) -> NDArray[np.float32] | None:
    """Return a read-only array of finite f32 numbers; None for anything else."""
    try:
        if np.asarray(value).dtype.kind not in "iuf":
            return None
        with np.errstate(over="ignore"):
            values = np.array(value, np.float32)
    except Exception:  # rows of different lengths, or whatever a caller's own object raises
        return None
    values.flags.writeable = False
    return values if np.isfinite(values).all() else None


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iuf":
        return f"shape {value.shape}, values from {value.min()} to {value.max()}"
    return describe(value)
