"""``torch.compile(model, backend="polysci")``: graphs as compiled networks."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.nn import functional

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.pytorch.failures import pytorch_failures
from polysci.frontends.pytorch.program import TorchProgram, program_of
from polysci.text.suggestions import suggest
from polysci.torch.capture import capture
from polysci.torch.fallback import leave, leave_by, reason_of
from polysci.torch.rest import EAGER, RESTS, CompiledRest
from polysci.torch.size_hints import SizeWatch
from polysci.torch.tensor_state import TensorState
from polysci.torch.training import compile_training
from polysci.torch.variants import (
    ModuleOptions,
    compile_lock,
    compile_parts,
    is_slower,
    key_of,
    module_options,
)

_LAYER: Final = torch._transformer_encoder_layer_fwd
_OPERANDS: Final = 18  # before a mask and its kind
_KEYS, _KINDS = 1, (0, 1, 2)  # of lengths by lengths, of a batch's keys, of all of its heads


def with_plain_layers(graph: Any) -> None:
    """Let such layers in a graph of TorchDynamo's be computed by :func:`encoder_layer`.

    Not under autocast, which gives the one operator other types than its parts.
    """
    if torch.is_autocast_enabled("cpu"):
        return
    for node in graph.graph.nodes:
        if node.target is not _LAYER or len(node.args) < _OPERANDS or node.kwargs:
            continue
        operands = [*node.args, None, None]
        mask, kind = operands[_OPERANDS : _OPERANDS + 2]
        if mask is None or kind in _KINDS:
            node.target, node.args = encoder_layer, (mask, kind, *node.args[:_OPERANDS])
    graph.recompile()


def encoder_layer(
    mask: Any, kind: int | None, x: Any, _channels: int, heads: int, qkv_weight: Any,
    qkv_bias: Any, out_weight: Any, out_bias: Any, gelu: bool, norm_first: bool, epsilon: float,
    *others: Any,
) -> Any:  # fmt: skip
    """Self-attention and two linear layers of x (batch, length, channels), normalised.

    The arguments are those of ``aten::_transformer_encoder_layer_fwd``, its mask first: what is not
    0 there takes no part.
    """
    if mask is not None:
        mask = torch.zeros_like(mask, dtype=x.dtype).masked_fill(mask.to(torch.bool), -torch.inf)
        mask = mask[:, None, None] if kind == _KEYS else mask
    first, second, (up, up_bias, down, down_bias) = others[:2], others[2:4], others[4:]

    def norm(values: Any, weights: Any) -> Any:
        return functional.layer_norm(values, values.shape[-1:], weights[0], weights[1], epsilon)

    def attend(values: Any) -> Any:
        parts = functional.linear(values, qkv_weight, qkv_bias).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return functional.linear(mixed.transpose(1, 2).flatten(2), out_weight, out_bias)

    def feed(values: Any) -> Any:
        inner = functional.linear(values, up, up_bias)
        active = functional.gelu(inner) if gelu else functional.relu(inner)
        return functional.linear(active, down, down_bias)

    if norm_first:
        x = x + attend(norm(x, first))
        return x + feed(norm(x, second))
    x = norm(x + attend(x), first)
    return norm(x + feed(x), second)


Run = Callable[..., Any]
KEPT: Final = 32  # sizes of a graph that learns
_DROPOUTS: Final = {
    torch.nn.functional.dropout: ("input", "p", "training"),
    torch.dropout: ("input", "p", "train"),
}
DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "level": "estimate",
        "dtype": "f32",
        "algorithm": "direct",
        "threads": None,
        "rest": RESTS[0],
        "reproducible": False,
    }
)


def compile_graph(
    graph: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Run:  # fmt: skip
    """A backend of ``torch.compile``; ``options`` are those of ``optimize``, and ``rest``.

    Graphs of which nothing can be compiled, and calls between compiled parts, go to the backend
    ``rest``: ``inductor`` (the default) or ``eager``. In inference weights are constants: where one
    was changed, the graph is compiled again. Graphs that learn, or that change a tensor, take
    weights as inputs. Raises SpecError for another option, or a ``mode``.
    """
    words = {**DEFAULTS, **_checked(options or {}, mode)}
    chosen = module_options(**words)
    remove_idle_dropout(graph)
    with_plain_layers(graph)
    learns = torch.is_grad_enabled() and any(_needs_gradient(x) for x in example_inputs)
    if not learns:
        compiled = CompiledGraph(graph, example_inputs, chosen)
        if compiled.numbers or not all(isinstance(x, torch.Tensor) for x in example_inputs):
            return compiled  # of free sizes and numbers: compiled when they are known
        with torch._guards.tracing(None):
            if compiled.variant(example_inputs) is not None:
                return compiled
    if not learns and returns_views(graph):
        return _compile_elsewhere(graph, example_inputs, chosen)
    if places_of_numbers(graph) or not all(isinstance(x, torch.Tensor) for x in example_inputs):
        return SizedGraph(graph, chosen)
    return _compile_learning(graph, example_inputs, chosen)


def remove_idle_dropout(graph: Any) -> None:
    """Let dropout that drops nothing be its operand, as in eager: PyTorch's decomposition copies.

    Otherwise changes in place on one side of it would not reach the other.
    """
    for node in [*graph.graph.nodes]:
        if node.target in _DROPOUTS:
            words = {**dict(zip(_DROPOUTS[node.target], node.args, strict=False)), **node.kwargs}
            if words.get("training", words.get("train")) is False or words.get("p") == 0:
                node.replace_all_uses_with(words["input"])
                graph.graph.erase_node(node)
    graph.recompile()


def _compile_learning(graph: Any, example_inputs: Sequence[Any], options: ModuleOptions) -> Run:
    """Compile for fixed sizes; by another backend where nothing of it can be compiled."""
    try:
        return compile_training(graph, example_inputs, options)  # type: ignore[no-any-return]
    except UnsupportedError:
        pass
    except Exception as error:  # of many kinds
        leave("a graph that learns", reason_of(error))
    return _compile_elsewhere(graph, example_inputs, options)


def _compile_elsewhere(graph: Any, example_inputs: Sequence[Any], options: ModuleOptions) -> Run:
    if options.rest == EAGER:
        return graph.forward  # type: ignore[no-any-return]
    from torch._dynamo import lookup_backend

    try:
        return lookup_backend(options.rest)(graph, example_inputs)  # type: ignore[no-any-return]
    except Exception as error:  # of many kinds
        leave_by(options.rest, "a graph", error)
        return graph.forward  # type: ignore[no-any-return]


class SizedGraph:
    """A graph that learns, of free sizes: compiled for each of the last ``KEPT`` it came with."""

    def __init__(self, graph: Any, options: ModuleOptions) -> None:
        self._graph, self._options = graph, options
        self._runs, self._numbers = dict[Any, Run](), places_of_numbers(graph)
        count = len(graph.graph.find_nodes(op="placeholder"))
        self._sizes = SizeWatch(names_of(graph, (*range(count), *self._numbers)))

    def __call__(self, *inputs: Any) -> Any:
        key = (*key_of(inputs), *(inputs[at].item() for at in self._numbers))
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        run = self._runs.pop(key, None)
        if run is None:
            start = time.monotonic()
            run = self._compile(inputs, tensors)
            self._sizes.note(key, time.monotonic() - start)
        if len(self._runs) >= KEPT:
            del self._runs[next(iter(self._runs))]
        self._runs[key] = run  # the last one
        return run(*tensors)

    def _compile(self, inputs: Sequence[Any], tensors: Sequence[Any]) -> Run:
        nodes = self._graph.graph.find_nodes(op="placeholder")
        sizes = {
            node.name: x for node, x in zip(nodes, inputs, strict=True)
            if not isinstance(x, torch.Tensor)
        }  # fmt: skip
        graph = _with_values(with_numbers(self._graph, self._numbers, inputs), sizes)
        with torch._guards.tracing(None):
            return _compile_learning(graph, tensors, self._options)


def _checked(options: Mapping[str, Any], mode: str | None) -> Mapping[str, Any]:
    if mode not in (None, "default"):
        raise SpecError(f"mode {mode!r}: backend polysci has none; options={{'level': ...}} is one")
    for name in options:
        if name not in DEFAULTS:
            raise SpecError(
                f"option {name!r}: expected one of {', '.join(DEFAULTS)}{suggest(name, DEFAULTS)}"
            )
    if options.get("rest", RESTS[0]) not in RESTS:
        raise SpecError(f"option rest {options['rest']!r}: expected {' or '.join(RESTS)}")
    return options


def _needs_gradient(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def is_constant(x: Any) -> bool:
    """Whether it is a parameter or a buffer of a module."""
    if not isinstance(x, torch.Tensor):
        return False
    marked = getattr(x, "_dynamo_static_input_type", None) is not None
    return isinstance(x, torch.nn.Parameter) or marked


@dataclass(frozen=True, slots=True)
class GraphVariant:
    """A graph for inputs of fixed sizes; ``places`` are those of its inputs that are no weights."""

    runs: Run
    places: tuple[int, ...]
    weights: TensorState  # the constants


class CompiledGraph:
    """A graph of TorchDynamo as networks, one for each of the sizes it is called with."""

    def __init__(self, graph: Any, example_inputs: Sequence[Any], options: ModuleOptions) -> None:
        self._graph, self._options = graph, options
        self._weights = [at for at, x in enumerate(example_inputs) if is_constant(x)]
        self._others = [at for at in range(len(example_inputs)) if at not in {*self._weights}]
        self._variants = dict[Any, GraphVariant | None]()
        self.numbers = places_of_numbers(graph)
        self._rests = dict[Any, Run]()  # by key, what runs where nothing is compiled
        self._sizes = SizeWatch(names_of(graph, (*self._others, *self.numbers)))

    def __call__(self, *inputs: Any) -> Any:
        variant = self.variant(inputs)
        if variant is None and self._options.rest == EAGER:
            return self._graph(*inputs)
        if variant is None:
            key = self._key(inputs)
            if key not in self._rests:
                graph = with_numbers(self._graph, self.numbers, inputs)
                self._rests[key] = CompiledRest(graph)
            return self._rests[key](*inputs)
        return variant.runs(*[inputs[at] for at in variant.places])

    def variant(self, inputs: Sequence[Any]) -> GraphVariant | None:
        """Return the variant for these sizes and weights; None where nothing of it is compiled."""
        key = self._key(inputs)
        variant = self._variants.get(key)
        if variant is None and key in self._variants:
            return None
        weights = [inputs[at] for at in self._weights]
        if variant is None or not variant.weights.is_of(weights):
            with compile_lock():
                variant = self._variants.get(key)  # by another thread meanwhile
                if variant is None or not variant.weights.is_of(weights):
                    start, known = time.monotonic(), key in self._variants
                    self._variants[key] = variant = self._compile(inputs)
                    if not known:
                        self._sizes.note(key, time.monotonic() - start)
        return variant

    def _key(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        numbers = [inputs[at].item() for at in self.numbers]
        return *key_of([inputs[at] for at in self._others]), *numbers

    def _program(self, graph: Any, inputs: Sequence[Any]) -> TorchProgram:
        """Raises UnsupportedError for what torch.export does not take."""
        with pytorch_failures("graph", "torch.export captures it"):
            exported = capture(graph, tuple(inputs), {})
        return program_of(torch, "graph", exported)

    def _compile(self, inputs: Sequence[Any]) -> GraphVariant | None:
        state = TensorState(inputs[at] for at in self._weights)
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")  # of torch's own parts to each other
                graph = with_numbers(self._graph, self.numbers, inputs)
                program = self._program(graph, inputs)
        except UnsupportedError:
            return None
        except Exception as error:  # of many kinds
            leave("a graph", reason_of(error))
            return None
        tensors = [at for at, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        weights = {*self._weights}
        places = tuple(at for at in tensors if at not in weights)
        program = with_constants(program, {
            node: inputs[at] for at, node in zip(tensors, program.inputs, strict=True)
            if at in weights
        })  # fmt: skip
        own = [inputs[at] for at in places]
        with torch.no_grad():
            if hands_on_memory(self._graph, inputs):
                return None
            eager = partial(self._graph, *inputs)
            runs, _ = compile_parts(program, own, self._options, eager=eager)
            if runs is None or is_slower(self._options, eager, partial(runs, *own)):
                return None
        return GraphVariant(runs, places, state)


def names_of(graph: Any, places: Iterable[int]) -> list[str]:
    """Return the names that TorchDynamo gives inputs."""
    nodes = graph.graph.find_nodes(op="placeholder")
    return [nodes[at].name for at in places]


def places_of_numbers(graph: Any) -> tuple[int, ...]:
    """The inputs that are tensors to TorchDynamo alone, around a number of Python's."""
    inputs = (node for node in graph.graph.nodes if node.op == "placeholder")
    return tuple(
        at for at, node in enumerate(inputs)
        if node.users and all(reader.target == "item" for reader in node.users)
    )  # fmt: skip


