"""compile: from a problem to a primitive; conv2d: from arrays to their convolution."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, Unpack

import numpy as np
from numpy.typing import NDArray

from polysci.border.arguments import check_type
from polysci.border.guard import guard
from polysci.ops import Conv2d, problem_of
from polysci.ops.problem import Problem
from polysci.runtime.primitive import PackedWeights, Primitive
from polysci.tune import check_options, optimize
from polysci.tune.search_options import CompileKeywords

Array = NDArray[Any]

KEPT: Final = 64  # primitives that conv2d keeps, and arrays of weights
KEPT_BYTES: Final = 64 << 20  # of weights that conv2d keeps; about as much again once packed
_SAMPLE: Final = 64  # elements by which conv2d looks an array of weights up
# By the dtypes of x and w. bf16 is its bits in uint16, or another library's type of that name.
_DTYPES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("float32", "float32"): "f32",
        ("float16", "float16"): "f16",
        ("uint16", "uint16"): "bf16",
        ("bfloat16", "bfloat16"): "bf16",
        ("uint8", "int8"): "u8:s8:s32",
        ("int8", "int8"): "s8:s8:s32",
    }
)
_AXES: Mapping[str, str] = MappingProxyType({"x": "N H W C or N C H W", "w": "K C/groups R S"})


@guard
def compile(
    problem: Problem | str,
    level: str = "measure",
    threads: int = 1,
    *,
    layout: str | None = None,
    dtype: str | None = None,
    flush_denormals: bool = True,
    **options: Unpack[CompileKeywords],
) -> Primitive:
    """Find a schedule for ``problem`` and build it: ``y = prim(x, prim.pack_weights(w))``.

    ``problem`` is a Conv2d, a Nest, or the text of one; ``layout`` (default "nhwc") and ``dtype``
    (default "f32"; see ``polysci.numerics.dtypes``) complete benchdnn's words. A convolution
    without images gets the primitive of one image, whose result for none is empty. ``schedule``,
    a Schedule or its text, is built as it is: nothing is searched or measured. With
    ``flush_denormals`` calls take numbers below 2^-126 for 0. The other arguments and what they
    raise are those of ``polysci.optimize``; BuildError where there is no working C compiler.
    """
    for name in options.keys() - CompileKeywords.__annotations__.keys():
        raise TypeError(f"compile() got an unexpected keyword argument {name!r}")
    parsed = problem_of(problem, layout, dtype)
    own = parsed.with_batch(1) if 0 in parsed.y_shape else parsed
    return optimize(own, level, threads, **options).primitive(flush_denormals=flush_denormals)


@guard
def conv2d(
    x: Array,
    w: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    clamp: tuple[float, float] | None = None,
    stride: int | tuple[int, int] = 1,
    pad: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    layout: str = "nhwc",
    *,
    activation: str | None = None,
    threads: int = 1,
    isa: str | None = None,
) -> Array:
    """``clamp(conv(x, w) + bias + residual)`` in one call: ``y = conv2d(x, w, pad=1)``.

    x in ``layout``, w (K, C/groups, R, S), bias (K), residual like the result. The dtypes of x and
    w give the precision: float32, float16, or uint16 (the bits of bf16) for both; uint8 or int8 by
    int8 gives int32 sums. Arrays with gaps are copied.

    The first call of a shape compiles at level ``estimate``; the last 64 primitives are kept, and
    packed weights of 64 MiB. A call compares the bytes of w with those kept and packs it where they
    differ: ``compile`` and ``pack_weights`` do neither. May be called from several threads.
    Raises TypeError or ValueError that names the argument, and what ``compile`` raises.
    """
    check_options("estimate", threads, None, isa, None, None)
    check_type("layout", layout, str)
    problem = _convolution(x, w, stride, pad, dilation, groups, layout)
    primitive = _kept_primitive(problem, threads, isa)
    x, w, bias, residual = map(_without_gaps, (x, w, bias, residual))
    return primitive(
        x, _kept_weights.pack(primitive, w),
        bias=bias, residual=residual, clamp=clamp, activation=activation,
    )  # fmt: skip


def _convolution(
    x: Array, w: Array, stride: Any, pad: Any, dilation: Any, groups: int, layout: str
) -> Conv2d:
    """The problem of these arrays. Raises TypeError or ValueError for arrays that fit none."""
    for name, array in (("x", x), ("w", w)):
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name}: expected a numpy.ndarray, got {type(array).__name__}")
        if array.ndim != 4:
            raise ValueError(f"{name}: expected 4 axes ({_AXES[name]}), got shape {array.shape}")
    names = x.dtype.name, w.dtype.name
    if names not in _DTYPES:
        known = ", ".join(" by ".join(pair) for pair in _DTYPES)
        raise TypeError(f"x, w: expected dtypes {known}; got {' by '.join(names)}")
    n, *image = x.shape
    c, h, width = image if layout == "nchw" else (image[2], *image[:2])
    k, _, r, s = w.shape
    problem = Conv2d(
        n, c, h, width, k, r, s, stride, pad, dilation, groups, layout=layout, dtype=_DTYPES[names]
    )
    if w.shape != problem.w_shape:
        raise ValueError(
            f"w: expected shape {problem.w_shape} ({_AXES['w']}) for an x of {c} channels in "
            f"{layout}, got {w.shape}"
        )
    return problem


@lru_cache(maxsize=KEPT)
def _kept_primitive(problem: Conv2d, threads: int, isa: str | None) -> Primitive:
    return compile(problem, "estimate", threads, isa=isa)


class KeptWeights:
    """Packed weights of earlier calls, each beside a copy of the array that they come from.

    An array may change between two calls, so its bytes are compared with the copy: that takes a
    tenth to a half of the time of packing, where a hash takes longer than packing.
    """

    def __init__(self) -> None:
        self._entries = OrderedDict[Any, tuple[Array, PackedWeights]]()
        self._lock = Lock()

    def pack(self, primitive: Primitive, w: Array) -> PackedWeights:
        """The packed weights for these bytes, packed now unless they are kept."""
        if type(w) is not np.ndarray or w.nbytes > KEPT_BYTES:  # other classes are checked anew
            return primitive.pack_weights(w)
        sample = w.reshape(-1)[:: max(1, w.size // _SAMPLE)].tobytes()
        key = primitive, w.dtype.str, sample
        with self._lock:
            copy, packed = self._entries.get(key, (None, None))
            if copy is not None:
                self._entries.move_to_end(key)
        if copy is not None and packed is not None and _same_bytes(copy, w):
            return packed
        copy = w.copy()
        packed = primitive.pack_weights(copy)
        with self._lock:
            self._entries[key] = copy, packed
            while len(self._entries) > KEPT or self.nbytes > KEPT_BYTES:
                self._entries.popitem(last=False)
        return packed

    @property
    def nbytes(self) -> int:
        """Bytes of the copies."""
        return sum(copy.nbytes for copy, _ in self._entries.values())


_kept_weights = KeptWeights()


def _same_bytes(one: Array, other: Array) -> bool:
    """Return whether two contiguous arrays of one shape and dtype have the same bytes."""
    integer = np.uint64 if one.nbytes % 8 == 0 else np.uint8
    return np.array_equal(one.reshape(-1).view(integer), other.reshape(-1).view(integer))


def _without_gaps(array: Any) -> Any:
    """A C-contiguous array of the same class; what is no array as it is."""
    gaps = isinstance(array, np.ndarray) and not array.flags.c_contiguous
    return array.copy(order="C") if gaps else array
