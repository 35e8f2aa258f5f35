"""LSTM, GRU and RNN against plain NumPy in float64, and the C of their steps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from polysci.errors import UnsupportedError
from polysci.frontends.onnx.reference import run as run_reference
from polysci.program.stages import RepeatStage
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

pytestmark = pytest.mark.sampled

Array = np.ndarray
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "Relu": lambda x: np.maximum(x, 0),
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Softplus": lambda x: np.log1p(np.exp(x)),
    "Affine": lambda x, a=1.0, b=0.0: a * x + b,
    "LeakyRelu": lambda x, a=0.01: np.where(x < 0, a * x, x),
    "ThresholdedRelu": lambda x, a=1.0: np.where(x >= a, x, 0),
    "Elu": lambda x, a=1.0: np.where(x < 0, a * np.expm1(x), x),
    "ScaledTanh": lambda x, a=1.0, b=1.0: a * np.tanh(b * x),
    "HardSigmoid": lambda x, a=0.2, b=0.5: np.clip(a * x + b, 0, 1),
}
TAKES = {"Affine": 2, "LeakyRelu": 1, "ThresholdedRelu": 1, "Elu": 1, "ScaledTanh": 2,
         "HardSigmoid": 2}  # fmt: skip


def functions_of(attributes: Mapping[str, Any], op: str, directions: int) -> list[Any]:
    names = attributes.get("activations", DEFAULTS[op] * directions)
    alphas, betas = (iter(attributes.get(f"activation_{n}", ())) for n in ("alpha", "beta"))
    made = []
    for name in names:
        values = [next(lists, None) for lists in (alphas, betas)[: TAKES.get(name, 0)]]
        values = [value for value in values if value is not None]
        made.append(lambda x, f=FUNCTIONS[name], v=values: f(x, *v))
    return made


def step(op: str, attributes: Mapping[str, Any], f: list[Any], w: Array, r: Array, b: Array,
         p: Array, x: Array, state: list[Array]) -> list[Array]:  # fmt: skip
    """What one step carries over: h, and c of an LSTM."""
    bound = attributes.get("clip", np.inf)
    half, hidden, h = len(b) // 2, r.shape[1], state[0]
    before, after = x @ w.T + b[:half], h @ r.T + b[half:]

    def clip(value: Array) -> Array:
        return np.clip(value, -bound, bound)

    if op == "RNN":
        return [f[0](clip(before + after))]
    if op == "GRU":
        (z, reset, n), (rz, rr, rn) = np.split(before, 3, 1), np.split(after, 3, 1)
        z, reset = f[0](clip(z + rz)), f[0](clip(reset + rr))
        if attributes.get("linear_before_reset"):
            n = f[1](clip(n + reset * rn))
        else:
            n = f[1](clip(n + (reset * h) @ r[2 * hidden :].T + b[half + 2 * hidden :]))
        return [(1 - z) * n + z * h]
    i, o, forget, g = np.split(before + after, 4, 1)
    c = state[1]
    i = f[0](clip(i + p[:hidden] * c))
    forget = 1 - i if attributes.get("input_forget") else f[0](clip(forget + p[2 * hidden :] * c))
    c = forget * c + i * f[1](clip(g))
    return [f[0](clip(o + p[hidden : 2 * hidden] * c)) * f[2](c), c]


def reference(
    op: str, attributes: Mapping[str, Any], arrays: Sequence[Array | None]
) -> list[Array]:
    """Y, Y_h and Y_c; inputs in ONNX's order."""
    x, w, r, b, lengths, *first = [
        value if value is None or value.dtype == np.int32 else value.astype(np.float64)
        for value in (*arrays, *[None] * (8 - len(arrays)))
    ]
    assert x is not None and w is not None and r is not None
    layout, (count, _, hidden) = attributes.get("layout", 0), r.shape
    x = x.swapaxes(0, 1) if layout else x
    steps, batch, _ = x.shape
    b = np.zeros((count, 2 * w.shape[1])) if b is None else b
    peepholes = np.zeros((count, 3 * hidden)) if first[2] is None else first[2]
    functions, each = functions_of(attributes, op, count), len(DEFAULTS[op])
    y, last = np.zeros((steps, count, batch, hidden)), []
    for d in range(count):
        backwards = attributes.get("direction", "forward") == "reverse" or d == 1
        state = [
            np.zeros((batch, hidden)) if value is None else (value[:, d] if layout else value[d])
            for value in first[: 1 + (op == "LSTM")]
        ]
        for t in range(steps)[:: -1 if backwards else 1]:
            new = step(op, attributes, functions[d * each :][:each], w[d], r[d], b[d],
                       peepholes[d], x[t], state)  # fmt: skip
            alive = np.ones((batch, 1), bool) if lengths is None else (t < lengths)[:, None]
            state = [np.where(alive, *pair) for pair in zip(new, state, strict=True)]
            y[t, d] = np.where(alive, new[0], 0)
        last.append(state)
    results = [np.stack(each_of, 1 if layout else 0) for each_of in zip(*last, strict=True)]
    return [y.transpose(2, 0, 1, 3) if layout else y, *results]


