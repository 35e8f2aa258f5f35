"""Winograd's algorithm by work-items and groups, in the interpreter: exact, without races."""

from __future__ import annotations

from pathlib import Path

import pytest

from polysci.cost import Context
from polysci.errors import SpecError, UnsupportedError
from polysci.loop_ir.memory import MemoryFaultError
from polysci.loop_ir.nodes import Barrier
from polysci.lower.choice import candidates
from polysci.lower.registry import algorithm_of
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.space.schedule import parse
from polysci.target.machine_file import read
from tests.support.interpreted_layers import InterpretedLayer, check

MACHINES = Path(__file__).parents[3] / "experiments" / "machines"
COPIED = "winograd({}) t:8@by k:8@bx c:{} copy(A,B)x2+4 t:2@ty k:4@tx > fma_opencl4_f32_2x4"
READ = "winograd({}) t:8@by k:8@bx c:{} t:2@ty k:4@tx > fma_opencl4_f32_2x4"
CASES = (
    ("mb1ic6ih5oc10oh5kh3ph1", "nhwc", COPIED.format(2, 3)),
    ("mb2ic4ih8oc8oh6kh3", "nchw", READ.format(4, 4)),
    ("mb1ic5ih5oc7oh5kh3ph1 act=gelu", "nchw", COPIED.format(4, 5)),
    ("mb2ic9ih6oc3oh6kh3ph1", "nhwc", READ.format(2, 9)),
    ("mb1ic6ih5iw9oc5kh3kw3ph1pw1", "nchw", COPIED.format("2,4", 3)),
    ("mb1ic4ih9iw6oc5kh3kw1ph1pw0", "nhwc", READ.format(4, 4)),
    ("mb1ic4ih7oc5kh3ph2dh1", "nhwc", COPIED.format(2, 4)),
    ("mb1ic4ih7iw9oc5kh3kw3ph1pw3dh0dw2", "nchw", COPIED.format(4, 4)),
    ("mb1ic4ih6oc8kh5ph2", "nhwc", COPIED.format(4, 2)),
    ("mb1ic4ih5iw7oc4kh1kw7ph0pw3", "nchw", READ.format(2, 4)),
    ("conv1d mb2ic6iw17oc8kw3pw1", "nchw", COPIED.format(4, 3)),
    ("mb1ic6ih9oc5kh3sh2ph1", "nhwc", COPIED.format(4, 3)),
    ("mb2ic4ih9iw8oc5kh4kw3sh2sw1ph1pw1", "nchw", READ.format(2, 4)),
)


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_integers_are_exact(case: tuple[str, str, str]) -> None:
    text, layout, schedule = case
    check(InterpretedLayer.of(parse_problem(text, layout), parse(schedule)))


def test_a_product_without_barriers_is_found() -> None:
    layer = InterpretedLayer.of(parse_problem(CASES[0][0]), parse(COPIED.format(2, 6)))
    with pytest.raises(MemoryFaultError, match="before anything wrote it"):
        check(layer.change(lambda part: None if isinstance(part, Barrier) else part))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [(COPIED.format(2, 4), "steps of 4 do not divide c:6"),
     (COPIED.format(2, 7), "a step of 7 exceeds 6"),
     (COPIED.format(2, 3).replace("k:8", "k:6"), "6 columns are no multiple of 4"),
     ("t:8@by " + COPIED.format(2, 3), "expected winograd\\(m\\) ahead of its loops")],
)  # fmt: skip
def test_what_does_not_fit_is_refused(schedule: str, message: str) -> None:
    problem, own = parse_problem(CASES[0][0]), parse(schedule)
    with pytest.raises(SpecError, match=message):
        algorithm_of(own).resolve(problem, own, 1)


def context_of(text: str, name: str) -> Context:
    _, roles, strides = model_of(parse_problem(text))
    file = read(MACHINES / f"{name}.toml")
    return Context(roles, strides, file.target, file.machine)


@pytest.mark.exhaustive
def test_auto_compares_both_on_a_gpu() -> None:
    text = "mb1ic64ih56oc64kh3ph1"
    ranked = candidates(parse_problem(text), context_of(text, "a100-108"), None, "auto")
    assert [it.seconds for it in ranked[4:]] == sorted(it.seconds for it in ranked[4:])
    kinds = {str(it.schedule.transform) for it in ranked}
    assert kinds == {"None", "winograd(2)", "winograd(4)"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("g2mb1ic64ih56oc64kh3ph1", "groups=2: expected 1 on devices"),
        ("conv3d mb1ic8id4ih8iw8oc8kd3kh3kw3pd1ph1pw1", "expected one or two axes on devices"),
    ],
)
def test_devices_refuse_groups_of_channels_and_planes(text: str, told: str) -> None:
    problem, context = parse_problem(text), context_of(text, "a100-108")
    with pytest.raises(UnsupportedError, match=f"algorithm winograd: {told}"):
        candidates(problem, context, 1, "winograd")


def test_devices_without_doubles_refuse_it() -> None:
    text = "mb1ic64ih56oc64kh3ph1"
    problem, context = parse_problem(text), context_of(text, "mali-g78-14")
    with pytest.raises(UnsupportedError, match="features of Mali-G78 MP14: expected fp64"):
        candidates(problem, context, 1, "winograd")
    assert candidates(problem, context, 1, "auto")[0].schedule.transform is None
