"""Backend ``polysci`` of ``torch.compile``: graphs of inference and training as networks."""

from __future__ import annotations

import copy
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Final

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.pytorch.importer import OPERATORS, operator_name
from polysci.frontends.pytorch.program import TorchProgram, program_of, pytorch_failures
from polysci.frontends.pytorch.training import MAX_POOL_BACKWARD
from polysci.text.names import suggest
from polysci.torch.compiled_part import CHANNELS_LAST
from polysci.torch.fallback import EAGER, RESTS, CompiledRest, leave, leave_by, reason_of
from polysci.torch.library import LIBRARY, define
from polysci.torch.parts import split_program
from polysci.torch.state import SizeWatch, TensorState, is_wrapper, plain_tensors
from polysci.torch.variants import (
    ModuleOptions,
    capture,
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
    """Let fused encoder layers in a graph of TorchDynamo be computed by :func:`encoder_layer`.

    Not under autocast, which gives the one operator other types than its parts.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
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
    """Compute self-attention and two linear layers of x (batch, length, channels), normalised.

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
        "device": None,
        "weights": "f32",
    }
)


def compile_graph(
    graph: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Run:  # fmt: skip
    """Compile a graph for ``torch.compile``; ``options`` are those of ``optimize``, and ``rest``.

    Graphs of which nothing can be compiled, and calls between compiled parts, go to the backend
    ``rest``: ``inductor`` (the default) or ``eager``. In inference weights are constants: where one
    was changed, the graph is compiled again. Graphs that learn, or that change a tensor, take
    weights as inputs. Raises SpecError for another option, or a ``mode``.
    """
    _check_options(options or {}, mode)
    chosen = module_options(**{**DEFAULTS, **(options or {})})
    if (options or {}).get("device") is not None:
        nodes = graph.graph.find_nodes(op="placeholder")
        pairs = [(node.name, x) for node, x in zip(nodes, example_inputs, strict=True)]
        chosen.device.check(pair for pair in pairs if isinstance(pair[1], torch.Tensor))
    remove_idle_dropout(graph)
    with_plain_layers(graph)
    learns = torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs
    )
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
            kwargs = {**dict(zip(_DROPOUTS[node.target], node.args, strict=False)), **node.kwargs}
            if kwargs.get("training", kwargs.get("train")) is False or kwargs.get("p") == 0:
                node.replace_all_uses_with(kwargs["input"])
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


def _check_options(options: Mapping[str, Any], mode: str | None) -> None:
    if mode not in (None, "default"):
        raise SpecError(f"mode {mode!r}: backend polysci has none; options={{'level': ...}} is one")
    for name in options:
        if name not in DEFAULTS:
            raise SpecError(
                f"option {name!r}: expected one of {', '.join(DEFAULTS)}{suggest(name, DEFAULTS)}"
            )
    if options.get("rest", RESTS[0]) not in RESTS:
        raise SpecError(f"option rest {options['rest']!r}: expected {' or '.join(RESTS)}")


def is_constant(x: Any) -> bool:
    """Tell whether it is a parameter or a buffer of a module."""
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
        """Raise UnsupportedError for what torch.export does not take."""
        with pytorch_failures("graph", "torch.export captures it"):
            exported = capture(graph, tuple(inputs), {})
        return program_of(torch, "graph", exported)

    def _compile(self, inputs: Sequence[Any]) -> GraphVariant | None:
        state = TensorState(inputs[at] for at in self._weights)
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")  # of torch's own parts to each other
                graph = with_numbers(self._graph, self.numbers, inputs)
                own = {at for at in self._weights if is_wrapper(inputs[at])}
                graph = with_attributes(graph, {at: inputs[at] for at in own})
                program = self._program(graph, [x for at, x in enumerate(inputs) if at not in own])
        except UnsupportedError:
            return None
        except Exception as error:  # of many kinds
            leave("a graph", reason_of(error))
            return None
        tensors = [
            at for at, x in enumerate(inputs) if isinstance(x, torch.Tensor) and at not in own
        ]
        weights = {*self._weights}
        places = tuple(at for at in tensors if at not in weights)
        program = with_constants(program, {
            node: inputs[at] for at, node in zip(tensors, program.inputs, strict=True)
            if at in weights
        })  # fmt: skip
        free = [inputs[at] for at in places]
        with torch.no_grad():
            if hands_on_memory(self._graph, inputs):
                return None
            eager = partial(self._graph, *inputs)
            runs, _ = compile_parts(program, free, self._options, eager=eager)
            if runs is None or is_slower(self._options, eager, partial(runs, *free)):
                return None
        return GraphVariant(runs, places, state)


