"""The weights of a network as one run of bytes, and how packed ones lie in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from polysci.lower.layer_calls import LayerCall, Spot, is_same, packed_once
from polysci.numerics.arrays import Array, round_up
from polysci.numerics.dtypes import to_stored
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.stages import LayerStage, members_of

LINE = 64  # bytes
MAGIC = b"polysci weights "
PACKED_MAGIC = b"polysci packed "
PIECE = 1 << 20  # elements or bytes looked at at a time: whole lines

Chunk = bytes | memoryview


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """Constants as stages read them, then raw weights, which are packed on load.

    ``parts`` are all of them in the order of the file, ``constants`` the offsets in bytes of the
    first, which are read as they are; sizes are in bytes, ``largest`` that of the most taken at a
    time.
    """

    parts: tuple[tuple[str, Array], ...]
    constants: tuple[int, ...]
    constants_size: int
    packed_size: int
    largest: int

    def chunks(self) -> Iterator[Chunk]:
        """The bytes of the file, without its head."""
        for _, array in self.parts:
            yield from pieces_of(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    @property
    def digest(self) -> str:
        """What tells the file from those of other networks."""
        return digest_of(self.chunks())

    def pieces(self) -> Iterator[Chunk]:
        """The bytes of the file, piece by piece."""
        yield head_of(MAGIC, self.digest)
        yield from self.chunks()


def pieces_of(data: memoryview) -> Iterator[Chunk]:
    """The bytes of an array, padded with zeros to whole lines."""
    for first in range(0, data.nbytes, PIECE):
        piece = data[first : first + PIECE]
        missing = -piece.nbytes % LINE
        yield piece.tobytes() + bytes(missing) if missing else piece


def packed_pieces(data: memoryview) -> Iterator[Chunk]:
    """The bytes of a file of weights that were packed ahead, piece by piece."""
    yield head_of(PACKED_MAGIC, digest_of(pieces_of(data)))
    yield from pieces_of(data)


def head_of(magic: bytes, digest: str) -> bytes:
    """The first line of a file."""
    return (magic + digest.encode()).ljust(LINE, b"\0")


def digest_of(chunks: Iterable[Chunk]) -> str:
    """What tells the file from those of other networks: 16 hexadecimal digits."""
    state = hashlib.sha256()
    for chunk in chunks:
        state.update(chunk)
    return state.hexdigest()[:16]


def checksum_of(chunks: Iterable[Chunk]) -> tuple[int, int]:
    """The sum of all words, and of the sums on the way: both modulo 2^64."""
    total, sums = np.uint64(0), np.uint64(0)
    with np.errstate(over="ignore"):
        for chunk in chunks:
            running = np.cumsum(np.frombuffer(chunk, np.uint64), dtype=np.uint64) + total
            sums += running.sum(dtype=np.uint64)
            total = running[-1]
    return int(total), int(sums)


def weights_of(call: LayerCall, array: Array) -> Array:
    """The weights of a layer in the element type that it packs."""
    array, kind = array.reshape(call.layer.problem.w_shape), call.source.precision.w
    return array if array.dtype == kind.numpy else to_stored(array, kind)


def flush_denormals(array: Array) -> Array:
    """The same numbers with 0 for those below the smallest normal one of f32 or f64."""
    if array.dtype not in (np.float32, np.float64):
        return array
    flat, least = array.reshape(-1), np.finfo(array.dtype).tiny
    changed: Array | None = None
    for first in range(0, flat.size, PIECE):
        piece = flat[first : first + PIECE]
        denormal = (piece > -least) & (piece < least) & (piece != 0)
        if denormal.any():
            changed = flat.copy() if changed is None else changed
            changed[first : first + PIECE][denormal] = 0
    return array if changed is None else changed.reshape(array.shape)


@dataclass(frozen=True, slots=True)
class WeightsUse:
    """What runs of a program read beside tensors: calls of its layers, and constants."""

    placed: PlacedProgram
    calls: Mapping[Spot, LayerCall]

    @property
    def constants(self) -> list[str]:
        """Those that stages read as they are: all but weights that are packed on load."""
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


def weights_file_of(
    uses: Sequence[WeightsUse], *, flush: bool = True
) -> tuple[WeightsFile, list[dict[str, int]]]:
    """The file of the programs of a library; by program, the offsets of its constants in bytes.

    Equal constants are one. ``flush``: without denormals.
    """
    change = flush_denormals if flush else np.asarray
    parts, places, size = list[tuple[str, Array]](), list[int](), 0
    offsets = [dict[str, int]() for _ in uses]
    for use, own in zip(uses, offsets, strict=True):
        for name in use.constants:
            array = np.ascontiguousarray(change(use.placed.program.constants[name]))
            array = array if array.nbytes else np.zeros(LINE, np.uint8)
            others = (at for at, (_, other) in zip(places, parts, strict=True)
                      if other.shape == array.shape and is_same(other, array))  # fmt: skip
            own[name] = next(others, size)
            if own[name] == size:
                places.append(size)
                parts.append((name, array))
                size += round_up(array.nbytes)
    packed, largest = 0, LINE
    raw: dict[int | None, Array] = {}
    for use in reversed(uses):
        constants, calls = use.placed.program.constants, packed_once(use.calls.values())
        raw |= {call.packed_at: constants[call.layer.weights] for call in calls}
    for call in packed_once(call for use in uses for call in use.calls.values()):
        array = weights_of(call, change(raw[call.packed_at]))
        parts.append((call.layer.weights, array))
        nbytes = array.nbytes
        if call.source.columns:  # taken piece by piece
            nbytes = min(nbytes, prod(call.source.columns) * array.itemsize)
        largest = max(largest, round_up(nbytes))
        packed += round_up(call.source.packed)
    return WeightsFile(tuple(parts), tuple(places), size, packed, largest), offsets
