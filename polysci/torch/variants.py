"""A module, or a program, for inputs of fixed sizes: its parts compiled, compared and timed."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import getitem
from statistics import median
from threading import RLock
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from polysci.border.arguments import check_type
from polysci.errors import SpecError, UnsupportedError, WisdomError
from polysci.frontends.pytorch.program import TorchProgram, program_of, pytorch_failures
from polysci.graph.graph import Graph
from polysci.graph.passes.narrow_weights import widen_weights
from polysci.graph.passes.rounded_weights import check_weights, round_weights, rounding_bound
from polysci.network.compiled import Network, compile_network
from polysci.network.options import check_device
from polysci.network.prepare import DTYPES
from polysci.target.target import HOST
from polysci.torch.caches import has_cache, register_caches
from polysci.torch.compiled_part import CompiledPart, ModuleReport, PartReport
from polysci.torch.devices import ON_HOST, TensorDevice, find_device
from polysci.torch.experts import compute_all_experts
from polysci.torch.fallback import EAGER, leave, reason_of, with_rest
from polysci.torch.known_numbers import KnownNumbers
from polysci.torch.parts import (
    AS_PYTORCH,
    FIRST_OF_EQUAL,
    Part,
    Split,
    boundary_values,
    compile_part,
    compile_whole,
    is_faithful,
    is_whole_of,
    split_program,
)
from polysci.torch.settings import check_algorithm
from polysci.tune import LEVELS, check_options


def capture(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any = None
) -> Any:
    """Export a module, for these very sizes unless ``dynamic_shapes`` leaves some free.

    A tensor that is given twice is two inputs, which torch.export would take for one. Marks of
    ``torch._dynamo.mark_dynamic``, which would leave sizes free, do not count.
    """
    known = set[int]()

    def separate(x: Any) -> Any:
        again = id(x) in known
        known.add(id(x))
        return x.detach() if again or _is_marked(x) else x

    register_caches()
    args, kwargs = pytree.tree_map_only(torch.Tensor, separate, (args, dict(kwargs)))
    twin = _twin(module)
    if twin is not module:
        compute_all_experts(twin)
    with KnownNumbers():
        return torch.export.export(twin, args, kwargs, dynamic_shapes=dynamic_shapes)


def _twin(module: Any) -> Any:
    """Return a module with the same tensors; the module itself where it cannot be copied.

    While torch.export traces a module, its weights are fake ones, with which no other thread may
    compute.
    """
    own = [x for part in module.modules() for x in pytree.tree_leaves(
        (vars(part), dict(part._parameters), dict(part._buffers))
    )]  # fmt: skip
    memo = {id(x): x for x in own if isinstance(x, torch.Tensor)}
    try:
        return copy.deepcopy(module, memo)
    except Exception:  # of many kinds
        return module


def _is_marked(x: Any) -> bool:
    return type(x) is torch.Tensor and any("dynamic" in name for name in vars(x))


def _run_alone(program: TorchProgram, split: Split, part: Part, only: CompiledPart) -> Any:
    """Return a program of one part, whose other outputs are inputs or known; can be pickled."""
    order = [program.inputs.index(node) for node in part.inputs]
    table = {node: at for at, node in enumerate((*part.outputs, *program.inputs))}
    known, places = list[Any](), list[int]()
    for node in program.outputs:
        places.append(table.get(node, len(table) + len(known)))
        if node not in table:
            is_tensor = hasattr(node, "all_input_nodes")
            known.append(split.known[node].detach() if is_tensor else node)
    return partial(_pick_results, only, order, known, places)


def _pick_results(
    only: CompiledPart, order: Sequence[int], known: Sequence[Any], places: Sequence[int],
    *inputs: Any,
) -> list[Any]:  # fmt: skip
    """Run a part; pick among its results, the program's inputs and copies of known values."""
    copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in known]
    values = (*only.forward(*[inputs[at] for at in order]), *inputs, *copies)
    return [values[at] for at in places]


