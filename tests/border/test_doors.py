"""Every public constructor and call, with values of wrong types and impossible ones.

What is refused is refused on purpose: by an error that polysci raises itself, never by one of
Python's or NumPy's own from further inside, nor by one that asks to be reported.
"""

import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from opcode import opmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polysci
from polysci import layers, training
from polysci.errors import PolysciError, UnexpectedError
from polysci.network.compiled import Network, compile_network
from polysci.polyhedral.tile_schedule import Loop
from polysci.runtime.primitive import PackedWeights, Primitive
from polysci.space.directives import Pack
from polysci.space.schedule import Schedule, Transform
from tests.support.compiling import saved, tiny


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def fail(*_: object) -> Any:
    raise RuntimeError("a caller's object")


METHODS = (
    *("__repr__", "__str__", "__eq__", "__len__", "__iter__", "__bool__", "__float__", "__int__"),
    *("__index__", "__getattr__", "__getitem__", "__contains__", "__fspath__", "__array__"),
    *("__lt__", "__le__", "__gt__", "__ge__", "__format__"),
)
Hostile = type("Hostile", (), dict.fromkeys(METHODS, fail))  # of which any question raises
LONGEST = 1500  # characters of a message
REPEATED = re.compile(r"""(?<!\w)'[^'\n]{201,}'(?!\w)|(?<!\w)"[^"\n]{201,}"(?!\w)|\S{251,}""")


VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 3, 2**31, 2**63, 10**400, -(10**400), 1.5, math.nan, math.inf, 1j),
    *("", "x", "a\0b", "\ud800", "9" * 5000, "x" * 100_000, b"x", ["\0"], "p > brgemm_x", "mm:x"),
    *([], [1], (1, 2, 3), (None, None), [[1], [2, 3]], {}, {"a": 1}, {"x": None}, set(), range(3)),
    *(object(), int, Unprintable(), print, slice(None), np.float32(1), np.int64(3), np.zeros(3)),
    *(False, [1], ["x" * 1_000_000], "x " * 500_000, "x\n" * 500_000, "9" * 1_000_000, Hostile()),
    *(np.array([1, 2]), np.array(None), np.array(["x"]), np.zeros((0, 3)), np.ma.masked_array([1])),
)
CONV = {"N": 1, "C": 8, "H": 6, "W": 6, "K": 8, "R": 3, "S": 3}
CONV1 = {"N": 1, "C": 8, "W": 6, "K": 8, "S": 3}
CONV3 = CONV | {"D": 6, "T": 3}
MATMUL = {"M": 4, "K": 4, "N": 4}
NEST = """float A[8][6]; float B[6][5]; float C[8][5];
void f(void) {
#pragma scop
for (int i = 0; i < 8; i++) for (int j = 0; j < 5; j++) for (int k = 0; k < 6; k++)
  C[i][j] += A[i][k] * B[k][j];
#pragma endscop
}
"""
PROBLEMS: dict[str, Any] = {
    "Conv2d": polysci.Conv2d(**CONV),
    "Matmul": polysci.Matmul(**MATMUL),
    "Conv2dBackwardData": polysci.Conv2dBackwardData(polysci.Conv2d(**CONV)),
    "Conv2dBackwardWeights": polysci.Conv2dBackwardWeights(polysci.Conv2d(**CONV)),
    "Conv1d": polysci.Conv1d(**CONV1),
    "Conv3d": polysci.Conv3d(**CONV3),
    "ConvTranspose2d": polysci.ConvTranspose2d(**CONV),
    "Conv3dBackwardData": polysci.Conv3dBackwardData(polysci.Conv3d(**CONV3)),
    "Conv3dBackwardWeights": polysci.Conv3dBackwardWeights(polysci.Conv3d(**CONV3)),
    "Nest": polysci.Nest(NEST),
}
KEY = {"problem_key": "mb1", "threads": 1, "features": "fma", "host": "h"}
Door = Callable[[Any], object]


def with_each(call: Callable[..., object], *names: str, **usual: Any) -> Iterator[tuple[str, Door]]:
    """For every argument a door that takes it; the others are as usual."""
    for name in dict.fromkeys((*names, *usual)):
        yield name, lambda value, name=name: call(**usual | {name: value})


