"""Explanations: their counts against brute force, their text and JSON, and the picture."""

import json
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, fields, make_dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.cli import main
from polysci.cost import RANKERS, Estimate
from polysci.errors import SpecError, UnsupportedError
from polysci.explain import Explanation, MeasuredTime, account, explain, members, render
from polysci.explain.levels import insides
from polysci.explain.plot import check, draw
from polysci.explain.terms import terms_of
from polysci.ops.convolutions import Conv2d
from polysci.ops.model import model_of
from polysci.polyhedral.contraction import Contraction, Operand
from polysci.space import schedule
from tests.support import samples

LAYER = "mb1ic8ih10oc24oh10kh3ph1"
SQUARE = Conv2d(N=1, C=16, H=12, W=12, K=32, R=3, S=3, pad=1)
HOSTILE = 'a $x^2$ \\alpha & <b> "q" \u4e2d'
PNG = b"\x89PNG\r\n\x1a\n"


@lru_cache
def explained(problem: Conv2d = SQUARE, threads: int = 1, plan: str | None = None) -> Explanation:
    given = schedule.parse(plan) if plan else None
    context = samples.fixed_context(problem, threads)
    return explain(problem.name or "layer", model_of(problem)[0], context, given)


@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3),
    st.sampled_from(["k", "p", "c", "r"]),
)  # fmt: skip
def test_what_an_iteration_keeps_for_the_next_is_that_of_brute_force(
    taps: int, stride: int, dilation: int, step: int, dim: str
) -> None:
    span = (taps - 1) * dilation + 1
    problem = Conv2d(N=1, C=7, H=span + 6 * stride, W=3, K=7, R=taps, S=1, stride=stride,
                     dilation=dilation, pad=0)  # fmt: skip
    roles = model_of(problem)[1]
    if roles.extent(dim) < 2 * step:
        return
    plan = schedule.parse(f"{dim}:{step} > brgemm_avx512_f32_1x16")
    inside = insides(roles, plan, (1, 2, 3), 1.0)[-1]
    boxes = [
        [range(at, at + step) if d.name == dim else range(d.extent) for d in roles.dims]
        for at in (0, step)
    ]
    for operand, size, kept in zip(
        (roles.a, roles.b, roles.out), (inside.a, inside.b, inside.c), inside.kept, strict=True
    ):
        first, second = (touched(roles, operand, box) for box in boxes)
        assert size == 4 * len(first)
        assert kept == pytest.approx(len(first & second) / len(first))


def touched(roles: Contraction, operand: Operand, box: list[range]) -> set[tuple[int, ...]]:
    """Elements of an operand that the iterations of a box use."""
    names = [d.name for d in roles.dims]
    used = [name for name in names if operand.uses(name)]
    found = set()
    for values in product(*(box[names.index(name)] for name in used)):
        at = dict(zip(used, values, strict=True))
        found.add(tuple(
            index.const + sum(coef * at[name] for name, coef in index.terms)
            for index in operand.index
        ))  # fmt: skip
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_terms_and_their_stack_sum_to_the_prediction(threads: int) -> None:
    found = explained(threads=threads)
    for terms in (found.terms, *(rival.terms for rival in found.rivals)):
        told = sum(seconds for _, seconds in terms.shares) + terms.other
        assert told == pytest.approx(terms.seconds)
        assert sum(seconds for _, seconds in terms.stack()) == pytest.approx(terms.seconds)
        assert all(seconds > 0 for _, seconds in terms.stack())
    names = {field.name for field in fields(Estimate)}
    assert set(dict(found.terms.work)) <= names - {"seconds", "levels", "imbalance"}


@pytest.mark.exhaustive
def test_a_term_that_the_model_gains_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    context = samples.fixed_context(SQUARE)
    found = explained()
    gained = make_dataclass("Gained", [("misses", np.ndarray)], bases=(Estimate,), frozen=True)
    old = terms_of(context, found.schedule)

    def estimate_of(*_: object) -> Estimate:
        from polysci.cost.shortlist import estimate_of

        own = estimate_of(context, found.schedule)
        parts = {field.name: getattr(own, field.name) for field in fields(Estimate)}
        return gained(**parts | {"seconds": own.seconds + 1.0}, misses=np.full(1, 1.0))

    monkeypatch.setattr("polysci.explain.terms.estimate_of", estimate_of)
    new = account("x", model_of(SQUARE)[0], context, found.schedule)
    assert new.terms.of("misses") == 1.0 and new.terms.other == pytest.approx(old.other)
    assert "misses" in render(new) and members(new)["terms"]["misses"] == 1.0


