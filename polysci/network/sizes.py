"""A network for several sizes of its free dimensions: one library, whose entries share weights.

An entry is for one size, or for a range: its runs are told which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from polysci.border.arguments import check_type, check_whole
from polysci.border.guard import guard, is_expected
from polysci.border.guard import report_of as report_of_error
from polysci.errors import SpecError, UnsupportedError
from polysci.network.build import check_first_run, library_of, load_runner, ports
from polysci.network.cache import digest_graph
from polysci.network.code import Code, Size, SizedProgram, code_of, ends_of
from polysci.network.compiled import Network, PlannedNetwork, title_of
from polysci.network.generation import Generation
from polysci.network.options import CompileOptions
from polysci.network.prepare import ONE_SIZE, Model, graph_of, shares_of
from polysci.network.runner import Runner
from polysci.network.size_choices import Read, plan_choices, plan_sizes, size_choices, whole_sizes
from polysci.network.specialized import Sizes, SpecializedSizes
from polysci.network.state import NetworkState
from polysci.printers.network import OPENMP, told_sizes
from polysci.target.target import HOST
from polysci.text import names
from polysci.text.tables import bytes_text, columns, shorten
from polysci.tune import LEVELS

_LISTED: Final = 400  # letters of the sizes that an error lists
MOST_RUNNERS: Final = 1 << 12  # for as many shapes calls find their entry at once
EntrySizes = tuple[tuple[str, Size], ...]
Shapes = tuple[tuple[int, ...], ...]  # of inputs, in order


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
        entries = [own.entry(self.name) for own in self.programs]
        if told_sizes(entries):
            return tuple(
                replace(code, placed=own.placed, entry=self.name, sizes=_largest(own.sizes))
                for own in self.programs
            )
        return tuple(
            replace(code, placed=own.placed, entry=entry.symbol)
            for own, entry in zip(self.programs, entries, strict=True)
        )


def only_size(network: PlannedNetwork) -> SizedNetworks:
    """Return a network alone: its runs take no sizes."""
    program = SizedProgram(network.prepared.placed, network.schedules)
    return SizedNetworks(network, (program,), (network,))


def join_sizes(
    networks: Sequence[tuple[Mapping[str, Size], PlannedNetwork]], name: str, pool: str = OPENMP
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


class SizeRunner(NamedTuple):
    """A runner for inputs of some shapes, and their sizes where code for these alone may differ."""

    runner: Runner
    sizes: Sizes | None


@dataclass(frozen=True, slots=True)
class SizedNetwork:
    """A network that is compiled for several sizes: ``y = net(x)`` runs the entry of x's shapes.

    ``entries`` are networks by their sizes; where these are ranges, for the largest. They share one
    library, one set of weights, and the memory of runs. ``dims`` are the sizes that were asked for.
    ``specialized``: libraries for single sizes of ranges, if they are compiled.
    """

    entries: Mapping[EntrySizes, Network]
    dims: Mapping[str, Sequence[int]] = field(default_factory=dict)
    specialized: SpecializedSizes | None = field(default=None, compare=False, repr=False)
    runners: dict[Shapes, SizeRunner] = field(default_factory=dict, compare=False, repr=False)

    @property
    def sizes(self) -> tuple[dict[str, Size], ...]:
        """The sizes of the entries, by the names of the dimensions: one each, or a range."""
        return tuple(map(dict, self.entries))

    def entry(self, **sizes: int) -> Network:
        """Return the network for sizes of all free dimensions. Raises SpecError for others."""
        for own, network in self.entries.items():
            if {*dict(own)} == {*sizes} and all(_has(size, sizes[name]) for name, size in own):
                if not network.code.sizes:
                    return network
                code = replace(network.code, sizes=tuple(sizes[name] for name, _ in own))
                return replace(network, code=code, runner=self._runner(network, own, sizes))
        raise self._unknown(sizes)

    @guard
    def generation(self) -> Generation:
        """Return what reads tokens by these entries. Raises SpecError where they take others."""
        return Generation([*self.entries.values()])

    @property
    def state(self) -> NetworkState:
        """Tensors that a run of any entry leaves to the next one, by name."""
        return next(iter(self.entries.values())).state

    @guard
    def reset(self) -> None:
        """Begin anew: give the state the values that it has before the first run."""
        next(iter(self.entries.values())).reset()

    @guard
    def sequence(self) -> SizedNetwork:
        """Return these networks with state of their own, as it is before the first run."""
        first = next(iter(self.entries.values())).runner.sequence()
        return SizedNetwork({
            sizes: network.with_runner(network.runner.join(first))
            for sizes, network in self.entries.items()
        }, self.dims, self.specialized)  # fmt: skip

    def key(self, **sizes: int) -> Sizes | None:
        """Return what ``specialized`` calls some sizes; None where their entry has no others.

        Raises SpecError for sizes of no entry.
        """
        for own in self.entries:
            if {*dict(own)} == {*sizes} and all(_has(size, sizes[name]) for name, size in own):
                return _key(own, sizes)
        raise self._unknown(sizes)

    def __call__(self, x: Any, out: Any = None) -> Any:
        """Run the entry whose inputs have these shapes, as ``Network`` does.

        Raises ValueError for shapes of no entry, TypeError or ValueError as a network does.
        """
        first = next(iter(self.entries.values()))
        shapes = _shapes(first, x)
        if shapes is None:
            return first(x, out)  # which says what is wrong
        runner, sizes = self.runners.get(shapes) or self._find(first, shapes)
        if sizes is not None and self.specialized is not None:
            runner = self.specialized.find(sizes) or runner
        try:
            return runner.call(x, out)
        except Exception as error:
            if is_expected(error):
                raise
            raise report_of_error(error) from error

    def report(self) -> str:
        """Return a table of the entries with the stages of each, and the bytes that they share.

        And which sizes have libraries of their own, with the runs of each.
        """
        rows = [
            (_text(own), f"{len(network.prepared.program.stages)} stages")
            for own, network in self.entries.items()
        ]
        runner = next(iter(self.entries.values())).runner
        shared = bytes_text(runner.model_bytes), bytes_text(runner.context_bytes)
        text = f"{columns(rows, indent='')}\nweights {shared[0]}, a context {shared[1]}"
        return text if self.specialized is None else f"{text}\n{self.specialized.report()}"

    def _find(self, first: Network, shapes: Shapes) -> SizeRunner:
        """Return the runner for inputs of these shapes. Raises ValueError."""
        for own, network in self.entries.items():
            sizes = _sizes_of(network, own, shapes)
            if sizes is not None:
                if len(self.runners) >= MOST_RUNNERS:
                    self.runners.clear()
                found = SizeRunner(self._runner(network, own, sizes), _key(own, sizes))
                self.runners[shapes] = found
                return found
        wrong = ", ".join(
            f"{port.name} {list(shape)}" for port, shape in zip(first.inputs, shapes, strict=True)
        )
        raise ValueError(f"no entry has inputs {shorten(wrong, _LISTED)}; known: {self._known()}")

    def _runner(self, network: Network, own: EntrySizes, sizes: Mapping[str, int]) -> Runner:
        """Return the runner of an entry for sizes of its ranges."""
        if not network.code.sizes:
            return network.runner
        told = tuple(sizes[name] for name, _ in own)
        return network.runner.entry(network.code.entry, *ports(network.code, sizes), told)

    def _unknown(self, sizes: Mapping[str, int]) -> SpecError:
        wanted = ", ".join(f"{name}={size}" for name, size in sizes.items())
        return SpecError(f"no entry of {wanted or 'no sizes'}; known: {self._known()}")

    def _known(self) -> str:
        wholes = {name: own for name, own in self.dims.items() if isinstance(own, range)}
        rows = (
            _text(tuple((name, wholes.get(name, size)) for name, size in own))
            for own in self.entries
        )
        return shorten("; ".join(dict.fromkeys(rows)), _LISTED)


def _text(sizes: EntrySizes) -> str:
    """Return sizes in words: ``rows=5..6``."""
    return ", ".join(
        f"{name}={size}" if isinstance(size, int)
        else f"{name}={'..'.join(map(str, ends_of(size)))}"
        for name, size in sizes
    )  # fmt: skip


def _key(own: EntrySizes, sizes: Mapping[str, int]) -> Sizes | None:
    """Return the sizes of an entry in order; None where it has no others."""
    several = any(not isinstance(size, int) and len(size) > 1 for _, size in own)
    return tuple((name, sizes[name]) for name, _ in own) if several else None


def _has(sizes: Size, size: int) -> bool:
    return size == sizes if isinstance(sizes, int) else size in sizes


def _sizes_of(network: Network, own: EntrySizes, shapes: Shapes) -> dict[str, int] | None:
    """Return the sizes with which the inputs of an entry have these shapes; None where none do."""
    program = network.code.placed.program
    sizes = {name: size for name, size in own if isinstance(size, int)}
    sizes |= {name: size[0] for name, size in own if isinstance(size, range) and len(size) == 1}
    ranges = {name: size for name, size in own if isinstance(size, range)}
    derived = list[tuple[str, int]]()  # sizes that others make, and what they have to be
    for name, port, shape in zip(program.arguments, network.inputs, shapes, strict=True):
        if len(shape) != len(port.shape):
            return None
        axes = program.varying.get(name, {})
        for at, (extent, most) in enumerate(zip(shape, port.shape, strict=True)):
            if at not in axes:
                if extent != most:
                    return None
            elif axes[at] in program.derived:
                derived.append((axes[at], extent))
            elif extent not in ranges[axes[at]] or sizes.setdefault(axes[at], extent) != extent:
                return None
    fits = {*sizes} == {*dict(own)} and all(
        program.derived[name].value(sizes) == extent for name, extent in derived
    )
    return sizes if fits else None


def _shapes(network: Network, x: Any) -> Shapes | None:
    """Return the shapes of a caller's arrays in the order of inputs; None where some lack."""
    names = [port.name for port in network.inputs]
    arrays = x if isinstance(x, Mapping) else dict.fromkeys(names[:1], x)
    if not all(hasattr(arrays.get(name), "shape") for name in names) or len(arrays) > len(names):
        return None
    return tuple([tuple(arrays[name].shape) for name in names])