def names_of(graph: Any, places: Iterable[int]) -> list[str]:
    """Return the names that TorchDynamo gives inputs."""
    nodes = graph.graph.find_nodes(op="placeholder")
    return [nodes[at].name for at in places]


def places_of_numbers(graph: Any) -> tuple[int, ...]:
    """Return the inputs that are tensors to TorchDynamo alone, around a number of Python's."""
    inputs = (node for node in graph.graph.nodes if node.op == "placeholder")
    return tuple(
        at for at, node in enumerate(inputs)
        if node.users and all(reader.target == "item" for reader in node.users)
    )  # fmt: skip


def with_numbers(graph: Any, places: Sequence[int], inputs: Sequence[Any]) -> Any:
    """Return the graph for these very numbers."""
    nodes = graph.graph.find_nodes(op="placeholder")
    return _with_values(
        graph, {item.name: inputs[at].item() for at in places for item in nodes[at].users}
    )


def _with_values(graph: Any, values: Mapping[str, Any]) -> Any:
    """Replace some nodes of a graph, by their names, by numbers."""
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


def with_attributes(graph: Any, values: Mapping[int, Any]) -> Any:
    """Return the graph with some inputs, by their places, as parameters of it."""
    if not values:
        return graph
    fixed = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    inputs = fixed.graph.find_nodes(op="placeholder")
    for at, value in values.items():
        name, node = f"wrapped_{at}", inputs[at]
        fixed.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
        with fixed.graph.inserting_before(node):
            node.replace_all_uses_with(fixed.graph.get_attr(name))
        fixed.graph.erase_node(node)
    fixed.recompile()
    return fixed


def with_constants(program: TorchProgram, values: Mapping[Any, Any]) -> TorchProgram:
    """Return the program with values for some of its inputs."""
    inputs = tuple(node for node in program.inputs if node not in values)
    return replace(program, inputs=inputs, values={**program.values, **values})


def returns_views(graph: Any) -> bool:
    """Tell whether outputs of a graph share memory, which AOTAutograd keeps for training."""
    (node,) = graph.graph.find_nodes(op="output")
    outputs = [x.meta.get("example_value") for x in node.all_input_nodes]
    places = [
        x.untyped_storage()._cdata for x in outputs
        if isinstance(x, torch.Tensor) and x.layout == torch.strided
    ]  # fmt: skip
    return len({*places}) < len(places)


def hands_on_memory(graph: Any, inputs: Sequence[Any]) -> bool:
    """Tell whether an output shares the memory of an input or of another output."""
    outputs = [x for x in graph(*inputs) if isinstance(x, torch.Tensor)]
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    places = [x.untyped_storage().data_ptr() for x in outputs if x.numel()]
    taken = {part.untyped_storage().data_ptr() for x in tensors for part in plain_tensors(x)}
    return bool(taken & {*places}) or len({*places}) < len(places)


aten = torch.ops.aten
LAST = "polysci_channels_last"  # of a node: a tensor whose channels became its last axis
_WINDOWS = re.compile("convolution|batch_norm|pool")
_POOLS = {2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices}
_POOL_GRADIENTS = {
    2: aten.max_pool2d_with_indices_backward,
    3: aten.max_pool3d_with_indices_backward,
}


