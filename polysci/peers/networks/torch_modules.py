"""The peer that runs lists of layers as PyTorch's modules, with our weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from polysci.errors import UnsupportedError
from polysci.frontends.layers.feedforward import FunctionLayer, ResidualLayer
from polysci.frontends.layers.model import INPUT, Layer, LayeredModel, build_model
from polysci.frontends.layers.words import RecurrentWords, backward_of, describes_model, layers_of
from polysci.measure.network_samples import LoadedModel, Way
from polysci.peers.networks.service import Service, TimingRequest
from polysci.peers.pytorch.ways import compile_frozen

# PyTorch's modules of ONNX's operators that treat every element alike.
_FUNCTIONS: Final[Mapping[str, Callable[..., tuple[str, dict[str, Any]]]]] = MappingProxyType(
    {
        **{
            name: partial(lambda name: (name.title(), {}), name)
            for name in ("sigmoid", "tanh", "mish")
        },
        "relu": lambda: ("ReLU", {}),
        "swish": lambda: ("SiLU", {}),
        "softplus": lambda: ("Softplus", {}),
        "hard_swish": lambda: ("Hardswish", {}),
        "gelu": lambda approximate="none": ("GELU", {"approximate": approximate}),
        "leaky": lambda alpha=0.01: ("LeakyReLU", {"negative_slope": alpha}),
        "elu": lambda alpha=1.0: ("ELU", {"alpha": alpha}),
    }
)


class TorchModules(Service):
    """Words of layers by the fastest of eager calls, a frozen script, and the compiler."""

    package = "torch"

    def ways(self, library: Any, request: TimingRequest) -> Mapping[str, Way]:
        """Each of them. Raises UnsupportedError where the model is not the words of layers."""
        if not describes_model(request.model):
            raise UnsupportedError("it runs words of layers, as mlp:16x64x32, and no ONNX files")
        calls = {
            "compiled": compile_frozen,
            "scripted": _script,
            "eager": lambda torch, module, x: module,
        }
        if model := backward_of(request.model):
            ways = {"compiled": library.compile, "eager": lambda module: module}
            return {
                name: partial(_load_gradients, library, request, model, way)
                for name, way in ways.items()
            }
        return {name: partial(_load, library, request, call) for name, call in calls.items()}


def as_module(torch: Any, layers: Sequence[Layer], model: LayeredModel | None = None) -> Any:
    """A ``torch.nn.Sequential`` of layers, with the parameters and the state of ``model``."""
    module = torch.nn.Sequential(*(_module(torch, layer) for layer in layers))
    if model:
        values = {
            name: torch.from_numpy(value.copy())
            for name, value in {**model.parameters, **model.state}.items()
            if name in module.state_dict()
        }
        module.load_state_dict(values, strict=False)
    return module


def _module(torch: Any, layer: Layer) -> Any:
    if isinstance(layer, FunctionLayer):
        name, kwargs = _FUNCTIONS[layer.op](**layer.attributes)
        return getattr(torch.nn, name)(**kwargs)
    if isinstance(layer, ResidualLayer):
        return _residual(torch, layer)
    kwargs = {field.name: getattr(layer, field.name) for field in fields(layer)}  # type: ignore[arg-type]
    kind = getattr(torch.nn, type(layer).__name__.removesuffix("Layer"))
    if "last" not in kwargs:
        return kind(**kwargs)
    return _recurrent(kind, bool(kwargs.pop("last")), kwargs)


def _recurrent(kind: Any, last: bool, kwargs: Mapping[str, Any]) -> Any:
    """A recurrent layer that returns y alone."""

    def forward(self: Any, x: Any) -> Any:
        y, ends = kind.forward(self, x)
        if not last:
            return y
        states = ends[0] if isinstance(ends, tuple) else ends
        count = 1 + self.bidirectional
        return states[-count:].transpose(0, 1).flatten(1)

    return type(f"First{kind.__name__}", (kind,), {"forward": forward})(**kwargs)


def _residual(torch: Any, layer: ResidualLayer) -> Any:
    inner, shortcut = (as_module(torch, part) for part in (layer.layers, layer.shortcut))
    own = dict(inner.named_children())

    def forward(self: Any, x: Any) -> Any:
        result = x
        for name in own:
            result = getattr(self, name)(result)
        return result + self.shortcut(x)

    module = type("Residual", (torch.nn.Module,), {"forward": forward})()
    for name, child in own.items():
        module.add_module(name, child)
    module.add_module("shortcut", shortcut)
    return module


def _load(torch: Any, request: TimingRequest, call: Callable[[Any, Any, Any], Any]) -> LoadedModel:
    """The model of the words, its values those that the same words have with us."""
    request.expect([INPUT])
    torch.set_num_threads(request.threads)
    layers, shape = layers_of(request.model)
    module = as_module(torch, layers, build_model(layers, shape)).eval()
    x = torch.from_numpy(request.inputs[INPUT]).clone()
    if request.dtype == "bf16":
        module, x = module.bfloat16(), x.bfloat16()
    with torch.inference_mode():
        run = call(torch, module, x)

    def step() -> Any:
        with torch.inference_mode():
            return run(x)

    return LoadedModel(step, lambda: [step().float().numpy().copy()])


def _load_gradients(
    torch: Any, request: TimingRequest, model: LayeredModel, way: Callable[[Any], Any]
) -> LoadedModel:
    """The layer of words with ``bwd``: y and the gradients of x and of all parameters."""
    names = [tensor.name for tensor in model.graph.inputs]
    dy_name = f"{model.graph.outputs[0].name}.gradient"
    request.expect([*names, dy_name])
    torch.set_num_threads(request.threads)
    parameters = {name: request.inputs[name] for name in names[1:]}
    module = as_module(
        torch, [RecurrentWords.parse(request.model).layer], replace(model, parameters=parameters)
    )
    x, dy = (torch.from_numpy(request.inputs[name]).clone() for name in (INPUT, dy_name))
    wanted = [x.requires_grad_(), *(module.get_parameter(name) for name in names[1:])]
    forward = way(module)

    def step() -> Any:
        y = forward(x)
        return (y, *torch.autograd.grad(y, wanted, dy))

    return LoadedModel(step, lambda: [tensor.detach().numpy().copy() for tensor in step()])


def _script(torch: Any, module: Any, x: Any) -> Any:
    """TorchScript, frozen and brought to oneDNN's formats."""
    with torch.no_grad():
        traced = torch.jit.trace(module, x.clone(), check_trace=False)
        return torch.jit.optimize_for_inference(torch.jit.freeze(traced))
