"""A module for ranges of sizes: one library, compiled once, that computes all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch.export import dynamic_shapes as torch_shapes
from torch.utils import _pytree as pytree
from torch.utils._sympy.numbers import int_oo

from polysci.border.guard import guard
from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.pytorch.extents import fix_extents
from polysci.frontends.pytorch.importer import select_calls
from polysci.frontends.pytorch.program import (
    TorchProgram,
    decompose,
    functional_graph,
    program_of,
    pytorch_failures,
)
from polysci.graph.graph import Graph
from polysci.graph.passes.rounded_weights import round_weights
from polysci.network.compiled import Network
from polysci.network.options import CompileOptions
from polysci.network.runner import Runner, TensorPort
from polysci.network.sizes import MOST_RUNNERS, SizedNetwork, compile_graphs, specialize
from polysci.network.specialized import Sizes
from polysci.program.passes.variation import VaryingSizeError
from polysci.text import names
from polysci.text.tables import bytes_text
from polysci.torch.caches import has_cache
from polysci.torch.compiled_part import CompiledPart, PartTensor
from polysci.torch.devices import ON_HOST
from polysci.torch.parts import Part, Split, graph_of_part
from polysci.torch.variants import (
    ModuleOptions,
    Variant,
    capture,
    compile_lock,
    join_parts,
    keep_faster,
    output_structure,
    run_networks,
)

OFF: Final = "leave ranges off: each new size is then compiled at its first call"
FIXED: Final = "leave ranges and dynamic_shapes off to compile it for the example inputs alone"


@dataclass(frozen=True, slots=True)
class RangeDim:
    """A dimension of ``dynamic_shapes``: its sizes, and the inputs and axes that have it."""

    name: str
    sizes: range
    places: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return f"{self.name}={self.sizes[0]}..{self.sizes[-1]}"


def check_dims(shapes: Any) -> None:
    """Raise SpecError where ``dynamic_shapes`` has no Dim, or one without a largest size."""
    dims = [
        it for it in pytree.tree_leaves(shapes) if not isinstance(it, int) and not _is_fixed(it)
    ]
    if not dims:
        raise SpecError(
            "dynamic_shapes: ranges=True takes a torch.export.Dim with a max for each axis that "
            f"varies, got {shapes!r:.100}"
        )
    for dim in dims:
        name = getattr(dim, "__name__", repr(dim))
        if not isinstance(dim, torch.export.Dim) or isinstance(dim, torch_shapes._DerivedDim):
            raise SpecError(
                f"dynamic_shapes: {name:.100}: ranges=True takes a torch.export.Dim with a name "
                "and a max, and none made of another one"
            )
        if dim.max == int_oo:
            raise SpecError(
                f"dynamic_shapes: {name}: ranges=True takes a torch.export.Dim with a max, as in "
                f"Dim({name!r}, max=512)"
            )


def _is_fixed(dim: Any) -> bool:
    static = torch_shapes._DimHintType.STATIC
    return dim is None or (isinstance(dim, torch_shapes._DimHint) and dim.type == static)


def find_dims(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: Any
) -> tuple[RangeDim, ...]:
    """Return the dimensions of ``dynamic_shapes`` that fit the inputs, as they were captured."""
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    numbers = pytree.tree_unflatten(range(len(leaves)), spec)
    inputs: Any = torch_shapes._combine_args(module, *numbers)
    if isinstance(shapes, tuple | list):
        inputs = type(shapes)(inputs.values())
    places = dict[Any, list[tuple[int, int]]]()

    def note(_: Any, leaf: int, own: Any) -> None:
        axes = own.items() if isinstance(own, Mapping) else enumerate(own or ())
        for axis, dim in axes:
            if isinstance(dim, torch.export.Dim):
                places.setdefault(dim.__name__, []).append((leaf, axis))
                ranges[dim.__name__] = range(max(1, dim.min), dim.max + 1)

    ranges = dict[str, range]()
    torch_shapes._tree_map_with_path(note, inputs, shapes, tree_name="inputs")
    return tuple(RangeDim(name, ranges[name], tuple(own)) for name, own in places.items())


@dataclass(slots=True)
class SpecialRun:
    """A size of a module: ``key`` is its own, ``runner`` has code for it alone, if there is any."""

    sizes: Mapping[str, int]
    key: Sizes | None
    runner: Runner | None = None
    variant: Variant | None = None


@dataclass(frozen=True, slots=True)
class ModuleRanges:
    """A module compiled for all sizes of its dimensions.

    ``program`` is the one that torch.export makes of the module for the largest sizes, ``split``
    says that one network computes it. ``first`` is the variant for the example inputs, whose
    leaves are called ``leaf_names`` and have ``shapes``; None of what is no tensor.
    """

    dims: tuple[RangeDim, ...]
    network: SizedNetwork
    program: TorchProgram
    split: Split
    first: Variant
    leaf_names: tuple[str, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    special: dict[Any, SpecialRun] = field(default_factory=dict)

    def __deepcopy__(self, memo: Any) -> ModuleRanges:
        return self

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            f"ranges: a library for {', '.join(map(str, self.dims))} has no pickle: pickle the "
            "module, and optimize it where it is loaded"
        )

    def variant(self, leaves: Sequence[Any]) -> Variant:
        """Return what runs inputs of these sizes. Raises SpecError for others."""
        sizes = self._sizes(leaves)
        if self.first.runs is None:
            return self.first
        return replace(self.first, runs=self._runs(self.network.entry(**sizes)))

    def specialized(self, shapes: Any, leaves: Sequence[Any]) -> Variant | None:
        """Return what runs inputs of these shapes by code for them alone, where that is there.

        It is compiled where it is not.
        """
        store = self.network.specialized
        if store is None or self.first.runs is None:
            return None
        run = self.special.get(shapes)
        if run is None:
            if len(self.special) >= MOST_RUNNERS:
                self.special.clear()
            sizes = self._sizes(leaves)
            self.special[shapes] = run = SpecialRun(sizes, self.network.key(**sizes))
        runner = None if run.key is None else store.find(run.key)
        if runner is not run.runner:
            entry = self.network.entry(**run.sizes)
            runs = None if runner is None else self._runs(entry.with_runner(runner))
            run.variant = None if runs is None else replace(self.first, runs=runs)
            run.runner = runner
        return run.variant

    def _runs(self, entry: Network) -> Any:
        """Return a function from tensors of an entry's sizes to the outputs of the program."""
        (part,) = self.split.parts
        return join_parts(self.program, self.split, {part: _part_of(part, entry)})

    def _sizes(self, leaves: Sequence[Any]) -> dict[str, int]:
        """Return the sizes of all dimensions. Raises SpecError where shapes do not have them."""
        sizes = dict[str, int]()
        axes = {place: dim for dim in self.dims for place in dim.places}
        for at, (x, shape) in enumerate(zip(leaves, self.shapes, strict=True)):
            if shape is None:
                continue
            given, name = tuple(x.shape), self.leaf_names[at]
            if len(given) != len(shape):
                raise SpecError(f"inputs: {name}: expected {len(shape)} axes, got {[*given]}")
            for axis, (size, known) in enumerate(zip(given, shape, strict=True)):
                dim = axes.get((at, axis))
                if dim and size not in dim.sizes:
                    raise SpecError(
                        f"inputs: {name}: axis {axis}: {dim.name} is {size}, and ranges=True "
                        f"compiled {dim}"
                    )
                expected = sizes.setdefault(dim.name, size) if dim else known
                if size != expected:
                    what = f"{dim.name}={expected}" if dim else str(expected)
                    raise SpecError(f"inputs: {name}: axis {axis}: expected {what}, got {size}")
        return sizes