def compile_training(graph: Any, example_inputs: Sequence[Any], options: ModuleOptions) -> Any:
    """Return a graph of TorchDynamo whose passes are compiled when they first run.

    Raises UnsupportedError where nothing of the forward pass can be compiled.
    """
    forward = partial(_compile_pass, options)
    backend = aot_autograd(
        fw_compiler=forward, bw_compiler=partial(_compile_pass, options, refuses=False),
        decompositions=decompositions(), partition_fn=partition,
    )  # fmt: skip
    return backend(graph, example_inputs)


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of operators that have no rule."""
    table = {
        operator: function for operator, function in core_aten_decompositions().items()
        if not (hasattr(operator, "_schema") and operator_name(operator) in OPERATORS)
    }  # fmt: skip
    table[aten.native_dropout.default] = drop
    table[aten._scaled_dot_product_flash_attention_for_cpu_backward.default] = attention_gradient
    for operator in _POOL_GRADIENTS.values():
        table[operator.default] = pool_gradient
    return table


def drop(x: Any, p: float, train: bool | None) -> tuple[Any, Any]:
    """Drop elements by a mask of PyTorch's generator, which depends on no other tensor."""
    if train is False or p == 0:
        return x, torch.ones_like(x, dtype=torch.bool)
    kept = aten.bernoulli.p(torch.empty(x.shape, dtype=torch.bool, device=x.device), 1 - p)
    return x * kept * (0.0 if p == 1 else 1 / (1 - p)), kept


