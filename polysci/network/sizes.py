"""A network for several sizes of its free dimensions: one library, whose entries share weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

from polysci.border.arguments import check_type
from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.network.build import check_first_run, library_of, load_runner, ports
from polysci.network.code import Code, SizedProgram, code_of
from polysci.network.compiled import Network, PlannedNetwork, plan_network, title_of
from polysci.network.options import CompileOptions
from polysci.network.prepare import Model, graph_of, prepare_with, shares_of
from polysci.printers.network import OPENMP
from polysci.text import names
from polysci.text.tables import shorten
from polysci.tune.tuners import options_of

_LISTED: Final = 400  # letters of the sizes that an error lists


@dataclass(frozen=True, slots=True)
class SizedNetworks:
    """A network for several sizes: ``whole`` has the code of a library of all of them.

    ``networks`` are those that ``programs`` are of, in order.
    """

    whole: PlannedNetwork
    programs: tuple[SizedProgram, ...]
    networks: tuple[PlannedNetwork, ...]

    @property
    def name(self) -> str:
        return self.whole.name

    @property
    def several(self) -> bool:
        """True if runs are told the sizes."""
        return bool(self.programs[0].sizes)

    @property
    def on_device(self) -> bool:
        """True if a host launches its code on a device."""
        return self.whole.code.isa.language != "c"

    def codes(self) -> tuple[Code, ...]:
        """Return the code of the library as each of the programs runs it."""
        code = self.whole.code
        return tuple(
            replace(code, placed=own.placed, entry=own.entry(self.name).symbol)
            for own in self.programs
        )


def only_size(network: PlannedNetwork) -> SizedNetworks:
    """Return a network alone: its runs take no sizes."""
    program = SizedProgram(network.prepared.placed, network.schedules)
    return SizedNetworks(network, (program,), (network,))


def join_sizes(
    networks: Sequence[tuple[Mapping[str, int], PlannedNetwork]], name: str, pool: str = OPENMP
) -> SizedNetworks:
    """Return one library called ``name`` of networks, each for certain sizes.

    Its entries share kernels and packed weights. Raises SpecError for networks of other options, or
    whose sizes have other names or are equal, UnsupportedError where their arguments differ in
    number or type.
    """
    first, options = networks[0][1], networks[0][1].options
    size_rows = [tuple(sizes.items()) for sizes, _ in networks]
    if len({*size_rows}) < len(size_rows) or len({tuple(sizes) for sizes, _ in networks}) > 1:
        raise SpecError(f"{name}: expected other sizes of the same names for each entry")
    if any(network.options != options for _, network in networks):
        raise SpecError(f"{name}: expected entries that were compiled with the same options")
    programs = tuple(
        SizedProgram(
            network.prepared.placed, network.schedules,
            shares_of(network.prepared.program, options, pool), sizes,
        )
        for sizes, network in networks
    )  # fmt: skip
    code = code_of(
        programs, name, options.target.isa, options.threads,
        flush_denormals=options.flush_denormals, pool=pool,
    )  # fmt: skip
    code = replace(code, backend=options.target.backend)
    return SizedNetworks(replace(first, code=code), programs, tuple(own for _, own in networks))


@dataclass(frozen=True, slots=True)
class SizedNetwork:
    """A network that is compiled for several sizes: ``y = net(x)`` runs the entry of x's shapes.

    ``entries`` are networks by their sizes. They share one library, one set of weights, and the
    memory of runs.
    """

    entries: Mapping[tuple[tuple[str, int], ...], Network]

    @property
    def sizes(self) -> tuple[dict[str, int], ...]:
        """The sizes of the entries, by the names of the dimensions."""
        return tuple(map(dict, self.entries))

    def entry(self, **sizes: int) -> Network:
        """Return the network for sizes of all free dimensions. Raises SpecError for others."""
        for own, network in self.entries.items():
            if dict(own) == sizes:
                return network
        wanted = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise SpecError(f"no entry of {wanted or 'no sizes'}; known: {self._known()}")

    def __call__(self, x: Any, out: Any = None) -> Any:
        """Run the entry whose inputs have these shapes, as ``Network`` does.

        Raises ValueError for shapes of no entry, TypeError or ValueError as a network does.
        """
        networks = [*self.entries.values()]
        shapes = _shapes(networks[0], x)
        for network in networks:
            if shapes is None or shapes == [port.shape for port in network.inputs]:
                return network(x, out)  # without shapes it says what is wrong
        wrong = ", ".join(f"{port.name} {list(shape)}" for port, shape in zip(
            networks[0].inputs, shapes or (), strict=True))  # fmt: skip
        raise ValueError(f"no entry has inputs {shorten(wrong, _LISTED)}; known: {self._known()}")

    def _known(self) -> str:
        rows = (", ".join(f"{name}={size}" for name, size in own) for own in self.entries)
        return shorten("; ".join(rows), _LISTED)


def _shapes(network: Network, x: Any) -> list[tuple[int, ...]] | None:
    """Return the shapes of a caller's arrays in the order of inputs; None where some lack."""
    names = [port.name for port in network.inputs]
    arrays = x if isinstance(x, Mapping) else dict.fromkeys(names[:1], x)
    if not all(hasattr(arrays.get(name), "shape") for name in names) or len(arrays) > len(names):
        return None
    return [arrays[name].shape for name in names]