def layers_and_optimizers() -> Iterator[tuple[str, Door]]:
    window = {"in_channels": 4, "out_channels": 4, "kernel_size": 3}
    fields = ("stride", "padding", "dilation", "groups", "bias")
    yield from with_each(layers.Conv2d, *fields, **window)
    yield from with_each(layers.ConvTranspose2d, "output_padding", *fields, **window)
    yield from with_each(layers.Linear, "bias", in_features=4, out_features=4)
    yield from with_each(layers.LSTM, "num_layers", "last", input_size=4, hidden_size=4)
    yield from with_each(layers.RNN, "nonlinearity", input_size=4, hidden_size=4)
    yield from with_each(layers.BatchNorm2d, "eps", "momentum", num_features=4)
    yield from with_each(layers.GroupNorm, "eps", num_groups=2, num_channels=4)
    yield from with_each(layers.LayerNorm, "eps", normalized_shape=4)
    yield from with_each(layers.MaxPool2d, "stride", "padding", kernel_size=3)
    yield from with_each(layers.Flatten, "start_dim", "end_dim")
    yield from with_each(layers.Residual, "shortcut", layers=[layers.ReLU()])
    yield from with_each(layers.Dropout, "p")
    yield from with_each(layers.Softmax, "dim")
    yield from with_each(layers.ELU, "alpha")
    yield from with_each(layers.LeakyReLU, "negative_slope")
    yield from with_each(layers.GELU, "approximate")
    yield from with_each(training.SGD, "lr", "momentum", "dampening", "weight_decay", "nesterov")
    yield from with_each(training.Adam, "lr", "betas", "eps", "weight_decay", "decoupled")


def constructors() -> Iterator[tuple[str, Door]]:
    shared = ("stride", "pad", "dilation", "groups", "layout", "dtype", "name", "multiplicity")
    options = (*shared, "activation")
    yield from with_each(polysci.Conv2d, "P", "Q", *options, **CONV)
    yield from with_each(polysci.Conv1d, "Q", *options, **CONV1)
    yield from with_each(polysci.Conv3d, "Z", "P", "Q", *options, **CONV3)
    yield from with_each(polysci.ConvTranspose2d, "output_padding", *shared, **CONV)
    others = ("batch", "constant", "dtype", "name", "multiplicity", "transposed", "alpha", "beta")
    yield from with_each(polysci.Matmul, "activation", **MATMUL)
    yield from with_each(polysci.Matmul, *others, **MATMUL)
    for dims in "123":
        for of in ("Data", "Weights"):
            yield from with_each(getattr(polysci, f"Conv{dims}dBackward{of}"), "forward")
    yield from with_each(polysci.Nest, "name", "multiplicity", source=NEST)
    yield from with_each(polysci.Scales, "scale", "y_zero", "residual_scale", "residual_zero")
    yield from with_each(PackedWeights, identity="", array=np.zeros(1), pointer=None)
    yield from with_each(polysci.parse_problem, "layout", "dtype", text="mb1ic8ih6oc8kh3")
    yield from with_each(polysci.detect, "isa")
    yield from (
        ("Wisdom", polysci.Wisdom),
        ("to_bf16", polysci.to_bf16),
        ("from_bf16", polysci.from_bf16),
    )
    yield from (("Schedule.parse", Schedule.parse), ("extract", polysci.extract.extract))
    yield "compile_network", compile_network


