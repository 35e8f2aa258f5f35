"""The microkernels of ``microkernels/*.h`` in NumPy, on the interpreter's memory.

``KERNELS`` has a row for each step of a register tile. A step takes the thread that calls it,
through which it reads and writes the very elements that its C does, and its operands: accumulators,
the tile, pointers (0 is the null pointer), integers. microkernels/README.md is the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from polysci.loop_ir.memory import STORED, Array, At, MemoryFaultError, Pointer
from polysci.numerics.dtypes import (
    COMPUTES,
    DTYPES,
    F32,
    DType,
    to_stored,
    values,
)
from polysci.numerics.scalar_functions import FUNCTIONS, apply_numpy

Integers = NDArray[np.int64]
Fields = Mapping[str, Any]  # a record
_S16: Final = DType("s16", np.dtype("int16"), 2, integer=True)
_BYTE: Final = DType("byte", np.dtype("uint8"), 1, integer=True)


@dataclass(frozen=True)
class Unit:
    """The vectors and element types of microkernels, as the headers of a C file decide them.

    ``compute`` is a row of COMPUTES; ``packed_copy`` as in ``HeaderSet``. ``flip`` is what kernels
    add to x as they read it, ``tiles`` says whether sums lie in registers that are configured.
    ``matrices``: both factors are multiplied as x holds them. ``w``: how weights are decoded, as in
    ``HeaderSet``.
    """

    lanes: int
    compute: str = "f32"
    x: str = "f32"
    y: str = "f32"
    packed_copy: bool = True
    flip: int = 0
    tiles: bool = False
    matrices: bool = False
    w: str = "f32"

    @cached_property
    def word(self) -> int:
        """Elements of k that share 32 bits."""
        return COMPUTES[self.compute].vnni_factor

    @cached_property
    def formats(self) -> Mapping[str, DType]:
        """The element types by the names that C has for them."""
        x, sums = DTYPES[self.x], COMPUTES[self.compute].sum
        wide = {"i16": _S16}.get(self.compute, F32)
        copied = self.packed_copy and self.compute in ("f32", "f16", "i16")
        b = {"bf16": DTYPES["bf16"], "i8": DTYPES["s8"]}.get(self.compute, wide)
        b = x if self.matrices and not sums.integer else b
        b = {"f32": b, "bf16": DTYPES["bf16"], "f16": DTYPES["f16"]}.get(self.w, _BYTE)
        return {
            "ps_x": x, "ps_y": DTYPES[self.y], "ps_a": wide if copied else x, "ps_b": b,
            "ps_shared": b, "ps_rows": x, "ps_columns": b, "ps_bias": sums,
        }  # fmt: skip

    @cached_property
    def types(self) -> Mapping[str, np.dtype[Any]]:
        """The types of memory by the names that C has for them: of narrow floats their bits."""
        return {name: STORED[dtype.stored] for name, dtype in self.formats.items()}

    @cached_property
    def names(self) -> Mapping[str, Any]:
        """The constants that generated code reads, and the functions of finished sums."""
        constants = {"PS_WORD": self.word, "PS_FLIP": self.flip}
        return constants | {f"ps_each_{name}": name for name in FUNCTIONS}

    @property
    def pairs(self) -> bool:
        """True if vectors of A come two at a time, as even and odd elements."""
        return self.x == "bf16" and not self.packed_copy

    def decode(self, array: Array, name: str) -> Array:
        """Return the numbers that elements of one of ``formats`` hold."""
        dtype = self.formats[name]
        if dtype.integer:
            return array.astype(np.int64)
        return values(array.view(dtype.numpy), dtype).astype(np.float32)

    def encode(self, array: Array, name: str) -> Array:
        """Return numbers as elements of one of ``formats``: rounded, and saturated if narrow."""
        dtype = self.formats[name]
        with np.errstate(over="ignore", invalid="ignore"):
            if dtype.bytes == 4:
                return array.astype(dtype.numpy)
            return to_stored(array, dtype).view(self.types[name])

    def order(self, width: int) -> Integers:
        """Return the column at each place of a panel of so many columns."""
        return np.array([self.column_at(at, width) for at in range(width)])

    def column_at(self, at: int, width: int) -> int:
        """Return the column at a place of a panel."""
        first = at // (2 * self.lanes) * 2 * self.lanes
        if not self.pairs or first + 2 * self.lanes > width:
            return at
        half, lane = divmod(at - first, self.lanes)
        return first + 2 * lane + half


class User(Protocol):
    """The thread that calls a routine."""

    @property
    def unit(self) -> Unit: ...

    @property
    def tiles(self) -> list[int]:
        """The shape that its tile registers have; 0: none."""

    @property
    def copies(self) -> list[list[tuple[Pointer, Integers, Array]]]:
        """Groups of copies that have not ended; the last one is not complete."""

    def read(self, pointer: Pointer, at: At) -> Any: ...

    def write(self, pointer: Pointer, at: At, value: Any) -> None: ...


class Accumulators:
    """The sums of a register tile by shift, row and column; None until a tile has begun."""

    def __init__(self, vectors: int) -> None:
        self.vectors = vectors
        self._sums: Array | None = None

    @property
    def sums(self) -> Array:
        """The sums. Raises MemoryFaultError before the tile has begun."""
        if self._sums is None:
            raise MemoryFaultError("acc: sums are read before anything wrote them")
        return self._sums

    @sums.setter
    def sums(self, sums: Array) -> None:
        self._sums = sums


@dataclass(frozen=True)
class TileView:
    """A ``ps_tile`` in a unit: where its rows and columns lie."""

    unit: Unit
    fields: Fields

    def __getattr__(self, name: str) -> int:
        return int(self.fields[name])

    @property
    def width(self) -> int:
        """Columns of the accumulators and of B, in whole vectors: one for each in a lane of A."""
        return int(-(-self.vecs // self.in_lane) * self.in_lane * self.unit.lanes)

    @property
    def in_lane(self) -> int:
        """Channels in a lane of A."""
        return max(self.together, 1)

    @property
    def channels(self) -> Integers:
        """The channels in the lane of A that each place of the accumulators meets."""
        vector, lane = np.divmod(np.arange(self.width), self.unit.lanes)
        word = vector // self.in_lane * self.unit.lanes + lane
        return np.asarray(word[:, None] * self.in_lane + np.arange(self.in_lane))

    @property
    def order(self) -> Integers:
        """The column at each place of the accumulators of grouped tiles, once none is shifted."""
        of_word = np.arange(self.width) // self.unit.lanes % self.in_lane
        return np.asarray(self.channels[:, 0] + of_word)

    @property
    def columns(self) -> int:
        """Columns of C."""
        return int((self.vecs - 1) * self.unit.lanes + self.lanes)

    @property
    def a_rows(self) -> Integers:
        """The first element of each row of A."""
        return self._rows("a")

    @property
    def c_rows(self) -> Integers:
        """The first element of each row of C."""
        return self._rows("c")

    def _rows(self, of: str) -> Integers:
        outer, inner = np.divmod(np.arange(self.rows), self.wrap)
        return np.asarray(outer * self.fields[f"{of}_outer"] + inner * self.fields[f"{of}_inner"])

    @property
    def c(self) -> Integers:
        """The places of the elements of C, and of memory that is shaped like it."""
        return self.c_rows[:, None] + np.arange(self.columns) * self.c_col

    def active(self, mask: int) -> Integers:
        """Return the rows that take part."""
        return np.array([row for row in range(self.rows) if mask >> row & 1], np.int64)


def read_values(user: User, pointer: Pointer, at: Integers, name: str) -> Array:
    """Return the numbers of some elements in one of the unit's formats."""
    return user.unit.decode(user.read(pointer, at), name)


