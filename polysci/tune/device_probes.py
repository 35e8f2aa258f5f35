"""Probes of a device as loop IR: products, reads, writes and copies, its groups' memory, launches.

A device whose groups share a memory runs them on all of its compute units, one that has none on as
many cores as the model's rates are for. A probe is a function ``name(n, x, y)`` that does its work
``n`` times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from polysci.loop_ir.index import Index, Variable, as_index
from polysci.loop_ir.nodes import (
    Address,
    Buffer,
    Declare,
    For,
    Invoke,
    LoopFunction,
    LoopKind,
    LoopModule,
    LoopStatement,
    Named,
    Point,
    ScalarParameter,
    Scope,
    Value,
    block,
    loop,
)
from polysci.lower.choice import has_groups
from polysci.numerics.dtypes import COMPUTES
from polysci.printers.devices import print_file
from polysci.target import microkernels
from polysci.target.machine import COPIES, WRITES
from polysci.target.microkernels import HeaderSet, Microkernel
from polysci.target.target import MIB, Memory, Target
from polysci.tune.probes import (
    DEPTH,
    TURNS,
    operations_of,
    reduction_of,
    tile_record,
    unit_of,
)

PROBE_HEADERS: Final = ("probe_items", "probe_shared", "probe_words", "probe_matrices_cuda")
ITEMS: Final = 256  # of a group: every device of OpenCL's full profile that has groups takes them
GROUPS: Final = 8  # for each compute unit, so that others compute while one waits
CHAINS: Final = 12  # microkernels/probe_items.h, probe_words.h
MATRICES: Final = 8 * 16 * 8 * 16  # products of a warp, microkernels/probe_matrices_cuda.h
SHARED: Final = 512  # vectors, and reads of a turn: microkernels/probe_shared.h
SHARED_READS: Final = 8
LEAST_BYTES: Final = 64 * MIB  # of the buffers of memory
MOST_BYTES: Final = 1024 * MIB  # places are counted in 32 bits
PART: Final = 8  # of the device's memory, of which a buffer takes one at most
BEYOND: Final = 4  # times the last cache, that a buffer of memory is large
LAUNCHES: Final = 32  # that follow each other
APART: Final = 16  # elements of A between those of two turns
TILES: Final = 8  # register tiles of a file: a driver takes a second for each
# Moves of numbers by all units of a device, and what a Machine calls their rates.
MOVES: Final = {"reads": "memory_all", "writes": WRITES, "copies": COPIES}
TEAM: Final = Variable("team")
AT: Final = Variable("at")


@dataclass(frozen=True, slots=True)
class DeviceProbe:
    """A loop of a device: ``name(n, buffers...)`` does ``amount`` of work ``n`` times.

    That is in operations or bytes, of one core or compute unit, or of all where the rate is one of
    all. ``figure`` is what a Machine calls the rate; ``sizes`` are the bytes of the buffers.
    """

    name: str
    figure: str
    amount: float
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProbeFile:
    """Code of a device and the probes that it holds; ``what`` names them for people."""

    what: str
    text: str
    probes: tuple[DeviceProbe, ...]


def probe_files(target: Target) -> Iterator[ProbeFile]:
    """Yield the files of all probes of a device, those of the rates ahead."""
    team = Groups(target) if has_groups(target) else Cores(target)
    yield team.rates()
    yield from team.products()


def launches_file(target: Target) -> ProbeFile:
    """Return ``one`` and ``many``: as many products in one launch, and in LAUNCHES behind others.

    ``one`` runs LAUNCHES times the turns of a launch of ``many``.
    """
    team = Groups(target) if has_groups(target) else Cores(target)
    work = team.products_of_all()
    many = loop("launch", LAUNCHES, work)
    functions = [_function("one", work), _function("many", many)]
    sizes, amount = team.sizes(2), team.operations
    probes = tuple(DeviceProbe(name, "launch_us", amount, sizes) for name in ("one", "many"))
    text = _file("launches", HeaderSet(target.isa.name), ["probe_items"], functions)
    return ProbeFile("launch_us", text, probes)


def _function(name: str, *body: LoopStatement, kinds: Sequence[str] = ()) -> LoopFunction:
    """Return ``name(n, buffers...)``: x and y of floats, or x, b and c of ``kinds``."""
    names = ("x", "b", "c") if kinds else ("x", "y")
    buffers = [
        Buffer(own, kind, const=own not in "cy")
        for own, kind in zip(names, kinds or ("float32", "float32"), strict=True)
    ]
    return LoopFunction(name, (ScalarParameter("n"), *buffers), block(*body), "", ())


def _file(
    title: str, unit: HeaderSet, beside: Sequence[str], functions: Sequence[LoopFunction]
) -> str:
    names = [function.name for function in functions]
    return print_file(title, [unit], beside, LoopModule(tuple(functions)), names)


def memory_bytes(target: Target) -> int:
    """Return the bytes of a buffer that no cache holds."""
    memory = next((it.size for it in target.memories if it.kind == "global"), MOST_BYTES)
    wanted = max(LEAST_BYTES, BEYOND * target.last_level.size)
    return min(wanted, memory // PART, MOST_BYTES)


def _power_below(number: int) -> int:
    """Return the largest power of two up to a number."""
    return 1 << max(0, number.bit_length() - 1)


@dataclass(frozen=True, slots=True)
class Cores:
    """Probes of a device without memory of groups, whose work-items are those of cores."""

    target: Target

    @property
    def lines(self) -> int:
        """Vectors that the items of a probe store at the end."""
        return self.target.cores

    @property
    def operations(self) -> float:
        """Operations of a turn of products, of one core."""
        return 2.0 * CHAINS * self.target.isa.lanes_f32

    def sizes(self, vectors: int, written: int = 0) -> tuple[int, int]:
        """Return the bytes of x, and of y."""
        size = 4 * self.target.isa.lanes_f32
        return max(2, vectors) * size, max(self.lines, written) * size

    def rates(self) -> ProbeFile:
        """Return products, and reads, writes and copies of every memory."""
        target, cores = self.target, self.target.cores
        second, last = target.second_level, target.last_level
        made = [self._products()]
        if second is not target.first_level:
            made.append(self._moves("reads", "l2", second.size // 4, 1))
        if last is not second:
            for figure, count in (("l3", 1), ("l3_all", cores)):
                size = max(last.size // 3 // count, 3 * second.size // 2) * count
                made.append(self._moves("reads", figure, size, count))
        size = memory_bytes(target)
        made.append(self._moves("reads", "memory", size, 1))
        for move, figure in MOVES.items():
            made.append(self._moves(move, figure, size, cores))
        unit = HeaderSet(target.isa.name)
        text = _file("rates", unit, ["probe_items"], [function for function, _ in made])
        return ProbeFile("rates", text, tuple(probe for _, probe in made))

    def products(self) -> Iterator[ProbeFile]:
        """Yield the register tiles by files."""
        isa = self.target.isa.name
        families = dict.fromkeys(kernel.family for kernel in microkernels.registry().values())
        kernels = dict.fromkeys(
            (kernel, x)
            for x in ("f32", "s8")
            for family in families
            for way in microkernels.ways(family, isa, x)
            for kernel in way
        )
        for unit in dict.fromkeys(unit_of(*pair) for pair in kernels):
            own = [kernel for kernel, x in kernels if unit_of(kernel, x) == unit]
            for at in range(0, len(own), TILES):
                part = own[at : at + TILES]
                functions = [_tile(kernel) for kernel in part]
                title = f"tiles of {part[0].compute}"
                yield ProbeFile(
                    title, _file(title, unit, [], functions), tuple(map(_tile_probe, part))
                )

    def products_of_all(self) -> LoopStatement:
        """Return the products of all cores together."""
        return self._in_cores(self.target.cores, self._product())

    def _product(self) -> Invoke:
        return Invoke("ps_probe_products", (Named("x"), Named("y"), TEAM, TURNS))

    def _products(self) -> tuple[LoopFunction, DeviceProbe]:
        function = _function("products", self._in_cores(1, self._product()))
        return function, DeviceProbe("products", "peak", self.operations, self.sizes(2))

    def _moves(
        self, move: str, figure: str, size: int, cores: int
    ) -> tuple[LoopFunction, DeviceProbe]:
        """Return the probe in which each core moves its part of a buffer of so many bytes."""
        mask = _power_below(size // (4 * self.target.isa.lanes_f32)) - 1
        count = (mask + 1) // cores // 4 * 4
        places = (as_index(mask), count * TEAM, as_index(1), as_index(count), TURNS)
        body = self._in_cores(cores, Invoke(f"ps_probe_{move}", (*_operands(move, TEAM), *places)))
        name, amount = f"{move}_{figure}", 4.0 * self.target.isa.lanes_f32 * count * cores
        twice = 2 if move == "copies" else 1
        sizes = self.sizes(mask + 1, 0 if move == "reads" else mask + 1)
        return _function(name, body), DeviceProbe(name, figure, twice * amount, sizes)

    def _in_cores(self, cores: int, statement: LoopStatement) -> For:
        return For(
            TEAM.name, as_index(0), as_index(cores), block(statement), kind=LoopKind.PARALLEL
        )


def _operands(move: str, at: Index) -> tuple[Value, ...]:
    """Return the first operands of a routine that moves numbers."""
    x, y = Named("x"), Named("y")
    return {"reads": (x, y, at), "writes": (y,), "copies": (x, y)}[move]


def _tile(kernel: Microkernel) -> LoopFunction:
    """Return the probe of a kernel's runs by one work-item, out of its nearest cache."""
    run, _, of_a = reduction_of(kernel)
    acc, t, c = Named("acc"), Named("t"), Named("c")
    # A of every second turn lies elsewhere: no product is known from the turn before.
    a = Point(Buffer("a", "ps_a", const=True), Address(Named("x"), Variable("i") % 2 * APART))
    sums = Buffer("acc", "ps_acc", as_index(_sums(kernel)), Scope.REGISTER)
    ending = [Invoke("ps_unshift", (acc, t))] * (kernel.shifts > 1)
    ending += [Invoke("ps_unpair", (acc, t))] * (kernel.family == "depthwise")
    item = block(
        tile_record(kernel, of_a), Declare(sums),
        Invoke("ps_begin", (acc, t, Address(c), 0)),
        loop("i", TURNS, a, *run), *ending,
        Invoke("ps_end", (acc, t, Address(c), 0)),
    )  # fmt: skip
    body = For(TEAM.name, as_index(0), as_index(1), item, kind=LoopKind.PARALLEL)
    return _function(str(kernel), body, kinds=("ps_a", "ps_b", "ps_y"))


