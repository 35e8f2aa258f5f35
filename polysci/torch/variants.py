"""A module, or a program, for inputs of fixed sizes: its parts compiled, compared and timed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from threading import RLock
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from polysci.border.arguments import check_type
from polysci.errors import SpecError, UnsupportedError
from polysci.network.compile.compiled import Network, compile_network
from polysci.network.compile.prepare import DTYPES
from polysci.network.frontends.pytorch.program import program_of
from polysci.network.ir.graph import Graph
from polysci.torch.capture import capture
from polysci.torch.joined_parts import join_parts
from polysci.torch.parts import (
    Split,
    boundary_values,
    compile_part,
    compile_whole,
    is_faithful,
    split_program,
)
from polysci.torch.reports import ModuleReport
from polysci.torch.rest import EAGER, with_rest
from polysci.tune import LEVELS, check_options

TURNS: Final = 7  # of eager and ours, one after the other
LEAST_S: Final = 0.02  # of a turn, so that the clock's steps do not count
TIE: Final = 0.02  # of the time: within it the compiled module stays
_lock = RLock()


@dataclass(frozen=True, slots=True)
class ModuleOptions:
    """As ``optimize`` takes them; ``rest``: what computes the calls between parts."""

    level: str
    threads: int
    dtype: str
    algorithm: str
    rest: str = EAGER
    reproducible: bool = False


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
    """One module at a time: torch.export keeps what it does in variables of the process."""
    return _lock


def _renew_lock() -> None:
    """A child of fork may have a copy that another thread held."""
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_renew_lock)


def module_options(
    level: str, dtype: str, algorithm: str, threads: int | None, rest: str = EAGER,
    reproducible: bool = False,
) -> ModuleOptions:  # fmt: skip
    """Of as many threads as PyTorch has, where none are told. Raises SpecError for wrong ones."""
    count = torch.get_num_threads() if threads is None else threads
    check_options(level, count, None, None, None, None)
    check_type("reproducible", reproducible, bool)
    if dtype not in DTYPES:
        raise SpecError(f"dtype {dtype!r}: a network has {' or '.join(DTYPES)}")
    return ModuleOptions(level, count, dtype, algorithm, rest, reproducible)


def compile_module(
    module: Any, args: tuple[Any, ...], words: Mapping[str, Any], options: ModuleOptions
) -> Variant:
    """A module for these very sizes; what cannot be exported or compiled is left to eager."""
    try:
        exported = capture(module, args, words)
        program = program_of(torch, type(module).__name__, exported)
        split = split_program(program)
    except (SpecError, UnsupportedError) as error:
        return Variant(None, (), None, ModuleReport((), (), reason=str(error)))
    except Exception as error:  # of many kinds, for what torch.export does not take
        text = " ".join(str(error).split())
        reason = f"torch.export cannot capture it: {text:.300}"
        return Variant(None, (), None, ModuleReport((), (), reason=reason))
    leaves = pytree.tree_leaves((args, dict(words)))
    places = tuple(at for at, x in enumerate(leaves) if isinstance(x, torch.Tensor))
    inputs, eager = [leaves[at] for at in places], partial(module, *args, **words)
    runs, report = compile_parts(program, inputs, options, split, eager)
    outputs = exported.call_spec.out_spec
    outputs = None if outputs.is_leaf() else outputs
    if runs is None:
        return Variant(None, places, outputs, report)
    own = partial(runs, *(leaves[at] for at in places))
    if measures(options):
        seconds, mine = time_in_turns(eager, own)
        report = replace(report, eager_seconds=seconds, own_seconds=mine)
        if mine > (1 + TIE) * seconds and not options.reproducible:
            report = replace(report, reason="eager was faster on the example inputs")
            return Variant(None, places, outputs, report)
    return Variant(runs, places, outputs, report)


def compile_parts(
    program: Any, inputs: Sequence[Any], options: ModuleOptions, split: Split | None = None,
    eager: Callable[[], Any] | None = None,
) -> tuple[Any, ModuleReport]:  # fmt: skip
    """What computes a program's outputs; None where nothing of it is compiled.

    ``eager`` runs the module that the program is of, with which it is compared.
    """
    split = split or split_program(program)
    refused = tuple(split.refused.values())
    if not split.parts:
        reason = "no part of it can be compiled"
        return None, ModuleReport((), refused, reason=reason)
    networks = {part: _compile_graph(options, split.graphs[part]) for part in split.parts}
    state = torch.get_rng_state()
    if eager is not None and (whole := compile_whole(program, networks, inputs, eager)):
        return whole[0].forward, ModuleReport((whole[1],), refused)
    values = boundary_values(program, split, inputs)
    if eager is not None and not is_faithful(program, values, eager, state):
        reason = "the program that torch.export makes of it computes something else"
        return None, ModuleReport((), refused, reason=reason)
    made = {part: compile_part(program, part, networks[part], values) for part in networks}
    compiled = {part: module for part, (module, _) in made.items() if module is not None}
    report = ModuleReport(tuple(own for _, own in made.values()), refused)
    if not compiled:
        return None, replace(report, reason="no part of it computes what eager does")
    runs = join_parts(program, split, compiled)
    return with_rest(runs, inputs, options.rest), report


def _compile_graph(options: ModuleOptions, graph: Graph) -> Network:
    return compile_network(
        graph, options.level, options.threads, options.dtype, algorithm=options.algorithm,
        reproducible=options.reproducible,
    )  # fmt: skip


def measures(options: ModuleOptions) -> bool:
    """Whether anything may be timed."""
    return LEVELS[options.level].measured != 0


def is_slower(options: ModuleOptions, eager: Any, mine: Any) -> bool:
    """Whether eager takes less time, at levels that measure; times choose no order of sums."""
    if options.reproducible or not measures(options):
        return False
    seconds, own = time_in_turns(eager, mine)
    return own > (1 + TIE) * seconds


def time_in_turns(eager: Any, mine: Any) -> tuple[float, float]:
    """Seconds a run of both, each the median of several turns."""
    seconds: dict[str, list[float]] = {"eager": [], "mine": []}
    for turn in range(TURNS + 1):
        for name, run in (("eager", eager), ("mine", mine)):
            start, count = time.perf_counter(), 0
            while not count or time.perf_counter() - start < LEAST_S:
                run()
                count += 1
            if turn:  # the first one warms up
                seconds[name].append((time.perf_counter() - start) / count)
    return median(seconds["eager"]), median(seconds["mine"])


def key_of(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Shapes of tensors, and what else decides results: True is not 1, and 0.0 not -0.0."""
    return tuple([tuple(x.shape) if isinstance(x, torch.Tensor) else _value_key(x) for x in leaves])


def _value_key(value: Any) -> tuple[Any, ...]:
    return type(value), repr(value) if isinstance(value, float | complex) else value
