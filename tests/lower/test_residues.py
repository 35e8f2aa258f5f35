"""Residue classes of gradients with strides: the classes, their code, their texts and errors."""

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polysci import tune
from polysci.cli import main
from polysci.cost import Context
from polysci.errors import SpecError, UnsupportedError
from polysci.lower.algorithm import EmitOptions
from polysci.lower.choice import candidates, key_of, parse_record_key, resolve_algorithm
from polysci.lower.residues import classes_of
from polysci.measure.check import check
from polysci.ops import BackwardData, Conv2d, Conv3d, in_direction, parse_problem
from polysci.ops.model import model_of
from polysci.polyhedral.contraction import contract
from polysci.runtime.source import emit
from polysci.space.schedule import parse
from polysci.target.host import detect
from polysci.target.machine import assume_rates

TEXT = "bwd_d mb2ic5ih9oc6kh3sh2ph1"
PLAN = "n residues(2,2) h w:4 > brgemm_portable_f32_4x8"
CASES = {
    "padded": "bwd_d mb2ic20ih9iw8oc7kh3kw2sh2sw2ph1pw0",
    "one by one": "bwd_d mb2ic19ih8oc20kh1sh2ph0",
    "grouped": "bwd_d g3mb1ic6ih10oc9kh3sh2ph1",
    "depthwise": "bwd_d g20mb2ic20ih9oc20kh3sh2ph1",
    "dilated by a multiple": "bwd_d mb1ic3ih11oc4kh3sh2ph2dh3",
    "dilated by the stride": "bwd_d mb2ic4ih11oc4kh3sh2ph2dh1",
    "one axis": "bwd_d mb1ic5ih11iw7oc4kh3kw3sh1sw3ph0pw1",
    "deep": "bwd_d mb2ic5id5ih6iw7oc4kd3kh2kw3sd2sh1sw2pd1ph0pw1",
    "deep, depthwise": "bwd_d g20mb1ic20id5oc20kd3sd2pd1",
    "groups of one": "bwd_d g2ic2ih6iw11oc12kh2kw3sh3sw2ph1pw1",
}


@st.composite
def gradients(draw: st.DrawFn) -> BackwardData:
    small, axes = st.integers(1, 4), draw(st.sampled_from([2, 2, 3]))
    groups = draw(st.sampled_from([1, 1, 2]))
    stride, dilation = (tuple(draw(st.integers(1, 3)) for _ in range(axes)) for _ in "sd")
    assume(max(stride) > 1)
    sizes = [draw(st.integers(3, 13 if axes == 2 else 7)) for _ in range(axes)]
    taps = [draw(small) for _ in range(axes)]
    pad = tuple(draw(st.integers(0, 4)) for _ in range(axes))
    rows = zip(sizes, taps, pad, dilation, strict=True)
    assume(all(size + 2 * cut >= (count - 1) * apart + 1 for size, count, cut, apart in rows))
    counts = (draw(small), groups * draw(small), *sizes, groups * draw(small), *taps)
    kind: Any = Conv2d if axes == 2 else Conv3d
    conv = kind(*counts, stride, pad, dilation, groups)
    if draw(st.booleans()):  # fewer rows than fit: the last ones of X are not read
        conv = conv.with_(P=draw(st.integers(1, conv.P)))
    return in_direction(conv, "bwd_d")  # type: ignore[return-value]


@settings(max_examples=10)
@given(gradients())
def test_classes_are_the_scattering_nest(problem: BackwardData) -> None:
    random, conv = np.random.default_rng(0), problem.with_(layout="nchw")
    dy = random.integers(-4, 5, conv.x_shape)
    w = random.integers(-4, 5, conv.w_shape)
    expected, visited = conv.reference(dy, w), np.zeros(conv.y_shape, int)
    for it in classes_of(conv):
        at = tuple(slice(first, None, step) for first, step in zip(it.first, it.steps, strict=True))
        sums = np.zeros(it.contraction.out.shape, dy.dtype)
        contract(it.contraction, dy, w, sums)
        assert np.array_equal(sums, expected[at])
        visited[at] += 1
    assert (visited == 1).all()
    assert sum(it.taps for it in classes_of(conv)) <= prod(conv.forward.taps)