@guard
def compile_sizes(
    model: Model,
    dims: Mapping[str, int | Sequence[int]],
    level: str | CompileOptions = "measure",
    threads: int = 1,
    dtype: str = "f32",
    *,
    specialize_bytes: int = 0,
    **keywords: Any,
) -> SizedNetwork:
    """Compile a model for several sizes of its free dimensions.

    ``dims`` has a size, or several, by the name of a dimension or ``INPUT.AXIS``; other options are
    those of ``compile_network``. There is an entry for each choice of listed sizes; of a range, as
    ``range(1, 513)``, for all sizes in some parts of it. The entries share a library and weights
    that are packed alike. With ``specialize_bytes`` a thread compiles a library for each size of a
    range that was asked for, which later runs of that size take; libraries may take so many bytes.
    Raises as it does, SpecError where no dimension has several sizes, and VaryingSizeError for
    networks that depend on a size of a range in a way that only code for this size can.
    """
    options = CompileOptions.of(level, threads, dtype, keywords)
    dims = whole_sizes(dims)
    check_type("specialize_bytes", specialize_bytes, int)
    check_whole("specialize_bytes", specialize_bytes, least=0)
    if options.dims or options.machine:
        what = "dims: given twice" if options.dims else "machine: nothing runs on a described one"
        raise SpecError(f"{what}; compile_sizes takes sizes as its second argument, and runs")
    title = title_of(model) if options.name is None else names.project(options.name)
    read = partial(
        graph_of,
        model,
        values=options.values,
        external=options.external,
        weights=options.weights,
        kept=options.kept,
        most=options.most,
    )
    ranges = any(isinstance(own, range) for own in dims.values())
    if ranges and options.device not in (None, HOST):
        raise SpecError(f"device {options.device}: its code is of one size; list sizes in dims")
    network = compile_graphs(partial(read, any_size=ranges), dims, options, title)
    if not specialize_bytes:
        return network
    return specialize(network, read, dims, options, title, specialize_bytes)