def join_parts(program: TorchProgram, split: Split, compiled: Mapping[Part, CompiledPart]) -> Any:
    """Return a function from tensors to outputs: the only part, or a ``GraphModule``."""
    for whole, only in compiled.items():
        if is_whole_of(program, whole):
            return only.forward
        if {*split.parts} == {whole} and not any(calls for calls, _ in split.phases):
            return _run_alone(program, split, whole, only)
    graph, names = torch.fx.Graph(), dict[Any, Any]()
    owner = torch.nn.Module()

    def place(node: Any) -> Any:
        if node not in names and isinstance(split.known.get(node), torch.Tensor):
            name = f"constant{len(names)}"
            owner.register_buffer(name, split.known[node].detach(), persistent=False)
            names[node] = graph.get_attr(name)
        elif node not in names:
            add_call(node)
        return names[node]

    def output_of(node: Any) -> Any:
        """Return an output that the caller may write to."""
        if not hasattr(node, "all_input_nodes"):
            return node
        output = place(node)
        is_known = output.op == "get_attr"
        return graph.call_function(torch.ops.aten.clone.default, (output,)) if is_known else output

    def add_call(node: Any) -> None:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), place)
        names[node] = graph.call_function(node.target, args, kwargs)

    for node in program.inputs:
        names[node] = graph.placeholder(node.name)
    for number, (apart, part) in enumerate(split.phases):
        module = compiled.get(part) if part else None
        eager = {*apart, *(part.calls if part and module is None else ())}
        for node in program.nodes:
            if node in eager:
                add_call(node)
        if part and module is not None:
            owner.add_module(f"part{number}", module)
            results = graph.call_module(f"part{number}", tuple(map(place, part.inputs)))
            for at, node in enumerate(part.outputs):
                names[node] = graph.call_function(getitem, (results, at))
    graph.output(tuple(map(output_of, program.outputs)))
    return torch.fx.GraphModule(owner, graph)


TURNS: Final = 7  # of eager and ours, one after the other
LEAST_S: Final = 0.02  # of a turn, so that the clock's steps do not count
TIE: Final = 0.02  # of the time: within it the compiled module stays
_lock = RLock()


@dataclass(frozen=True, slots=True)
class ModuleOptions:
    """Options as ``optimize`` takes them; ``rest`` computes the calls between parts."""

    level: str
    threads: int
    dtype: str
    algorithm: str
    rest: str = EAGER
    reproducible: bool = False
    device: TensorDevice = ON_HOST
    weights: str = "f32"


@dataclass(frozen=True, slots=True)
class Variant:
    """A module for inputs of fixed sizes: what runs its parts, None where eager does.

    ``places`` are the leaves of its inputs that are tensors, ``outputs`` the structure of its
    outputs; None where that is one tensor.
    """

    runs: Any
    places: tuple[int, ...]
    outputs: Any
    report: ModuleReport


def compile_lock() -> Any:
    """Return the lock of compiles: torch.export keeps what it does in variables of the process."""
    return _lock


def _renew_lock() -> None:
    """Make a new lock in a child of fork: another thread may have held the copy."""
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_renew_lock)


def module_options(
    level: str, dtype: str, algorithm: str, threads: int | None, rest: str = EAGER,
    reproducible: bool = False, device: str | None = None, weights: str = "f32",
) -> ModuleOptions:  # fmt: skip
    """Return options, by default of PyTorch's threads. Raises SpecError for wrong ones."""
    check_type("device", device, str, type(None))
    own = find_device(device)
    count = (torch.get_num_threads() if own.name == HOST else 1) if threads is None else threads
    check_device(device, count)
    check_options(level, count, None, None, None, None)
    check_algorithm(algorithm)
    check_type("reproducible", reproducible, bool)
    check_type("weights", weights, str)
    check_weights(weights)
    if dtype not in DTYPES:
        raise SpecError(f"dtype {dtype!r}: a network has {' or '.join(DTYPES)}")
    return ModuleOptions(level, count, dtype, algorithm, rest, reproducible, own, weights)