def attention_gradient(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, shares: Any, dropout_p: float,
    is_causal: bool, *, attn_mask: Any = None, scale: float | None = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Return the gradients of query, key and value; ``shares`` are softmax's."""
    heads = key.shape[1]
    key, value = (x.repeat_interleave(query.shape[1] // heads, 1) for x in (key, value))
    by_shares = grad_out @ value.transpose(-1, -2)
    by_scores = aten._softmax_backward_data(by_shares, shares, -1, shares.dtype)
    by_scores = by_scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    of_heads = (
        x.unflatten(1, (heads, -1)).sum(2)
        for x in (by_scores.transpose(-1, -2) @ query, shares.transpose(-1, -2) @ grad_out)
    )
    return by_scores @ key, *of_heads


def pool_gradient(
    grad_output: Any, x: Any, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool, indices: Any,
) -> Any:  # fmt: skip
    """Return the gradient of a pool without the places of its largest elements."""
    return torch.ops.polysci.max_pool_backward(
        grad_output, x, kernel_size, stride, padding, dilation, ceil_mode
    )


def _max_pool_backward(grad_output: Any, x: Any, *arguments: Any) -> Any:
    axes = len(arguments[0])
    return _POOL_GRADIENTS[axes](grad_output, x, *arguments, _POOLS[axes](x, *arguments)[1])


define(
    f"{MAX_POOL_BACKWARD.removeprefix('polysci::')}(Tensor grad_output, Tensor input, "
    "int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode) -> Tensor",
    _max_pool_backward, "CPU",
)  # fmt: skip
torch.library.register_fake(
    MAX_POOL_BACKWARD, lambda grad_output, x, *_: x.new_empty(x.shape), lib=LIBRARY
)


def partition(joint: Any, joint_inputs: Any, *, num_fwd_outputs: int, **kwargs: Any) -> Any:
    """Split forward and backward pass; images between them have their channels last in memory."""
    for node in joint.graph.nodes:
        if node.target in (aten.detach.default, aten.alias.default):
            node.replace_all_uses_with(node.args[0])
        elif node.target is aten.t.default and node.args[0].target is aten.t.default:
            node.replace_all_uses_with(node.args[0].args[0])
        elif node.target is aten.view.default:  # of images with channels last it may be a copy
            node.target = aten.reshape.default
    joint.graph.eliminate_dead_code()
    passes = min_cut_rematerialization_partition(
        joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs
    )
    saved = {node.name: node for node in output_of(passes[0])[num_fwd_outputs:]
             if node.op != "placeholder"}  # fmt: skip
    for other in passes[1].graph.find_nodes(op="placeholder"):
        node = saved.get(other.name)
        if node is not None and _is_image(node, other):
            value = node.meta["val"]
            value = value.to(memory_format=CHANNELS_LAST[value.dim()])
            other.meta["val"] = node.meta["val"] = value
            other.meta[LAST] = True
    return passes


def _is_image(node: Any, other: Any) -> bool:
    """Tell whether layers with windows, or norms of a batch, make a tensor or read it."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dim() not in CHANNELS_LAST:
        return False
    calls = (node, *node.all_input_nodes, *node.users, *other.users)
    return any(_WINDOWS.search(str(call.target)) for call in calls)


def output_of(graph: Any) -> Sequence[Any]:
    """Return what a graph module returns: nodes, and values that are known."""
    (node,) = graph.graph.find_nodes(op="output")
    outputs: Sequence[Any] = node.args[0]
    return outputs


def program_of_graph(graph: Any) -> TorchProgram:
    """Return the calls of a graph of ATen's operators."""
    nodes = graph.graph.nodes
    values = {node: getattr(graph, node.target) for node in nodes if node.op == "get_attr"}
    if any(isinstance(value, torch.nn.Module) for value in values.values()):
        raise UnsupportedError("data decides which of the calls are made (torch.cond)")
    inputs = tuple(node for node in nodes if node.op == "placeholder")
    calls = tuple(node for node in nodes if node.op == "call_function")
    return TorchProgram("graph", (*inputs, *calls), inputs, tuple(output_of(graph)), values)


def _compile_pass(
    options: ModuleOptions, graph: Any, example_inputs: Sequence[Any], refuses: bool = True
) -> Any:
    """Compile one pass to a function of a list of tensors, which it empties."""
    if not all(isinstance(x, torch.Tensor) for x in example_inputs):
        raise UnsupportedError("sizes that are not fixed")
    compiled: Any = partial(_run_as_traced, graph)
    try:
        with _disable_current_modes():  # constants are tensors with memory
            compiled = TracedGraph(graph, options)
        if refuses and not compiled.split.parts:
            raise UnsupportedError("nothing of the graph can be compiled")
    except Exception as error:  # of many kinds
        if refuses:  # another backend takes both passes
            raise
        leave("the backward pass of a graph", reason_of(error))

    def run(inputs: list[Any]) -> Any:
        tensors = [*inputs]
        inputs.clear()
        return compiled(*tensors)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class TracedGraph:
    """A graph of ATen's operators, whose parts are compiled and checked at the first call."""

    def __init__(self, graph: Any, options: ModuleOptions) -> None:
        self._graph, self._options = graph, options
        self.program = program_of_graph(graph)
        self.split = split_program(self.program)
        apart = {source for node in self.split.refused for source in node.all_input_nodes}
        self._plain = [at for at, node in enumerate(self.program.inputs) if node in apart]
        self._runs: Any = None

    def __call__(self, *inputs: Any) -> Any:
        if self._runs is None:
            self._runs = self._compile(inputs)
        return self._runs(*inputs)

    def _compile(self, inputs: Sequence[Any]) -> Any:
        eager = partial(self._eager, range(len(inputs)), self._graph)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            plain = [*map(_as_traced, self.program.inputs, inputs)]
            runs, self.report = compile_parts(self.program, plain, self._options, self.split)
            if runs is None or is_slower(
                self._options, partial(eager, *inputs), partial(runs, *inputs)
            ):
                return eager
        return partial(self._eager, self._plain, runs) if self._plain else runs

    def _eager(self, places: Sequence[int], runs: Any, *inputs: Any) -> Any:
        """Run eager with inputs as PyTorch's operators expect them: some mistake strides."""
        tensors = [*inputs]
        for at in places:
            tensors[at] = _as_traced(self.program.inputs[at], tensors[at])
        return runs(*tensors)


def _run_as_traced(graph: Any, *inputs: Any) -> Any:
    """Run a graph by PyTorch's operators."""
    nodes = graph.graph.find_nodes(op="placeholder")
    return graph(*map(_as_traced, nodes, inputs))


def _as_traced(node: Any, x: Any) -> Any:
    """Return an image that the forward pass saved, contiguous as it was when it was traced."""
    return x.contiguous() if node.meta.get(LAST) else x
