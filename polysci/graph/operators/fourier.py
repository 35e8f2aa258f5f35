"""Fourier transforms as products with tables of cosines and sines."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from polysci.graph.graph import Node, Tensor
from polysci.graph.operators.builder import Builder, attribute_axes
from polysci.graph.operators.products import multiply
from polysci.graph.operators.table import Inference, Operator
from polysci.loop_ir.expressions import Load, apply, axis, combine
from polysci.program.stages import ViewStage

MOST_BYTES = 1 << 28  # of a table
Reals = NDArray[np.float64]


def dft(build: Builder, node: Node) -> None:
    """Transform one axis; the last one holds real and imaginary parts, or reals alone."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_floats(node, x)
    shape, full, rank = build.shape(x), build.shape(y), len(build.shape(x))
    known = build.known(node, 2, "axis")
    (along,) = attribute_axes([-2 if known is None else int(known.reshape(-1)[0])], rank)
    if along == rank - 1 or shape[-1] not in (1, 2):
        build.refuse(f"x {list(shape)} along axis {along}: expected 1 or 2 numbers a sample")
    inverse = bool(node.attributes.get("inverse", 0))
    to_real = inverse and bool(node.attributes.get("onesided", 0))
    length = _length(build, node, full[along] if to_real else shape[along])
    table = _table(build, node, length, (shape[along], shape[-1]), (full[along], full[-1]),
                   inverse=inverse)  # fmt: skip
    if to_real:
        table *= _twice(length, shape[along])[:, None, None, None]
    order = [at for at in range(rank) if at not in (along, rank - 1)]
    outer = [shape[at] for at in order]
    order += [along, rank - 1]
    turned = build.fresh(f"{x}.turned", [shape[at] for at in order], build.dtype(x))
    index = tuple(axis(order.index(at)) for at in range(rank))
    build.stages.append(ViewStage(str(node), turned, x, index))
    result = build.fresh(f"{y}.turned", [*outer, full[along], full[-1]], build.dtype(x))
    _product(build, node, turned, table, result)
    index = tuple(axis(at) for at in order)
    build.stages.append(ViewStage(str(node), y, result, index))


def _length(build: Builder, node: Node, default: int) -> int:
    known = build.known(node, 1, "dft_length")
    length = default if known is None else int(known.reshape(-1)[0])
    if length < 1:
        build.refuse(f"dft_length {length}: expected at least 1")
    return length


def _table(
    build: Builder, node: Node, length: int, x: tuple[int, int], y: tuple[int, int], *,
    inverse: bool = False,
) -> Reals:  # fmt: skip
    """Return the factor of one part of a sample in one part of a result.

    ``x`` and ``y`` are samples or results, and the parts of each. Samples beyond ``length`` count
    for nothing.
    """
    if (size := 8 * prod(x) * prod(y)) > MOST_BYTES:
        build.refuse(f"a table of {size} bytes: expected at most {MOST_BYTES}")
    turns = np.outer(np.arange(x[0]), np.arange(y[0])) % length
    angle = (1 if inverse else -1) * 2 * np.pi / length * turns
    cosine, sine = np.cos(angle), np.sin(angle)
    parts = np.array([[cosine, sine], [-sine, cosine]])  # part of x, part of y, sample, result
    table = parts.transpose(2, 0, 3, 1)[:, : x[1], :, : y[1]] / (length if inverse else 1)
    table[length:] = 0
    return np.ascontiguousarray(table)


def _twice(length: int, count: int) -> Reals:
    """Count how often a frequency of the first half occurs among all, to which it is mirrored."""
    at = np.arange(count)
    times = np.where((at == 0) | (2 * at == length), 1.0, 2.0)
    return np.where(2 * at <= length, times, 0.0)


def _product(build: Builder, node: Node, x: str, table: Reals, y: str) -> None:
    """The last two axes of x, as one, times a table."""
    dtype, outer = build.dtype(x), build.shape(x)[:-2] or (1,)
    samples, results = prod(table.shape[:2]), prod(table.shape[2:])
    a = build.fresh(f"{x}.rows", (*outer, samples), dtype)
    out = build.fresh(f"{y}.rows", (*outer, results), dtype)
    b = build.number(f"{y}.table", table.reshape(samples, results).astype(dtype))
    build.stages.append(ViewStage(str(node), a, x))
    multiply(build, node, a, b, out)
    build.stages.append(ViewStage(str(node), y, out))


def stft(build: Builder, node: Node) -> None:
    """The transforms of frames, which are another name for the samples that they overlap on."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_floats(node, x)
    shape, full = build.shape(x), build.shape(y)
    step = build.known(node, 1, "frame_step")
    known = build.known(node, 3, "frame_length")
    if len(shape) != 3 or shape[-1] not in (1, 2) or step is None:
        build.refuse(f"signal {list(shape)}: expected 1 or 2 numbers a sample")
    window, hop = node.input(2), int(step.reshape(-1)[0])
    length = build.shape(window)[0] if window else shape[1]
    if known is not None:
        length = int(known.reshape(-1)[0])
    if window and build.shape(window) != (length,):
        build.refuse(f"a window {list(build.shape(window))} for frames of {length}")
    if hop < 1 or (full[1] - 1) * hop + length > shape[1]:
        build.refuse(f"{full[1]} frames of {length}, {hop} apart, of {shape[1]} samples")
    table = _table(build, node, length, (length, shape[-1]), full[2:])  # type: ignore[arg-type]
    frames = build.fresh(f"{x}.frames", (*full[:2], length, shape[-1]), build.dtype(x))
    index = (axis(0), combine({"i1": hop, "i2": 1}), axis(3))
    build.stages.append(ViewStage(str(node), frames, x, index))
    weights = build.constant_value(window) if window else np.ones(length)
    if weights is not None:
        table *= weights.astype(np.float64)[:, None, None, None]
    else:
        own = Load(frames, tuple(map(axis, range(4))))
        weighted = build.fresh(f"{frames}.weighted", build.shape(frames), build.dtype(x))
        frames = build.define(node, apply("mul", own, build.along(window, 2)), weighted)
    _product(build, node, frames, table, y)


def stft_shape(of: Inference) -> Sequence[Tensor | None]:
    """Half of the frequencies by default, which inference takes for all."""
    result = of.results[0]
    if result is None or "onesided" in of.node.attributes:
        return of.results
    length = of.value(3)
    frame = of.input(2).shape[0] if of.node.input(2) else of.shape[1]
    if length is not None:
        frame = int(length.reshape(-1)[0])
    return of.first((*result.shape[:2], frame // 2 + 1, *result.shape[3:]), result.dtype)


ROWS = (
    Operator("dft", "DFT", dft),
    Operator("stft", "STFT", stft, stft_shape),
)  # fmt: skip