def test_the_loops_working_sets_and_where_they_live() -> None:
    found = explained(plan="p:4 k:16 p q:6 > brgemm_portable_f32_6x4")
    whole, outer, block, _, inner = found.inside
    assert (whole.step, outer.step, inner.step) == ("", "p:4", "q:6")
    assert (outer.trips, block.trips, inner.trips) == (3, 2, 2)
    # Rows p..p+3 read image rows p-1..p+4, of which there are six of twelve.
    assert outer.a == 4 * 6 * 12 * 16 and outer.c == 4 * 4 * 12 * 32 and outer.b == whole.b
    assert outer.kept == (pytest.approx(1 - 4 / 6), 1.0, 0.0)  # two of six rows are new for next
    assert block.kept[0] == 1.0 and block.kept[1:] == (0.0, 0.0)
    for one in found.inside:
        held = dict(zip(("L1", "L2", "L3"), found.caches, strict=True)).get(one.fits, np.inf)
        assert one.working_set <= found.usable * held
    for flow in found.flows:
        assert flow.total >= 0.999 * flow.bound or flow.level == "L1"


def test_a_machine_says_what_share_of_a_cache_is_usable() -> None:
    context = samples.fixed_context(SQUARE)
    context = replace(context, machine=context.machine.with_coefficients({"usable_cache": 1e-6}))
    plan = schedule.parse("p:4 k:16 p q:6 > brgemm_portable_f32_6x4")
    found = account("layer", model_of(SQUARE)[0], context, plan)
    assert {row.fits for row in found.inside} == {"memory"}
    assert {flow.holds for flow in found.flows} == {None}


@pytest.mark.exhaustive
def test_a_cache_that_threads_share_is_divided() -> None:
    one, two = explained().caches, explained(threads=2).caches
    assert one[0] == two[0] and one[2] == 2 * two[2]


def test_dependences_are_the_reductions_own() -> None:
    found = {one.kind: one for one in explained().dependences}
    for kind in ("flow", "anti", "output"):
        assert found[kind].reduction
        assert [name for name, _, _ in found[kind].distances] == ["c", "r", "s"]
        assert found[kind].distances[0] == ("c", 0, 15)
    assert not found["input"].reduction and len(found["input"].distances) > 3


def test_reuse_names_loops_windows_and_memory_order() -> None:
    a, b, c = explained().reuse
    assert (a.whole, a.window, a.contiguous) == (("k",), ("p+r", "q+s"), ("c",))
    assert (b.whole, b.window, b.contiguous) == (("p", "q"), (), ("k",))
    assert (c.whole, c.contiguous) == (("c", "r", "s"), ("k",))
    assert c.times == 16 * 9 and b.times == 144


def test_the_lowest_roof_binds() -> None:
    found = explained()
    assert found.binding.rate == min(roof.rate for roof in found.roofs)
    for roof, flow in zip(found.roofs[-3:], found.flows, strict=True):
        assert roof.intensity == pytest.approx(found.multiplied / flow.total)
        assert roof.rate == pytest.approx(roof.intensity * (roof.bandwidth or 0))


@pytest.mark.exhaustive
def test_taps_in_the_padding_do_not_count_beside_a_peak() -> None:
    """A layer of which half is padding, timed at what its multiplications take at the peak."""
    problem = Conv2d(N=1, C=16, H=2, W=2, K=24, R=3, S=3, pad=1)
    found = explained(problem)
    assert (found.flops, found.multiplied) == (9 * 4 * 768, 4 * 4 * 768)
    at_peak = MeasuredTime(found.multiplied / found.peak * 1e-9)
    text = render(replace(found, measured=at_peak))
    rate = found.flops / at_peak.seconds * 1e-9
    assert f"{rate:.1f} GFLOP/s, 100 % of the peak" in text
    assert "2.765e-05 GFLOP, of which 1.229e-05 are not with padding" in text
    assert members(found)["multiplied_flops"] == found.multiplied


@pytest.mark.exhaustive
def test_every_ranker_that_can_tell_has_a_view() -> None:
    found = explained()
    names = [view.ranker for view in found.views]
    assert "traffic" in names and set(names) <= set(RANKERS)
    assert next(view for view in found.views if view.ranker == "traffic").rank == 1
    worst = explained(plan="p q > brgemm_portable_f32_1x4")
    own = next(view for view in worst.views if view.ranker == "traffic")
    assert own.rank == own.count and own.cost > own.least


