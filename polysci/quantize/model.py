"""A model, data and a budget -> the quantised model, and what each layer loses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

from polysci.border.arguments import describe
from polysci.errors import SpecError
from polysci.frontends.onnx.model_file import IN_MEMORY, ModelSource, read
from polysci.network.compiled import Network, compile_network
from polysci.numerics.arrays import Array
from polysci.quantize.layers import (
    WeightedLayer,
    layers_of,
    quantise_layers,
    with_losses,
    with_opset,
    with_outputs,
)
from polysci.quantize.losses import Say, check_budget, largest_loss, ratio
from polysci.quantize.ranges import METHODS, LinearRange, Observer
from polysci.quantize.samples import Sample, read_arrays, samples_of

if TYPE_CHECKING:
    import onnx

DTYPES: Final = ("int8", "auto")
NARROW: Final = ("int8", "bf16")  # by bytes


@dataclass(frozen=True, slots=True)
class LayerLoss:
    """A layer, the type that it got, and what it loses by itself in each type.

    A loss is the root of the sum of squares of differences from f32, over that of the results.
    """

    name: str
    op: str
    dtype: str
    losses: Mapping[str, float]

    @property
    def loss(self) -> float:
        """The loss in its own type."""
        return self.losses.get(self.dtype, 0.0)


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """An ONNX model with narrow layers; ``loss`` is the largest of its outputs', on the data."""

    model: onnx.ModelProto
    layers: tuple[LayerLoss, ...]
    loss: float
    samples: int


@dataclass(frozen=True, slots=True)
class _Calibration:
    """A model with its samples, and how to run others made of it."""

    model: onnx.ModelProto
    network: Network
    samples: Sequence[Sample]
    options: Mapping[str, Any]
    expected: Sequence[Mapping[str, Array]]  # results in f32, by sample

    def run(self, model: onnx.ModelProto) -> Iterable[dict[str, Array]]:
        """Yield the results of each sample."""
        network = compile_network(model.SerializeToString(), **self.options)
        for sample in self.samples:
            yield network(sample)

    def loss(self, model: onnx.ModelProto) -> float:
        """Return the largest loss of an output."""
        return largest_loss(self.run(model), self.expected)


def quantize_model(
    model: ModelSource, data: str | PathLike[str] | Mapping[str, Array], *, method: str = "minmax",
    percentile: float = 99.99, dtype: str = "int8", max_loss: float | None = None,
    dims: Mapping[str, int] | None = None, external: bool = False, threads: int = 1,
    say: Say = lambda text: None,
) -> QuantizedModel:  # fmt: skip
    """Quantise the layers of an ONNX model: Conv, MatMul and Gemm with constant weights.

    ``data`` are arrays by input, or the path of an .npz file of them. Inputs of layers get unsigned
    numbers of 8 bits, whose range is what the data has (``minmax``), all but a share of it
    (``percentile``), or what loses least information (``entropy``); weights signed ones with a
    scale a channel. With ``dtype="auto"`` as many layers as ``max_loss`` permits are int8, of the
    others as many as it permits have weights of bf16. ``say`` hears of the progress. The loss of an
    output is the root of the sum of squares of differences, over that of the results in f32.

    Raises SpecError for data that does not fit, UnsupportedError for what polysci cannot compute,
    and SpecError where no layer can be quantised.
    """
    _check(method, percentile, dtype, max_loss)
    where = IN_MEMORY if isinstance(model, bytes) or hasattr(model, "graph") else str(model)
    proto = with_opset(read(model, external=external), where)
    layers = layers_of(proto)
    if not layers:
        raise SpecError(f"{where}: no Conv, MatMul or Gemm with constant weights to quantise")
    options: dict[str, Any] = {"level": "estimate", "threads": threads, "dims": dims}
    say(f"compiling the network of {len(layers)} layers")
    network = compile_network(proto.SerializeToString(), **options)
    arrays = data if isinstance(data, Mapping) else read_arrays(data)
    samples = samples_of(arrays, network.inputs)
    expected = [network(sample) for sample in samples]
    calibration = _Calibration(proto, network, samples, options, expected)
    ranges = _ranges(calibration, [layer.x for layer in layers], method, percentile, say)
    types = NARROW if dtype == "auto" else NARROW[:1]
    say(f"running each layer in {' and '.join(types)} by itself")
    losses = _losses(calibration, ranges, types)
    chosen = {layer.y: "int8" for layer in layers}
    if dtype == "auto":
        assert max_loss is not None
        chosen = _choose(calibration, layers, ranges, losses, max_loss, say)
    result = quantise_layers(proto, ranges, chosen)
    total = calibration.loss(result) if any(kind != "f32" for kind in chosen.values()) else 0.0
    rows = (
        LayerLoss(layer.name, layer.op, chosen[layer.y],
                  {kind: losses[layer.y, kind] for kind in types})
        for layer in layers
    )  # fmt: skip
    return QuantizedModel(result, tuple(rows), total, len(samples))


