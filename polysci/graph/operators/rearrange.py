"""Operators that repeat, cut out or rearrange elements by rules that shapes alone decide."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci.graph.gradients import shape_ops as gradients
from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.table import Operator
from polysci.loop_ir.expressions import (
    Expr,
    Guard,
    Index,
    Load,
    Number,
    Reduce,
    Where,
    axis,
    combine,
    constant,
    substitute,
)
from polysci.polyhedral.affine import Affine
from polysci.program.stages import ViewStage

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
    made = build.fresh(f"{y}.copies", shape, build.dtype(x)) if split else y
    build.define(node, Load(x, tuple(index)), made)
    if split:
        build.stages.append(ViewStage(str(node), y, made))


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


def triangle(build: Builder, node: Node) -> None:
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


def centre(build: Builder, node: Node) -> None:
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


def columns_to_image(build: Builder, node: Node) -> None:
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


ROWS = (
    Operator("expand", "Expand", expand, gradient=gradients.expand, dims="alike"),
    Operator("tile", "Tile", tile),
    Operator("depth_to_space", "DepthToSpace", depth_to_space, dims="images"),
    Operator("space_to_depth", "SpaceToDepth", space_to_depth, dims="images"),
    Operator("trilu", "Trilu", triangle),
    Operator("eye_like", "EyeLike", eye_like),
    Operator("center_crop_pad", "CenterCropPad", centre),
    Operator("col2im", "Col2Im", columns_to_image),
)  # fmt: skip
