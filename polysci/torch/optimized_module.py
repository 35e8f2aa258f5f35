"""``optimize``: a module in inference -> one whose supported parts are compiled networks."""

from __future__ import annotations

import inspect
import logging
import time
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any, Final

import torch
from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
    set_eval_frame,
)
from torch.utils import _pytree as pytree

from polysci.border.arguments import check_type, check_whole
from polysci.errors import SpecError, UnsupportedError
from polysci.network.sizes import MOST_RUNNERS
from polysci.text.tables import bytes_text
from polysci.torch.compiled_part import ModuleReport, is_fake
from polysci.torch.ranges import ModuleRanges, check_dims, compile_ranges
from polysci.torch.state import ModuleState, SizeWatch
from polysci.torch.stored import StoredModule, StoredVariants
from polysci.torch.variants import (
    ModuleOptions,
    Variant,
    capture,
    compile_lock,
    compile_module,
    key_of,
    module_options,
)

_log = logging.getLogger(__name__)
CACHE_BYTES: Final = 1 << 30  # of the libraries of all sizes of a module


def check_sizes(module: Any, examples: Any, dynamic_shapes: Any, inputs: Any) -> None:
    """Raise SpecError for sizes that are not free, of a module that can be captured at all.

    Raises torch.export's own error for ``dynamic_shapes`` that do not fit the module.
    """
    args, kwargs = examples
    try:
        exported = capture(module, args, kwargs, dynamic_shapes)
    except Exception:
        if _can_be_captured(module, args, kwargs):
            raise
        return
    try:
        exported.module()(*inputs[0], **inputs[1])
    except (AssertionError, RuntimeError, ValueError) as error:
        text = str(error).split("\n", maxsplit=1)[0]
        raise SpecError(f"inputs: sizes that dynamic_shapes does not take: {text:.300}") from None