def _panel(user: User, tile: TileView, b: Pointer, length: int, shifts: int = 1) -> Array:
    """Return rows of a panel of B, by step, shift, column and element of a word."""
    shape = (length, shifts, tile.width, user.unit.word)
    return read_values(user, b, np.arange(np.prod(shape)), "ps_b").reshape(shape)


def add_products(acc: Accumulators, rows: Integers, products: Array, shift: int = 0) -> None:
    """Add to rows of sums; whole ones wrap around."""
    sums = acc.sums
    columns = products.shape[-1]
    with np.errstate(over="ignore"):
        sums[shift, rows, :columns] += products.astype(sums.dtype)


# The three steps of a register tile.


def _begin(user: User, acc: Accumulators, t: Fields, c: Any, accumulate: Any) -> None:
    tile = TileView(user.unit, t)
    if acc.vectors < tile.rows * (tile.width // user.unit.lanes) * max(tile.shifts, 1):
        raise MemoryFaultError("acc: a tile has more sums than are declared")
    if user.unit.tiles and user.tiles[0] != tile.rows:
        raise MemoryFaultError("acc: a tile begins whose shape its registers do not have")
    dtype = user.unit.formats["ps_bias"].numpy
    acc.sums = np.zeros((max(tile.shifts, 1), tile.rows, tile.width), dtype)
    if accumulate:
        _accumulate(user, acc, t, c)


def _accumulate(user: User, acc: Accumulators, t: Fields, c: Pointer) -> None:
    """Add what C holds."""
    tile = TileView(user.unit, t)
    held = read_values(user, c, tile.c, "ps_y")
    acc.sums[0, :, : tile.columns] += held.astype(acc.sums.dtype)


def _begin_offset(user: User, acc: Accumulators, t: Fields, e: Fields) -> None:
    _begin(user, acc, t, 0, 0)
    tile = TileView(user.unit, t)
    add_products(acc, np.arange(tile.rows), _start(user, tile, e)[None, :])


def _start(user: User, tile: TileView, e: Fields) -> Array:
    """Return offset and bias of whole sums by column."""
    columns = np.arange(tile.columns)
    start: Array = user.read(e["offset"], columns).astype(np.int64)
    return start + user.read(e["bias"], columns) if e["bias"] else start


def _run(
    user: User, acc: Accumulators, t: Fields, mask: int, a: Pointer, b: Pointer, length: int,
    a_k: int, width: int = 0, filling: int | None = None,
) -> None:  # fmt: skip
    """Add products of evenly spaced steps; rows that take no part have ``filling`` for A."""
    tile, unit = TileView(user.unit, t), user.unit
    active, panel = tile.active(mask), _panel(user, tile, b, length)[:, 0]
    order = unit.order(tile.width)
    real = order < tile.columns
    columns = order[real] if tile.diagonal else np.arange(width or unit.word)
    at = tile.a_rows[active][None, :, None] + np.arange(length)[:, None, None] * a_k + columns
    if tile.diagonal:
        factors = read_values(user, a, at, "ps_a")
        products = np.zeros((len(active), tile.width), factors.dtype)
        products[:, real] = np.einsum("krj,kj->rj", factors, panel[:, real, 0])
    else:
        factors = _words(user, a, at, panel)
        products = np.einsum("krw,kjw->rj", factors, panel[:, :, : len(columns)])
    add_products(acc, active, products)
    if filling is not None:
        others = tile.active(~mask)
        add_products(acc, others, (panel.sum((0, 2)) * (filling + unit.flip))[None, :])


def _words(user: User, a: Pointer, at: Integers, panel: Array) -> Array:
    """Return A by step, row and element of a word: the last word may end behind the last value.

    Whatever lies there meets zeros of B.
    """
    if at.shape[-1] == 1 or not len(at):
        return np.asarray(read_values(user, a, at, "ps_a") + user.unit.flip)
    needed = np.ones(at.shape, bool)
    needed[-1, :, 1:] = panel[-1, :, 1 : at.shape[-1]].any(0)
    a.place(at)  # all of it lies in memory
    factors = np.zeros(at.shape, np.int64 if user.unit.formats["ps_a"].integer else np.float32)
    factors[needed] = read_values(user, a, at[needed], "ps_a") + user.unit.flip
    return factors


def _run_grouped(
    user: User, acc: Accumulators, t: Fields, mask: int, a: Pointer, b: Pointer, length: int,
    a_k: int, _: int = 0, filling: int | None = None,
) -> None:  # fmt: skip
    """Add products of groups of columns: the sums of each shift of B stay apart."""
    tile = TileView(user.unit, t)
    active, panel = tile.active(mask), _panel(user, tile, b, length, tile.shifts)
    channels, steps, flip = tile.channels, np.arange(length) * a_k, user.unit.flip
    real = channels < tile.columns
    at = tile.a_rows[active][None, :, None] + steps[:, None, None] + channels[real]
    read = read_values(user, a, at, "ps_a") + flip
    factors = np.zeros((length, len(active), *channels.shape), read.dtype)
    factors[:, :, real] = read
    for shift in range(tile.shifts):
        weights = np.where(real, panel[:, shift, :, : tile.in_lane], 0)
        add_products(acc, active, np.einsum("krje,kje->rj", factors, weights), shift)
        if filling is not None:
            padding = weights.sum((0, 2))[None, :] * (filling + flip)
            add_products(acc, tile.active(~mask), padding, shift)


def _slide(
    user: User, acc: Accumulators, t: Fields, pixels: int, a: Pointer, b: Pointer, taps: int,
    step: int, filling: int | None = None,
) -> None:  # fmt: skip
    """Add all taps of a line; bits of ``pixels`` say which pixels of the lines are real."""
    tile, unit = TileView(user.unit, t), user.unit
    wide, every = min(tile.rows, tile.wrap), tile.a_inner // step
    span, panel = (wide - 1) * every + taps, _panel(user, tile, b, taps)[:, 0, :, 0]
    order = unit.order(tile.width)
    real = order < tile.columns
    for row in range(tile.rows):
        line, inner = divmod(row, wide)
        for tap in range(taps):
            pixel = inner * every + tap
            products = np.zeros((1, tile.width), panel.dtype)
            if pixels >> (line * span + pixel) & 1:
                at = line * tile.a_outer + pixel * step + order[real]
                products[0, real] = read_values(user, a, at, "ps_a") * panel[tap, real]
            elif filling is not None:
                products[0] = filling * panel[tap]
            add_products(acc, np.array([row]), products)


def _slide_stacked(
    user: User, acc: Accumulators, t: Fields, f: Fields, pixels: int, a: Pointer, b: Pointer,
    first: int, last: int, filling: int | None = None,
) -> None:  # fmt: skip
    """Add a line of words whose elements are pixels of several rows of the image."""
    tile, unit = TileView(user.unit, t), user.unit
    taps, count, step, pitch = (f[name] for name in ("taps", "count", "step", "pitch"))
    panel, columns = _panel(user, tile, b, taps)[:, 0], np.arange(tile.columns)
    every = max(tile.a_inner // step, 1) if tile.a_inner > step else 1
    inside = np.arange(max(first, 0), min(last, count))
    missing = 0 if filling is None else filling + unit.flip
    for row in range(tile.rows):
        for tap in range(taps):
            pixel = row * every + tap
            real = pixels >> pixel & 1 and len(inside) > 0
            if not real and filling is None:
                continue
            pixels_of_rows = np.full((tile.columns, unit.word), missing, np.int64)
            if real:
                at = pixel * step + inside * pitch + columns[:, None]
                pixels_of_rows[:, inside] = read_values(user, a, at, "ps_a") + unit.flip
            add_products(
                acc, np.array([row]), (pixels_of_rows * panel[tap, : tile.columns]).sum(1)[None, :]
            )


def _run_window(
    user: User, acc: Accumulators, t: Fields, f: Fields, a: Pointer, b: Pointer, columns: int,
    left: int, right: int,
) -> None:  # fmt: skip
    """Add columns of a filter's taps to pixels of image rows: what lies outside counts as zero."""
    tile = TileView(user.unit, t)
    for tap in range(f["taps"]):
        rows = np.arange(tile.rows) * f["step"] + tap * f["apart"]
        real_rows = np.flatnonzero((rows >= f["top"]) & (rows < f["bottom"]))
        for column in range(columns):
            pixels = np.arange(tile.columns) * f["every"] + column * f["across"]
            real = np.flatnonzero((pixels >= left) & (pixels < right))
            products = np.zeros((tile.rows, tile.columns), np.float32)
            at = rows[real_rows][:, None] * f["row"] + pixels[real]
            weight = read_values(user, b, np.array([tap * f["b_row"] + column]), "ps_b")
            products[np.ix_(real_rows, real)] = read_values(user, a, at, "ps_a") * weight
            add_products(acc, np.arange(tile.rows), products)


def _with_filling(step: Callable[..., None], at: int = 3) -> Callable[..., None]:
    """Return a step whose operand ``at`` says what rows in the padding have for A."""

    def run(user: User, *operands: Any) -> None:
        step(user, *operands[:at], *operands[at + 1 :], filling=operands[at])

    return run


def _unshift(user: User, acc: Accumulators, t: Fields) -> None:
    sums, columns = acc.sums, np.arange(acc.sums.shape[-1])
    for shift in range(1, t["shifts"]):
        sums[0] += sums[shift][:, columns ^ shift]
    sums[0][:, TileView(user.unit, t).order] = sums[0].copy()


def _unpair(user: User, acc: Accumulators, t: Fields) -> None:
    tile = TileView(user.unit, t)
    sums = np.empty_like(acc.sums)
    sums[:, :, user.unit.order(tile.width)] = acc.sums
    acc.sums = sums


# Factors with their places changed.


def _run_rows(
    user: User, acc: Accumulators, t: Fields, a: Pointer, b: Pointer, length: int, b_k: int, _: int
) -> None:
    tile = TileView(user.unit, t)
    weights = read_values(user, a, np.arange(length * tile.rows), "ps_b").reshape(length, tile.rows)
    at = np.arange(length)[:, None] * b_k + np.arange(tile.columns)
    add_products(acc, np.arange(tile.rows), weights.T @ read_values(user, b, at, "ps_a"))


def _run_taps(
    user: User, acc: Accumulators, t: Fields, a: Pointer, b: Pointer, length: int, b_k: int,
    taps: Any,
) -> None:  # fmt: skip
    tile, ((rows, row), (columns, column)) = TileView(user.unit, t), taps
    grid = np.add.outer(np.arange(rows) * row, np.arange(columns) * column).reshape(-1)
    steps = np.add.outer(np.arange(length) * b_k, grid).reshape(-1)
    shape = len(steps), tile.rows
    weights = read_values(user, a, np.arange(np.prod(shape)), "ps_b").reshape(shape)
    numbers = read_values(user, b, steps[:, None] + np.arange(tile.columns), "ps_a")
    add_products(acc, np.arange(tile.rows), weights.T @ numbers)


def _run_plain(
    user: User, acc: Accumulators, t: Fields, a: Pointer, b: Pointer, length: int, a_k: int,
    b_k: int, b_col: int = 1,
) -> None:  # fmt: skip
    tile, steps = TileView(user.unit, t), np.arange(length)
    left = read_values(user, a, tile.a_rows[:, None] + steps * a_k, "ps_a")
    right = read_values(user, b, steps[:, None] * b_k + np.arange(tile.columns) * b_col, "ps_b")
    add_products(acc, np.arange(tile.rows), left @ right)


def _run_dots(
    user: User, acc: Accumulators, t: Fields, a: Pointer, b: Pointer, length: int, b_col: int
) -> None:
    _run_plain(user, acc, t, a, b, length, 1, 1, b_col)


# The epilogue.


def _shift(user: User, g: Fields, n: int, c: int) -> dict[str, Any]:
    def move(pointer: Any, count: int) -> Any:
        return pointer.move(count) if pointer else 0

    scale = g["to"]["scale"] if g["to"] else 0
    return {
        "bias": move(g["bias"], n), "residual": move(g["residual"], c), "clamp": g["clamp"],
        "offset": move(g["offset"], n), "scale": move(scale, n), "to": g["to"],
        "activation": 0, "alpha": 1.0, "beta": 1.0,
    }  # fmt: skip


def _in_batch(user: User, e: Fields, batch: int) -> dict[str, Any]:
    return {**e, "offset": e["offset"].move(batch)}


def finish_sums(
    user: User, tile: TileView, sums: Array, e: Fields, c: Integers, bias: Array
) -> Array:
    """Return results of f32 sums: factors, bias, residual at ``c``, activation, clamp."""
    result: Array = sums * np.float32(e["alpha"]) + bias
    if e["residual"]:
        residual = read_values(user, e["residual"], c, "ps_y")
        result = result + np.float32(e["beta"]) * residual
    return clamp_values(user, activate(result, e["activation"]), e["clamp"])


def activate(values: Array, activation: Any) -> Array:
    """Return the values of an activation, if there is one."""
    if not activation:
        return values
    with np.errstate(all="ignore"):
        return apply_numpy(activation, values.astype(np.float64)).astype(np.float32)


def clamp_values(user: User, values: Array, clamp: Any) -> Array:
    """Return values between two bounds in memory, if there are any; a NaN stays one."""
    if not clamp:
        return values
    low, high = user.read(clamp, np.arange(2))
    return np.asarray(np.minimum(high, np.maximum(low, values)))


def bias_of(user: User, e: Fields, count: int) -> Array:
    """Return the bias of so many columns, or rows; 0 where there is none."""
    return user.read(e["bias"], np.arange(count)) if e["bias"] else np.zeros(count, np.float32)


def end_tile(user: User, acc: Accumulators, t: Fields, c: Pointer, e: Any) -> None:
    tile = TileView(user.unit, t)
    sums = acc.sums[0, :, : tile.columns]
    if e:
        sums = shift_sums(user, tile, sums, e)
        if e["residual"]:
            sums = add_residual(user, sums, read_values(user, e["residual"], tile.c, "ps_y"), e)
        sums = finish(user, sums, e)
    user.write(c, tile.c, user.unit.encode(sums, "ps_y"))


def shift_sums(user: User, tile: TileView, sums: Array, e: Fields) -> Array:
    """Return sums after what comes before a residual: factors, offset, bias, scales."""
    unit = user.unit
    if not unit.formats["ps_bias"].integer:
        return np.asarray(sums * np.float32(e["alpha"]) + bias_of(user, e, tile.columns))
    if not tile.begun:
        sums = (sums.astype(np.int64) + _start(user, tile, e)).astype(np.int32)
    if unit.y == "s32":
        return sums
    return np.asarray(sums.astype(np.float32) * user.read(e["scale"], np.arange(tile.columns)))


def add_residual(user: User, sums: Array, residual: Array, e: Fields) -> Array:
    """Return sums and a residual, each operation rounded."""
    if not user.unit.formats["ps_bias"].integer:
        return np.asarray(sums + np.float32(e["beta"]) * residual)
    if user.unit.y == "s32":
        return (sums.astype(np.int64) + residual).astype(np.int32)
    real = (residual - e["to"]["residual_zero"]).astype(np.float32)
    return np.asarray(sums + real * np.float32(e["to"]["residual_scale"]))


def finish(user: User, sums: Array, e: Fields) -> Array:
    """Return results: what comes behind a residual, activation, clamp, zero point."""
    if not user.unit.formats["ps_bias"].integer:
        return clamp_values(user, activate(sums, e["activation"]), e["clamp"])
    if user.unit.y != "s32":
        return np.asarray(np.rint(clamp_values(user, sums, e["clamp"])) + e["to"]["y_zero"])
    if not e["clamp"]:
        return sums
    low, high = np.clip(user.read(e["clamp"], np.arange(2)).astype(float), -(2**31), 2**31 - 1)
    return np.asarray(np.minimum(int(high), np.maximum(int(low), sums.astype(np.int64))))


def _end_rows(user: User, acc: Accumulators, t: Fields, c: Pointer, e: Any) -> None:
    """Finish a tile whose bias belongs to a row."""
    tile = TileView(user.unit, t)
    sums = acc.sums[0, :, : tile.columns]
    if e:
        sums = finish_sums(user, tile, sums, e, tile.c, bias_of(user, e, tile.rows)[:, None])
    user.write(c, tile.c, user.unit.encode(sums, "ps_y"))


def _end_channel(user: User, acc: Accumulators, t: Fields, c: Pointer, e: Fields) -> None:
    """Finish a tile that has one bias."""
    acc.sums = acc.sums + bias_of(user, e, 1)
    end_tile(user, acc, t, c, {**e, "bias": 0})


def _gap_columns(tile: TileView, gaps: Fields) -> tuple[Integers, Integers]:
    """Return the columns that C has, and where they lie in a row of it."""
    pitch, columns = gaps["pitch"], gaps["columns"]
    at = gaps["phase"] + np.arange(tile.columns)
    real = np.flatnonzero(at % pitch < columns)
    before = at // pitch * columns + at % pitch - min(gaps["phase"], columns)
    return real, before[real]


def _begin_gaps(
    user: User, acc: Accumulators, t: Fields, c: Pointer, accumulate: Any, gaps: Fields
) -> None:
    _begin(user, acc, t, c, 0)
    if accumulate:
        tile = TileView(user.unit, t)
        real, at = _gap_columns(tile, gaps)
        acc.sums[0][:, real] += read_values(user, c, tile.c_rows[:, None] + at, "ps_y")


def _end_gaps(user: User, acc: Accumulators, t: Fields, c: Pointer, e: Any, gaps: Fields) -> None:
    tile = TileView(user.unit, t)
    real, at = _gap_columns(tile, gaps)
    places, sums = tile.c_rows[:, None] + at, acc.sums[0][:, real]
    if e:
        sums = finish_sums(user, tile, sums, e, places, bias_of(user, e, tile.rows)[:, None])
    user.write(c, places, user.unit.encode(sums, "ps_y"))


def _limits(user: User, limits: Pointer, clamp: Any, to: Fields, channels: int) -> Any:
    """Return the clamp that 8-bit results need; 0 where their narrowing clamps enough."""
    most, ends = float(2**30), np.iinfo(user.unit.formats["ps_y"].numpy)
    low, high = user.read(clamp, np.arange(2)) if clamp else (-most, most)
    low, high = max(low, -most), min(high, most)
    scales = np.abs(user.read(to["scale"], np.arange(channels)))
    far = abs(to["residual_scale"]) > 2.0**20 or (scales >= 0.5).any()
    if not far and low + to["y_zero"] <= ends.min and high + to["y_zero"] >= ends.max:
        return 0
    user.write(limits, np.arange(2), np.array([low, max(high, -most)]))
    return limits


KERNELS: Final[Mapping[str, Callable[..., Any]]] = {
    "ps_begin": _begin,
    "ps_accumulate": _accumulate,
    "ps_begin_offset": _begin_offset,
    "ps_begin_gaps": _begin_gaps,
    "ps_run": _run,
    "ps_run_part": _run,
    "ps_run_filled": _with_filling(_run),
    "ps_run_grouped": _run_grouped,
    "ps_run_grouped_filled": _with_filling(_run_grouped),
    "ps_slide": _slide,
    "ps_slide_filled": _with_filling(_slide),
    "ps_slide_stacked": _slide_stacked,
    "ps_slide_stacked_filled": _with_filling(_slide_stacked, 4),
    "ps_run_window": _run_window,
    "ps_run_rows": _run_rows,
    "ps_run_taps": _run_taps,
    "ps_run_plain": _run_plain,
    "ps_run_dots": _run_dots,
    "ps_unshift": _unshift,
    "ps_unpair": _unpair,
    "ps_end": end_tile,
    "ps_end_rows": _end_rows,
    "ps_end_channel": _end_channel,
    "ps_end_gaps": _end_gaps,
    "ps_shifted": _shift,
    "ps_in_batch": _in_batch,
    "ps_times": lambda user, e, alpha, beta: {**e, "alpha": alpha, "beta": beta},
    "ps_then": lambda user, e, activation: {**e, "activation": activation},
    "ps_limits": _limits,
}
