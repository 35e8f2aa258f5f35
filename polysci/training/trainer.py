"""compile_training: a model to an object that learns step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zipfile import BadZipFile

import numpy as np

from polysci.border.arguments import check_path, check_real, check_type, describe
from polysci.border.files import open_stored, replace_file
from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.graph.differentiate import differentiate
from polysci.graph.gradients.losses import IGNORED
from polysci.graph.gradients.optimizers import SGD, Optimizer
from polysci.graph.graph import Graph
from polysci.graph.simplify import simplify
from polysci.network.compiled import Network, compile_network
from polysci.network.options import CompileOptions
from polysci.network.runner import check_inputs, inputs_of
from polysci.numerics import arrays as aligned
from polysci.numerics.arrays import Array
from polysci.numerics.dtypes import array_type
from polysci.text.tables import shorten
from polysci.training.export import write_step
from polysci.training.model import Source, TrainedModel, model_of
from polysci.training.step_graph import RATE, TARGET, build_step, with_loss


@dataclass(slots=True, repr=False)
class Trainer:
    """A model that learns: ``loss = trainer.step(x, target)``.

    ``network`` is the library of a step. ``parameters`` and ``state`` are arrays that every step
    changes where they lie; what is written to them counts from the next step on. ``lr`` is the
    learning rate of the next step.
    """

    model: TrainedModel
    loss: str
    network: Network
    parameters: Mapping[str, Array]
    state: Mapping[str, Array]
    lr: float
    compile: Callable[[Graph, str], Network]
    _others: dict[str, Network] = field(default_factory=dict)
    _arrays: dict[str, Array] = field(default_factory=dict)
    _run: Callable[[], None] = field(init=False)

    def __post_init__(self) -> None:
        runner, program = self.network.runner, self.network.prepared.program
        held = {**self.parameters, **self.state}
        for port in runner.inputs:
            own = held.get(port.name)
            kind = array_type(port.dtype)
            self._arrays[port.name] = aligned.empty(port.shape, dtype=kind) if own is None else own
        self._arrays["loss"] = aligned.empty(())
        results = [
            held[program.in_place[name]] if name in program.in_place else self._arrays["loss"]
            for name in program.outputs
        ]
        arrays = [self._arrays[port.name] for port in runner.inputs]
        self._run = runner.bind(runner.context(), arrays, results)

    def __repr__(self) -> str:
        counts = sum(value.size for value in self.parameters.values())
        return (
            f"Trainer({shorten(self.network.name)!r}, {len(self.parameters)} parameters of "
            f"{counts} elements, loss={self.loss!r}, lr={self.lr!r:.20})"
        )

    @guard
    def step(self, x: Array, target: Array) -> float:
        """Learn from a batch; the loss before that.

        Raises TypeError or ValueError as networks, ValueError for classes that the model does not
        have, SpecError for a learning rate below 0.
        """
        for port in self.network.inputs:
            if port.name in (self.model.x, TARGET):
                batch = x if port.name == self.model.x else target
                self._arrays[port.name][...] = check_inputs(port, batch)
        self._check_classes(target)
        check_real("lr", self.lr)
        self._arrays[RATE][...] = self.lr
        self._run()
        return float(self._arrays["loss"])

    def _check_classes(self, target: Array) -> None:
        """Raise ValueError for indices of classes that the scores do not have."""
        labels = np.asarray(target)
        if self.loss != "cross_entropy" or labels.dtype != np.int64:
            return
        count = self.model.learning.graph.outputs[0].shape[1]
        wrong = (labels.view(np.uint64) >= count) & (labels != IGNORED)
        if wrong.any():
            raise ValueError(
                f"target: expected classes 0 to {count - 1}, or {IGNORED} for a row that does not "
                f"count; got {labels[wrong][0]}"
            )

    @guard
    def predict(self, x: Array) -> Array:
        """Return the model's outputs for x, as they are when nothing is learned."""
        graph = self.model.predicting.graph
        return self._call("predict", graph, {self.model.x: x})[graph.outputs[0].name]

    @guard
    def evaluate(self, x: Array, target: Array) -> float:
        """The loss of a batch, as the model is when nothing is learned."""
        graph = with_loss(TrainedModel(self.model.predicting, self.model.predicting), self.loss)
        made = self._call("evaluate", graph, {self.model.x: x, TARGET: target})
        return float(made[graph.outputs[0].name])

    @guard
    def gradients(self, x: Array, target: Array) -> dict[str, Array]:
        """The gradient of the loss of a batch by every parameter; nothing changes."""
        graph = with_loss(self.model, self.loss)
        whole = differentiate(graph, graph.outputs[0].name, [*self.parameters])
        made = self._call("gradients", whole, {self.model.x: x, TARGET: target})
        return {name: made[f"{name}.gradient"] for name in self.parameters}

    def _call(self, name: str, graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The results of another graph of the same parameters, compiled when it is first needed."""
        if name not in self._others:
            self._others[name] = self.compile(graph, f"{self.network.name}_{name}")
        network = self._others[name]
        held = {**self.parameters, **self.state, **inputs}
        if TARGET in inputs:
            self._check_classes(inputs[TARGET])
        return dict(network({port.name: held[port.name] for port in network.inputs}))

    @guard
    def save(self, path: str | PathLike[str]) -> None:
        """Parameters and state as a NumPy archive (npz), which replaces a file whole. OSError."""
        with replace_file(check_path("path", path)) as file:
            np.savez(file, **{**self.parameters, **self.state})  # type: ignore[arg-type]

    @guard
    def export(self, out: str | PathLike[str], *, force: bool = False) -> list[Path]:
        """Write a C project of the step with parameters and state as they are now.

        ``NAME_step.h`` is its interface, ``NAME.state`` holds all values; ``make`` builds a static
        and a shared library, ``make check`` compares steps on a made-up batch with a float64
        reference, ``make example`` builds a program that trains. Raises SpecError for a directory
        that holds other files (unless ``force``), CheckError for results that are wrong.
        """
        held, path = {**self.parameters, **self.state}, Path(check_path("out", out))
        return write_step(self.network, held, self._made_up_batch(), RATE, path, force=force)

    def _made_up_batch(self) -> dict[str, Array]:
        """Arrays for x, target and the learning rate, of an exported self-test."""
        batch = inputs_of(self.network.inputs)
        random, target = np.random.default_rng(1), batch[TARGET]
        if target.dtype == np.int64:
            classes = self.model.learning.graph.outputs[0].shape[1]
            batch[TARGET] = random.integers(0, classes, target.shape)
        else:
            batch[TARGET] = random.random(target.shape, target.dtype)
        check_real("lr", self.lr)
        return {**batch, RATE: np.array(self.lr, np.float32)}

    @guard
    def load(self, path: str | PathLike[str]) -> None:
        """Load what ``save`` wrote, of a trainer of the same model and optimizer.

        Raises OSError, or SpecError for a file that is none and for other names, shapes or types;
        then nothing changes.
        """
        held = {**self.parameters, **self.state}
        try:
            with open_stored(check_path("path", path)) as file, np.load(file) as archive:
                values = {name: archive[name] for name in archive.files}
        except (TypeError, ValueError, EOFError, BadZipFile) as error:
            raise SpecError(f"{path}: no archive of Trainer.save: {error}") from None
        if values.keys() != held.keys():
            names = sorted(values.keys() ^ held.keys())
            raise SpecError(f"{path}: only in one of file and model: {', '.join(names)[:200]}")
        for name, array in held.items():
            value = values[name]
            if value.shape != array.shape or value.dtype != array.dtype:
                raise SpecError(
                    f"{path}: {name}: expected {array.dtype}{list(array.shape)}, "
                    f"got {value.dtype}{list(value.shape)}"
                )
        for name, array in held.items():
            array[...] = values[name]


@guard
def compile_training(
    model: Source,
    shape: Sequence[int],
    loss: str = "cross_entropy",
    optimizer: Optimizer | None = None,
    *,
    level: str = "measure",
    threads: int = 1,
    seed: int = 0,
    clip_norm: float | None = None,
    batch_statistics: bool = False,
    name: str = "model",
    **options: Any,
) -> Trainer:
    """Forward pass, backward pass and update of a model on batches of ``shape``, as one library.

    ``model`` is a list of ``polysci.layers``, whose first values come from ``seed``, or an ONNX
    model as ``compile_network`` takes it, whose real initializers are the parameters; it normalises
    by the statistics that it holds, or with ``batch_statistics`` as layers do: by those of the
    batch in a step, and by their running means in ``predict``. ``loss`` is ``cross_entropy`` (of
    scores and the indices of classes, int64), ``mse`` or ``bce_with_logits`` (of a target like the
    result), each the mean over the batch. ``optimizer`` is SGD (the default) or Adam; ``clip_norm``
    limits the norm of all gradients together. ``level``, ``threads``, and further options as
    ``compile_network`` has them: with ``dtype="bf16"`` layers and what is between them are in bf16,
    parameters, their updates and the loss in f32; with ``reproducible=True`` any number of threads
    gives the same bits. Raises SpecError for a model or loss that does not fit, UnsupportedError
    with every node that has no gradient, TypeError for what is no layer.
    """
    check_type("loss", loss, str)
    check_type("shape", shape, list, tuple)
    if 0 in shape:
        raise SpecError(f"shape {[*shape]}: a mean over nothing has no gradient")
    chosen: Optimizer = SGD() if optimizer is None else optimizer
    if not isinstance(chosen, Optimizer) or isinstance(chosen, type):
        raise TypeError(f"optimizer: expected SGD(...) or Adam(...), got {describe(optimizer)}")
    if unknown := options.keys() - {option.name for option in fields(CompileOptions)}:
        raise TypeError(f"compile_training: unexpected argument {min(unknown)!r}")
    trained = model_of(model, shape, seed=seed, batch_statistics=batch_statistics)
    step = build_step(trained, loss, chosen, clip_norm)

    def compile_graph(graph: Graph, name: str) -> Network:
        return compile_network(simplify(graph), level, threads, name=name, **options)

    network = compile_graph(step.graph, name)
    values = {key: aligned.reserve_copy(value) for key, value in step.first.items()}
    parameters = {key: values.pop(key) for key in trained.learning.parameters}
    return Trainer(
        trained, loss, network, MappingProxyType(parameters), MappingProxyType(values),
        chosen.lr, compile_graph,
    )  # fmt: skip
