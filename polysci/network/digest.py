"""Digests: numbers that stand for every tensor of a run, as text that another device's run meets.

A sum over elements at a stride changes where elements trade places, unless the stride divides the
distance: the strides are small primes, which no distance in a tensor has all, and the steps of the
tensor's own axes, whose sums lie along rows, columns and channels.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import ceil, inf, isfinite, prod, sqrt
from typing import Any, Final

import numpy as np

from polysci.errors import SpecError
from polysci.graph.graph import Graph
from polysci.measure.error_bound import UNIT
from polysci.network.compiled import Network
from polysci.network.debug import BOUNDS, FACTOR, LEAST, taken_stages, tensors
from polysci.numerics.arrays import Array
from polysci.numerics.differences import largest_error
from polysci.program.stages import LayerStage, Program, RowFusion, Stage

FORMAT: Final = "polysci-digest"
VERSION: Final = 1
PRIMES: Final = (2, 3, 5, 7, 11, 13)
OFFSETS: Final = 4  # the most of one stride
WHOLE: Final = 16  # elements of a tensor that is kept as it is
SHAKE: Final = 2.0**-6  # of inputs, relative, to see what errors grow to
INPUT: Final = "the inputs"
ELEMENTS: Final = "elements"
SCALAR: Final = "scalar"
ROWS: Final = ("minimum", "maximum", "not finite")
_DIGITS: Final = 16  # of the hash of a graph
_HEADER: Final = re.compile(rf"{FORMAT} (\d+) model (.+) dtype (\w+) graph ([0-9a-f]{{{_DIGITS}}})")
_TENSOR: Final = re.compile(r"tensor (.+) shape (\S+) tolerance (\S+) made by (.+)")


@dataclass(frozen=True, slots=True)
class TensorDigest:
    """The numbers of one tensor, by the text that says what they are; ``maker`` is its stage.

    ``tolerance`` is the largest error of an element, relative to the largest one, or to 1.
    """

    tensor: str
    maker: str
    shape: tuple[int, ...]
    tolerance: float
    rows: Mapping[str, tuple[float, ...]]

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or SCALAR
        head = f"tensor {json.dumps(self.tensor)} shape {shape} tolerance {self.tolerance:.3g} "
        rows = (f"  {row}: {' '.join(map(_text, its))}" for row, its in self.rows.items())
        return "\n".join((f"{head}made by {json.dumps(self.maker)}", *rows))

    @property
    def largest(self) -> float:
        """The largest absolute value, or 1 if that is less."""
        return max(1.0, *(abs(self.rows[row][0]) for row in ROWS[:2]))


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of a run: the model's name, a hash of its graph and weights, all tensors.

    ``dtype`` is that between layers: roundings to a narrower one move all elements alike.
    """

    model: str
    dtype: str
    graph: str
    tensors: tuple[TensorDigest, ...]

    def __str__(self) -> str:
        head = f"{FORMAT} {VERSION} model {json.dumps(self.model)} dtype {self.dtype}"
        return "\n".join((f"{head} graph {self.graph}", *map(str, self.tensors)))


@dataclass(frozen=True, slots=True)
class WrongTensor:
    """A tensor that differs, and the worst of ``count`` entries by which it does."""

    tensor: str
    maker: str
    entry: str
    actual: float
    expected: float
    tolerance: float
    count: int
    entries: int

    def __str__(self) -> str:
        return (
            f"{self.tensor}, made by {self.maker}: {self.entry} is {self.actual:.6g}, expected "
            f"{self.expected:.6g} within {self.tolerance:.2g}; {self.count} of {self.entries} "
            "entries differ"
        )


