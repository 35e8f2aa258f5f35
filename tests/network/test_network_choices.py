"""Whatever passes and searches choose has code: small convolutional heads and tails at random."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from polysci.errors import PolysciError
from polysci.export.freestanding import write_freestanding
from polysci.export.network_project import write_project
from polysci.frontends.onnx import reference
from polysci.graph.differentiate import pull_back
from polysci.graph.graph import Graph
from polysci.graph.passes.table import simplify
from polysci.lower.layer_calls import refuse_schedule
from polysci.network.compiled import Network, build_network, use_pool
from polysci.network.options import PlanOptions
from polysci.network.prepare import generate_code, options_of, prepare, search_schedules
from polysci.network.tuning import fuse_with_schedules, rivals
from polysci.printers.network import OPENMP
from polysci.program.stages import RowFusion, problems
from polysci.runtime.source import Source
from polysci.target.host import detect
from polysci.tune.wisdom import Wisdom
from tests.support.exported import run
from tests.support.flags import QUICK
from tests.support.graphbound import bounds
from tests.support.networks import fault, given, network_of, read
from tests.support.onnxmodels import model, node, reals
from tests.support.rates import fuse_rows_everywhere

pytestmark = pytest.mark.sampled

CHANNELS = (1, 1, 1, 2, 3, 5, 16, 32)
SIZES = (1, 2, 7, 13, 96, 96, 112, 128)
TURNS = 3  # schedules of each layer
ACTIVATIONS = ("Relu", "Sigmoid", "HardSwish", "Tanh", "LeakyRelu", "")
ISAS = ("portable", "avx2", "avx512", "amx")
TODAY = date.today().toordinal() * 1000  # the first seed of the day


class Head:
    """A model under way: one to three layers, and what stands between them."""

    def __init__(self, random: np.random.Generator, narrow: bool) -> None:
        self.random, self.narrow = random, narrow
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {
            "step": np.float32(1 / 16), "zero": np.int8(3), "none": np.int8(0),
        }  # fmt: skip
        height, width = self.one(SIZES), self.one(SIZES)
        self.size = (height, height if self.one((True, True, False)) else width)
        self.channels = self.one(CHANNELS)
        self.shape = [self.one((1, 1, 1, 1, 2)), self.channels, *self.size]
        self.last = "x"

    def one(self, choices: Any) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def add(self, op: str, *inputs: str, **words: Any) -> str:
        made = f"t{len(self.nodes)}"
        self.nodes.append(node(op, " ".join(inputs), made, **words))
        return made

    def quantised(self, x: str) -> str:
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, "step", "zero"),
                        "step", "zero")  # fmt: skip

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        if not self.narrow:
            scale = max(1, np.prod(shape[1:])) ** -0.5
            self.weights[name] = (self.random.normal(size=shape) * scale).astype(np.float32)
            return name
        self.weights[name] = self.random.integers(-20, 20, shape, np.int8)
        return self.add("DequantizeLinear", name, "step", "none")

    def convolve(self, most: int = 1 << 8) -> None:
        """A convolution of any kind that fits, with an activation, a residual or nothing."""
        depthwise = self.one((False, False, False, True))
        groups = self.channels if depthwise else 1
        filters = (
            self.channels * self.one((1, 1, 2)) if depthwise else min(self.one(CHANNELS), most)
        )
        taps = [min(self.one((1, 1, 2, 3, 3, 5)), size) for size in self.size]
        pads = [self.one((0, tap // 2)) for tap in taps]
        strides = [self.one((1, 1, 1, 1, 2, 3))] * 2
        before, x = self.last, self.quantised(self.last) if self.narrow else self.last
        y = self.add("Conv", x, self.weight(filters, self.channels // groups, *taps), group=groups,
                     pads=[*pads, *pads], strides=strides)  # fmt: skip
        size = tuple(
            (s + 2 * pad - tap) // step + 1
            for s, pad, tap, step in zip(self.size, pads, taps, strides, strict=True)
        )
        if filters == self.channels and size == self.size and self.one((True, False)):
            y = self.add("Add", y, before)
        if activation := self.one(ACTIVATIONS):
            y = self.add(activation, y)
        self.last, self.channels, self.size = y, filters, size

    def pool(self) -> None:
        taps = [min(self.one((2, 3)), size) for size in self.size]
        kind, step = self.one(("MaxPool", "AveragePool")), self.one((1, 2))
        self.last = self.add(kind, self.last, kernel_shape=taps, strides=[step, step])
        self.size = tuple((s - tap) // step + 1 for s, tap in zip(self.size, taps, strict=True))

    def join(self) -> None:
        """Two branches side by side."""
        count = self.one(CHANNELS)
        weights = self.weight(count, self.channels, 1, 1)
        other = self.add("Conv", self.last, weights)
        self.last = self.add("Concat", self.last, other, axis=1)
        self.channels += count

    def model(self) -> onnx.ModelProto:
        for _ in range(self.one((1, 2, 2, 3))):
            self.convolve()
            if more := self.one((None, None, self.pool, self.join)):
                more()
        if self.one((True, False)):
            self.convolve(most=1)
        elif self.one((True, False)):
            self.last = self.add("GlobalAveragePool", self.last)
        self.nodes[-1].output[0] = "y"
        return model(self.nodes, {"x": self.shape}, {"y": None}, self.weights)


@dataclass(frozen=True)
class Case:
    """A head, and how it is compiled; all of it follows from the seed."""

    seed: int

    @cached_property
    def random(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    @cached_property
    def kind(self) -> str:
        return str(self.random.choice(["f32", "f32", "bf16", "int8"]))

    @cached_property
    def options(self) -> PlanOptions:
        isas = [isa for isa in ISAS if not detect().refusal(isa)]
        threads, dtype = int(self.random.integers(1, 4)), self.kind.replace("int8", "f32")
        isa, algorithm = self.random.choice(isas), str(self.random.choice(["direct", "auto"]))
        return PlanOptions("estimate", threads, dtype, algorithm, detect(str(isa)))

    @cached_property
    def forward(self) -> Graph:
        kind, _ = self.kind, self.options  # which are drawn first
        return read(Head(self.random, kind == "int8").model())

    @cached_property
    def graph(self) -> Graph:
        """As it is computed, or the gradients of its inputs."""
        graph = simplify(self.forward)
        if self.kind == "int8" or self.random.random() < 0.7:
            return graph
        wanted = [tensor.name for tensor in graph.inputs]
        return simplify(pull_back(graph, graph.outputs[0].name, wanted))

    def refusals(self, wisdom: Wisdom) -> Iterator[str]:
        """Choices that have no code: each schedule that may be timed, apart and fused, by pools."""
        options, dtype = self.options, self.options.dtype
        prepared = prepare(self.graph, dtype, target=options.target)
        results, wanted = search_schedules(prepared, options), options_of(prepared.program, options)
        seconds = {key: result.predicted for key, result in results.items()}
        tried = {
            key: [it for it in rivals(problem, results[key], wanted[key], wisdom)
                  if not refuse_schedule(key, it, prepared.placed)]
            for key, problem in problems(prepared.program).items()
        }  # fmt: skip
        for turn in range(min(TURNS, max(map(len, tried.values()), default=1))):
            chosen = {key: its[min(turn, len(its) - 1)] for key, its in tried.items()}
            fused = fuse_with_schedules(prepared, chosen, seconds, options, {})
            for form, its in (("apart", prepared), ("fused", fused)):
                for pool in (OPENMP, "callback"):
                    try:
                        generate_code(its.placed, chosen, "head", options, pool=pool)
                    except PolysciError as error:
                        yield f"{self}, {form}, {pool}: {error}"

    def network(self) -> Network:
        graph, options = simplify(self.forward), self.options
        prepared = prepare(graph, options.dtype, target=options.target)
        return build_network(prepared, options, "head", flags=QUICK)

    def wrong(self, network: Network) -> str:
        """What is wrong with its results; empty if nothing is."""
        inputs = given(self.forward)
        exact = reference.run(self.forward, inputs)
        if self.kind != "int8":
            limits = bounds(self.forward, exact, self.kind)
        else:  # a sum that is near the middle of two whole numbers may become either
            limits = {name: np.full(np.shape(x), 0.2) for name, x in exact.items()}
        told = fault(self.forward, network, inputs, exact, limits)
        return f"{self}: {told}" if told else ""


@pytest.fixture
def all_beyond_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fusions by rows are considered for whatever lies between layers."""
    fuse_rows_everywhere(monkeypatch)