def _part_of(part: Part, entry: Network) -> CompiledPart:
    inputs = [*map(_resize, map(PartTensor.of, part.inputs), entry.inputs)]
    outputs = [*map(_resize, map(PartTensor.of, part.outputs), entry.outputs)]
    return CompiledPart(entry, inputs, outputs)


def _resize(port: PartTensor, own: TensorPort) -> PartTensor:
    """Return a tensor of a part in the size that an input or output of its network has."""
    shape = [0] * len(own.shape)
    for axis, size in zip(port.order, own.shape, strict=True):
        shape[axis] = size
    return replace(port, shape=tuple(shape))


@guard
def compile_ranges(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: ModuleOptions,
    shapes: Any, specialize_bytes: int = 0,
) -> ModuleRanges:  # fmt: skip
    """Compile a module for all sizes of ``dynamic_shapes``, which ``check_dims`` let pass.

    ``specialize_bytes`` is that of ``compile_sizes``.

    Every program of the library is compared with eager, on the example inputs, of which other sizes
    have the beginning or repeat it. Raises UnsupportedError for a module that is no single network,
    or depends on a size in a way that only code for this size can.
    """
    if options.device != ON_HOST:
        raise UnsupportedError(f"ranges: the code of {options.device.name} is of one size; {OFF}")
    if has_cache((args, kwargs)):
        raise UnsupportedError(f"ranges: it writes to a cache that is an input; {OFF}")
    what = "torch.export captures the module with these dynamic_shapes"
    with pytorch_failures("ranges", what, FIXED):
        exported = capture(module, args, kwargs, shapes)
    dims = find_dims(module, args, kwargs, shapes)
    with _with_advice():
        if functional_graph(torch, exported) is None:  # once for all sizes
            exported = decompose(torch, type(module).__name__, exported)
        return _Compilation(module, args, kwargs, options, exported, dims).run(specialize_bytes)