def _check(method: str, percentile: float, dtype: str, max_loss: float | None) -> None:
    if method not in METHODS:
        raise SpecError(f"method {describe(method)}: expected one of {', '.join(METHODS)}")
    if not 50 < percentile <= 100:
        raise SpecError(f"percentile {percentile}: expected more than 50 and at most 100")
    if dtype not in DTYPES:
        raise SpecError(f"dtype {describe(dtype)}: expected one of {', '.join(DTYPES)}")
    if (dtype == "auto") != (max_loss is not None):
        raise SpecError("max_loss: the budget of dtype 'auto', which needs one, as in 0.01")
    if max_loss is not None:
        check_budget(max_loss)


def _ranges(
    calibration: _Calibration, names: Sequence[str], method: str, percentile: float, say: Say
) -> dict[str, LinearRange]:
    """Return the ranges of tensors; counts take a second run of all samples."""
    observers = {name: Observer(name) for name in dict.fromkeys(names)}
    inner = [name for name in observers if name not in _inputs(calibration)]
    model = with_outputs(calibration.model, inner) if inner else None
    for step in ("ends", "counts")[: 1 if method == "minmax" else 2]:
        say(f"running {len(calibration.samples)} samples: {step} of {len(observers)} tensors")
        results = calibration.run(model) if model else ({} for _ in calibration.samples)
        for sample, made in zip(calibration.samples, results, strict=True):
            for name, observer in observers.items():
                values = made[name] if name in made else sample[name]
                (observer.see_ends if step == "ends" else observer.count)(values)
    return {name: observer.range_by(method, percentile) for name, observer in observers.items()}


def _inputs(calibration: _Calibration) -> set[str]:
    return {port.name for port in calibration.network.inputs}


def _losses(
    calibration: _Calibration, ranges: Mapping[str, LinearRange], types: Sequence[str]
) -> dict[tuple[str, str], float]:
    """Return what each layer loses by itself, by its result and type."""
    model, names = with_losses(calibration.model, ranges, types)
    sums = dict.fromkeys(names, 0.0)
    for results in calibration.run(model):
        for key, name in names.items():
            sums[key] += float(results[name])
    return {
        (y, kind): ratio(off, sums[y, "f32"]) for (y, kind), off in sums.items() if kind != "f32"
    }


def _choose(
    calibration: _Calibration, layers: Sequence[WeightedLayer], ranges: Mapping[str, LinearRange],
    losses: Mapping[tuple[str, str], float], budget: float, say: Say,
) -> dict[str, str]:  # fmt: skip
    """Return the types of layers: those that lose least first, as many as the budget permits."""
    chosen = dict.fromkeys((layer.y for layer in layers), "f32")
    for dtype in NARROW:
        rest = [name for name, kind in chosen.items() if kind == "f32"]
        order = sorted(rest, key=lambda name: losses[name, dtype])

        def with_first(count: int) -> dict[str, str]:
            return chosen | dict.fromkeys(order[:count], dtype)  # noqa: B023

        least, most = 0, len(order)
        while least < most:
            count = (least + most + 1) // 2 if most < len(order) or least else most
            trial = with_first(count)
            loss = calibration.loss(quantise_layers(calibration.model, ranges, trial))
            within = loss <= budget
            say(f"{count} of {len(order)} layers in {dtype}: loss {loss:.3g}, "
                f"{'within' if within else 'beyond'} {budget:g}")  # fmt: skip
            least, most = (count, most) if within else (least, count - 1)
        chosen = with_first(least)
    return chosen
