"""compile_training: a model to an object that learns step by step, and its step as a C project."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np

from polysci.border.arguments import check_path, check_real, check_type, describe
from polysci.border.files import open_stored, replace_file
from polysci.border.guard import guard
from polysci.errors import SpecError, UnsupportedError
from polysci.export.files import NETWORK_PROJECT, ExportKind, fill_template
from polysci.export.network_project import network_sources, project_files
from polysci.export.selftest_data import (
    SelftestData,
    as_stored,
    compare_with_reference,
    difference,
    shake,
)
from polysci.frontends.onnx import reference
from polysci.graph.differentiate import differentiate
from polysci.graph.graph import Graph
from polysci.graph.losses import IGNORED
from polysci.graph.optimizers import SGD, Optimizer
from polysci.graph.passes.table import simplify
from polysci.network.code import arguments_of
from polysci.network.compiled import Network, compile_network
from polysci.network.options import CompileOptions
from polysci.network.resident import ResidentTensors
from polysci.network.runner import TensorPort, check_inputs, inputs_of
from polysci.network.sizes import only_size
from polysci.numerics import arrays as aligned
from polysci.numerics.arrays import Array, round_up
from polysci.numerics.dtypes import array_type
from polysci.printers.network import RunArgument
from polysci.runtime.backend import Argument
from polysci.target.target import HOST
from polysci.text.names import remark, suggest
from polysci.text.tables import shorten
from polysci.training.memory import spare_memory
from polysci.training.model import (
    RATE,
    TARGET,
    Source,
    TrainedModel,
    build_step,
    model_of,
    with_loss,
)

STEPS: Final = 3


def make_step_data(
    network: Network, held: Mapping[str, Array], batch: Mapping[str, Array]
) -> SelftestData:
    """Run steps from ``held`` on, by the network and the reference in float64; ``held`` stays.

    Outputs are the losses, then what is replaced. Raises CheckError where they are too far apart.
    """
    replaced = _replaced_inputs(network)
    loss, *_ = [port for port in network.outputs if port.name not in replaced]
    kept = [port for port in network.outputs if port.name in replaced]

    def learn(values: Mapping[str, Array]) -> list[Array]:
        """Return the losses and last state by the reference, from these values on."""
        state, losses = dict(values), list[Array]()
        for results in _steps(network, state, batch):
            losses.append(as_stored(results[loss.name], loss))
            state |= {replaced[port.name]: results[port.name] for port in kept}
        return [*losses, *(as_stored(state[replaced[port.name]], port) for port in kept)]

    expected, ports = learn(held), [loss] * STEPS + kept
    return compare_with_reference(
        network, [batch[port.name] for port in network.inputs], ports,
        _run(network, held, batch, loss), expected,
        lambda: difference(learn(shake(held)), expected, ports),
        "training.gradcheck compares the gradients of each parameter",
    )  # fmt: skip


def _replaced_inputs(network: Network) -> dict[str, str]:
    """Return, by the name of an output, the input whose memory it takes."""
    program = network.prepared.program
    pairs = zip(program.titles, program.outputs, strict=True)
    return {title: program.in_place[name] for title, name in pairs if name in program.in_place}


def _steps(
    network: Network, state: Mapping[str, Array], batch: Mapping[str, Array]
) -> Iterator[dict[str, Array]]:
    """Yield the results of the reference in each step of ``state`` as it is then."""
    names = [port.name for port in network.outputs]
    for _ in range(STEPS):
        yield reference.run_outputs(network.prepared.graph, {**state, **batch}, names)


def _run(
    network: Network, held: Mapping[str, Array], batch: Mapping[str, Array], loss: TensorPort
) -> list[Array]:
    """Return the losses of the network, and then what it replaces in a copy of ``held``."""
    replaced, runner = _replaced_inputs(network), network.runner
    state = {name: aligned.reserve_copy(array) for name, array in held.items()}
    value = aligned.empty(loss.shape)
    results = [state[replaced[port.name]] if port is not loss else value
               for port in network.outputs]  # fmt: skip
    losses = list[Array]()
    for _ in range(STEPS):
        runner.into([batch[port.name] for port in network.inputs], results)
        losses.append(value.copy())
    return [*losses, *(array for array in results if array is not value)]


LOSS = "loss"
_OWN = {
    "{0}_step.h": "step.h",
    "main.c": "step_main.c",
    "selftest.c": "step_selftest.c",
}
STEP_PROJECT = ExportKind(
    {**NETWORK_PROJECT.templates, **_OWN},
    NETWORK_PROJECT.others, (*NETWORK_PROJECT.built, "{0}.state"),
)  # fmt: skip


def write_step(
    network: Network, held: Mapping[str, Array], batch: Mapping[str, Array], rate: str, out: Path,
    *, force: bool = False,
) -> list[Path]:  # fmt: skip
    """Write the C of a step with the values of ``held`` into a directory; return the paths.

    The self-test learns from ``batch``, which has the learning rate. Raises SpecError for a
    directory that holds other files (unless ``force``), CheckError for results that are wrong.
    """
    name, step = network.name, StepInterface(network, held, rate)
    STEP_PROJECT.check(out, name, force=force)
    data, whole = make_step_data(network, held, batch), only_size(network)
    project = project_files(
        whole, network_sources(whole), [data], kind=STEP_PROJECT, more=step.values()
    )
    contents = {**project, f"{name}.state": lambda: _state_bytes(held)}
    return STEP_PROJECT.write(out, name, contents, force=force)


@dataclass(frozen=True, slots=True)
class StepInterface:
    """Signature of a step: ``held`` lie one behind the other in the state."""

    network: Network
    held: Mapping[str, Array]
    rate: str

    @property
    def places(self) -> dict[str, int]:
        """Return the bytes before each tensor; by the empty name all of them."""
        sizes = [round_up(array.nbytes) for array in self.held.values()]
        return dict(zip([*self.held, ""], [0, *accumulate(sizes)], strict=True))

    def target_of(self, port: RunArgument) -> str | None:
        """Return the tensor that an output replaces."""
        program = self.network.prepared.program
        titles = dict(zip(program.titles, map(program.in_place.get, program.outputs), strict=True))
        return titles.get(port.title)

    def values(self) -> dict[str, str]:
        """Return the values of the templates."""
        places, ports = self.places, arguments_of(self.network.prepared.program)
        inputs = [port for port in ports if port.word.startswith("x")]
        outputs = [self.target_of(port) for port in ports[len(inputs) :]]
        rows = [
            f" *   byte {places[key]:>10}  {array.dtype} {list(array.shape)} ({remark(key)})"
            for key, array in self.held.items()
        ]
        return {
            "STATE_SIZE": str(places[""]),
            "ROWS": "\n".join(rows),
            "STEP_PARAMETERS": ", ".join(map(self._parameter, inputs)),
            "STEP_ARGUMENTS": ", ".join(map(self._word, inputs)),
            "STEP_CALL": ", ".join(map(self._argument, ports)),
            "PASSED": ", ".join(map(self._pass_argument, inputs)),
            "STATE_PLACES": fill_template(
                "step_places.c",
                {"PLACES": ", ".join(str(places[key] if key else 0) for key in outputs)},
            ),
            "STEPS": str(STEPS),
            "LOSS_AT": str(outputs.index(None)),
            "RATE_AT": str([port.title for port in inputs].index(self.rate)),
            "BATCH": " and ".join(remark(port.title) for port in inputs if port.title != self.rate),
            "STEP": "yes",
            "DATA": "weights state",
        }

    def _word(self, port: RunArgument) -> str:
        return self.rate if port.title == self.rate else port.word

    def _parameter(self, port: RunArgument) -> str:
        if port.title == self.rate:
            return f"{port.kind} {self.rate}"
        return f"const {port.kind} *{port.word}"

    def _argument(self, port: RunArgument) -> str:
        """Return an argument of the run inside a step."""
        if port.word.startswith("x"):
            return f"&{self.rate}" if port.title == self.rate else port.word
        key = self.target_of(port)
        return f"({port.kind} *)(at + {self.places[key]})" if key else f"&{LOSS}"

    def _pass_argument(self, port: RunArgument) -> str:
        """Return an argument of a step out of an array of pointers."""
        at = f"x[{port.word.removeprefix('x')}]"
        return f"*(const {port.kind} *){at}" if port.title == self.rate else at


def _state_bytes(held: Mapping[str, Array]) -> Iterable[bytes]:
    """Yield the bytes of all tensors, each up to a whole cache line."""
    for array in held.values():
        yield array.tobytes() + bytes(round_up(array.nbytes) - array.nbytes)


@dataclass(slots=True, repr=False)
class Trainer:
    """A model that learns: ``loss = trainer.step(x, target)``.

    ``network`` is the library of a step. ``parameters`` and ``state`` are arrays that every step
    changes where they lie; what is written to them counts from the next step on. Those of a device
    with memory of its own stay there, and an item is a copy, which takes no writes: ``write`` does
    on every device. ``lr`` is the learning rate of the next step.
    """

    model: TrainedModel
    loss: str
    network: Network
    parameters: ResidentTensors
    state: ResidentTensors
    lr: float
    compile: Callable[[Graph, str], Network]
    _others: dict[str, Network] = field(default_factory=dict)
    _batch: ResidentTensors = field(init=False)
    _run: Callable[[], None] = field(init=False)

    def __post_init__(self) -> None:
        runner, program = self.network.runner, self.network.prepared.program
        others = {
            port.name: np.zeros(port.shape, array_type(port.dtype))
            for port in runner.inputs if port.name not in self._held
        }  # fmt: skip
        others[LOSS] = np.zeros((), np.float32)
        self._batch = ResidentTensors.of(runner.library, others)
        places = {**self._held, **self._batch.arguments}
        results = [places[program.in_place.get(name, LOSS)] for name in program.outputs]
        inputs = [places[port.name] for port in runner.inputs]
        self._run = runner.bind_memory(runner.context(), inputs, results)

    @property
    def _held(self) -> dict[str, Argument]:
        """Return where parameters and state lie in the device's memory."""
        return {**self.parameters.arguments, **self.state.arguments}

    def __repr__(self) -> str:
        counts = sum(value.size for value in self.parameters.arrays.values())
        return (
            f"Trainer({shorten(self.network.name)!r}, {len(self.parameters)} parameters of "
            f"{counts} elements, loss={self.loss!r}, lr={self.lr!r:.20})"
        )

    @guard
    def step(self, x: Array, target: Array) -> float:
        """Learn from a batch; return the loss before that.

        Raises TypeError or ValueError as networks, ValueError for classes that the model does not
        have, SpecError for a learning rate below 0.
        """
        for port in self.network.inputs:
            if port.name in (self.model.x, TARGET):
                batch = x if port.name == self.model.x else target
                self._batch.write(port.name, check_inputs(port, batch))
        self._check_classes(target)
        check_real("lr", self.lr)
        self._batch.write(RATE, self.lr)
        self._run()
        return float(self._batch[LOSS])

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
        """Return the loss of a batch, as the model is when nothing is learned."""
        graph = with_loss(TrainedModel(self.model.predicting, self.model.predicting), self.loss)
        results = self._call("evaluate", graph, {self.model.x: x, TARGET: target})
        return float(results[graph.outputs[0].name])

    @guard
    def gradients(self, x: Array, target: Array) -> dict[str, Array]:
        """Return the gradient of the loss of a batch by every parameter; nothing changes."""
        graph = with_loss(self.model, self.loss)
        whole = differentiate(graph, graph.outputs[0].name, [*self.parameters])
        results = self._call("gradients", whole, {self.model.x: x, TARGET: target})
        return {name: results[f"{name}.gradient"] for name in self.parameters}

    def _call(self, name: str, graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute another graph of the same parameters, compiled when it is first needed."""
        if name not in self._others:
            self._others[name] = self.compile(graph, f"{self.network.name}_{name}")
        runner = self._others[name].runner
        if TARGET in inputs:
            self._check_classes(inputs[TARGET])
        used = {port.name: inputs[port.name] for port in runner.inputs if port.name in inputs}
        return runner.run_with(self._held, used)

    @guard
    def write(self, values: Mapping[str, Array]) -> None:
        """Replace parameters and state, of these names, from the next step on.

        Raises SpecError for other names, shapes or types; then nothing changes.
        """
        owners = {name: held for held in (self.parameters, self.state) for name in held}
        for name, value in values.items():
            if name not in owners:
                raise SpecError(f"{name!r:.80}: no parameter or state{suggest(name, owners)}")
            array = owners[name].arrays[name]
            if value.shape != array.shape or value.dtype != array.dtype:
                raise SpecError(
                    f"{name}: expected {array.dtype}{list(array.shape)}, "
                    f"got {value.dtype}{list(value.shape)}"
                )
        for name, value in values.items():
            owners[name].write(name, value)

    @guard
    def save(self, path: str | PathLike[str]) -> None:
        """Write parameters and state as a NumPy archive (npz), which replaces a file. OSError."""
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
        if self.network.code.backend != HOST:
            raise UnsupportedError(
                f"device {self.network.code.backend}: steps of training are exported as C; compile "
                "for the host"
            )
        held, path = {**self.parameters, **self.state}, Path(check_path("out", out))
        return write_step(self.network, held, self._made_up_batch(), RATE, path, force=force)

    def _made_up_batch(self) -> dict[str, Array]:
        """Return x, target and learning rate of an exported self-test."""
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
        names = {*self.parameters, *self.state}
        try:
            with open_stored(check_path("path", path)) as file, np.load(file) as archive:
                values = {name: archive[name] for name in archive.files}
        except (TypeError, ValueError, EOFError, BadZipFile) as error:
            raise SpecError(f"{path}: no archive of Trainer.save: {error}") from None
        if other := sorted(values.keys() ^ names):
            raise SpecError(f"{path}: only in one of file and model: {', '.join(other)[:200]}")
        try:
            self.write(values)
        except SpecError as error:
            raise SpecError(f"{path}: {error}") from None


@guard
def compile_training(
    model: Source, shape: Sequence[int], loss: str = "cross_entropy",
    optimizer: Optimizer | None = None, *, level: str = "measure", threads: int = 1, seed: int = 0,
    clip_norm: float | None = None, batch_statistics: bool = False, recompute: bool = True,
    name: str = "model", **options: Any,
) -> Trainer:  # fmt: skip
    """Compile forward pass, backward pass and update on batches of ``shape`` as one library.

    ``model`` is a list of ``polysci.layers``, whose first values come from ``seed``, or an ONNX
    model as ``compile_network`` takes it, whose real initializers are the parameters; it normalises
    by the statistics that it holds, or with ``batch_statistics`` as layers do: by those of the
    batch in a step, and by their running means in ``predict``. ``loss`` is ``cross_entropy`` (of
    scores and the indices of classes, int64), ``mse`` or ``bce_with_logits`` (of a target like the
    result), each the mean over the batch. ``optimizer`` is SGD (the default) or Adam; ``clip_norm``
    limits the norm of all gradients together. With ``recompute`` the backward pass computes cheap
    tensors again, such as the probabilities of attention from a maximum and a sum a row, where that
    makes the arena smaller by a larger factor than the step longer, as the cost model has it; with
    ``optimize="memory"`` wherever it makes the arena smaller. ``level``, ``threads``, and further
    options as ``compile_network`` has them: with ``dtype="bf16"`` layers and what is between them
    are in bf16, parameters, their updates and the loss in f32; with ``reproducible=True`` any
    number of threads gives the same bits. Raises SpecError for a model or loss that does not fit,
    UnsupportedError with every node that has no gradient, TypeError for what is no layer.
    """
    check_type("loss", loss, str)
    check_type("shape", shape, list, tuple)
    check_type("recompute", recompute, bool)
    if 0 in shape:
        raise SpecError(f"shape {[*shape]}: a mean over nothing has no gradient")
    chosen: Optimizer = SGD() if optimizer is None else optimizer
    if not isinstance(chosen, Optimizer) or isinstance(chosen, type):
        raise TypeError(f"optimizer: expected SGD(...) or Adam(...), got {describe(optimizer)}")
    if unknown := options.keys() - {option.name for option in fields(CompileOptions)}:
        raise TypeError(f"compile_training: unexpected argument {min(unknown)!r}")
    trained = model_of(model, shape, seed=seed, batch_statistics=batch_statistics)
    step = build_step(trained, loss, chosen, clip_norm)
    graph = (
        spare_memory(step, CompileOptions(level, threads, **options)) if recompute else step.graph
    )

    def compile_graph(graph: Graph, name: str) -> Network:
        return compile_network(simplify(graph), level, threads, name=name, **options)

    network = compile_graph(graph, name)
    values = dict(step.first)
    parameters = {key: values.pop(key) for key in trained.learning.parameters}
    reside = partial(ResidentTensors.of, network.runner.library)
    return Trainer(
        trained, loss, network, reside(parameters), reside(values), chosen.lr, compile_graph
    )