def compile_graphs(
    read: Read, dims: Mapping[str, int | Sequence[int]], options: CompileOptions, title: str
) -> SizedNetwork:
    """Compile the graphs that ``read`` returns for sizes, as ``compile_sizes`` does.

    Where ``dims`` has ranges they are graphs that ``simplify`` made for any size.
    """
    options = replace(options, keep_dtype=True)
    plan = partial(plan_sizes, options=options, title=title)
    networks = plan_choices(size_choices(dims), read, plan)
    whole = join_sizes(networks, title)
    library = library_of(whole.whole.code, options.flags)
    codes = whole.codes()
    if options.verify:
        for code in codes:
            check_first_run(code, library, options.threads)
    first = load_runner(codes[0], library)
    runners = [  # one state
        first, *(first.entry(code.entry, *ports(code), code.sizes) for code in codes[1:])
    ]  # fmt: skip
    return SizedNetwork({
        tuple(program.sizes.items()): Network(
            own.prepared, own.results, own.schedules, code, own.options, own.seconds, runner,
            flags=options.flags,
        )
        for program, own, code, runner in zip(
            whole.programs, whole.networks, codes, runners, strict=True
        )
    }, {name: size for name, size in dims.items() if not isinstance(size, int)})  # fmt: skip


def specialize(
    network: SizedNetwork, read: Read, dims: Mapping[str, int | Sequence[int]],
    options: CompileOptions, title: str, most_bytes: int,
) -> SizedNetwork:  # fmt: skip
    """Return a network of ranges that has libraries for single sizes, of ``most_bytes`` together.

    ``read`` returns graphs of one size each. Raises SpecError without ranges, or with state.
    """
    if not any(isinstance(own, range) for own in dims.values()):
        raise SpecError("specialize_bytes: dims has no range, and code for listed sizes is special")
    first = next(iter(network.entries.values())).runner
    if first.state:
        raise SpecError("specialize_bytes: a network with state has one library, which keeps it")
    arguments, bound = _arguments(first), size_choices(dims)[0].bound
    if LEVELS[options.level].measured != 0:
        options = replace(options, level="estimate")  # times beside the caller's work say nothing
    options = replace(options, keep_dtype=True, tuner=None, progress=None, watch=None)
    digest = digest_graph(read(bound))

    def build(sizes: Mapping[str, int]) -> Runner:
        graph = read({**bound, **sizes})
        planned = plan_sizes(graph, ONE_SIZE, options, title)
        library = library_of(planned.code, options.flags)
        if options.verify:
            check_first_run(planned.code, library, options.threads)
        if digest_graph(read(bound)) != digest:
            raise SpecError("the model has changed since it was compiled")
        runner = load_runner(planned.code, library)
        if _arguments(runner) != arguments:
            raise UnsupportedError("code for one size takes other arguments")
        return runner

    return replace(network, specialized=SpecializedSizes(build, most_bytes), runners={})


def _arguments(runner: Runner) -> list[tuple[str, str, int]]:
    """Return names, types and ranks of inputs and outputs."""
    return [(it.name, it.dtype, len(it.shape)) for it in (*runner.inputs, *runner.outputs)]


def _largest(sizes: Mapping[str, Size]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else size[-1] for size in sizes.values())