@contextmanager
def _with_advice() -> Iterator[None]:
    """Say in errors of what ranges cannot that other sizes can be compiled one by one."""
    try:
        yield
    except (SpecError, UnsupportedError) as error:
        reason = error.reason if isinstance(error, VaryingSizeError) else str(error)
        text = " ".join(reason.split())
        raise UnsupportedError(f"ranges: {text:.400}; {OFF}") from error


@dataclass(slots=True)
class _Compilation:
    """The programs of a module for some of its sizes, by these, and what is made of them."""

    module: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: ModuleOptions
    exported: Any
    dims: tuple[RangeDim, ...]
    programs: dict[tuple[int, ...], TorchProgram] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return type(self.module).__name__

    @property
    def leaf_names(self) -> tuple[str, ...]:
        """The names of the leaves of the inputs in the exported program."""
        user_input = torch.export.graph_signature.InputKind.USER_INPUT
        specs = self.exported.graph_signature.input_specs
        return tuple(spec.arg.name for spec in specs if spec.kind == user_input)

    def run(self, specialize_bytes: int) -> ModuleRanges:
        asked = CompileOptions.of(
            self.options.level, self.options.threads, self.options.dtype,
            {"algorithm": self.options.algorithm, "reproducible": self.options.reproducible},
        )  # fmt: skip
        spans = {dim.name: dim.sizes for dim in self.dims}
        title = names.project(self.where)
        network = compile_graphs(self.read, spans, asked, title)
        leaves = pytree.tree_leaves((self.args, dict(self.kwargs)))
        shapes = [tuple(x.shape) if isinstance(x, torch.Tensor) else None for x in leaves]
        examples = {dim.name: leaves[dim.places[0][0]].shape[dim.places[0][1]] for dim in self.dims}
        self.program(examples)
        self.check_alike()
        variants = {key: self.compare(network, key) for key in self.programs}
        largest = self.programs[tuple(dim.sizes[-1] for dim in self.dims)]
        first = variants[tuple(examples.values())]
        first = keep_faster(first, [leaves[at] for at in first.places], self.options,
                            partial(self.module, *self.args, **self.kwargs))  # fmt: skip
        if specialize_bytes:
            network = specialize(network, self.read_one, spans, asked, title, specialize_bytes)
        return ModuleRanges(
            self.dims, network, largest, split_whole(largest), first, self.leaf_names, tuple(shapes)
        )

    def program(self, sizes: Mapping[str, int]) -> TorchProgram:
        """Return the program for sizes of all dimensions."""
        key = tuple(sizes[dim.name] for dim in self.dims)
        if key not in self.programs:
            self.programs[key] = self.bind(sizes)
        return self.programs[key]

    def bind(self, sizes: Mapping[str, int]) -> TorchProgram:
        """Return the program for sizes of all dimensions, made now."""
        bound = {
            f"{self.leaf_names[leaf]}.{axis}": sizes[dim.name]
            for dim in self.dims for leaf, axis in dim.places
        }  # fmt: skip
        return program_of(torch, self.where, fix_extents(torch, self.where, self.exported, bound))

    def read(self, sizes: Mapping[str, int]) -> Graph:
        program = self.program(sizes)
        graph = graph_of_part(program, whole_of(program), any_size=True)
        return round_weights(graph, self.options.weights)[0]

    def read_one(self, sizes: Mapping[str, int]) -> Graph:
        """Return the graph of these sizes alone, in any thread."""
        with compile_lock(), torch.no_grad():
            program = self.bind(sizes)
            graph = graph_of_part(program, whole_of(program))
            return round_weights(graph, self.options.weights)[0]

    def check_alike(self) -> None:
        """Raise UnsupportedError where a number of a size is an output, or the end of a table."""
        facts = []
        for program in self.programs.values():
            ports = [replace(PartTensor.of(node), shape=()) for node in program.inputs]
            tensors = {*program.made}
            facts.append((ports, [None if it in tensors else it for it in program.outputs]))
        if any(fact[0] != facts[0][0] for fact in facts):
            raise UnsupportedError("an input holds places along an axis whose size varies")
        if any(fact[1] != facts[0][1] for fact in facts):
            raise UnsupportedError("a number that it returns depends on a size")

    def compare(self, network: SizedNetwork, key: tuple[int, ...]) -> Variant:
        """Return the variant of some sizes. Raises UnsupportedError where its results are wrong."""
        sizes = dict(zip([dim.name for dim in self.dims], key, strict=True))
        program, (args, kwargs) = self.programs[key], self.inputs(sizes)
        split = split_whole(program)
        leaves = pytree.tree_leaves((args, kwargs))
        places = tuple(at for at, x in enumerate(leaves) if isinstance(x, torch.Tensor))
        runs, report = run_networks(
            program, [leaves[at] for at in places], self.options, split,
            {split.parts[0]: network.entry(**sizes)}, partial(self.module, *args, **kwargs), {},
        )  # fmt: skip
        if runs is None:
            reasons = [report.reason, *(part.reason for part in report.parts)]
            given = ", ".join(f"{name}={size}" for name, size in sizes.items())
            raise UnsupportedError(f"for {given}: {'; '.join(filter(None, reasons))}")
        report = replace(report, ranges=_text(self.dims, network))
        return Variant(runs, places, output_structure(self.exported), report)

    def inputs(self, sizes: Mapping[str, int]) -> Any:
        """Return the example inputs with other sizes: their beginning, or it again and again."""
        leaves, spec = pytree.tree_flatten((self.args, dict(self.kwargs)))
        for dim in self.dims:
            for leaf, axis in dim.places:
                places = torch.arange(sizes[dim.name]) % leaves[leaf].shape[axis]
                leaves[leaf] = leaves[leaf].index_select(axis, places)
        return pytree.tree_unflatten(leaves, spec)


def whole_of(program: TorchProgram) -> Part:
    """Return the part that is all of a program."""
    calls = select_calls(program.nodes, program.made)
    return Part(tuple(calls), program.inputs, tuple(program.made))


def split_whole(program: TorchProgram) -> Split:
    """Return a program as one part."""
    return Split((((), whole_of(program)),), {}, {}, {})


def _text(dims: Sequence[RangeDim], network: SizedNetwork) -> str:
    runner = next(iter(network.entries.values())).runner
    held = f"weights {bytes_text(runner.model_bytes)}, a context {bytes_text(runner.context_bytes)}"
    count = len(network.entries)
    programs = f"{count} program{'s' * (count > 1)}"
    return f"{', '.join(map(str, dims))}: {programs}, {held}"