def _can_be_captured(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    try:
        capture(module, args, kwargs)
    except Exception:  # of many kinds
        return False
    return True


class OptimizedModule(torch.nn.Module):  # type: ignore[misc]
    """The optimized form of a module, which ``module`` still is.

    Calls take what those of the module take, in the sizes of the example inputs, or others along
    axes that ``dynamic_shapes`` leaves free, for which it is compiled once more, unless ranges of
    sizes were compiled ahead. Weights are those
    of the module: where they changed, or a submodule was replaced, it is compiled again. Of writes
    that PyTorch does not count, through a NumPy view or ``.data``, those are noticed that change
    the first or last element of a tensor or one of two between: ``refresh`` tells of others. Hooks
    that the module has, and attributes that are no tensors, are captured as its code is; later ones
    do not count. Results are new tensors, no views. Gradients are not computed.
    """

    def __init__(
        self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any],
        options: ModuleOptions, dynamic_shapes: Any = None, ranges: bool = False,
        cache_bytes: int = CACHE_BYTES, specialize_bytes: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self._specialize_bytes = specialize_bytes
        self._most_bytes, self._dropped = cache_bytes, 0
        self._with_ranges = ranges
        self._ranges: ModuleRanges | None = None
        self.module, self._options = module, options
        self._spec = pytree.tree_flatten((args, dict(kwargs)))[1]
        self._names = [*inspect.signature(module.forward).parameters]
        self._free = dynamic_shapes
        plain = not kwargs and all(isinstance(x, torch.Tensor) for x in args)
        self._flat = len(args) if plain else -1  # how many inputs need no look at their structure
        with compile_lock():
            self._compile_first((args, dict(kwargs)))
        self.training = False

    def _compile_first(self, examples: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        """Compile for the example inputs alone."""
        state, leaves = ModuleState(self.module), pytree.tree_leaves(examples)
        self._examples, self._first = examples, key_of(leaves)
        self._types = [x.dtype for x in leaves if isinstance(x, torch.Tensor)]
        start = time.monotonic()
        if self._with_ranges:
            self._ranges = self._compile_ranges(examples)
            first = self._ranges.first
        else:
            first = self._compile(leaves)
        self._variants, self._used = {self._first: first}, dict[Any, float]()
        self._report = first.report
        self._sizes = SizeWatch(_names_of(examples))
        self._sizes.note(self._first, time.monotonic() - start)
        self._state: ModuleState | None = state

    @property
    def report(self) -> ModuleReport:
        """The report of the module for the example inputs, and what all sizes hold."""
        if self._ranges is not None and self._ranges.network.specialized is not None:
            return replace(self._report, held=self._ranges.network.specialized.report())
        if self._free is None or self._with_ranges:
            return self._report
        count, held = len(self._variants), bytes_text(self._held)
        most = bytes_text(self._most_bytes)
        text = f"{count} size{'s' * (count > 1)}: libraries hold {held} of at most {most}"
        dropped = f", {self._dropped} dropped" if self._dropped else ""
        return replace(self._report, held=text + dropped)

    @property
    def _held(self) -> int:
        """The bytes of the libraries of all sizes."""
        return sum(variant.report.bytes for variant in [*self._variants.values()])

    def _keep(self, key: Any, variant: Variant) -> None:
        """Keep a variant; others go, the one that was called longest ago first, if it is full."""
        self._variants[key], before = variant, self._dropped
        for old in sorted(self._variants, key=lambda it: self._used.get(it, 0.0)):
            if old != key and self._is_full():
                del self._variants[old]
                self._used.pop(old, None)
                self._dropped += 1
        if self._dropped and not (before or self._with_ranges):
            _log.warning(
                "libraries of sizes hold more than cache_bytes=%d: one was dropped, and a call of "
                "its size compiles again; ranges=True has one library for all", self._most_bytes,
            )  # fmt: skip

    def _is_full(self) -> bool:
        if self._with_ranges:  # variants share a library
            return len(self._variants) > MOST_RUNNERS
        return self._held > self._most_bytes

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        traced = set_eval_frame(None)  # TorchDynamo, where it looks for code to compile
        try:
            return self._compute(args, kwargs)
        finally:
            set_eval_frame(traced)

    forward._torchdynamo_disable = True  # type: ignore[attr-defined]
    forward._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
        "an optimized module is compiled already"
    )

    def _compute(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        flat = not kwargs and len(args) == self._flat
        leaves = args if flat else self._leaves(args, kwargs)
        if torch.jit.is_tracing() or (  # another thread may be exporting something else
            torch.compiler.is_exporting() and any(is_fake(x) for x in leaves)
        ):
            raise UnsupportedError("an optimized module is no program: capture the module it is of")
        if torch.is_grad_enabled() and any(
            isinstance(x, torch.Tensor) and x.requires_grad for x in leaves
        ):
            raise UnsupportedError(
                "an optimized module computes no gradients: call it in torch.no_grad(), or the "
                "module it was made of"
            )
        if self._state is None or self._state.has_changed():
            with compile_lock():  # unless another thread did meanwhile
                if self._state is None or self._state.has_changed():
                    self._renew()
        variant = self._variant(leaves)
        if variant.runs is None:
            return self.module(*args, **kwargs)
        inputs = leaves if flat else [leaves[at] for at in variant.places]
        results = self._run(variant, inputs)
        one = variant.outputs is None
        return results[0] if one else pytree.tree_unflatten(results, variant.outputs)

    def _variant(self, leaves: Sequence[Any]) -> Variant:
        """Return the variant for these inputs. Raises TypeError for what is no tensor or number."""
        try:
            key = key_of(leaves)
            variant = self._variants.get(key) or self._extend(leaves)
            if self._specialize_bytes and self._ranges is not None:
                variant = self._ranges.specialized(key, leaves) or variant
            if len(self._variants) > 1:
                self._used[key] = time.monotonic()
            return variant
        except TypeError:
            kinds = {type(x).__name__ for x in leaves if not isinstance(x, torch.Tensor | Hashable)}
            if kinds:
                text = f"inputs: expected tensors or numbers, got {', '.join(sorted(kinds))}"
                raise TypeError(text) from None
            raise

    def _run(self, variant: Variant, inputs: Sequence[Any]) -> Any:
        """Run a variant, whatever modes the caller set."""
        kind = self._options.device.place.type
        if not torch.is_autocast_enabled(kind):
            if isinstance(variant.runs, MethodType):  # of a part, which records no gradient
                return variant.runs(*inputs)
            with torch.no_grad():
                return variant.runs(*inputs)
        with torch.no_grad(), torch.autocast(kind, enabled=False):
            return variant.runs(*(  # calls before it may have made other types
                x.to(kind) if x.is_floating_point() else x
                for x, kind in zip(inputs, self._types, strict=True)
            ))  # fmt: skip

    def _leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return tensors and numbers in the order of the example inputs. Raises TypeError."""
        leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
        if spec == self._spec:
            return list(leaves)
        args, kwargs = _in_order((args, dict(kwargs)), self._examples)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec == self._spec:
            return list(leaves)
        bound = inspect.signature(self.module.forward).bind(*args, **kwargs).arguments
        positional = self._names[: len(self._examples[0])]
        if {*bound} == {*positional, *self._examples[1]}:
            first = tuple(bound[name] for name in positional)
            rest = {name: bound[name] for name in self._examples[1]}
            leaves, spec = pytree.tree_flatten((first, rest))
        if spec != self._spec:
            raise TypeError(f"inputs: expected the structure {self._spec}, got {spec}")
        return list(leaves)

    def _extend(self, leaves: Sequence[Any]) -> Variant:
        """Return the variant for other sizes. Raises ValueError where those are not free."""
        key, examples = key_of(leaves), pytree.tree_leaves(self._examples)
        if any(is_fake(x) for x in leaves):
            raise TypeError("inputs: expected tensors with memory, got fake ones")
        pairs = zip(leaves, examples, strict=True)
        wrong = [(x, example) for x, example in pairs if key_of([x]) != key_of([example])]
        if self._free is None or not all(isinstance(x, torch.Tensor) for x, _ in wrong):
            actual, expected = map(_size_or_value, wrong[0])
            raise ValueError(
                f"inputs: expected {expected}, got {actual}: optimized for the former; "
                "dynamic_shapes leaves dimensions free"
            )
        with compile_lock():
            variant = self._variants.get(key)  # of another thread meanwhile
            if variant is None and self._ranges:
                variant = self._ranges.variant(leaves)
                self._keep(key, variant)
            if variant is None:
                start = time.monotonic()
                variant = self._compile(leaves)
                self._keep(key, variant)
                self._sizes.note(key, time.monotonic() - start)
            return variant

    def _compile(self, leaves: Sequence[Any]) -> Variant:
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of torch's own parts to each other
            if self._free is not None:
                check_sizes(self.module, self._examples, self._free, (args, kwargs))
            return compile_module(self.module, args, kwargs, self._options)

    def _compile_ranges(self, examples: tuple[tuple[Any, ...], dict[str, Any]]) -> ModuleRanges:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of torch's own parts to each other
            return compile_ranges(
                self.module, *examples, self._options, self._free, self._specialize_bytes
            )

    def _renew(self) -> None:
        """Compile again, for weights that changed. Raises SpecError for a module that learns."""
        check_inference(self.module, [("", self.module)])
        self._compile_first(self._examples)

    def refresh(self) -> None:
        """Compile again for the weights as they are now, for writes that nothing counts."""
        with compile_lock():
            self._renew()

    # What users do with modules

    def train(self, mode: bool = True) -> OptimizedModule:
        """Raise UnsupportedError for training."""
        if mode:
            raise UnsupportedError("an optimized module does not learn: train the module it is of")
        return self

    def _apply(self, function: Any, recurse: bool = True) -> OptimizedModule:
        """Compile the module that ``to`` and the like convert; no device, no exported program.

        Example inputs get the types that the function gives to tensors of theirs.
        """
        tensors = [*self.module.parameters(), *self.module.buffers()]
        inputs = [x for x in pytree.tree_leaves(self._examples) if isinstance(x, torch.Tensor)]
        kinds = {x.dtype: x.dtype for x in inputs}
        for x in (*tensors, *inputs):
            after = function(x.new_empty((0,) * x.dim()))
            fixed = isinstance(self.module, torch.fx.GraphModule) and after.dtype != x.dtype
            if after.device != x.device or fixed:
                place = f"{x.dtype} on {x.device}"
                raise UnsupportedError(
                    f"this optimized module stays {place}: convert what it is of"
                )
            kinds[x.dtype] = after.dtype
        self.module._apply(function)
        if any(kind != before for before, kind in kinds.items()):
            self._examples = pytree.tree_map_only(
                torch.Tensor, lambda x: x.to(kinds[x.dtype]), self._examples
            )
            with compile_lock():
                self._renew()
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of the module."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load into the module; the next call compiles again."""
        return self.module.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        """Load as a part of another module, by the names that ``state_dict`` gives."""
        for name in [name for name in state_dict if name.startswith(prefix)]:
            state_dict[f"{prefix}module.{name.removeprefix(prefix)}"] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def __getstate__(self) -> dict[str, Any]:
        stale = self._state is None or self._state.has_changed()
        variants = self._variants
        if stale:  # their networks hold other weights, or memory that is gone
            variants = {key: replace(variant, runs=None) for key, variant in variants.items()}
        stored = StoredModule(self.module, self._examples, self._free)
        return {
            "_variants": StoredVariants(variants),  # first: see there
            **{name: value for name, value in self.__dict__.items() if name != "_variants"},
            "_state": not stale,
            "_modules": {"module": stored},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        modules = {"module": state["_modules"]["module"].module}
        super().__setstate__(
            {**state, "_variants": state["_variants"].variants, "_modules": modules}
        )
        self._state = ModuleState(self.module) if state["_state"] else None


set_code_exec_strategy(  # TorchDynamo leaves this function alone, without being imported for it
    OptimizedModule.forward.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT)
)


def _names_of(examples: tuple[Any, ...]) -> list[str]:
    """Name the leaves of positional inputs, and of inputs by name."""
    paths = [path for path, _ in pytree.tree_flatten_with_path(examples)[0]]
    return [f"{('args', 'words')[path[0].idx]}{pytree.keystr(path[1:])}" for path in paths]


def _in_order(value: Any, example: Any) -> Any:
    """Return a value whose dictionaries have their keys in the order of an example's."""
    if type(value) is not type(example):
        return value
    if type(value) is dict and value.keys() == example.keys():
        return {name: _in_order(value[name], example[name]) for name in example}
    if type(value) in (list, tuple) and len(value) == len(example):
        return type(value)(map(_in_order, value, example))
    return value


def _size_or_value(x: Any) -> str:
    return str(tuple(x.shape)) if isinstance(x, torch.Tensor) else repr(x)


def optimize(
    module: Any, example_inputs: Any, level: str = "measure", dtype: str | None = None,
    algorithm: str = "direct", *, example_words: Mapping[str, Any] | None = None,
    threads: int | None = None, dynamic_shapes: Any = None, reproducible: bool = False,
    device: str | None = None, ranges: bool = False, cache_bytes: int = CACHE_BYTES,
    weights: str = "f32", specialize_bytes: int = 0,
) -> OptimizedModule:  # fmt: skip
    """Compile the supported parts of a module in inference; PyTorch computes the rest.

    ``module`` is a torch.nn.Module, or a program of torch.export.
    ``example_inputs`` are a tensor, or all positional inputs; ``example_words`` those by name.
    ``level``, ``algorithm`` and ``dtype`` (``f32``, the default, or ``bf16``) as
    ``polysci.compile_network`` takes them; ``threads`` are by default PyTorch's.
    ``dynamic_shapes`` as ``torch.export.export`` takes it: other sizes are compiled at their first
    call, and beyond ``cache_bytes`` of their libraries those go that were not called for longest.
    With ``ranges`` one library is compiled ahead for all sizes of its ``torch.export.Dim``s,
    which need a max; that takes longer, and the module must be one network. With
    ``specialize_bytes`` as well a thread compiles a library for each single size that is called,
    and all of these take so many bytes at most. Every part is compared
    with eager on the example inputs. At levels that measure, the module is timed beside eager, and
    left to eager where that is faster; ``report`` tells. With ``reproducible`` any number of
    threads gives the same bits of the compiled parts, which are never left to eager for its time;
    ``report`` tells what that costs. ``device``: where the compiled parts run. ``opencl:0`` and so
    on read tensors on the CPU, which they copy; ``cuda`` (``cuda:0``) those of a module on that
    device, where they lie, on PyTorch's current stream. ``weights``: the type in which constant
    weights of products are stored, as ``compile_network`` takes it: ``bf16``, ``int8``, ``int4``,
    and ``int4a8`` with inputs rounded to 8 bits; ``report`` tells how far results are from eager's.
    Raises SpecError for a module that learns, for one that is on another device, and for a Dim
    without a max; UnsupportedError for what ``ranges`` cannot do.
    """
    if isinstance(module, torch.export.ExportedProgram):
        module = module.module()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            "module: expected a torch.nn.Module or ExportedProgram, got " + type(module).__name__
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedError("module: TorchScript is not supported: pass what it was made of")
    check_inference(module, module.named_modules())
    if isinstance(module, OptimizedModule | torch.nn.parallel.DistributedDataParallel):
        module = module.module  # in inference, processes exchange nothing
    check_type("ranges", ranges, bool)
    _check_bytes(cache_bytes, specialize_bytes, ranges)
    if ranges:
        check_dims(dynamic_shapes)
    args = example_inputs if isinstance(example_inputs, tuple | list) else (example_inputs,)
    options = module_options(
        level, dtype or "f32", algorithm, threads, reproducible=reproducible, device=device,
        weights=weights,
    )  # fmt: skip
    if device is not None:
        named = [*module.named_parameters(), *module.named_buffers()]
        leaves = pytree.tree_leaves((args, dict(example_words or {})))
        examples = [("example_inputs", x) for x in leaves if isinstance(x, torch.Tensor)]
        options.device.check([*((f"module.{name}", x) for name, x in named), *examples])
    return OptimizedModule(
        module, tuple(args), example_words or {}, options, dynamic_shapes, ranges, cache_bytes,
        specialize_bytes,
    )  # fmt: skip


def _check_bytes(cache_bytes: int, specialize_bytes: int, ranges: bool) -> None:
    """Raise TypeError or SpecError for what is no number of bytes, or of no use."""
    check_type("cache_bytes", cache_bytes, int)
    if cache_bytes < 0:
        raise SpecError(f"cache_bytes: expected a number of bytes from 0 on, got {cache_bytes}")
    check_whole("specialize_bytes", specialize_bytes, least=0)
    if specialize_bytes and not ranges:
        raise SpecError(
            "specialize_bytes: of ranges=True; without, each size has a library of its own"
        )


def check_inference(module: Any, parts: Iterable[tuple[str, Any]]) -> None:
    """Raise SpecError that names the first of these parts of a module, by path, that learns."""
    if isinstance(module, torch.fx.GraphModule):  # its calls say whether it learns
        return
    for name, part in parts:
        if part.training:
            what = f"module.{name} ({type(part).__name__})" if name else "module"
            raise SpecError(f"{what}: it learns; call eval() first")
