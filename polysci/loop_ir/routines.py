"""The routines that lowered layers call beside microkernels, and the table of all of them.

A routine takes the thread that calls it and its operands, as microkernels do: it copies pixels or
factors into the order that kernels read, transforms tiles of pixels, or changes no memory at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np

from polysci.loop_ir.bilinear import BILINEAR
from polysci.loop_ir.blocks import BLOCKS
from polysci.loop_ir.group_tiles import GROUP_TILES
from polysci.loop_ir.memory import Array, Pointer
from polysci.loop_ir.microkernels import KERNELS, Fields, Integers, User, activate, clamp_values
from polysci.loop_ir.words import WORDS
from polysci.numerics.dtypes import F32, from_bf16, to_bf16
from polysci.numerics.filtering import Filtering, filtering
from polysci.numerics.scalar_functions import FUNCTIONS, apply_numpy

# Copies of x, and of factors into panels.


def _a_of(user: User, x: Pointer, at: Integers) -> Array:
    """Return elements of x as kernels read them from a copy."""
    array, formats = user.read(x, at), user.unit.formats
    if formats["ps_a"] is formats["ps_x"]:
        return np.asarray(array)
    return user.unit.decode(array, "ps_x")


def _pack_row(
    user: User, box: Pointer, x: Any, row: Fields, first: int, channels: int, zero: Any
) -> None:
    """Copy a row of pixels; those outside are ``zero``, of whole panels."""
    source = first + np.arange(row["pixels"]) * row["step"]
    real = (source >= 0) & (source < row["limit"]) & bool(x)
    panel = row["panel"] or channels
    whole = -(-channels // panel) * panel
    width, size = np.arange(whole), row["panel_size"]
    columns = width // panel * size + width % panel
    places = np.arange(row["pixels"])[:, None] * row["box_pixel"] + columns
    user.write(box, places[~real], zero)
    if real.any():
        at = source[real][:, None] * row["x_pixel"] + np.arange(channels) * row["x_channel"]
        user.write(box, places[real][:, :channels], _a_of(user, x, at))


def _pairs(user: User, to: Pointer, even: Any, odd: Any, real: int, width: int) -> None:
    """Write words of two rows, each of which may be missing."""
    pairs = np.zeros((width, 2), to.dtype)
    for at, source in enumerate((even, odd)):
        if source:
            pairs[:real, at] = user.read(source, np.arange(real))
    user.write(to, np.arange(2 * width), pairs.reshape(-1))


def _pack_pairs(user: User, box: Pointer, x: Any, row: Fields, first: int, channels: int) -> None:
    """Copy pixels into words of two; channels by panels."""
    real = min(row["pixels"], row["limit"] - first) if x else 0
    for step in range(0, row["pixels"], 2):
        rows = [x.move((first + at) * row["x_pixel"]) if at < real else None
                for at in (step, step + 1)]  # fmt: skip
        for panel, channel in enumerate(range(0, channels, row["panel"])):
            width = min(row["panel"], channels - channel) if rows[0] else row["panel"]
            even, odd = (source and source.move(channel) for source in rows)
            to = box.move(step * row["box_pixel"] + panel * row["panel_size"])
            _pairs(user, to, even, odd, width, width)


def _gather_image(user: User, box: Pointer, x: Pointer, row: Fields) -> None:
    pixels, channels = np.arange(row["pixels"])[:, None], np.arange(row["channels"])
    at = pixels * (row["step"] * row["x_pixel"]) + channels * row["x_channel"]
    user.write(box, pixels * row["box_pixel"] + channels, user.read(x, at))


def _copy_image(
    user: User, box: Pointer, x: Pointer, image: Fields, first: int, count: int
) -> None:
    """Copy positions of an image in rows of ``pitch``; those outside are 0."""
    row, column = np.divmod(first + np.arange(count), image["pitch"])
    row, column = row - image["top"], column - image["left"]
    inside = (row >= 0) & (row < image["height"]) & (column >= 0) & (column < image["width"])
    pixels = np.zeros(count, box.dtype)
    pixels[inside] = user.read(x, (row * image["x_row"] + column)[inside])
    user.write(box, np.arange(count), pixels)


def _panel_rows(
    user: User, packed: Pointer, w: Pointer, step: int, deep: int, width: int, real: int,
    *, turned: bool = False,
) -> None:  # fmt: skip
    """Copy columns, or if ``turned`` steps, that are neighbours in w."""
    real = max(0, min(real, width))
    by_step, by_column = (1, step) if turned else (step, 1)
    panel = np.zeros((deep, width), np.float32)
    at = np.arange(deep)[:, None] * by_step + np.arange(real) * by_column
    panel[:, :real] = user.read(w, at)
    user.write(packed, np.arange(panel.size), panel.reshape(-1))


def _part_rows(
    user: User, panels: Pointer, w: Pointer, at: int, step: int, deep: int, columns: int,
    tile: int, reduction: int,
) -> None:  # fmt: skip
    """Copy columns of several panels, from step ``at`` of each on."""
    lanes = user.unit.lanes
    for first in range(0, columns, tile):
        real = min(tile, columns - first)
        width = -(-real // lanes) * lanes
        to = panels.move(reduction * first + at * width)
        _panel_rows(user, to, w.move(first), step, deep, width, real)


def _panel_pairs(
    user: User, packed: Pointer, w: Pointer, step: int, deep: int, width: int, real: int
) -> None:
    """Copy columns that are neighbours in w into words of two steps."""
    for k in range(0, deep, 2):
        odd = w.move((k + 1) * step) if k + 1 < deep else None
        there = max(0, min(real, width))
        _pairs(user, packed.move(k * width), w.move(k * step), odd, there, width)


def _panel_turned_pairs(
    user: User, packed: Pointer, w: Pointer, step: int, deep: int, width: int, real: int
) -> None:
    """Copy steps that are neighbours in w into words of two."""
    real = max(0, min(real, width))
    pairs = np.zeros(((deep + 1) // 2, width, 2), packed.dtype)
    k, column = np.arange(deep), np.arange(real)
    pairs[k[:, None] // 2, column, k[:, None] % 2] = user.read(w, k[:, None] + column * step)
    user.write(packed, np.arange(pairs.size), pairs.reshape(-1))


def _part_pair(
    user: User, panels: Pointer, w: Pointer, at: int, step: int, deep: int, k: int, columns: int,
    tile: int, reduction: int,
) -> None:  # fmt: skip
    """Copy two steps of the columns of several panels."""
    lanes, odd = user.unit.lanes, w.move(step) if k + 1 < deep else None
    word = (deep + 1) // 2 * at + k // 2
    for first in range(0, columns, tile):
        real = min(tile, columns - first)
        width = -(-real // lanes) * lanes
        to = panels.move(reduction * first + 2 * width * word)
        _pairs(user, to, w.move(first), odd and odd.move(first), real, width)


# Winograd: V = B^T x B, U = G w G^T, y = A^T M A.


def _filterings(g: Fields) -> tuple[Filtering, Filtering]:
    """Return the filtering down and across a tile."""
    return (
        _filtering(g["tall"], g["rows"], g["tall_stride"]),
        _filtering(g["wide"], g["columns"], g["wide_stride"]),
    )


def _filtering(outputs: int, points: int, stride: int) -> Filtering:
    return filtering(outputs, points - stride * (outputs - 1), stride)


def _winograd_weights(user: User, g: Fields, w: Pointer, packed: Pointer) -> None:
    channels, filters, cols = g["depth"], g["filters"], g["cols"]
    down, across = _filterings(g)
    points, padded = g["rows"] * g["columns"], -(-filters // cols) * cols
    shape = (filters, channels // g["planes"], g["planes"], down.r, across.r)
    numbers = user.read(w, np.arange(prod(shape))).reshape(shape)
    numbers = np.swapaxes(numbers, 1, 2).reshape(filters, channels, down.r, across.r)
    factors = np.zeros((padded, channels, points), np.float32)
    sums = np.einsum("ir,kcrs,js->kcij", down.powers, numbers.astype(np.float64), across.powers)
    points_of = sums * np.outer(down.shares, across.shares)
    factors[:filters] = points_of.reshape(filters, channels, points)
    if user.unit.w != "f32":
        scales = _filter_scales(factors)
        factors *= scales[:, None, None]
        user.write(_scales_of(g, packed), np.arange(padded), 1 / scales)
    at = 0
    for first in range(0, padded, g["block"]):
        width = min(g["block"], padded - first)
        panels = factors[first : first + width].reshape(width // cols, cols, channels, points)
        block = panels.transpose(3, 0, 2, 1).reshape(-1)  # [point][panel][c][column]
        user.write(packed, at + np.arange(block.size), user.unit.encode(block, "ps_b"))
        at += block.size


def _filter_scales(factors: Array) -> Array:
    """Return the powers of two that bring the largest number of a filter between 2^7 and 2^8."""
    _, exponents = np.frexp(np.abs(factors).max((1, 2)))
    scales: Array = np.ldexp(np.float32(1), np.minimum(8 - exponents, 126))
    return scales


def _scales_of(g: Fields, packed: Pointer) -> Pointer:
    """Return where the numbers lie that undo scales of filters."""
    filters = -(-g["filters"] // g["cols"]) * g["cols"]
    behind = packed.move(g["rows"] * g["columns"] * g["depth"] * filters)
    return behind.cast(np.dtype(np.float32))


def _tile_place(g: Fields, tile: int) -> tuple[int, int, int]:
    """Return image, row and column of a tile's first pixel of y."""
    across, down = g["across"], g["down"]
    row, column = (
        at // step * count * step + at % step
        for at, count, step in (
            (tile // across % down, g["tall"], g["tall_step"]),
            (tile % across, g["wide"], g["wide_step"]),
        )
    )
    return tile // (across * down), row, column


def _winograd_input(user: User, g: Fields, x: Pointer, v: Pointer, first: int, last: int) -> None:
    """Transform tiles of pixels, plane by plane; those outside the image are 0."""
    channels, high, wide = np.arange(g["channels"]), g["rows"], g["columns"]
    into, along = (axis.matrices[0].astype(np.float32) for axis in _filterings(g))
    whole = np.arange(-(-len(channels) // user.unit.lanes) * user.unit.lanes)
    for (at, tile), tap in product(enumerate(range(first, last)), range(g["planes"])):
        image, row, column = _tile_place(g, tile)
        number, plane = divmod(image, g["images"])
        plane = plane * g["plane_stride"] + tap * g["plane_step"] - g["front"]
        rows = row * g["tall_stride"] - g["top"] + np.arange(high) * g["tall_step"]
        columns = column * g["wide_stride"] - g["left"] + np.arange(wide) * g["wide_step"]
        real = np.ix_(
            np.flatnonzero((rows >= 0) & (rows < g["height"]) & (0 <= plane < g["deep"])),
            np.flatnonzero((columns >= 0) & (columns < g["width"])), channels,
        )  # fmt: skip
        pixels = np.zeros((high, wide, len(whole)), np.float32)
        pixels[real] = user.read(
            x, number * g["x_image"] + plane * g["x_plane"] + rows[real[0]] * g["x_row"]
            + columns[real[1]] * g["x_col"] + real[2] * g["x_channel"],
        )  # fmt: skip
        points = np.einsum("ir,rsc,js->ijc", into, pixels, along)
        places = np.arange(high * wide)[:, None] * g["v_point"] + at * g["v_tile"]
        places = places + tap * len(channels) + whole
        user.write(v, places, points.reshape(high * wide, -1))


def _winograd_output(
    user: User, g: Fields, args: Fields, points: Pointer, first: int, last: int, k0: int,
    count: int, activation: Any,
) -> None:  # fmt: skip
    """Transform sums of tiles back, and finish the pixels that y has."""
    high, wide, filters = g["rows"], g["columns"], np.arange(count)
    back, along = (axis.matrices[2].astype(np.float32) for axis in _filterings(g))
    bias = user.read(args["bias"], k0 + filters) if args["bias"] else np.float32(0)
    scale = np.float32(1)
    if user.unit.w != "f32":
        scale = user.read(_scales_of(g, args["packed"]), k0 + filters)
    for at, tile in enumerate(range(first, last)):
        image, row, column = _tile_place(g, tile)
        places = np.arange(high * wide)[:, None] * g["m_point"] + at * g["m_tile"] + filters
        sums = user.read(points, places).reshape(high, wide, count)
        pixels = np.einsum("pi,ijk,qj->pqk", back, sums, along) * scale + bias
        rows = np.arange(row, g["p"], g["tall_step"])[: g["tall"]]
        columns = np.arange(column, g["q"], g["wide_step"])[: g["wide"]]
        pixels = pixels[: len(rows), : len(columns)]
        number, plane = divmod(image, g["images"])
        y = (number * g["y_image"] + plane * g["y_plane"] + rows[:, None, None] * g["y_row"]
             + columns[:, None] * g["y_col"] + (k0 + filters) * g["y_channel"])  # fmt: skip
        if args["residual"]:
            pixels = pixels + user.read(args["residual"], y)
        user.write(args["y"], y, clamp_values(user, activate(pixels, activation), args["clamp"]))


# Others.


def _configure(user: User, tiles: Any, t: Fields) -> None:
    """Give a thread's tile registers a shape, which ``tiles`` keeps."""
    user.tiles[0] = int(t["rows"])
    tiles.set(user.tiles[0])


def _release(user: User, tiles: Any) -> None:
    user.tiles[0] = 0
    tiles.set(0)


def _b_of(user: User, weight: Any) -> Any:
    """Return a weight as kernels read it."""
    if user.unit.formats["ps_b"] == F32 != user.unit.formats["ps_x"]:
        return user.unit.decode(np.asarray(weight), "ps_x")[()]
    return weight


def _nothing(user: User, *_: Any) -> int:
    """Do what changes no memory: prefetches, fences, modes of the CPU."""
    return 0


def _scalar(function: str, user: User, value: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.float32(apply_numpy(function, np.asarray(value, np.float64)))


ROUTINES: Final[Mapping[str, Callable[..., Any]]] = {
    **KERNELS,
    **GROUP_TILES,
    **WORDS,
    **BLOCKS,
    **BILINEAR,
    "ps_pack_row": _pack_row,
    "ps_pack_pairs": _pack_pairs,
    "ps_gather_image": _gather_image,
    "ps_copy_image": _copy_image,
    "ps_panel_rows": _panel_rows,
    "ps_panel_turned": partial(_panel_rows, turned=True),
    "ps_part_rows": _part_rows,
    "ps_panel_pairs": _panel_pairs,
    "ps_panel_turned_pairs": _panel_turned_pairs,
    "ps_part_pair": _part_pair,
    "ps_winograd_weights": _winograd_weights,
    "ps_winograd_input": _winograd_input,
    "ps_winograd_output": _winograd_output,
    "ps_tiles_configure": _configure,
    "ps_tiles_release": _release,
    "ps_is_aligned": lambda user, pointer, size: int(pointer.offset % size == 0),
    "ps_column_at": lambda user, at, width: user.unit.column_at(at, width),
    "ps_b_of": _b_of,
    "ps_bf16_value": lambda user, bits: from_bf16(np.asarray(bits))[()],
    "ps_bf16_of": lambda user, value: to_bf16(np.asarray(value))[()],
    "ps_f16_value": lambda user, bits: np.uint16(bits).view(np.float16).astype(np.float32),
    "ps_f16_of": lambda user, value: np.float16(value).view(np.uint16),
    "ps_now": lambda user: 0.0,
    **dict.fromkeys(
        (
            "ps_ahead", "ps_fence", "ps_flush_denormals", "ps_restore_mode", "__builtin_prefetch",
        ),
        _nothing,
    ),
    **{f"ps_f_{name}": partial(_scalar, name) for name in FUNCTIONS},
}  # fmt: skip