def options() -> Iterator[tuple[str, Door]]:
    """Options of what compiles; nothing is measured for those that are accepted."""
    problem, words = PROBLEMS["Conv2d"], "mlp:2x3x4"
    usual = {"level": "estimate", "threads": 1}
    named = ("target", "isa", "ranker", "algorithm", "wisdom", "schedule")
    more = ("time_limit", "reproducible", "tuner")
    flags = ("again", "quick", "verify", "machine")
    yield from with_each(partial(polysci.optimize, problem), *named, *more, *flags, **usual)
    yield from (("problem", door) for door in (polysci.compile, polysci.optimize))
    compile_layer = partial(polysci.compile, problem)
    yield from with_each(compile_layer, "layout", "dtype", "flush_denormals", level="estimate")
    network = ("dtype", "dims", "values", "external", "name", "fuse", "flags", *more)
    others = ("flush_denormals", "optimize", "update", "algorithm", "target", "isa", "wisdom")
    yield from with_each(partial(compile_network, words), *network, *others, **usual)
    x, w = np.zeros((1, 6, 6, 8), np.float32), np.zeros((8, 8, 3, 3), np.float32)
    arrays = ("x", "w", "bias", "residual", "clamp", "activation")
    shape = ("stride", "pad", "dilation", "groups", "layout", "threads", "isa")
    yield from with_each(polysci.conv2d, *arrays[2:], *shape, x=x, w=w)


def methods() -> Iterator[tuple[str, Door]]:
    for title, problem in PROBLEMS.items():
        arrays = {"x": np.zeros(problem.x_shape), "w": np.zeros(problem.w_shape)}
        yield f"{title}.parse", type(problem).parse
        yield f"{title}.with_batch", problem.with_batch
        doors = with_each(problem.reference, "bias", "residual", "clamp", **arrays)
        yield from ((f"{title}.reference.{name}", door) for name, door in doors)
        for field in ("name", "multiplicity", "dtype", "N"):
            yield f"{title}.with_.{field}", lambda value, p=problem, f=field: p.with_(**{f: value})


def schedules() -> Iterator[tuple[str, Door]]:
    """Parts of a schedule, which ``optimize`` looks at."""
    kernel = "brgemm_portable_f32_4x8"
    made: dict[str, Callable[[Any], Schedule]] = {
        "steps": lambda value: Schedule(value, kernel),
        "kernel": lambda value: Schedule((), value),
        "part": lambda value: Schedule((value,), kernel),
        "dim": lambda value: Schedule((Loop(value),), kernel),
        "step": lambda value: Schedule((Loop("p", value),), kernel),
        "parallel": lambda value: Schedule((Loop("p", 1, value),), kernel),
        "pack": lambda value: Schedule((Pack(value),), kernel),
        "transform": lambda value: Schedule((Transform(value),), kernel),
        "numbers": lambda value: Schedule((Transform("winograd", value),), kernel),
    }
    for name, make in made.items():
        yield (
            name,
            lambda value, make=make: polysci.optimize(PROBLEMS["Conv2d"], schedule=make(value)),
        )
    yield "text", partial(polysci.optimize, PROBLEMS["Conv2d"], "estimate", 1)


def refusal(door: Door, value: Any) -> str:
    """What is wrong with the error for a value; empty where there is none or a good one."""
    try:
        with np.errstate(all="ignore"):
            door(value)
    except UnexpectedError as error:
        return f"unexpected: {error}"
    except (PolysciError, OSError, MemoryError) as error:
        return too_long(str(error))
    except (TypeError, ValueError) as error:
        if fault := too_long(str(error)):
            return fault
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        assert trace is not None
        ours = str(trace.tb_frame.f_globals["__name__"]).startswith("polysci")
        raised = trace.tb_frame.f_code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]
        called = "keyword argument" in str(error) or "positional argument" in str(error)
        return "" if (ours and raised) or called else f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def too_long(message: str) -> str:
    """What is too long of a message: the whole, or a text that it repeats."""
    whole = f"{len(message)} characters: " if len(message) > LONGEST else ""
    return f"{whole}{message:.300}" if whole or REPEATED.search(message) else ""


def check(door: Door) -> None:
    faults = [(at, fault) for at, value in enumerate(VALUES) if (fault := refusal(door, value))]
    assert not faults, faults


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("door", [pytest.param(d, id=n) for n, d in constructors()])
def test_constructors(door: Door) -> None:
    check(door)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("door", [pytest.param(d, id=n) for n, d in layers_and_optimizers()])
def test_layers_and_optimizers(door: Door) -> None:
    check(door)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("door", [pytest.param(d, id=n) for n, d in methods()])
def test_methods_of_problems(door: Door) -> None:
    check(door)


