"""Operators that move elements: new shapes, orders of axes, parts, repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from polysci.errors import UnsupportedError
from polysci.graph.builder import Backward, known_integers
from polysci.graph.formulas import derive
from polysci.graph.graph import Node, Tensor
from polysci.graph.operators.builder import Builder, attribute_axes
from polysci.graph.operators.table import Inference, Operator
from polysci.loop_ir.expressions import (
    Expr,
    Guard,
    Index,
    Load,
    Lookup,
    Number,
    Reduce,
    Where,
    axis,
    combine,
    constant,
    substitute,
)
from polysci.numerics.affine import Affine
from polysci.program.stages import ConcatStage, ViewStage


def keep_count(of: Inference) -> Sequence[Tensor | None]:
    """A Reshape keeps all elements."""
    before, result = of.shape, of.results[0]
    if result is not None and prod(before) != prod(result.shape):
        of.refuse(
            f"{prod(before)} elements of shape {list(before)} do not fill the shape "
            f"{list(result.shape)} that the model fixes; bind dimensions that fit it"
        )
    return of.results


def check_order(of: Inference) -> Sequence[Tensor | None]:
    """``perm`` of a Transpose names every axis once."""
    rank, order = len(of.shape), of.node.attributes.get("perm")
    if order is not None and sorted(order) != list(range(rank)):
        of.refuse(f"perm {list(order)} of a tensor of {rank} axes")
    return of.results


def check_axis(of: Inference) -> Sequence[Tensor | None]:
    """``axis`` of a Flatten is one of the tensor, or the end."""
    rank, axis = len(of.shape), int(of.node.attributes.get("axis", 1))
    if not -rank <= axis <= rank:
        of.refuse(f"axis {axis} of a tensor of {rank} axes")
    return of.results


_MODES = ("constant", "edge", "reflect", "wrap")


def reshape(build: Builder, node: Node) -> None:
    build.stages.append(ViewStage(str(node), node.outputs[0], node.inputs[0]))


def transpose(build: Builder, node: Node) -> None:
    rank = len(build.shape(node.inputs[0]))
    order = node.attributes.get("perm") or list(range(rank))[::-1]
    index = [axis(0)] * rank
    for at, number in enumerate(order):
        index[number] = axis(at)
    build.stages.append(ViewStage(str(node), node.outputs[0], node.inputs[0], tuple(index)))


def concat(build: Builder, node: Node) -> None:
    (along,) = attribute_axes([node.attributes.get("axis", 1)], len(build.shape(node.outputs[0])))
    parts = tuple(name for name in node.inputs if build.shape(name)[along])
    build.stages.append(ConcatStage(str(node), node.outputs[0], parts, along))


def split(build: Builder, node: Node) -> None:
    """Sizes are listed, or those of the outputs; one that is left out has what the others leave."""
    x = node.inputs[0]
    rank = len(build.shape(x))
    (along,) = attribute_axes([node.attributes.get("axis", 0)], rank)
    listed = _list(build, node, 1, "split")
    sizes = [build.shape(name)[along] if name else 0 for name in node.outputs]
    left = build.shape(x)[along] - sum(sizes)
    if left and not listed and node.outputs.count("") > 1:
        build.refuse("outputs without a name and a size")
    first = 0
    for at, name in enumerate(node.outputs):
        if name:
            index = [axis(number) for number in range(rank)]
            index[along] = combine({f"i{along}": 1}, first)
            build.stages.append(ViewStage(str(node), name, x, tuple(index)))
        first += sizes[at] if name else listed[at] if listed else left


def slices(build: Builder, node: Node) -> None:
    """Starts and ends may lie outside."""
    shape = build.shape(node.inputs[0])
    rank = len(shape)
    starts = _list(build, node, 1, "starts")
    ends = _list(build, node, 2, "ends")
    axes = attribute_axes(_list(build, node, 3, "axes") or range(len(starts)), rank)
    steps = _list(build, node, 4, "steps") or [1] * len(starts)
    index = [axis(at) for at in range(rank)]
    for start, end, at, step in zip(starts, ends, axes, steps, strict=True):
        first = range(shape[at])[slice(start, end, step)]
        index[at] = combine({f"i{at}": step}, first.start if len(first) else 0)
    build.stages.append(ViewStage(str(node), node.outputs[0], node.inputs[0], tuple(index)))


def _list(build: Builder, node: Node, position: int, name: str) -> list[int]:
    value = build.known(node, position, name)
    return [] if value is None else [int(number) for number in value.reshape(-1)]


def pad(build: Builder, node: Node) -> None:
    """Pad by a constant, or by elements of x: at the edge, mirrored, or around the corner."""
    x, mode = node.inputs[0], node.attributes.get("mode", "constant")
    build.check_numbers(node, x)
    if mode not in _MODES:
        build.refuse(f"mode {mode}")
    shape, pads = build.shape(x), _list(build, node, 1, "pads")
    axes = attribute_axes(_list(build, node, 3, "axes") or range(len(shape)), len(shape))
    before, after = [0] * len(shape), [0] * len(shape)
    for at, number in enumerate(axes):
        before[number], after[number] = pads[at], pads[len(axes) + at]
    places = [combine({f"i{at}": 1}, -size) for at, size in enumerate(before)]
    if mode != "constant":
        index: list[Index] = list(places)
        for at, size in enumerate(shape):
            left = size + min(0, before[at]) + min(0, after[at])
            if left <= 0 and (before[at] > 0 or after[at] > 0):
                build.refuse(f"axis {at} has no elements to repeat")
            if before[at] or after[at]:
                wide = (max(0, before[at]), max(0, after[at]))
                cropped = np.arange(size)[max(0, -before[at]) : size - max(0, -after[at])]
                sources = np.pad(cropped, wide, mode)
                index[at] = Lookup(tuple(map(int, sources)), axis(at))
        build.define(node, Load(x, tuple(index)))
        return
    other: Expr = Number(0.0)
    if node.input(2) and build.values[node.input(2)].size:
        other = build.load(node.input(2), node.outputs[0])
    guards = tuple(
        Guard(place, shape[at])
        for at, place in enumerate(places)
        if before[at] > 0 or after[at] > 0
    )
    inside = Load(x, tuple(places))
    build.define(node, Where(guards, inside, other) if guards else inside)


# Order of the axes of x, its channels or pixels split into blocks, before they are merged again.
_TO_SPACE = {"DCR": (0, 3, 4, 1, 5, 2), "CRD": (0, 1, 4, 2, 5, 3)}
_TO_DEPTH = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}


def expand(build: Builder, node: Node) -> None:
    build.check_numbers(node, node.inputs[0])
    build.define(node, build.load(node.inputs[0], node.outputs[0]))


def tile(build: Builder, node: Node) -> None:
    """Every axis that repeats its elements is two: the copies, and the elements of one."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_numbers(node, x)
    shape, index = list[int](), list[Index]()
    for size, full in zip(build.shape(x), build.shape(y), strict=True):
        copies = full // size if size else 1
        if copies > 1 and size > 1:
            shape.append(copies)
        index.append(axis(len(shape)) if size > 1 else constant(0))
        shape.append(size if size > 1 else full)
    split = len(shape) > len(index)
    repeated = build.fresh(f"{y}.copies", shape, build.dtype(x)) if split else y
    build.define(node, Load(x, tuple(index)), repeated)
    if split:
        build.stages.append(ViewStage(str(node), y, repeated))