def compile_module(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: ModuleOptions
) -> Variant:
    """Compile a module for these very sizes; leave to eager what cannot be exported or compiled."""
    name = type(module).__name__
    if has_cache((args, kwargs)):
        return _eager("it writes to a cache of keys and values that is an input")
    try:
        exported = capture(module, args, kwargs)
    except Exception as error:  # of many kinds, for what torch.export does not take
        text = " ".join(str(error).split())
        hint = 'torch.compile(module, backend="polysci") may compile parts of it'
        return _eager(f"torch.export cannot capture it ({hint}): {text:.300}")
    try:
        program = program_of(torch, name, exported)
    except (SpecError, UnsupportedError) as error:
        return _eager(str(error))
    except Exception as error:  # of many kinds
        return _eager(leave(name, reason_of(error)))
    leaves = pytree.tree_leaves((args, dict(kwargs)))
    places = tuple(at for at, x in enumerate(leaves) if isinstance(x, torch.Tensor))
    inputs, eager = [leaves[at] for at in places], partial(module, *args, **kwargs)
    runs, report = compile_parts(program, inputs, options, eager=eager)
    variant = Variant(runs, places, output_structure(exported), report)
    return keep_faster(variant, inputs, options, eager)


def output_structure(exported: Any) -> Any:
    """Return the structure of a program's outputs; None of one tensor."""
    outputs = exported.call_spec.out_spec
    return None if outputs.is_leaf() else outputs


def keep_faster(
    variant: Variant, inputs: Sequence[Any], options: ModuleOptions, eager: Callable[[], Any]
) -> Variant:
    """Time a variant beside eager at levels that measure, and leave it to eager if that is faster.

    ``inputs`` are those that are tensors.
    """
    if variant.runs is None or not measures(options):
        return variant
    seconds, own = time_in_turns(eager, partial(variant.runs, *inputs), options.device)
    report = replace(variant.report, eager_seconds=seconds, own_seconds=own)
    if own > (1 + TIE) * seconds and not options.reproducible:
        report = replace(report, reason="eager was faster on the example inputs")
        return replace(variant, runs=None, report=report)
    return replace(variant, report=report)


def _eager(reason: str) -> Variant:
    """Return the variant of a module that is left to PyTorch as a whole."""
    return Variant(None, (), None, ModuleReport((), reason=reason))


def compile_parts(
    program: Any, inputs: Sequence[Any], options: ModuleOptions, split: Split | None = None,
    eager: Callable[[], Any] | None = None,
) -> tuple[Any, ModuleReport]:  # fmt: skip
    """Return a function of a program's outputs; None where nothing of it is compiled.

    ``eager`` runs the module that the program is of, with which it is compared. Raises WisdomError,
    at the level that takes records alone; other errors leave parts, or all of it, to PyTorch.
    """
    try:
        split = split or split_program(program)
    except (SpecError, UnsupportedError) as error:  # of what it computes
        return None, ModuleReport((), reason=str(error))
    except Exception as error:  # of many kinds
        return None, ModuleReport((), reason=leave(program.where, reason_of(error)))
    try:
        refused = tuple(split.refused.values())
        if not split.parts:
            return None, ModuleReport((), refused, reason="no part of it can be compiled")
        return _compile_split(program, inputs, options, split, eager and partial(_run, eager))
    except WisdomError:
        raise
    except Exception as error:  # of many kinds
        return None, ModuleReport((), reason=leave(program.where, reason_of(error)))


def _run(eager: Callable[[], Any]) -> Any:
    with pytorch_failures("the module", "it computes the example inputs"):
        return eager()


def _compile_split(
    program: Any, inputs: Sequence[Any], options: ModuleOptions, split: Split,
    eager: Callable[[], Any] | None,
) -> tuple[Any, ModuleReport]:  # fmt: skip
    reports, networks = dict[Part, PartReport](), dict[Part, Network]()
    for part in split.parts:
        with _left_to_pytorch(program, part, reports):
            networks[part] = _compile_graph(options, split.graphs[part])
    return run_networks(program, inputs, options, split, networks, eager, reports)