@pytest.fixture
def wisdom(tmp_path: Path) -> Iterator[Wisdom]:
    yield Wisdom(tmp_path / "wisdom.db")


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [96, 112, 128])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_head_of_one_channel(size: int, threads: int) -> None:
    """A layer of one filter packs it in every call: it takes all rows at once."""
    nodes = [node("Conv", "x w", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "b"),
             node("Conv", "b v", "c"), node("Relu", "c", "y")]  # fmt: skip
    weights = {"w": reals(32, 16, 3, 3) / 10, "v": reals(1, 32, 1, 1, seed=1)}
    graph = read(model(nodes, {"x": [1, 16, size, size]}, {"y": None}, weights))
    network = network_of(graph, threads, isa=detect().isa.name)
    refusals = [fusion.refusal for fusion in network.prepared.fusions]
    assert any("some of its work is of all rows" in why for why in refusals), refusals
    inputs = given(graph)
    exact = reference.run(graph, inputs)
    assert not fault(graph, network, inputs, exact, bounds(graph, exact, "f32"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("algorithm", ["winograd", "auto"])
def test_a_sum_that_steps_carry_on(algorithm: str) -> None:
    """Winograd's epilogue adds nothing to what y holds, and so is not chosen for such a layer."""
    shape = [1, 32, 12, 12]
    body = helper.make_graph(
        [node("Conv", "s w", "c", pads=[1, 1, 1, 1]), node("Add", "c h", "n")], "step",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "hs"],
        [helper.make_tensor_value_info("n", TensorProto.FLOAT, shape)],
    )  # fmt: skip
    steps = node("Scan", "h x", "y", body=body, num_scan_inputs=1)
    inputs = {"h": shape, "x": [5, *shape]}
    weights = {"w": reals(32, 32, 3, 3) / 20}
    graph = read(model([steps], inputs, {"y": shape}, weights))
    target = detect()
    options = PlanOptions("estimate", 1, "f32", algorithm, target)
    network = build_network(
        prepare(simplify(graph), target=target), options, "steps", flags=QUICK
    )  # fmt: skip
    (call,) = network.code.calls.values()
    assert "(void)residual" in Source.of(call.source).text
    exact = reference.run(graph, given(graph))
    assert np.abs(network(given(graph))["y"] - exact["y"]).max() < 1e-4


@pytest.mark.exhaustive
def test_choices_have_code(all_beyond_the_cache: None, wisdom: Wisdom) -> None:
    assert not [told for seed in (11, 20, 30) for told in Case(seed).refusals(wisdom)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(3))
def test_choices_of_the_day_have_code(
    part: int, all_beyond_the_cache: None, wisdom: Wisdom
) -> None:
    seeds = range(TODAY + 10 * part, TODAY + 10 * part + 10)
    assert not [told for seed in seeds for told in Case(seed).refusals(wisdom)]


# The last one writes a layer of one channel, a stencil, into a concatenation with channels last.
@pytest.mark.parametrize("seed", [0, 1, 2, 739948013])
def test_heads_are_computed(seed: int, all_beyond_the_cache: None) -> None:
    case = Case(seed)
    assert not case.wrong(case.network())


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(2))
def test_heads_of_the_day_are_computed(part: int, all_beyond_the_cache: None) -> None:
    first = TODAY + 20 * part
    networks = {case: case.network() for case in map(Case, range(first, first + 20))}
    assert not [told for case, its in networks.items() if (told := case.wrong(its))]
    stages = [stage for its in networks.values() for stage in its.code.placed.program.stages]
    assert any(isinstance(stage, RowFusion) for stage in stages)


@pytest.mark.exhaustive
@pytest.mark.parametrize("pool", ["freestanding", "callback", "pthread"])
def test_projects_of_the_day_pass_their_own_test(
    pool: str, all_beyond_the_cache: None, tmp_path: Path
) -> None:
    for case in map(Case, range(TODAY, TODAY + 3)):
        network, out = case.network(), tmp_path / str(case.seed)
        if pool == "freestanding":
            write_freestanding(use_pool(network, "callback"), out)
        else:
            write_project(use_pool(network, pool), out)
        built = run("make", "check", "CFLAGS=-O1 -Werror", cwd=out)
        assert built.returncode == 0 and " 0 failed" in built.stdout, f"{case}: {built.stdout}"