def test_the_taps_of_a_class_are_every_few() -> None:
    told = {
        it.first[2:]: (it.taps, it.contraction.formula.split(" += ")[1])
        for it in classes_of(parse_problem("bwd_d mb1ic5ih9oc4kh3sh2ph1"))
    }
    assert told == {
        (1, 1): (4, "O[n][k][h + r][w + s] * W[k][c][-2*r + 2][-2*s + 2]"),
        (0, 1): (2, "O[n][k][h + r][w + s] * W[k][c][-2*r + 1][-2*s + 2]"),
        (1, 0): (2, "O[n][k][h + r][w + s] * W[k][c][-2*r + 2][-2*s + 1]"),
        (0, 0): (1, "O[n][k][h + r][w + s] * W[k][c][-2*r + 1][-2*s + 1]"),
    }
    dilated = classes_of(parse_problem("bwd_d mb1ic5ih11oc4kh3sh2ph2dh1"))
    assert [it.taps for it in dilated] == [9, 0, 0, 0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_code_of_the_first_choices_is_right(words: str, isa: str) -> None:
    if isa not in {own.name for own in detect().runnable}:
        pytest.skip(f"this CPU lacks {isa}")
    layout, dtype = ("nchw", "nhwc")[len(words) % 2], ("f32", "bf16")[len(words) // 2 % 2]
    problem, target, threads = parse_problem(words, layout, dtype), detect(isa), 1 + len(words) % 2
    _, roles, strides = model_of(problem)
    context = Context(roles, strides, target, assume_rates(target), threads)
    chosen = [choice.schedule for choice in candidates(problem, context, 1, kinds=1)]
    for verdict in check(problem, chosen, threads):
        assert verdict.passed, verdict.fault


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("steps", "threads"),
    [
        ("n* residues(2,2) h c:8 w:4", 2),
        ("n residues(2,2) pack(A) h c:8 w:4", 1),
        ("n* residues(2,2) pack(A) c:8 h w:2", 2),
        ("residues(2,2) h:2* n c:8 w:2", 2),
        ("residues(2,2) pack(A) n* h c:8 w:4", 2),
        ("residues(2,2) n k:2 h c:8 w:4", 1),
    ],
)
def test_loops_around_and_inside_the_classes(steps: str, threads: int) -> None:
    plan = parse(f"{steps} > brgemm_portable_f32_4x8")
    for verdict in check(parse_problem("bwd_d mb3ic9ih9oc6kh3sh2ph1"), [plan], threads):
        assert verdict.passed, verdict.fault


@pytest.mark.exhaustive
def test_it_is_chosen_where_it_alone_applies() -> None:
    strided, dense = parse_problem(TEXT), parse_problem("bwd_d mb2ic5ih9oc6kh3ph1")
    assert resolve_algorithm(strided, "direct") == resolve_algorithm(strided, "auto") == "residues"
    assert resolve_algorithm(dense, "auto") == "direct"
    assert parse_record_key(key_of(strided, "direct")) == (strided, "residues")
    result = tune.optimize(strided, "estimate", target=detect("portable"))
    assert str(result.schedule.transform) == "residues(2,2)"
    assert tune.optimize(strided, target=detect("portable"), schedule=PLAN).source.symbols


@pytest.mark.parametrize(
    ("text", "plan", "message"),
    [
        (TEXT, "n h w:4", "algorithm direct: it scatters into its result"),
        ("bwd_d mb2ic5ih9oc6kh3ph1", PLAN, "a single residue class"),
        ("mb2ic5ih9oc6kh3ph1", PLAN, "only gradients of inputs have residue classes"),
        (TEXT, "n residues(2,3) h w:4", r"expected residues\(2,2\), the strides"),
        (TEXT, "h residues(2,2) w:4", "only a loop over n may enclose"),
        (TEXT, "n* residues(2,2) h* w:4", "cannot be parallel"),
        (TEXT, "n residues(2,2) h:6 w:4", "step 6 exceeds the 5"),
        (TEXT, "residues(2,2) pack(A) n* residues(2,2)", "one transform at most"),
    ],
)
def test_other_schedules_are_refused(text: str, plan: str, message: str) -> None:
    with pytest.raises((SpecError, UnsupportedError), match=message):
        schedule = parse(plan if ">" in plan else f"{plan} > brgemm_portable_f32_4x8")
        emit(parse_problem(text), schedule)


def test_no_rows_of_it() -> None:
    with pytest.raises(UnsupportedError, match="its classes share no outermost loop"):
        emit(parse_problem(TEXT), parse(PLAN), options=EmitOptions(by_rows=True))


def test_strides_of_the_caller() -> None:
    """Arrays inside larger ones: pixels and images of dX and dY lie further apart."""
    problem = parse_problem(TEXT)
    wide = {
        name: tuple(2 * stride if stride > 1 else 1 for stride in strides)
        for name, strides in model_of(problem)[2].items()
        if name != "W"
    }
    own, other = (
        emit(problem, parse(PLAN), options=EmitOptions(strides=strides)).text
        for strides in ({}, wide)
    )
    starts = [at for at in (5 * 9, 5) for _ in product("rc")]
    for start in starts:
        assert f"y + {start}," in own and f"y + {2 * start}," in other


def test_the_explanation_lists_the_classes() -> None:
    from polysci.lower.algorithm import ExplainRequest
    from polysci.lower.registry import algorithm_of

    problem, target = parse_problem("bwd_d mb2ic5ih9oc6kh1sh2ph0"), detect("portable")
    _, roles, strides = model_of(problem)
    context = Context(roles, strides, target, assume_rates(target))
    explanation = algorithm_of(parse(PLAN)).explain(
        ExplainRequest("a gradient", problem, parse(PLAN), context)
    )
    told, members = explanation.render(100), explanation.members()
    assert "2i+0, 2i+0" in told and "none: zeros" in told and explanation.nest is None
    assert [it["taps"] for it in members["classes"]] == [1, 0, 0, 0]
    assert members["predicted"] == sum(it["predicted"] for it in members["classes"])


def test_rankers_refuse_what_is_not_direct(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rank", TEXT, "--isa", "portable"]) == 1
    assert "rankers order direct schedules, but it scatters" in capsys.readouterr().out