@guard
def compile_sizes(
    model: Model,
    dims: Mapping[str, int | Sequence[int]],
    level: str | CompileOptions = "measure",
    threads: int = 1,
    dtype: str = "f32",
    **keywords: Any,
) -> SizedNetwork:
    """Compile a model for several sizes of its free dimensions: an entry for each choice of them.

    ``dims`` has a size, or several, by the name of a dimension or ``INPUT.AXIS``; other options are
    those of ``compile_network``. The entries share a library and weights that are packed alike.
    Raises as it does, and SpecError where no dimension has several sizes.
    """
    options = replace(CompileOptions.of(level, threads, dtype, keywords), keep_dtype=True)
    choices = _choices(dims)
    if options.dims or options.machine:
        what = "dims: given twice" if options.dims else "machine: nothing runs on a described one"
        raise SpecError(f"{what}; compile_sizes takes sizes as its second argument, and runs")
    title = title_of(model) if options.name is None else names.project(options.name)
    networks = [(sizes, _plan(model, dict(bound), options, title)) for sizes, bound in choices]
    whole = join_sizes(networks, title)
    library = library_of(whole.whole.code, options.flags)
    codes = whole.codes()
    if options.verify:
        for code in codes:
            check_first_run(code, library, options.threads)
    first = load_runner(codes[0], library)
    runners = [first, *(first.entry(code.entry, *ports(code)) for code in codes[1:])]
    return SizedNetwork({
        tuple(program.sizes.items()): Network(
            own.prepared, own.results, own.schedules, code, own.options, own.seconds, runner,
            flags=options.flags,
        )
        for program, own, code, runner in zip(
            whole.programs, whole.networks, codes, runners, strict=True
        )
    })  # fmt: skip


def _choices(
    dims: Mapping[str, int | Sequence[int]],
) -> list[tuple[dict[str, int], dict[str, int]]]:
    """Return every choice of sizes: of dimensions that have several of them, and of all."""
    check_type("dims", dims, Mapping)
    lists = {
        name: (own,) if isinstance(own, int) else tuple(dict.fromkeys(own))
        for name, own in dims.items()
    }
    several = [name for name, own in lists.items() if len(own) > 1]
    if not several:
        raise SpecError(f"dims {dict(dims)!r:.200}: none has several sizes; use compile_network")
    bounds = [dict(zip(lists, own, strict=True)) for own in product(*lists.values())]
    return [({name: bound[name] for name in several}, bound) for bound in bounds]


def _plan(
    model: Model, bound: dict[str, int], options: CompileOptions, title: str
) -> PlannedNetwork:
    """Return the network for one choice of sizes."""
    graph = graph_of(
        model, bound, options.values, external=options.external, weights=options.weights
    )
    return plan_network(
        prepare_with(graph, options), options.plan(), title, wisdom=options.wisdom,
        time_limit=options.time_limit, watch=options.watch, tuner=options_of(options.tuner),
        progress=options.progress,
    )  # fmt: skip