def _sums(kernel: Microkernel) -> int:
    return kernel.rows * kernel.vecs * kernel.shifts


def _tile_probe(kernel: Microkernel) -> DeviceProbe:
    _, steps, of_a = reduction_of(kernel)
    of_b = DEPTH * kernel.cols * COMPUTES[kernel.compute].vnni_factor * kernel.shifts
    sizes = (4 * (of_a + APART), 4 * of_b, 4 * kernel.rows * kernel.cols)
    return DeviceProbe(str(kernel), str(kernel), operations_of(kernel, steps), sizes)


@dataclass(frozen=True, slots=True)
class Groups:
    """Probes of a device whose groups of work-items share a memory."""

    target: Target

    @property
    def groups(self) -> int:
        """Groups of a launch."""
        return GROUPS * self.target.cores

    @property
    def items(self) -> int:
        """Work-items of a launch."""
        return ITEMS * self.groups

    @property
    def lines(self) -> int:
        """Vectors that the items of a probe store at the end."""
        return self.items

    @property
    def operations(self) -> float:
        """Operations of a turn of products, of one compute unit."""
        return 2.0 * CHAINS * self._lanes * self._each

    def sizes(self, vectors: int, written: int = 0) -> tuple[int, int]:
        """Return the bytes of x, and of y."""
        size = 4 * self.target.isa.lanes_f32
        return max(2, vectors) * size, max(self.lines, written) * size

    def rates(self) -> ProbeFile:
        """Return products, and reads, writes and copies of every memory."""
        target, beside = self.target, ["probe_items"]
        products = self.product(self._number)
        made = [self._probe("products", "peak", self.operations, *products)]
        if target.local is not None:
            beside.append("probe_shared")
            made.append(self._shared(target.local))
        for cache in dict.fromkeys((target.first_level, target.last_level)):
            made.append(self._cached(cache))
        made += [self._streams(*move, memory_bytes(target)) for move in MOVES.items()]
        unit = HeaderSet(target.isa.name)
        text = _file("rates", unit, beside, [function for function, _ in made])
        return ProbeFile("rates", text, tuple(probe for _, probe in made))

    def products(self) -> Iterator[ProbeFile]:
        """Yield products of 8-bit words, and of matrices."""
        isa, number = self.target.isa, self._number
        (kernels, *_) = microkernels.ways("fma", isa.name, "s8")
        words = Invoke("ps_probe_word_products", (Named("y"), number, TURNS))
        made = self._probe("words", "speed_words", self.operations, words)
        unit = HeaderSet(kernels[0].isa, "i8", "s8", "s32")
        yield self._one("8-bit words", unit, "probe_words", made)
        if "f16" in isa.matrices:
            matrices = Invoke("ps_probe_matrices", (Named("y"), number, TURNS))
            amount = 2.0 * MATRICES / 32 * self._each
            made = self._probe("matrices", "speed_matrices", amount, matrices)
            unit = HeaderSet(isa.name, "f16", "f16", "f32")
            yield self._one("matrices", unit, "probe_matrices", made)

    def _one(
        self, what: str, unit: HeaderSet, header: str, made: tuple[LoopFunction, DeviceProbe]
    ) -> ProbeFile:
        function, probe = made
        return ProbeFile(what, _file(what, unit, [header], [function]), (probe,))

    def products_of_all(self) -> LoopStatement:
        """Return the products of all compute units together."""
        return self._in_groups(*self.product(self._number))

    def product(self, number: Index) -> tuple[LoopStatement, ...]:
        """Return the products of a work-item."""
        return (Invoke("ps_probe_products", (Named("x"), Named("y"), number, TURNS)),)

    @property
    def _lanes(self) -> int:
        return self.target.isa.lanes_f32

    @property
    def _number(self) -> Index:
        """The number of a work-item among all."""
        return ITEMS * TEAM + AT

    @property
    def _each(self) -> int:
        """Work-items that a compute unit has."""
        return self.items // self.target.cores

    def _probe(
        self, name: str, figure: str, amount: float, *item: LoopStatement, vectors: int = 2,
        written: int = 0, shared: Sequence[LoopStatement] = (),
    ) -> tuple[LoopFunction, DeviceProbe]:  # fmt: skip
        """Return a probe of what its items do; it reads and writes so many vectors."""
        function = _function(name, self._in_groups(*item, shared=shared))
        return function, DeviceProbe(name, figure, amount, self.sizes(vectors, written))

    def _in_groups(self, *item: LoopStatement, shared: Sequence[LoopStatement] = ()) -> For:
        items = For(AT.name, as_index(0), as_index(ITEMS), block(*item), kind=LoopKind.ITEMS)
        return For(
            TEAM.name, as_index(0), as_index(self.groups), block(*shared, items),
            kind=LoopKind.PARALLEL,
        )  # fmt: skip

    def _shared(self, local: Memory) -> tuple[LoopFunction, DeviceProbe]:
        extent = as_index(SHARED * self._lanes)
        own = Declare(Buffer("shared", "ps_shared", extent, Scope.LOCAL))
        operands = (Named("shared"), Named("y"), self._number, AT, as_index(ITEMS), TURNS)
        call = Invoke("ps_probe_shared", operands)
        amount = 4.0 * self._lanes * SHARED_READS * self._each
        return self._probe("reads_local", local.name, amount, call, shared=(own,))

    def _cached(self, cache: Memory) -> tuple[LoopFunction, DeviceProbe]:
        """Return the probe whose groups all read half of a cache, each from a place of its own."""
        vectors = _power_below(max(cache.size // 2 // (4 * self._lanes), 4 * ITEMS))
        count = vectors // ITEMS
        first = 4 * ITEMS * TEAM + AT
        places = (as_index(vectors - 1), first, as_index(ITEMS), as_index(count), TURNS)
        call = Invoke("ps_probe_reads", (*_operands("reads", self._number), *places))
        amount = 4.0 * self._lanes * count * self._each
        return self._probe(f"reads_{cache.name}", cache.name, amount, call, vectors=vectors)

    def _streams(self, move: str, figure: str, size: int) -> tuple[LoopFunction, DeviceProbe]:
        """Return the probe whose items move a buffer of memory together."""
        vectors = _power_below(max(size // (4 * self._lanes), 4 * self.items))
        count = vectors // self.items // 4 * 4
        places = (as_index(vectors - 1), self._number, as_index(self.items), as_index(count), TURNS)
        call = Invoke(f"ps_probe_{move}", (*_operands(move, self._number), *places))
        amount = 4.0 * self._lanes * count * self.items * (2 if move == "copies" else 1)
        written = 0 if move == "reads" else vectors
        return self._probe(
            f"{move}_memory", figure, amount, call, vectors=vectors, written=written
        )  # fmt: skip
