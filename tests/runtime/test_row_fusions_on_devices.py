"""Row fusions on devices: in a work-item, or in a group of them."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import onnx
import pytest

from polysci.cli.compile_output import explain_stages
from polysci.frontends.onnx import reference
from polysci.network.compiled import CompileOptions, compile_network
from polysci.network.prepare import prepare_with, search_schedules, setting_of
from polysci.program.passes import table
from polysci.program.passes.row import FusionGroup
from polysci.program.passes.row_fusion import fuse_rows
from polysci.program.stages import RowFusion
from polysci.runtime.backends import backend_named
from polysci.runtime.backends.cuda import resources
from polysci.target.isas import DEVICE_ISAS
from polysci.target.target import Memory, Target
from tests.support.any_device import at_hand
from tests.support.cuda_emulation import NAME, ORDERS, SANITIZERS, emulated, run_sanitized
from tests.support.device_cases import integers
from tests.support.fusion_cases import CASES, check, fused
from tests.support.group_fusions import whole_chain
from tests.support.networks import read
from tests.support.onnxmodels import model, node, reals
from tests.support.rates import fuse_rows_everywhere


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """A device that is a CPU, on which stages run together wherever they may."""
    fuse_rows_everywhere(monkeypatch)
    with at_hand("opencl:0") as name:
        (target,) = backend_named(name).targets()
        yield target


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_rows_of_work_items_are_exact(case: str, threads: int, cpu: Target) -> None:
    """Each work-item has rings of its own in the device's memory."""
    check(case, fused(case, cpu, threads))


@pytest.mark.exhaustive
def test_divisions_are_timed(cpu: Target) -> None:
    """What was timed stands beside its bound, whether it is done or not."""
    nodes = [node("MatMul", "x w", "a"), node("Abs", "a", "b"), node("MatMul", "b v", "y")]
    weights = {"w": integers((8, 16), 1), "v": integers((16, 4), 2)}
    tokens = model(nodes, {"x": (32, 8)}, {"y": None}, weights)
    options = CompileOptions("measure", 2, target=cpu, time_limit=5.0)
    prepared = compile_network(tokens, options).prepared
    timed = [group for group in prepared.fusion_groups if group.measured]
    assert timed and all(min(group.measured or (0.0,)) > 0 for group in timed)
    text = explain_stages(prepared, None)
    assert f"{len(prepared.fusion_groups)} runs of neighbouring stages as row fusions: " in text
    head, *rows = text.splitlines()[-1 - len(timed) :]
    assert "bound" in head and "measured" in head
    assert len([row for row in rows if " > " in row]) == len(timed)


@pytest.fixture
def groups(cpu: Target) -> Target:
    """The same device as one that is no CPU: groups have a memory of their own."""
    memories = (*cpu.memories, Memory("local", 48 << 10, kind="local"))
    return replace(cpu, isa=DEVICE_ISAS["opencl4"], memories=memories)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES)
