"""``optimize``: a module in inference -> one whose supported parts are compiled networks."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from types import MethodType
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from polysci.border.arguments import check_type
from polysci.errors import SpecError, UnsupportedError
from polysci.network.compile.compiled import Network, compile_network
from polysci.network.compile.prepare import DTYPES
from polysci.network.frontends.pytorch.program import program_of
from polysci.network.ir.graph import Graph
from polysci.torch.compiled_part import is_fake
from polysci.torch.free_sizes import check_sizes
from polysci.torch.module_state import ModuleState
from polysci.torch.parts import (
    Split,
    boundary_values,
    compile_part,
    compile_whole,
    is_faithful,
    join_parts,
    split_program,
)
from polysci.torch.reports import ModuleReport
from polysci.torch.rest import EAGER, with_rest
from polysci.torch.stored_module import StoredModule
from polysci.tune import LEVELS, check_options

TURNS: Final = 7  # of eager and ours, one after the other
LEAST_S: Final = 0.02  # of a turn, so that the clock's steps do not count
TIE: Final = 0.02  # of the time: within it the compiled module stays


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


class OptimizedModule(torch.nn.Module):  # type: ignore[misc]
    """What ``optimize`` makes of a module, which ``module`` still is.

    Calls take what those of the module take, in the sizes of the example inputs, or others along
    axes that ``dynamic_shapes`` leaves free, for which it is compiled once more. Weights are those
    of the module: where they changed, or a submodule was replaced, it is compiled again. Hooks that
    the module has, and attributes that are no tensors, are captured as its code is; later ones do
    not count. Results are new tensors, no views. Gradients are not computed.
    """

    def __init__(
        self, module: Any, args: tuple[Any, ...], words: Mapping[str, Any],
        options: ModuleOptions, dynamic_shapes: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.module, self._options = module, options
        self._spec = pytree.tree_flatten((args, dict(words)))[1]
        self._names = [*inspect.signature(module.forward).parameters]
        self._free = dynamic_shapes
        self._state: ModuleState | None = ModuleState(module)
        plain = not words and all(isinstance(x, torch.Tensor) for x in args)
        self._flat = len(args) if plain else -1  # how many inputs need no look at their structure
        self._compile_first((args, dict(words)))
        self.training = False

    def _compile_first(self, examples: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        """For the example inputs alone."""
        leaves = pytree.tree_leaves(examples)
        self._examples, self._first = examples, key_of(leaves)
        self._types = [x.dtype for x in leaves if isinstance(x, torch.Tensor)]
        self._variants = {self._first: self._compile(leaves)}

    @property
    def report(self) -> ModuleReport:
        """What became of the module for the example inputs."""
        return self._variants[self._first].report

    def forward(self, *args: Any, **words: Any) -> Any:
        if torch.compiler.is_exporting() or torch.jit.is_tracing():
            raise UnsupportedError("an optimized module is no program: capture the module it is of")
        flat = not words and len(args) == self._flat
        leaves = args if flat else self._leaves(args, words)
        if torch.is_grad_enabled() and any(
            isinstance(x, torch.Tensor) and x.requires_grad for x in leaves
        ):
            raise UnsupportedError(
                "an optimized module computes no gradients: call it in torch.no_grad(), or the "
                "module it was made of"
            )
        if self._state is None or self._state.has_changed():
            self._renew()
        variant = self._variant(leaves)
        if variant.runs is None:
            return self.module(*args, **words)
        inputs = leaves if flat else [leaves[at] for at in variant.places]
        made = self._run(variant, inputs)
        return made[0] if variant.outputs is None else pytree.tree_unflatten(made, variant.outputs)

    def _variant(self, leaves: Sequence[Any]) -> Variant:
        """The module for these inputs. Raises TypeError for what is no tensor or number."""
        try:
            return self._variants.get(key_of(leaves)) or self._extended(leaves)
        except TypeError:
            kinds = {type(x).__name__ for x in leaves if not isinstance(x, torch.Tensor | Hashable)}
            if kinds:
                text = f"inputs: expected tensors or numbers, got {', '.join(sorted(kinds))}"
                raise TypeError(text) from None
            raise

    def _run(self, variant: Variant, inputs: Sequence[Any]) -> Any:
        """Whatever the modes of the caller."""
        if not torch.is_autocast_enabled("cpu"):
            if isinstance(variant.runs, MethodType):  # of a part, which records no gradient
                return variant.runs(*inputs)
            with torch.no_grad():
                return variant.runs(*inputs)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return variant.runs(*(  # calls before it may have made other types
                x.to(kind) if x.is_floating_point() else x
                for x, kind in zip(inputs, self._types, strict=True)
            ))  # fmt: skip

    def _leaves(self, args: tuple[Any, ...], words: Mapping[str, Any]) -> list[Any]:
        """Tensors and numbers in the order of the example inputs. Raises TypeError for others."""
        leaves, spec = pytree.tree_flatten((args, dict(words)))
        if spec == self._spec:
            return list(leaves)
        bound = inspect.signature(self.module.forward).bind(*args, **words).arguments
        positional = self._names[: len(self._examples[0])]
        if {*bound} == {*positional, *self._examples[1]}:
            first = tuple(bound[name] for name in positional)
            rest = {name: bound[name] for name in self._examples[1]}
            leaves, spec = pytree.tree_flatten((first, rest))
        if spec != self._spec:
            raise TypeError(f"inputs: expected the structure {self._spec}, got {spec}")
        return list(leaves)

    def _extended(self, leaves: Sequence[Any]) -> Variant:
        """The module for inputs of other sizes. Raises ValueError where those are not free."""
        key, mine = key_of(leaves), [*zip(leaves, self._first, strict=True)]
        if any(is_fake(x) for x in leaves):
            raise TypeError("inputs: expected tensors with memory, got fake ones")
        wrong = [(x, shape) for x, shape in mine if key_of([x])[0] != shape]
        if self._free is None or not all(isinstance(x, torch.Tensor) for x, _ in wrong):
            x, shape = wrong[0]
            raise ValueError(
                f"inputs: expected {shape}, got {key_of([x])[0]}: optimized for the former; "
                "dynamic_shapes leaves dimensions free"
            )
        self._variants[key] = self._compile(leaves)
        return self._variants[key]

    def _compile(self, leaves: Sequence[Any]) -> Variant:
        args, words = pytree.tree_unflatten(leaves, self._spec)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of torch's own parts to each other
            if self._free is not None:
                check_sizes(self.module, self._examples, self._free, (args, words))
            return compile_module(self.module, args, words, self._options)

    def _renew(self) -> None:
        """Compile again, for weights that changed. Raises SpecError for a module that learns."""
        check_inference(self.module, [self.module])
        self._state = ModuleState(self.module)
        self._compile_first(self._examples)

    # What users do with modules

    def train(self, mode: bool = True) -> OptimizedModule:
        """Raises UnsupportedError for training."""
        if mode:
            raise UnsupportedError("an optimized module does not learn: train the module it is of")
        return self

    def _apply(self, function: Any, recurse: bool = True) -> OptimizedModule:
        """``to`` and the like compile the converted module; no device, no torch.export program."""
        before = next((x for x in self.module.parameters() if x.is_floating_point()), None)
        if before is None:
            return self
        after = function(before.detach()[:0] if before.dim() else before.detach())
        fixed = isinstance(self.module, torch.fx.GraphModule) and after.dtype != before.dtype
        if after.device != before.device or fixed:
            place = f"{before.dtype} on {before.device}"
            raise UnsupportedError(f"this optimized module stays {place}: convert what it is of")
        if after.dtype != before.dtype:
            self.module._apply(function)
            self._examples = pytree.tree_map_only(
                torch.Tensor,
                lambda x: x.to(after.dtype) if x.is_floating_point() else x, self._examples,
            )  # fmt: skip
            self._renew()
        return self

    def state_dict(self, *args: Any, **words: Any) -> Any:
        """The module's."""
        return self.module.state_dict(*args, **words)

    def load_state_dict(self, *args: Any, **words: Any) -> Any:
        """Into the module; the next call compiles again."""
        return self.module.load_state_dict(*args, **words)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        """As a part of another module, by the names that ``state_dict`` gives."""
        for name in [name for name in state_dict if name.startswith(prefix)]:
            state_dict[f"{prefix}module.{name.removeprefix(prefix)}"] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def __getstate__(self) -> dict[str, Any]:
        stale = self._state is None or self._state.has_changed()
        stored = StoredModule(self.module, self._examples, self._free)
        return {**self.__dict__, "_state": not stale, "_modules": {"module": stored}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_modules": {"module": state["_modules"]["module"].module}})
        self._state = ModuleState(self.module) if state["_state"] else None


def optimize(
    module: Any, example_inputs: Any, level: str = "measure", dtype: str | None = None,
    algorithm: str = "direct", *, example_words: Mapping[str, Any] | None = None,
    threads: int | None = None, dynamic_shapes: Any = None, reproducible: bool = False,
) -> OptimizedModule:  # fmt: skip
    """A module in inference whose supported parts are compiled networks; the rest is PyTorch's.

    ``module`` is a torch.nn.Module, or a program of torch.export.
    ``example_inputs`` are a tensor, or all positional inputs; ``example_words`` those by name.
    ``level``, ``algorithm`` and ``dtype`` (``f32``, the default, or ``bf16``) as
    ``polysci.compile_network`` takes them; ``threads`` are by default PyTorch's.
    ``dynamic_shapes`` as ``torch.export.export`` takes it. Every part is compared with eager on the
    example inputs. At levels that measure, the module is timed beside eager, and left to eager
    where that is faster; ``report`` tells. With ``reproducible`` any number of threads gives the
    same bits of the compiled parts, which are never left to eager for its time; ``report`` tells
    what that costs. Raises SpecError for a module that learns.
    """
    if isinstance(module, torch.export.ExportedProgram):
        module = module.module()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            "module: expected a torch.nn.Module or ExportedProgram, got " + type(module).__name__
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedError("module: TorchScript is not supported: pass what it was made of")
    check_inference(module, module.modules())
    if isinstance(module, OptimizedModule):
        module = module.module
    args = example_inputs if isinstance(example_inputs, tuple | list) else (example_inputs,)
    options = module_options(level, dtype or "f32", algorithm, threads, reproducible=reproducible)
    return OptimizedModule(module, tuple(args), example_words or {}, options, dynamic_shapes)


def check_inference(module: Any, parts: Iterable[Any]) -> None:
    """Raise SpecError where parts of a module learn."""
    exported = isinstance(module, torch.fx.GraphModule)  # its calls say whether it learns
    if not exported and any(part.training for part in parts):
        raise SpecError("module: it learns; call eval() first")


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
        exported = torch.export.export(module, args, dict(words))
        program = program_of(torch, type(module).__name__, exported)
    except UnsupportedError as error:
        return Variant(None, (), None, ModuleReport((), (), reason=str(error)))
    except Exception as error:  # of many kinds, for what torch.export does not take
        text = " ".join(str(error).split())
        reason = f"torch.export cannot capture it: {text:.300}"
        return Variant(None, (), None, ModuleReport((), (), reason=reason))
    leaves = pytree.tree_leaves((args, dict(words)))
    places = tuple(at for at, x in enumerate(leaves) if isinstance(x, torch.Tensor))
    inputs, eager = [leaves[at] for at in places], partial(module, *args, **words)
    runs, report = compile_parts(program, inputs, options, eager=eager)
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
    """Shapes of tensors, and numbers as they are."""
    return tuple([tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in leaves])