def inputs_of(op: str, steps: int, batch: int, size: int, hidden: int, count: int = 1,
              **given: Any) -> list[Array | None]:  # fmt: skip
    """x, w, r, b, lengths, h, c, p; those that are not asked for are left out."""
    rows, layout = GATES[op] * hidden, given.get("layout", 0)
    first = (batch, count, hidden) if layout else (count, batch, hidden)
    arrays: list[Array | None] = [
        reals(batch, steps, size) if layout else reals(steps, batch, size),
        reals(count, rows, size, seed=1), reals(count, rows, hidden, seed=2) / 2,
        reals(count, 2 * rows, seed=3) if given.get("bias") else None,
        np.asarray(given["lengths"], np.int32) if "lengths" in given else None,
        reals(*first, seed=4) if given.get("first") else None,
        reals(*first, seed=5) if given.get("first") and op == "LSTM" else None,
        reals(count, 3 * hidden, seed=6) if given.get("peepholes") else None,
    ]  # fmt: skip
    while arrays[-1] is None:
        arrays.pop()
    return arrays


NAMES = ("x", "w", "r", "b", "lengths", "h", "c", "p")
OUTPUTS = ("y", "y_h", "y_c")


def recurrent_model(
    op: str, attributes: Mapping[str, Any], arrays: Sequence[Array | None],
    fixed: Sequence[str] = ("w", "r", "b", "p"), outputs: Sequence[str] = OUTPUTS,
) -> onnx.ModelProto:  # fmt: skip
    count = 2 if op != "LSTM" else 3
    made = [name if name in outputs else "-" for name in OUTPUTS[:count]]
    known = dict(zip(NAMES, arrays, strict=False))
    words = " ".join(name if array is not None else "-" for name, array in known.items())
    inside = {n: a for n, a in known.items() if a is not None and n in fixed}
    around = {n: a for n, a in known.items() if a is not None and n not in fixed}
    built = model(
        [node(op, words, " ".join(made), hidden_size=arrays[2].shape[2], **attributes)],  # type: ignore[union-attr]
        {name: list(array.shape) for name, array in around.items()},
        {name: None for name in made if name != "-"}, inside,
    )  # fmt: skip
    for port in built.graph.input:
        kind = onnx.helper.np_dtype_to_tensor_dtype(around[port.name].dtype)
        port.type.tensor_type.elem_type = kind
    return built


def disagreement(
    op: str, attributes: Mapping[str, Any], arrays: Sequence[Array | None], threads: int = 1,
    dtype: str = "f32", isa: str = "portable", **options: Any,
) -> float:  # fmt: skip
    """The largest error of all outputs."""
    built = recurrent_model(op, attributes, arrays, **options)
    network = network_of(read(built), threads, dtype, isa=isa)
    known = dict(zip(NAMES, arrays, strict=False))
    results = network({port.name: known[port.name] for port in network.inputs})
    exact = dict(zip(OUTPUTS, reference(op, attributes, arrays), strict=False))
    assert set(results) == {port.name for port in built.graph.output}
    return max(float(np.abs(results[name] - exact[name]).max()) for name in results)