def test_rows_of_groups_are_exact(case: str, groups: Target) -> None:
    """Each group makes rows in its memory, and those that two groups share twice."""
    check(case, fused(case, groups, 2))


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.exhaustive] * (case != "products"))
             for case in CASES],
)  # fmt: skip
def test_threads_of_blocks_are_exact(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA on this CPU: threads between two barriers in three orders."""
    fuse_rows_everywhere(monkeypatch)
    with at_hand(NAME), emulated() as backend:
        (target,) = backend.targets()
        network = fused(case, target, 2)
        for order in ORDERS:
            backend.emulated.order = order
            check(case, network)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ["halo", "bottleneck", "pools of images"])
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_blocks_are_clean_under_sanitizers(sanitizer: str, case: str) -> None:
    ran = run_sanitized(sanitizer, "fused", case)
    assert (ran.returncode, ran.stdout) == (0, "exact\n"), ran.stderr


@pytest.mark.exhaustive
def test_a_sanitizer_finds_a_barrier_that_lacks() -> None:
    ran = run_sanitized("thread", "fused", "products", "PS_BARRIER();", ";")
    assert ran.returncode and "ThreadSanitizer: data race" in ran.stderr, ran.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", ["opencl", "cuda"])
@pytest.mark.parametrize("height", [1, 5, 16])
def test_a_softmax_stays_between_products(
    place: str, height: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its input is held until the last of its loops has read it."""
    monkeypatch.setattr(table, "fuse_rows", whole_chain(height))
    nodes = [node("MatMul", "x w", "a"), node("Softmax", "a", "s", axis=-1),
             node("MatMul", "s v", "y")]  # fmt: skip
    weights = {"w": reals(9, 40, seed=1), "v": reals(40, 12, seed=2)}
    tokens = model(nodes, {"x": (37, 9)}, {"y": None}, weights)
    x = reals(37, 9, seed=3)
    expected = reference.run(read(tokens), {"x": x})["y"]
    with ExitStack() as stack:
        if place == "cuda":
            stack.enter_context(at_hand(NAME))
            (target,) = stack.enter_context(emulated()).targets()
        else:
            target = request.getfixturevalue("groups")
        network = compile_network(tokens, CompileOptions("estimate", 2, target=target))
        (stage,) = network.code.placed.program.stages
        assert isinstance(stage, RowFusion) and len(stage.members) == 6
        assert np.allclose(network({"x": x})["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.exhaustive
def test_a_barrier_that_lacks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fuse_rows_everywhere(monkeypatch)
    with at_hand(NAME), emulated(fault=("PS_BARRIER();", ";")) as backend:
        (target,) = backend.targets()
        network = fused("products", target, 2)
        wrong = 0
        for order in ORDERS:
            backend.emulated.order = order
            try:
                check("products", network)
            except AssertionError:
                wrong += 1
        assert wrong


@pytest.mark.exhaustive
def test_rows_beyond_the_memory_of_a_group_are_refused(groups: Target) -> None:
    """Nothing runs together that no group has room for, and the reason says how much it takes."""
    nodes = [node("MatMul", "x w", "a"), node("Abs", "a", "b"), node("MatMul", "b v", "y")]
    weights = {"w": integers((8, 80), 1), "v": integers((80, 4), 2)}
    tokens = model(nodes, {"x": (32, 8)}, {"y": None}, weights)
    memories = (*groups.memories[:-1], Memory("local", 256, kind="local"))
    few = replace(groups, memories=memories)
    options = CompileOptions("estimate", 2, target=few)
    prepared, plan = prepare_with(read(tokens), options), options.plan()
    schedules = {key: it.schedule for key, it in search_schedules(prepared, plan).items()}
    setting = setting_of(schedules, dict.fromkeys(schedules, 1e-6), plan)
    space = fuse_rows(prepared.placed, setting)
    assert not any(chain.fusions(0) for chain in space.chains)
    reasons = {group.refusal for group in space.considered() if isinstance(group, FusionGroup)}
    assert "a group holds 640 B of rows at least, of 256 B that it may" in reasons


@pytest.mark.exhaustive
def test_a_fused_kernel_spills_no_register(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC compiles a product, a function and a product for sm_80."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA: cuda-bindings is not installed")
    fuse_rows_everywhere(monkeypatch)
    (target,) = backend_named("cuda:sm_80").targets()
    network = fused("halo", target, target.cores)
    rows = resources(network.runner.library.path)
    assert {row.spilled for row in rows} == {0}, [*map(str, rows)]
    assert max(row.shared for row in rows) >= 4 * 14 * 24


ENDS = [node("MatMul", "x w", "a"), node("Abs", "a", "b")]
SQUARE = {"w": integers((12, 12), 1)}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("nodes", "shape", "tensor", "why"),
    [
        ([*ENDS, node("Transpose", "x", "t", perm=[1, 0]), node("Abs", "t", "u"),
          node("MatMul", "u b", "y")], (12, 12), "u", "its weights are computed"),
        ([*ENDS, node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "b t", "y")],
         (3, 12, 12), "b", "it is one of several products"),
    ],
    ids=["weights", "stack"],
)  # fmt: skip
def test_what_groups_do_not_hold(
    nodes: list[onnx.NodeProto], shape: tuple[int, ...], tensor: str, why: str, groups: Target
) -> None:
    """It is refused by a reason, and around it stages run together still."""
    network = model(nodes, {"x": shape}, {"y": None}, SQUARE)
    compiled = compile_network(network, CompileOptions("estimate", 2, target=groups))
    stages = compiled.code.placed.program.stages
    assert [its.internal for its in stages if isinstance(its, RowFusion)] == [("a",)]
    reasons = {its.refusal for its in compiled.prepared.fusions if its.tensor == tensor}
    assert why in reasons, compiled.prepared.fusions
    x = integers(shape, 9)
    expected = reference.run(read(network), {"x": x})["y"]
    assert np.array_equal(compiled({"x": x})["y"], expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("nodes", "inside"),
    [
        ([node("MatMul", "x w", "a"), node("Sigmoid", "a", "b"), node("Mul", "a b", "c"),
          node("MatMul", "c w", "y")], ("a", "c")),
        ([node("MatMul", "x w", "a"), node("LayerNormalization", "a g h", "n"),
          node("MatMul", "n w", "c"), node("Add", "c x", "y")], ("a", "n.mean", "n.scale", "n")),
    ],
    ids=["gate", "norm"],
)  # fmt: skip
def test_what_several_members_read(
    nodes: list[onnx.NodeProto], inside: tuple[str, ...], groups: Target
) -> None:
    """Groups hold rows until the last of their readers is done."""
    names = {name for it in nodes for name in it.input}
    weights = {**SQUARE, "g": reals(12, seed=3), "h": reals(12, seed=4)}
    own = {name: value for name, value in weights.items() if name in names}
    network = model(nodes, {"x": (40, 12)}, {"y": None}, own)
    compiled = compile_network(network, CompileOptions("estimate", 2, target=groups))
    (stage,) = compiled.code.placed.program.stages
    assert isinstance(stage, RowFusion) and stage.internal == inside
    x = reals(40, 12, seed=9)
    expected = reference.run(read(network), {"x": x})["y"]
    assert np.allclose(compiled({"x": x})["y"], expected, rtol=1e-5, atol=1e-5)