def depth_to_space(build: Builder, node: Node) -> None:
    """Blocks of channels become blocks of pixels."""
    x, mode = node.inputs[0], str(node.attributes.get("mode", "DCR"))
    images, channels, height, width = _pixels(build, node)
    block = int(node.attributes["blocksize"])
    if mode not in _TO_SPACE or block < 1 or channels % block**2:
        build.refuse(f"mode {mode} with blocks of {block} for x {list(build.shape(x))}")
    inner = [block, block, channels // block**2]
    parts = inner if mode == "DCR" else inner[::-1]
    _merge(build, node, [images, *parts, height, width], _TO_SPACE[mode])


def space_to_depth(build: Builder, node: Node) -> None:
    """Blocks of pixels become blocks of channels."""
    shape = images, channels, height, width = _pixels(build, node)
    block, mode = int(node.attributes["blocksize"]), str(node.attributes.get("mode", "DCR"))
    if mode not in _TO_DEPTH or block < 1 or height % block or width % block:
        build.refuse(f"mode {mode} with blocks of {block} for x {list(shape)}")
    parts = [images, channels, height // block, block, width // block, block]
    _merge(build, node, parts, _TO_DEPTH[mode])


def _pixels(build: Builder, node: Node) -> tuple[int, ...]:
    shape = build.shape(node.inputs[0])
    build.check_numbers(node, node.inputs[0])
    if len(shape) != 4:
        build.refuse(f"x {list(shape)}: expected images of two axes")
    return shape


def _merge(build: Builder, node: Node, parts: Sequence[int], order: Sequence[int]) -> None:
    """x under other extents, its axes in another order, under the shape of y."""
    x, y = node.inputs[0], node.outputs[0]
    split = build.fresh(f"{x}.split", parts, build.dtype(x))
    turned = build.fresh(f"{x}.turned", [parts[at] for at in order], build.dtype(x))
    index = [axis(order.index(at)) for at in range(len(parts))]
    build.stages.append(ViewStage(str(node), split, x))
    build.stages.append(ViewStage(str(node), turned, split, tuple(index)))
    build.stages.append(ViewStage(str(node), y, turned))


def trilu(build: Builder, node: Node) -> None:
    """The elements on and above, or below, a diagonal; 0 elsewhere."""
    x = node.inputs[0]
    build.check_numbers(node, x)
    rank, known = len(build.shape(x)), build.known(node, 1, "k")
    if rank < 2:
        build.refuse(f"x {list(build.shape(x))} has no rows and columns")
    diagonal = int(known.reshape(-1)[0]) if known is not None else 0
    above = combine({f"i{rank - 1}": 1, f"i{rank - 2}": -1}, -diagonal)
    upper = bool(node.attributes.get("upper", 1))
    inside = above if upper else Affine(tuple((n, -c) for n, c in above.terms), diagonal)
    reach = sum(build.shape(x)[-2:]) + abs(diagonal)
    build.define(node, Where((Guard(inside, reach),), build.load(x, x), Number(0.0)))


def eye_like(build: Builder, node: Node) -> None:
    """1 on a diagonal, 0 elsewhere."""
    diagonal = combine({"i1": 1, "i0": -1}, -int(node.attributes.get("k", 0)))
    build.check_numbers(node, node.outputs[0])
    build.define(node, Where((Guard(diagonal, 1),), Number(1.0), Number(0.0)))


def center_crop_pad(build: Builder, node: Node) -> None:
    """The middle of x, or x in the middle of zeros."""
    x, places, guards = node.inputs[0], list[Index](), list[Guard]()
    build.check_numbers(node, x)
    for at, (size, full) in enumerate(
        zip(build.shape(x), build.shape(node.outputs[0]), strict=True)
    ):
        place = combine({f"i{at}": 1}, (size - full) // 2 if size > full else -((full - size) // 2))
        places.append(place)
        if full > size:
            guards.append(Guard(place, size))
    inside: Expr = Load(x, tuple(places))
    build.define(node, Where(tuple(guards), inside, Number(0.0)) if guards else inside)


def col2im(build: Builder, node: Node) -> None:
    """Every pixel is the sum of what blocks hold of it.

    A block's number ``o``, counted from the last one, has the pixel at tap ``t`` where
    ``pixel + pad = stride * (blocks - 1 - o) + dilation * t``.
    """
    x, y = node.inputs[0], node.outputs[0]
    build.check_numbers(node, x)
    image, block = (build.known(node, at, name) for at, name in ((1, "image_shape"), (2, "block")))
    assert image is not None and block is not None
    rank, taps = len(image), [int(size) for size in block]
    pads = list(node.attributes.get("pads") or [0] * 2 * rank)
    strides = list(node.attributes.get("strides") or [1] * rank)
    dilations = list(node.attributes.get("dilations") or [1] * rank)
    over, guards, values, blocks = list[tuple[str, int]](), list[Guard](), {}, list[int]()
    for at in range(rank):
        wide = int(image[at]) + pads[at] + pads[rank + at] - dilations[at] * (taps[at] - 1) - 1
        blocks.append(wide // strides[at] + 1)
        start = pads[at] - strides[at] * (blocks[at] - 1)
        offset = {f"i{at + 2}": 1, f"o{at}": strides[at]}
        over.append((f"o{at}", blocks[at]))
        if dilations[at] == 1:
            values[f"t{at}"] = combine(offset, start)
            guards.append(Guard(values[f"t{at}"], taps[at]))
        else:
            over.append((f"t{at}", taps[at]))
            guards.append(Guard(combine(offset | {f"t{at}": -dilations[at]}, start), 1))
    if build.shape(x)[1:] != (build.shape(y)[1] * prod(taps), prod(blocks)):
        build.refuse(f"x {list(build.shape(x))} for blocks {blocks} of {taps}")
    tap = {f"t{at}": prod(taps[at + 1 :]) for at in range(rank)}
    position = {f"o{at}": -prod(blocks[at + 1 :]) for at in range(rank)}
    depth = substitute(combine({"i1": prod(taps), **tap}), values)
    place = combine(position, prod(blocks) - 1)
    build.define(node, Reduce("add", tuple(over), Load(x, (axis(0), depth, place)), tuple(guards)))


def reshape_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Reshape, Flatten, Squeeze, Unsqueeze."""
    dx = back.reshape(dys[0], back.shape(node.inputs[0]))
    return [dx, *[""] * (len(node.inputs) - 1)]


def transpose_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    rank = len(back.shape(node.inputs[0]))
    order = node.attributes.get("perm") or list(range(rank))[::-1]
    return [back.transpose(dys[0], [int(at) for at in np.argsort(order)])]


def expand_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    return [back.unbroadcast(dys[0], back.shape(node.inputs[0])), ""]


def concat_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Every part gets its own."""
    along = int(node.attributes.get("axis", 1)) % len(back.shape(node.outputs[0]))
    parts, first = list[str](), 0
    for name in node.inputs:
        last = first + back.shape(name)[along]
        parts.append(cut_gradient(back, dys[0], along, first, last) if back.wants(name) else "")
        first = last
    return parts


def cut_gradient(back: Backward, x: str, along: int, first: int, last: int) -> str:
    """The elements from one up to another along an axis."""
    shape = list(back.shape(x))
    shape[along] = last - first
    limits = [back.constant(np.array([number], np.int64)) for number in (first, last, along)]
    return back.add("slice", (x, *limits), shape, back.dtype(x))


def split_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """The parts together; zeros for those that nothing depends on."""
    x = node.inputs[0]
    shape, along = back.shape(x), int(node.attributes.get("axis", 0)) % len(back.shape(x))
    parts = [
        dy or back.constant(np.zeros(back.shape(name), back.dtype(x)))
        for name, dy in zip(node.outputs, dys, strict=True)
        if name
    ]
    dx = back.add("concat", parts, shape, back.dtype(x), axis=along)
    return [dx, *[""] * (len(node.inputs) - 1)]


def slices_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Zeros around and between the elements that were taken."""
    x, dx = node.inputs[0], dys[0]
    shape = back.shape(x)
    starts, ends, axes, steps = (known_integers(back, node, at) for at in range(1, 5))
    assert starts is not None and ends is not None
    axes = axes or list(range(len(starts)))
    for start, end, at, step in zip(starts, ends, axes, steps or [1] * len(starts), strict=True):
        taken = range(shape[at])[slice(start, end, step)]
        dx = _spread(back, dx, at % len(shape), taken, shape[at])
    return [dx, *[""] * (len(node.inputs) - 1)]


def _spread(back: Backward, x: str, along: int, places: range, extent: int) -> str:
    """Elements put to their places along an axis, with zeros elsewhere."""
    rank, shape = len(back.shape(x)), list(back.shape(x))
    shape[along] = extent
    if places == range(extent):
        return x
    if places.step == 1 and len(places):
        pads = [0] * (2 * rank)
        pads[along], pads[rank + along] = places.start, extent - places.stop
        padding = back.constant(np.array(pads, np.int64))
        return back.add("pad", (x, padding), shape, back.dtype(x))
    if not len(places):
        return back.constant(np.zeros(shape, back.dtype(x)))
    sources = [places.index(at) if at in places else 0 for at in range(extent)]
    real = np.array([at in places for at in range(extent)], back.dtype(x))
    padding = back.constant(np.array(sources, np.int64))
    moved = back.add("gather", (x, padding), shape, back.dtype(x), axis=along)
    mask = back.constant(real.reshape(-1, *[1] * (rank - along - 1)))
    return derive(back, "x * m", x=moved, m=mask)


def pad_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Cut the gradient to what is inside x; of padding by a constant."""
    mode = node.attributes.get("mode", "constant")
    if mode != "constant":
        raise UnsupportedError(f"the gradient of padding of mode {mode}")
    x = node.inputs[0]
    shape, pads, axes = back.shape(x), known_integers(back, node, 1), known_integers(back, node, 3)
    assert pads is not None
    turned = list(range(len(shape))) if axes is None else [at % len(shape) for at in axes]
    dx = dys[0]
    for number, at in enumerate(turned):
        before, after = pads[number], pads[len(turned) + number]
        if before > 0 or after > 0:
            dx = cut_gradient(back, dx, at, max(0, before), back.shape(dx)[at] - max(0, after))
        left = range(max(0, -before), shape[at] - max(0, -after))
        dx = _spread(back, dx, at, left, shape[at])
    return [dx, *[""] * (len(node.inputs) - 1)]


ROWS = (
    Operator("reshape", "Reshape", reshape, keep_count, reshape_gradient, dims="reshaped"),
    Operator("transpose", "Transpose", transpose, check_order, transpose_gradient,
             dims="transposed"),
    Operator("concat", "Concat", concat, gradient=concat_gradient, dims="joined"),
    Operator("split", "Split", split, gradient=split_gradient),
    Operator("slice", "Slice", slices, gradient=slices_gradient, dims="sliced"),
    Operator("pad", "Pad", pad, gradient=pad_gradient),
    # Without stages: known while a model is read, or Reshape after simplification
    Operator("flatten", "Flatten", None, check_axis, reshape_gradient, dims="reshaped"),
    Operator("squeeze", "Squeeze", gradient=reshape_gradient, dims="reshaped"),
    Operator("unsqueeze", "Unsqueeze", gradient=reshape_gradient, dims="reshaped"),
    Operator("constant", "Constant"),
    Operator("constant_of_shape", "ConstantOfShape"),
    Operator("shape", "Shape", shape_only=True),
    Operator("size", "Size", shape_only=True),
    Operator("range", "Range", shape_inputs=slice(None)),
    Operator("unique", "Unique", bounded=True,
             unsized="how many elements differ depends on data"),
    Operator("mel_weight_matrix", "MelWeightMatrix"),
    Operator("expand", "Expand", expand, gradient=expand_gradient, dims="expanded",
             shape_inputs=slice(1, 2)),
    Operator("tile", "Tile", tile, shape_inputs=slice(1, 2)),
    Operator("depth_to_space", "DepthToSpace", depth_to_space, dims="images"),
    Operator("space_to_depth", "SpaceToDepth", space_to_depth, dims="images"),
    Operator("trilu", "Trilu", trilu),
    Operator("eye_like", "EyeLike", eye_like, shape_only=True),
    Operator("center_crop_pad", "CenterCropPad", center_crop_pad),
    Operator("col2im", "Col2Im", col2im),
)  # fmt: skip