def run_networks(
    program: Any, inputs: Sequence[Any], options: ModuleOptions, split: Split,
    networks: Mapping[Part, Network], eager: Callable[[], Any] | None,
    reports: dict[Part, PartReport],
) -> tuple[Any, ModuleReport]:  # fmt: skip
    """Return what ``compile_parts`` does for networks that are there, of these parts.

    ``reports`` are those of the other parts.
    """
    refused = tuple(split.refused.values())
    state = torch.get_rng_state()
    if eager is not None and (whole := compile_whole(program, networks, inputs, eager)):
        return whole[0].forward, ModuleReport((whole[1],), refused)
    for operators in (FIRST_OF_EQUAL, AS_PYTORCH):  # where the order of equal elements shows
        torch.set_rng_state(state)
        with pytorch_failures(program.where, "it runs what torch.export makes of the module"):
            values = boundary_values(program, split, inputs, operators)
        if eager is None or is_faithful(program, values, eager, state):
            break
    else:
        reason = "the program that torch.export makes of it computes something else"
        return None, ModuleReport((), refused, reason=reason)
    compiled = dict[Part, CompiledPart]()
    for part, network in networks.items():
        with _left_to_pytorch(program, part, reports):
            module, reports[part] = compile_part(
                program, part, network, values, operators, rounding_bound(options.weights)
            )
            if module is not None:
                compiled[part] = module
    report = ModuleReport(tuple(reports[part] for part in split.parts), refused)
    if not compiled:
        return None, replace(report, reason="no part of it computes what eager does")
    runs = join_parts(program, split, compiled)
    return with_rest(runs, inputs, options.rest), report


@contextmanager
def _left_to_pytorch(program: Any, part: Part, reports: dict[Part, PartReport]) -> Iterator[None]:
    """Leave a part to PyTorch where its body fails, with a warning and the reason in the report."""
    try:
        yield
    except WisdomError:
        raise
    except Exception as error:  # of many kinds
        calls = len(part.calls)
        reason = leave(f"{program.where}: a part of {calls} calls", reason_of(error))
        reports[part] = PartReport(calls, reason=reason)


def _compile_graph(options: ModuleOptions, graph: Graph) -> Network:
    graph = graph if options.device.name == HOST else widen_weights(graph)
    graph, _ = round_weights(graph, options.weights)
    return compile_network(
        graph, options.level, options.threads, options.dtype, algorithm=options.algorithm,
        reproducible=options.reproducible, device=options.device.name,
    )  # fmt: skip


def measures(options: ModuleOptions) -> bool:
    """Tell whether anything may be timed."""
    return LEVELS[options.level].measured != 0


def is_slower(options: ModuleOptions, eager: Any, mine: Any) -> bool:
    """Tell whether eager takes less time, at levels that measure; times choose no order of sums."""
    if options.reproducible or not measures(options):
        return False
    seconds, own = time_in_turns(eager, mine, options.device)
    return own > (1 + TIE) * seconds


def time_in_turns(eager: Any, mine: Any, device: TensorDevice) -> tuple[float, float]:
    """Return seconds a run of both, each the median of several turns."""
    seconds: dict[str, list[float]] = {"eager": [], "mine": []}
    for turn in range(TURNS + 1):
        for name, run in (("eager", eager), ("mine", mine)):
            start, count = time.perf_counter(), 0
            while not count or time.perf_counter() - start < LEAST_S:
                run()
                device.wait()
                count += 1
            if turn:  # the first one warms up
                seconds[name].append((time.perf_counter() - start) / count)
    return median(seconds["eager"]), median(seconds["mine"])


def key_of(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Return shapes of tensors, and what else decides results: True is not 1, and 0.0 not -0.0."""
    return tuple([tuple(x.shape) if isinstance(x, torch.Tensor) else _value_key(x) for x in leaves])


def _value_key(value: Any) -> tuple[Any, ...]:
    return type(value), repr(value) if isinstance(value, float | complex) else value
