"""The weights of a network as one run of bytes, and the loop IR that packs them in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from polysci.loop_ir.index import Flag, TableEntry, Variable, as_index, compare, least, negate
from polysci.loop_ir.nodes import (
    Address,
    Assign,
    Buffer,
    Convert,
    If,
    Invoke,
    Let,
    LoopFunction,
    LoopModule,
    LoopStatement,
    Member,
    Named,
    Point,
    Return,
    RoutineResult,
    Table,
    Unused,
    Value,
    block,
    loop,
)
from polysci.lower.direct.panels import clear_bytes
from polysci.lower.layer_calls import LayerCall, Spot, is_same, packed_once
from polysci.numerics.arrays import LINE, Array, round_up
from polysci.numerics.dtypes import DTYPES, DType, to_stored
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.stages import LayerStage, members_of

MAGIC = b"polysci weights "
PACKED_MAGIC = b"polysci packed "
SOURCE = Buffer("from", "source")  # of packing: where weights come from
DIGITS = 16  # of a digest
PIECE = 1 << 20  # elements or bytes looked at at a time: whole lines

Chunk = bytes | memoryview


@dataclass(frozen=True, slots=True)
class WeightsPart:
    """An array of the file, and the constant of the program, ``source``, that it is made from.

    ``flushed``: the source has denormals, and the array 0 instead. ``dtype``: the name of the
    array's type, if the source has another one.
    """

    name: str
    array: Array
    source: Array
    flushed: bool = False
    dtype: str = ""

    @staticmethod
    def of(name: str, source: Array, dtype: DType | None = None, *, flush: bool) -> WeightsPart:
        """Return the part that a constant is; ``flush``: without denormals."""
        flushed = flush and has_denormals(source)
        changed = dtype.name if dtype and dtype.numpy != source.dtype else ""
        return WeightsPart(name, convert(source, flushed, changed), source, flushed, changed)


def convert(source: Array, flushed: bool, dtype: str) -> Array:
    """Return the array of a part that is made from ``source``."""
    array = flush_denormals(source) if flushed else source
    if not dtype:
        return array
    stored = DTYPES[dtype]
    if stored.block > 1:  # the constant holds their bytes
        return np.ascontiguousarray(array).view(stored.numpy)
    return to_stored(array, stored)


@dataclass(frozen=True)
class WeightsFile:
    """Constants as stages read them, then raw weights, which are packed on load.

    ``parts`` are all of them in the order of the file, ``constants`` the offsets in bytes of the
    first, which are read as they are; sizes are in bytes, ``largest`` that of the most taken at a
    time.
    """

    parts: tuple[WeightsPart, ...]
    constants: tuple[int, ...]
    constants_size: int
    packed_size: int
    largest: int

    def chunks(self) -> Iterator[Chunk]:
        """Yield the bytes of the file, without its head."""
        for part in self.parts:
            yield from pieces_of(np.ascontiguousarray(part.array).reshape(-1).view(np.uint8).data)

    @cached_property
    def checks(self) -> FileChecks:
        """The digest and sums that tell the file from those of other networks."""
        return FileChecks.of(self.chunks())

    @property
    def digest(self) -> str:
        """The digest of the file."""
        return self.checks.digest

    def pieces(self) -> Iterator[Chunk]:
        """Yield the bytes of the file, piece by piece."""
        yield head_of(MAGIC, self.digest)
        yield from self.chunks()


@dataclass(frozen=True, slots=True)
class FileChecks:
    """The digest of a file's bytes, the sum of all words, and that of the sums on the way.

    Sums are modulo 2^64.
    """

    digest: str
    sum: int
    sums: int

    @staticmethod
    def of(chunks: Iterable[Chunk]) -> FileChecks:
        state, total, sums = hashlib.sha256(), np.uint64(0), np.uint64(0)
        with np.errstate(over="ignore"):
            for chunk in chunks:
                state.update(chunk)
                running = np.cumsum(np.frombuffer(chunk, np.uint64), dtype=np.uint64) + total
                sums += running.sum(dtype=np.uint64)
                total = running[-1]
        return FileChecks(state.hexdigest()[:DIGITS], int(total), int(sums))


def pieces_of(data: memoryview) -> Iterator[Chunk]:
    """Yield the bytes of an array, padded with zeros to whole lines."""
    for first in range(0, data.nbytes, PIECE):
        piece = data[first : first + PIECE]
        missing = -piece.nbytes % LINE
        yield piece.tobytes() + bytes(missing) if missing else piece


def packed_pieces(data: memoryview) -> Iterator[Chunk]:
    """Yield the bytes of a file of weights that were packed ahead, piece by piece."""
    yield head_of(PACKED_MAGIC, digest_of(pieces_of(data)))
    yield from pieces_of(data)


def head_of(magic: bytes, digest: str) -> bytes:
    """Return the first line of a file."""
    return (magic + digest.encode()).ljust(LINE, b"\0")


def digest_of(chunks: Iterable[Chunk]) -> str:
    """Return 16 hexadecimal digits that tell the file from those of other networks."""
    state = hashlib.sha256()
    for chunk in chunks:
        state.update(chunk)
    return state.hexdigest()[:DIGITS]


def has_denormals(array: Array) -> bool:
    """Tell whether numbers of f32 or f64 are below the smallest normal one, and not 0."""
    if array.dtype not in (np.float32, np.float64):
        return False
    flat = array.ravel("K")
    return any(_denormals(flat[at : at + PIECE]).any() for at in range(0, flat.size, PIECE))


def flush_denormals(array: Array) -> Array:
    """Return a copy of numbers of f32 or f64 with 0 for denormals."""
    changed = array.copy()
    flat = changed.reshape(-1)
    for first in range(0, flat.size, PIECE):
        piece = flat[first : first + PIECE]
        piece[_denormals(piece)] = 0
    return changed


def _denormals(numbers: Array) -> Array:
    least = np.finfo(numbers.dtype).tiny
    mask: Array = (numbers > -least) & (numbers < least) & (numbers != 0)
    return mask


@dataclass(frozen=True, slots=True)
class WeightsUse:
    """The weights that runs of a program read: those of calls of its layers, and constants."""

    placed: PlacedProgram
    calls: Mapping[Spot, LayerCall]

    @property
    def constants(self) -> list[str]:
        """The constants that stages read as they are: all but weights that are packed on load."""
        buffers: dict[str, None] = {}
        for at, stage in enumerate(self.placed.program.stages):
            for inside, member in enumerate(members_of(stage)):
                call, names = self.calls.get((at, inside)), list(member.inputs)
                if call and call.packed_at is not None and isinstance(member, LayerStage):
                    mine = (member.x.tensor, member.bias, member.residual)
                    names = [name for name in names if name != member.weights or name in mine]
                for name in names:
                    buffer = self.placed.places[name].buffer
                    if buffer in self.placed.program.constants:
                        buffers[buffer] = None
        return list(buffers)

    @property
    def first_values(self) -> dict[str, Array]:
        """The values, by state, that it begins with and that are not all 0."""
        state = self.placed.program.state
        return {name: array for name, array in state.items() if array.any()}


def _begins_with(other: Array, array: Array, *, whole: bool) -> bool:
    """Return whether a constant is another one or, unless that is to be ``whole``, begins it."""
    if other.size < array.size or (whole and other.shape != array.shape):
        return False
    return is_same(other.reshape(-1)[: array.size], array)


def weights_file_of(
    uses: Sequence[WeightsUse], *, flush: bool = True
) -> tuple[WeightsFile, list[dict[str, int]]]:
    """Return the file of a library's programs; by program, the offsets of its constants in bytes.

    Equal constants are one; of several programs a constant may be the beginning of another one.
    ``flush``: without denormals.
    """
    parts, places, size = list[WeightsPart](), list[int](), 0
    offsets = [dict[str, int]() for _ in uses]
    for use, own in reversed([*zip(uses, offsets, strict=True)]):  # the largest sizes first
        known = {name: use.placed.program.constants[name] for name in use.constants}
        for name, value in [*known.items(), *use.first_values.items()]:
            source = value if value.nbytes else np.zeros(LINE, np.uint8)
            part = WeightsPart.of(name, source, flush=flush)
            others = (at for at, other in zip(places, parts, strict=True)
                      if _begins_with(other.array, part.array, whole=len(uses) == 1))  # fmt: skip
            own[name] = next(others, size)
            if own[name] == size:
                places.append(size)
                parts.append(part)
                size += round_up(part.array.nbytes)
    packed, largest = 0, LINE
    raw: dict[int | None, Array] = {}
    for use in reversed(uses):
        constants, calls = use.placed.program.constants, packed_once(use.calls.values())
        raw |= {call.packed_at: constants[call.layer.weights] for call in calls}
    for call in packed_once(call for use in uses for call in use.calls.values()):
        weights, dtype = raw[call.packed_at], call.source.precision.w
        part = WeightsPart.of(call.layer.weights, weights, dtype, flush=flush)
        parts.append(part)
        nbytes = part.array.nbytes
        if call.source.columns:  # taken piece by piece
            nbytes = min(nbytes, prod(call.source.columns) * part.array.itemsize)
        largest = max(largest, round_up(nbytes))
        packed += round_up(call.source.packed)
    return WeightsFile(tuple(parts), tuple(places), size, packed, largest), offsets


def packing_of(file: WeightsFile, calls: Iterable[LayerCall]) -> LoopModule:
    """Return ``pack_all(from, constants, packed)``, which is 0 where the weights are cut short.

    It fills constants, then takes weights of one layer after the other and packs them.
    """
    source, constants = Named("from"), Named("constants")
    short, i = block(Return(0)), Variable("i")
    body: list[LoopStatement] = [Unused(("from", "constants", "packed"))]
    tables = list[Table]()
    if file.constants:
        pairs = zip(file.constants, file.parts, strict=False)
        places = [value for at, part in pairs for value in (at, part.array.nbytes)]
        tables.append(Table("parts", "size", (len(file.constants), 2), tuple(places)))
        first, size = (TableEntry("parts", (i, as_index(column))) for column in (0, 1))
        filled = RoutineResult("fill", (source, Address(constants, first), size))
        body.append(loop(
            "i", len(file.constants),
            Let("whole", filled, "int"), If(negate(Flag("whole")), short),
        ))  # fmt: skip
    layers = packed_once(calls)
    if layers:
        body.append(Point(Buffer("w", "opaque", const=True), 0))
    for call in layers:
        count = prod(call.layer.problem.w_shape)
        if not call.source.columns:
            body += _take(count * call.source.precision.w.bytes)
            body += _pack(call)
            continue
        body += [_pack_columns(call, count), *_clear_behind(call)]
    parameters = (SOURCE, Buffer("constants", "byte"), Buffer("packed", "byte"))
    function = LoopFunction("pack_all", parameters, block(*body, Return(1)), "int", ("static",))
    return LoopModule((*tables, function))


def packing_by_layer(calls: Iterable[LayerCall]) -> LoopModule:
    """Return ``pack_N(w, packed)`` for the weights of each layer, in the order of the file.

    It is for a device whose host brings the weights of one layer after the other.
    """
    functions = list[LoopFunction]()
    for number, call in enumerate(packed_once(calls)):
        parameters = (Buffer("w", "opaque", const=True), Buffer("packed", "byte"))
        functions.append(LoopFunction(f"pack_{number}", parameters, block(*_pack(call))))
    return LoopModule(tuple(functions))


def _pack(call: LayerCall) -> list[LoopStatement]:
    """Return statements that pack all weights of a layer, which stand at ``w``."""
    operands: list[Value] = [*_operands(call)]
    operands += [call.layer.x_zero] * call.source.precision.integer
    pack = Invoke(f"{call.source.symbol}_pack_weights", tuple(operands))
    return [pack, *_clear_behind(call)]


def _operands(call: LayerCall) -> tuple[Address, Address]:
    """Return where the weights of a layer stand, and where they are packed."""
    to = Address(Named("packed"), as_index(call.packed_at or 0))
    return (
        Address(Named("w"), dtype=call.source.precision.w.stored, const=True),
        Address(to, dtype="opaque"),
    )


def _clear_behind(call: LayerCall) -> list[LoopStatement]:
    """Return statements that clear bytes behind packed weights, to the end of a cache line."""
    end = (call.packed_at or 0) + call.source.packed
    return [*clear_bytes(end, round_up(end))]


def _take(size: Value) -> list[LoopStatement]:
    """Return statements by which ``w`` becomes the address of the next bytes of the weights."""
    taken = Assign("w", RoutineResult("take", (Named("from"), size)))
    return [taken, If(negate(Flag("w")), block(Return(0)))]


def _pack_columns(call: LayerCall, count: int) -> LoopStatement:
    """Return the packing of large weights some columns at a time, without a copy of them all."""
    assert call.source.columns
    row, step = call.source.columns
    columns, at, end = count // row, Variable("at"), Variable("end")
    size = (end - at) * (row * call.source.precision.w.bytes)
    return loop(
        "at", columns,
        Let("end", least(at + step, columns)),
        Assign(Member("from", "more", pointed=True), compare(end, "<", columns)),
        *_take(Convert("size", size)),
        Invoke(f"{call.source.symbol}_pack_columns", (*_operands(call), at, end)),
        step=step,
    )  # fmt: skip