def with_numbers(graph: Any, places: Sequence[int], inputs: Sequence[Any]) -> Any:
    """The graph for these very numbers."""
    nodes = graph.graph.find_nodes(op="placeholder")
    return _with_values(
        graph, {item.name: inputs[at].item() for at in places for item in nodes[at].users}
    )


def _with_values(graph: Any, values: Mapping[str, Any]) -> Any:
    """The graph with numbers in place of some of its nodes, by their names."""
    if not values:
        return graph
    fixed = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    known = {node: values[node.name] for node in fixed.graph.nodes if node.name in values}
    for reader in dict.fromkeys(reader for node in known for reader in node.users):
        reader.args, reader.kwargs = torch.fx.node.map_arg(
            (reader.args, reader.kwargs), lambda node: known.get(node, node)
        )
    for node in known:
        fixed.graph.erase_node(node)
    fixed.recompile()
    return fixed


def with_constants(program: TorchProgram, values: Mapping[Any, Any]) -> TorchProgram:
    """The program with values for some of its inputs."""
    inputs = tuple(node for node in program.inputs if node not in values)
    return replace(program, inputs=inputs, values={**program.values, **values})


def returns_views(graph: Any) -> bool:
    """Whether outputs of a graph of TorchDynamo share memory; AOTAutograd keeps that to learn."""
    (node,) = graph.graph.find_nodes(op="output")
    outputs = [x.meta.get("example_value") for x in node.all_input_nodes]
    places = [
        x.untyped_storage()._cdata for x in outputs
        if isinstance(x, torch.Tensor) and x.layout == torch.strided
    ]  # fmt: skip
    return len({*places}) < len(places)


def hands_on_memory(graph: Any, inputs: Sequence[Any]) -> bool:
    """Whether an output shares the memory of an input or of another output."""
    outputs = [x for x in graph(*inputs) if isinstance(x, torch.Tensor)]
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    places = [x.untyped_storage().data_ptr() for x in outputs if x.numel()]
    taken = {x.untyped_storage().data_ptr() for x in tensors}
    return bool(taken & {*places}) or len({*places}) < len(places)