@pytest.mark.sampled(every=20)
@pytest.mark.parametrize("door", [pytest.param(d, id=n) for n, d in options()])
def test_options(door: Door) -> None:
    check(door)


# What Python takes for a number or a sequence of texts, and no option does.
BOOLEANS = {"flush_denormals": 2, "reproducible": 1, "external": 1, "fuse": 0, "threads": True}


@pytest.mark.parametrize("name", [*BOOLEANS, "flags"])
def test_options_of_another_type(name: str) -> None:
    wrong = {name: BOOLEANS.get(name, [1])}
    with pytest.raises(TypeError, match=rf"^{name}: expected "):
        compile_network("mlp:2x3x4", **{"level": "estimate"} | wrong)
    if name in ("flush_denormals", "reproducible", "threads"):
        with pytest.raises(TypeError, match=rf"^{name}: expected "):
            polysci.compile(PROBLEMS["Conv2d"], **{"level": "estimate"} | wrong)


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("door", [pytest.param(d, id=n) for n, d in schedules()])
def test_schedules_of_another_tuner(door: Door) -> None:
    check(door)


def test_records(tmp_path: Path) -> None:
    wisdom = polysci.Wisdom(tmp_path / "wisdom.sqlite")
    measured = {"level": "measure", "schedule": "p > k", "seconds_median": 1e-3}
    numbers = ("gflops", "isa", "compiler", "dropped", "spread", "speed")
    wisdom.record(**KEY, **measured)  # type: ignore[arg-type]
    doors = [
        *with_each(wisdom.record, *numbers, **KEY, **measured),
        *with_each(wisdom.record_trials, "flops", "isa", "compiler", **KEY, seconds={"p > k": 1.0}),
        *with_each(wisdom.best, "level", **KEY),
        *with_each(wisdom.seeds, **KEY),
        *with_each(wisdom.measurements, "threads", host="h"),
        *with_each(wisdom.forget, "level", "schedule", "disturbed", problem_key="mb1", host="x"),
        ("Wisdom", lambda value: polysci.Wisdom(value).list()),
        ("export", wisdom.export),
        ("import", lambda value: wisdom.import_(value, lambda _: None)),
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        for _, door in doors:
            check(door)


@pytest.fixture(scope="module")
def primitives() -> list[Primitive]:
    precisions = ("f32", "u8:s8:u8", "bf16")
    return [polysci.compile(PROBLEMS["Conv2d"].with_(dtype=d), "estimate") for d in precisions]


@pytest.mark.exhaustive
def test_calls_of_primitives(primitives: list[Primitive]) -> None:
    for primitive in primitives:
        problem = primitive.problem
        types = polysci.PRECISIONS[problem.dtype]
        x = np.zeros(problem.x_shape, types.x.numpy)
        w = np.zeros(problem.w_shape, types.w.numpy)
        packed = primitive.pack_weights(w)
        names = ("bias", "residual", "clamp", "activation", "scales", "out")
        for _, door in with_each(primitive, *names, x=x, wp=packed):
            check(door)
        for _, door in with_each(primitive.pack_weights, "x_zero", w=w):
            check(door)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return compile_network(saved(tiny(), tmp_path_factory.mktemp("m") / "tiny.onnx"), "estimate")


@pytest.mark.exhaustive
def test_calls_of_networks(network: Network) -> None:
    check(network)
    for _, door in with_each(lambda **inputs: network(inputs), "x"):
        check(door)


def test_what_nobody_expected_asks_to_be_reported(
    primitives: list[Primitive], network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    primitive = primitives[0]
    x = np.zeros(primitive.problem.x_shape, np.float32)
    packed = primitive.pack_weights(np.zeros(primitive.problem.w_shape, np.float32))
    monkeypatch.setattr(Primitive, "_run", lambda self, *_: {}["missing"])
    with pytest.raises(UnexpectedError, match=r"KeyError.*please report"):
        primitive(x, packed)
    monkeypatch.setattr(type(network.runner), "context", lambda self: {}["missing"])
    with pytest.raises(UnexpectedError, match=r"KeyError.*please report"):
        network(np.zeros(network.inputs[0].shape, np.float32))