ALL = ["Affine", "LeakyRelu", "ThresholdedRelu"], ["Elu", "ScaledTanh", "HardSigmoid"]
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "lstm": ("LSTM", {}, {"bias": True}),
    "lstm, one step": ("LSTM", {}, {"steps": 1, "batch": 1, "first": True}),
    "lstm, all inputs": (
        "LSTM", {"clip": 0.8, "input_forget": 1}, {"bias": True, "first": True, "peepholes": True},
    ),
    "lstm, peepholes": ("LSTM", {"direction": "reverse"}, {"peepholes": True, "first": True}),
    "lstm, both ways": ("LSTM", {"direction": "bidirectional"}, {"bias": True, "first": True}),
    "lstm, batch first": (
        "LSTM", {"layout": 1, "direction": "bidirectional"}, {"bias": True, "first": True},
    ),
    "lstm, lengths": ("LSTM", {}, {"lengths": [5, 2, 3], "first": True}),
    "lstm, lengths both ways": (
        "LSTM", {"direction": "bidirectional"}, {"lengths": [1, 5, 4], "first": True},
    ),
    "lstm, functions": (
        "LSTM", {"activations": ["HardSigmoid", "ScaledTanh", "Softsign"],
                 "activation_alpha": [0.3, 1.5], "activation_beta": [0.4, 0.7]}, {},
    ),
    "gru": ("GRU", {}, {"bias": True, "first": True}),
    "gru, late": ("GRU", {"linear_before_reset": 1}, {"bias": True, "first": True}),
    "gru, late both ways": (
        "GRU", {"linear_before_reset": 1, "direction": "bidirectional", "clip": 1.0},
        {"bias": True, "lengths": [5, 1, 2]},
    ),
    "gru, functions": (
        "GRU", {"activations": ["Softplus", "Elu"], "activation_alpha": [0.6], "layout": 1}, {},
    ),
    "rnn": ("RNN", {"direction": "reverse"}, {"bias": True}),
    "rnn, clamped": ("RNN", {"activations": ["Relu"]}, {"first": True}),
    **{
        f"rnn, {' and '.join(names)}": (
            "RNN", {"activations": list(names), "direction": "bidirectional",
                    "activation_alpha": [0.4, 0.6], "activation_beta": [0.3, 0.2]}, {},
        )
        for names in zip(*ALL, strict=True)
    },
}  # fmt: skip


def arrays_of(op: str, attributes: Mapping[str, Any], given: Mapping[str, Any]) -> list[Any]:
    sizes = {"steps": 5, "batch": 3, "size": 4, "hidden": 6} | dict(given)
    count = 2 if attributes.get("direction") == "bidirectional" else 1
    return inputs_of(op, count=count, layout=attributes.get("layout", 0), **sizes)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_recurrent_nodes_are_their_definition(name: str) -> None:
    op, attributes, given = CASES[name]
    assert disagreement(op, attributes, arrays_of(op, attributes, given)) < 3e-6


@pytest.mark.parametrize("name", CASES)
def test_the_reference_has_all_forms(name: str) -> None:
    op, attributes, given = CASES[name]
    arrays = arrays_of(op, attributes, given)
    graph = read(recurrent_model(op, attributes, arrays))
    inputs = dict(zip(NAMES, arrays, strict=False))
    made = run_reference(graph, {tensor.name: inputs[tensor.name] for tensor in graph.inputs})
    exact = zip(OUTPUTS, reference(op, attributes, arrays), strict=False)
    assert all(np.allclose(made[name], values, atol=1e-6) for name, values in exact)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", GATES)
def test_more_of_all_and_all_threads(op: str, threads: int) -> None:
    arrays = inputs_of(op, 37, 2, 19, 40, 2, bias=True, first=True)
    assert disagreement(op, {"direction": "bidirectional"}, arrays, threads) < 1e-5


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_with_vectors(isa: str) -> None:
    arrays = inputs_of("LSTM", 6, 1, 32, 48, bias=True, first=True)
    assert disagreement("LSTM", {}, arrays, isa=isa) < 1e-5


@pytest.mark.exhaustive
def test_in_bf16() -> None:
    arrays = inputs_of("LSTM", 9, 2, 32, 32, bias=True)
    assert 0 < disagreement("LSTM", {}, arrays, dtype="bf16") < 0.05