def test_a_ranker_that_cannot_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def untrained(*_: object) -> np.ndarray:
        raise SpecError("not trained")

    @dataclass(frozen=True)
    class Ranker:
        summary = "none"
        cost = staticmethod(untrained)

    rankers = {"traffic": RANKERS["traffic"], "untrained": Ranker()}
    monkeypatch.setattr("polysci.explain.model.RANKERS", rankers)
    monkeypatch.setattr("polysci.cost.shortlist.RANKERS", rankers)
    assert [view.ranker for view in explained.__wrapped__().views] == ["traffic"]


def test_text_has_every_section_and_json_the_same() -> None:
    found = explained(threads=2)
    text = render(found)
    for part in (
        "Loop nest", "Dependences", "GEMM roles", "Reuse that", "Schedule", "Inside one",
        "Traffic", "the least", "Prediction", "Roofline", "binds", "Nearest rivals", "rankers say",
        "imbalance", "kept for the next", "holds",
    ):  # fmt: skip
        assert part in text
    told = json.loads(json.dumps(members(found), allow_nan=False))
    for name in ("dependences", "reuse", "inside", "traffic", "terms", "roofline", "rankers"):
        assert told[name]
    assert told["predicted_seconds"] == found.terms.seconds == told["terms"]["seconds"]
    assert told["roofline"]["binding"] == found.binding.name
    assert [one["working_set"] for one in told["inside"]] == [o.working_set for o in found.inside]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "measured", [None, MeasuredTime(1e-3), MeasuredTime(1e-3, True, 0.9, 0.7, True)]
)
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_picture(tmp_path: Path, suffix: str, measured: MeasuredTime | None) -> None:
    context = samples.fixed_context(SQUARE)
    found = explain(HOSTILE, model_of(SQUARE)[0], context, measured=measured,
                    schedule=explained().schedule)  # fmt: skip
    path = tmp_path / f"picture{suffix}"
    draw(found, path)
    data = path.read_bytes()
    if suffix == ".png":
        assert data.startswith(PNG) and len(data) > 10_000
    else:
        assert ElementTree.fromstring(data).tag.endswith("svg") and len(data) > 10_000
    draw(found, path)
    assert path.read_bytes() == data  # the same explanation, the same bytes


@pytest.mark.parametrize(
    ("name", "told"),
    [("x.pdf", "ends in .png or .svg"), ("x", "ends in"), ("no/such/x.png", "no folder"),
     (".", "ends in")],
)  # fmt: skip
def test_a_picture_that_cannot_be_written(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        check(tmp_path / name)


def test_a_folder_is_no_picture(tmp_path: Path) -> None:
    (tmp_path / "x.png").mkdir()
    with pytest.raises(SpecError, match="is a folder"):
        check(tmp_path / "x.png")


def test_without_matplotlib_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'polysci\[plot\]'"):
        check(tmp_path / "x.png")


@pytest.mark.exhaustive
def test_the_command_draws_one_picture_a_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.svg"
    assert main(["explain", LAYER, "mb1ic4ih5oc8kh1", "--json", "--plot", str(path)]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x-1.svg", "x-2.svg"]
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[0])["title"] == LAYER
    assert "x-1.svg" in said.err
    assert main(["explain", LAYER, "--plot", str(tmp_path / "x.jpeg")]) == 2
    assert ".png or .svg" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_tried_schedule_is_shown_with_its_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from polysci.ops import parse_problem
    from polysci.runtime.measurement import host_of
    from polysci.target.host import detect
    from polysci.tune.wisdom import Wisdom

    target, plan = detect("portable"), "p q:5 > brgemm_portable_f32_5x4"
    problem = parse_problem(LAYER, "nhwc")
    times = {plan: 0.5}
    Wisdom().record_trials(problem.key, 1, target.isa.features, times, host=host_of(target))
    command = ["explain", LAYER, "--isa", "portable", "--json", "--schedule"]
    assert main([*command, plan]) == 0
    assert json.loads(capsys.readouterr().out)["measured_seconds"] == 0.5
    assert main([*command, "p q:2 > brgemm_portable_f32_2x4"]) == 0
    assert json.loads(capsys.readouterr().out)["measured_seconds"] is None