def hash_graph(graph: Graph) -> str:
    """Return a hash of what a graph computes, weights included; the same on every machine."""
    state = hashlib.sha256()
    for tensor in (*graph.inputs, *graph.outputs):
        state.update(f"{tensor}\n".encode())
    for node in graph.nodes:
        attributes = sorted(node.attributes.items())
        state.update(f"{node.op} {node.inputs} {node.outputs} {attributes}\n".encode())
    for name, array in sorted(graph.constants.items()):
        state.update(f"{name} {array.dtype} {array.shape}\n".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()[:_DIGITS]


def digest_network(network: Network, model: str, graph: str, inputs: Mapping[str, Array]) -> Digest:
    """Return the digest of a run on inputs, whose tensors must share no memory.

    ``graph`` is the hash of the model as it was read. A second run on shaken inputs tells how much
    larger errors become on their way.
    """
    arrays, shaken = (_tensors(network, its) for its in (inputs, shake(inputs)))
    program, known = network.code.placed.program, network.prepared.graph.tensors
    titles = dict(zip(program.outputs, program.titles, strict=True))
    stages = taken_stages(program.stages, {**arrays, **inputs, **program.constants})
    tolerances = _tolerances(network, stages, program)
    rows = {name: digest_of(name, INPUT, array, LEAST) for name, array in inputs.items()}
    for stage in stages:
        for name in stage.outputs:
            title = titles.get(name, name)
            if name in arrays and title in known:
                array = arrays[name]
                tolerance = tolerances[name] * _gain(shaken[name], array) + _step(array)
                rows[title] = digest_of(title, stage.name, array, tolerance)
    return Digest(model, network.dtype, graph, tuple(rows.values()))


def digest_of(name: str, maker: str, array: Array, tolerance: float) -> TensorDigest:
    """Return the digest of one tensor; elements that are not finite count as 0 in sums."""
    flat = np.ascontiguousarray(array).reshape(-1).astype(np.float64)
    finite = np.isfinite(flat)
    real = flat[finite]
    limits = (float(real.min()), float(real.max())) if real.size else (0.0, 0.0)
    numbers = (*limits, float(flat.size - real.size))
    rows = dict[str, tuple[float, ...]](zip(ROWS, [(it,) for it in numbers], strict=True))
    flat = np.where(finite, flat, 0.0)
    if flat.size <= WHOLE:
        rows[ELEMENTS] = tuple(map(float, flat))
    for stride in strides(array.shape):
        rows[f"stride {stride}"] = tuple(
            float(flat[first::stride].sum()) for first in offsets(stride)
        )
    return TensorDigest(name, maker, array.shape, float(f"{tolerance:.3g}"), rows)


def strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of a tensor's sums: 1, the primes, the products of trailing extents.

    None of one that is kept as it is.
    """
    if prod(shape) <= WHOLE:
        return []
    products = [*accumulate(reversed(shape), lambda first, second: first * second)][:-1]
    return [step for step in dict.fromkeys((1, *PRIMES, *products)) if step < prod(shape)]


def row_lengths(shape: Sequence[int]) -> dict[str, int]:
    """Return how many numbers each row of a tensor's digest has."""
    whole = {ELEMENTS: prod(shape)} if prod(shape) <= WHOLE else {}
    sums = {f"stride {stride}": len(offsets(stride)) for stride in strides(shape)}
    return {**dict.fromkeys(ROWS, 1), **whole, **sums}


def offsets(stride: int) -> list[int]:
    """Return where sums of a stride begin: everywhere, or at places as far apart as they can be."""
    return [at * stride // min(stride, OFFSETS) for at in range(min(stride, OFFSETS))]


def compare(actual: Digest, expected: Digest) -> list[WrongTensor]:
    """Return the tensors that differ, of those that both have, in the order of ``actual``."""
    others = {row.tensor: row for row in expected.tensors}
    pairs = ((row, others[row.tensor]) for row in actual.tensors if row.tensor in others)
    return [wrong for own, other in pairs if (wrong := _compare_tensor(own, other))]


def shared_tensors(actual: Digest, expected: Digest) -> tuple[int, int, int]:
    """Return how many tensors both have, the first alone and the second alone."""
    own, others = ({row.tensor for row in its.tensors} for its in (actual, expected))
    return len(own & others), len(own - others), len(others - own)


def shake(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return inputs whose reals are off by up to SHAKE."""
    random = np.random.default_rng(0)
    return {
        name: (array * (1 + SHAKE * random.uniform(-1, 1, array.shape))).astype(array.dtype)
        if array.dtype.kind == "f" else array
        for name, array in inputs.items()
    }  # fmt: skip


def _tensors(network: Network, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return all tensors of a run; those of which data decides the length as long as it says."""
    arrays, ports = tensors(network, inputs), network.runner.outputs
    names = [*network.code.placed.program.results.values()]
    for name, port in zip(names, ports, strict=True):
        if port.dynamic_dim:
            axis, count = port.dynamic_dim
            used = (slice(None),) * axis + (slice(int(arrays[names[count]])),)
            arrays[name] = arrays[name][used]
    return arrays


def _gain(shaken: Array, array: Array) -> float:
    """Return how much further a tensor moves than the inputs did, 1 at least."""
    if shaken.shape != array.shape or not array.size:
        return 1.0
    both = [its.astype(np.float64) for its in (shaken, array)]
    finite = np.isfinite(both[0]) & np.isfinite(both[1])
    return max(1.0, largest_error([both[0][finite]], [both[1][finite]]) / SHAKE)


def _step(array: Array) -> float:
    """Return what a rounding to 8 bits that goes the other way changes, of the largest element."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize > 1:
        return 0.0
    return float(1 / np.abs(array.astype(np.int64)).max(initial=1))


def _tolerances(network: Network, stages: Sequence[Stage], program: Program) -> dict[str, float]:
    """Return the tolerance of every tensor: that of its stage, and the largest of what it reads.

    A sum of n terms is off by a multiple of sqrt(n) u with high probability (Higham and Mary, A new
    approach to probabilistic rounding error analysis, 2019); transforms lose more, as ``debug`` has
    it. Networks of narrower types have one bound.
    """
    summary, known, buffers = network.summary, dict[str, float](), _buffers(network)
    factor = FACTOR if summary.direct else FACTOR**2
    for stage in stages:
        own = max(LEAST, factor * UNIT * sqrt(_terms(stage, program)))
        read = max((known.get(buffers.get(name, name), 0.0) for name in stage.inputs), default=0.0)
        bound = BOUNDS["bf16"] if summary.narrow else own + read
        known |= {buffers.get(name, name): bound for name in stage.outputs}
    return {name: known[buffers.get(name, name)] for stage in stages for name in stage.outputs}


def _buffers(network: Network) -> dict[str, str]:
    """Return the buffer of every tensor: views of a tensor lie in its own."""
    return {name: place.buffer for name, place in network.code.placed.places.items()}


def _terms(stage: Stage, program: Program) -> float:
    """Return how many terms the sums of a stage have: those of layers, else inputs an output."""
    if isinstance(stage, RowFusion):
        return sum(_terms(member, program) for member in stage.members)
    if isinstance(stage, LayerStage):
        return max(1.0, stage.problem.flops / 2 / prod(stage.problem.y_shape))
    sizes = [
        [program.values[name].size for name in names if name in program.values]
        for names in (getattr(stage, "inputs", ()), stage.outputs)
    ]
    return max(1.0, max(sizes[0], default=1) / max(1, min(sizes[1], default=1)))


def _compare_tensor(own: TensorDigest, other: TensorDigest) -> WrongTensor | None:
    """Return the worst entry of a tensor if any is beyond its tolerance."""
    if own.shape != other.shape or own.rows.keys() != other.rows.keys():
        sizes = (float(prod(own.shape)), float(prod(other.shape)))
        return WrongTensor(own.tensor, own.maker, "its number of elements", *sizes, 0.0, 1, 1)
    scale = (own.tolerance + other.tolerance) * max(own.largest, other.largest)
    entries = [*_entries(own, other, scale)]
    wrong = [it for it in entries if not abs(it[1] - it[2]) <= it[3]]
    if not wrong:
        return None
    worst = max(wrong, key=lambda it: abs(it[1] - it[2]) / it[3] if it[3] else inf)
    return WrongTensor(own.tensor, own.maker, *worst, len(wrong), len(entries))


def _entries(
    own: TensorDigest, other: TensorDigest, scale: float
) -> Iterator[tuple[str, float, float, float]]:
    """Yield what an entry is, both numbers, and how far they may be apart.

    Errors of a sum's terms have either sign: together they grow as the root of their number.
    """
    size = prod(own.shape)
    for row, numbers in own.rows.items():
        word, _, stride = row.partition(" ")
        for at, pair in enumerate(zip(numbers, other.rows[row], strict=True)):
            if word == "stride":
                first = offsets(int(stride))[at]
                terms = ceil((size - first) / int(stride))
                yield f"the sum at stride {stride} from {first}", *pair, scale * sqrt(terms)
            elif word == ELEMENTS:
                yield f"element {at}", *pair, scale
            else:
                what = "the number of elements not finite" if word == "not" else f"the {row}"
                yield what, *pair, 0.0 if word == "not" else scale


def _text(number: float) -> str:
    """Return ten digits: what sums of millions of elements lose by rounding is within any bound."""
    return f"{number:.10g}"


def parse(text: str, where: str) -> Digest:
    """Return the digest of a text; ``where`` names it. Raises SpecError for another text."""
    lines = text.splitlines()
    header = _HEADER.fullmatch(lines[0]) if lines else None
    refuse = partial(_refusal, where)
    if header is None:
        raise refuse(1, f"expected '{FORMAT} {VERSION} model NAME dtype TYPE graph HASH'")
    if int(header[1]) != VERSION:
        raise refuse(1, f"format version {header[1]}, and this polysci reads {VERSION}")
    blocks = list[tuple[int, list[str]]]()
    for number, line in enumerate(lines[1:], 2):
        if not line.startswith("  "):
            blocks.append((number, [line]))
        elif blocks:
            blocks[-1][1].append(line)
        else:
            raise refuse(number, "expected a tensor")
    rows = tuple(_parse_tensor(where, number, block) for number, block in blocks)
    return Digest(_string(where, 1, header[2]), header[3], header[4], rows)


def _parse_tensor(where: str, number: int, lines: Sequence[str]) -> TensorDigest:
    head, rows = _TENSOR.fullmatch(lines[0]), dict[str, tuple[float, ...]]()
    if head is None:
        raise _refusal(where, number, "expected 'tensor NAME shape NxN tolerance T made by STAGE'")
    try:
        shape = () if head[2] == SCALAR else tuple(map(int, head[2].split("x")))
        tolerance = _number(head[3])
        for line in lines[1:]:
            row, _, numbers = line.strip().partition(":")
            rows[row] = tuple(map(_number, numbers.split()))
    except ValueError as error:
        raise _refusal(where, number, f"tensor {head[1]}: {error}") from None
    expected = row_lengths(shape)
    if {row: len(its) for row, its in rows.items()} != expected:
        raise _refusal(where, number, f"tensor {head[1]}: expected {', '.join(expected)}")
    tensor, maker = (_string(where, number, text) for text in (head[1], head[4]))
    return TensorDigest(tensor, maker, shape, tolerance, rows)


def _number(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is no number of a digest")
    return number


def _string(where: str, number: int, text: str) -> str:
    try:
        read: Any = json.loads(text)
    except ValueError:
        read = None
    if not isinstance(read, str):
        raise _refusal(where, number, f"expected a name in quotes, got {text:.80}")
    return read


def _refusal(where: str, number: int, reason: str) -> SpecError:
    return SpecError(f"digest {where}: line {number}: {reason}")