@pytest.mark.exhaustive
def test_weights_that_are_inputs_and_lengths_that_are_known() -> None:
    arrays = inputs_of("LSTM", 4, 2, 5, 6, bias=True, lengths=[4, 3])
    assert disagreement("LSTM", {}, arrays, fixed=("lengths",)) < 1e-5
    assert disagreement("LSTM", {}, arrays, fixed=NAMES[1:]) < 1e-5


@pytest.mark.exhaustive
@pytest.mark.parametrize("outputs", [("y_h",), ("y_c",), ("y",), ("y", "y_c")])
def test_some_of_the_outputs(outputs: tuple[str, ...]) -> None:
    arrays = inputs_of("LSTM", 4, 2, 5, 6)
    assert disagreement("LSTM", {}, arrays, outputs=outputs) < 1e-5


@pytest.mark.exhaustive
def test_a_step_multiplies_once_and_writes_over_what_it_carries() -> None:
    arrays = inputs_of("LSTM", 8, 1, 16, 32, bias=True)
    network = network_of(read(recurrent_model("LSTM", {}, arrays, outputs=("y",))))
    (repeated,) = [
        stage for stage in network.code.placed.program.stages if isinstance(stage, RepeatStage)
    ]
    assert [type(member).__name__ for member in repeated.members] == ["LayerStage"] + [
        "LoopStage"] * 3  # fmt: skip
    places = network.code.placed.places
    for held in repeated.carried:
        assert places[held.inner] == places[held.following] == places[held.state]
    report = network.report()
    assert [row.group for row in report.rows if row.gflops]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "functions": ({"activations": ["Tanh"]}, {}, "1 activations; expected 3"),
    "no function": ({"activations": ["Tanh", "Sinus", "Tanh"]}, {}, "activation Sinus"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    attributes, given, told = REFUSED[name]
    built = recurrent_model("LSTM", attributes, inputs_of("LSTM", 3, 2, 4, 5, **given))
    with pytest.raises(UnsupportedError, match=told):
        network_of(read(built))


@pytest.mark.exhaustive
def test_threads_wait_twice_a_step() -> None:
    arrays = inputs_of("LSTM", 8, 1, 16, 32, 2, bias=True)
    built = recurrent_model("LSTM", {"direction": "bidirectional"}, arrays)
    text = network_of(read(built), 2).code.files["small.c"]
    loop = text[text.index("for (int64_t step = 0") :]
    assert loop[: loop.index("\n    }")].count("omp barrier") == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_weights_that_are_inputs_are_packed_before_all_steps(threads: int) -> None:
    arrays = inputs_of("LSTM", 8, 1, 16, 32, bias=True)
    fixed = [name for name in NAMES if name not in ("w", "r")]
    text = network_of(read(recurrent_model("LSTM", {}, arrays, fixed)), threads).code.files[
        "small.c"
    ]
    ahead, steps = text.split("for (int64_t step = 0")
    call = "_pack_weights((const float *)m->in"
    assert ahead.count(call) == 1 and call not in steps  # R; all products by W are one
    assert disagreement("LSTM", {}, arrays, threads, fixed=fixed) < 1e-5


@pytest.mark.exhaustive
def test_results_that_nothing_asks_for_are_not_computed() -> None:
    arrays = inputs_of("LSTM", 4, 1, 16, 16, 2)
    built = recurrent_model("LSTM", {"direction": "bidirectional"}, arrays)
    del built.graph.output[1:]
    counts = [len(network_of(read(m)).prepared.program.stages) for m in (built, recurrent_model(
        "LSTM", {"direction": "bidirectional"}, arrays))]  # fmt: skip
    assert counts == [8, 12]


def test_of_doubles() -> None:
    op, attributes, given = CASES["gru, late"]
    arrays = [
        value if value is None else value.astype(np.float64)
        for value in arrays_of(op, attributes, given)
    ]
    built = recurrent_model(op, attributes, arrays)
    for port in built.graph.output:
        port.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    network, known = network_of(read(built)), dict(zip(NAMES, arrays, strict=False))
    results = network({port.name: known[port.name] for port in network.inputs})
    exact = dict(zip(OUTPUTS, reference(op, attributes, arrays), strict=False))
    assert all(np.abs(results[name] - exact[name]).max() < 1e-14 for name in results)
