"""The package of rankers to compare with: its entry points; constant, rules, random."""

import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polysci_rankers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polysci_rankers.constant import DEFAULT, best_template, distance
from polysci_rankers.rules import use_of
from polysci_rankers.template import PLACES, ROWS, WORDS, Template, outlines, parse

import polysci.cost
from polysci.cost import Context
from polysci.cost.batch import batch, costs
from polysci.cost.shortlist import as_family, choices, cost_of, view_contexts
from polysci.errors import SpecError
from polysci.ops.convolutions import Conv2d
from polysci.space.enumerate import RegisterTile
from polysci.space.schedule import Schedule
from polysci.space.schedule import parse as schedule_of
from polysci.target.microkernels import find
from tests.support import samples
from tests.support.installed import install, run_with
from tests.support.nests import TEXTS, nest

LAYER = Conv2d(N=1, C=128, H=28, W=28, K=128, R=3, S=3, pad=1)
POINTWISE = Conv2d(N=1, C=256, H=14, W=14, K=512, R=1, S=1)
GROUPED = Conv2d(N=1, C=16, H=6, W=6, K=16, R=3, S=3, pad=1, groups=8)
PACKAGE = Path(__file__).parents[2] / "experiments/rankers"
MACHINE = '[target]\nisa = "portable"\ncores = 1\nl1 = 32768\nl2 = 262144\nl3 = 2097152\n'
BASELINES = ("constant", "rules", "random")
RANKERS = {**polysci.cost.RANKERS, **polysci_rankers.RANKERS}


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    """The package's rankers beside polysci's own, as its entry points add them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polysci.cost.shortlist.RANKERS", RANKERS)
        yield


def cost(name: str, context: Context, *texts: str) -> list[float]:
    """A ranker's cost of schedules that are given as texts."""
    return costs(context, [schedule_of(text) for text in texts], RANKERS[name].cost).tolist()


@pytest.mark.exhaustive
@settings(max_examples=20)
@given(samples.convolutions(most=24, layouts=("nhwc", "nchw")), st.integers(1, 3), st.data())
def test_a_family_costs_what_its_members_do(
    problem: Conv2d, threads: int, data: st.DataObject
) -> None:
    context = samples.fixed_context(problem, threads)
    wide, family = data.draw(
        st.sampled_from([(w, f) for _, w in view_contexts(context) for f in samples.families(w)])
    )
    picked = data.draw(st.lists(st.integers(0, len(family) - 1), min_size=1, max_size=4))
    fitting = [i for i in picked if samples.fits(wide, family.schedule(i))]
    for name in BASELINES:
        together = RANKERS[name].cost(wide, family)
        assert together.shape == (len(family),) and np.isfinite(together).all()
        assert (together >= 0).all()
        for index in fitting:
            one = RANKERS[name].cost(*as_family(wide, family.schedule(index)))[0]
            assert one == pytest.approx(together[index], rel=1e-12), str(family.schedule(index))


@pytest.mark.exhaustive
@pytest.mark.parametrize("problem", [LAYER, GROUPED, nest("batch"), nest("two batches")], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_gathered_schedules_cost_what_each_does(problem: Conv2d, threads: int) -> None:
    context = samples.fixed_context(problem, threads)
    schedules = samples.members(context, 24)
    assert len(schedules) > 8
    for name in ("traffic", "tiles", *BASELINES):
        found = costs(context, schedules, RANKERS[name].cost)
        assert found == pytest.approx([cost_of(context, plan, name) for plan in schedules])
    texts = {}
    for one in batch(context, schedules):
        for at, index in enumerate(one.indices):
            texts[int(index)] = str(one.family.schedule(at))
    assert sorted(texts) == list(range(len(schedules)))
    assert problem is GROUPED or texts == {i: str(plan) for i, plan in enumerate(schedules)}


@pytest.mark.sampled
@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_layer_has_a_choice(name: str, layout: str, threads: int) -> None:
    for problem in (LAYER, POINTWISE, GROUPED, Conv2d(N=2, C=24, H=9, W=9, K=24, R=3, S=3,
                                                      stride=2, pad=1, groups=24)):  # fmt: skip
        context = samples.fixed_context(problem.with_(layout=layout), threads)
        found = choices(context, 2, ranker=name, tiles=4, blocks=1)
        assert found[0].cost <= found[-1].cost and samples.fits(context, found[0].schedule)


@pytest.mark.parametrize("text", list(TEXTS)[::4])
def test_users_nests_have_a_choice(text: str) -> None:
    context = samples.fixed_context(nest(text))
    for name in BASELINES:
        assert choices(context, 1, ranker=name, tiles=3, blocks=1)


# random


def test_random_is_the_same_in_every_process() -> None:
    """Nothing in it depends on the process, as Python's own hashes of texts do."""
    text = "p:7 pack(A)+16 k:64 p q:7 > brgemm_avx512_f32_7x64"
    found = cost("random", samples.fixed_context(LAYER), text)[0]
    assert found.hex() == "0x1.6d9ecbc56ee70p-2"


def test_random_tells_every_word_apart_and_nothing_else() -> None:
    context = samples.fixed_context(LAYER, 2)
    kernel = "> brgemm_avx512_f32_7x64"
    texts = [
        f"p:7* k:64 p q:7 {kernel}", f"p:14* k:64 p q:7 {kernel}", f"k:64* p q:7 {kernel}",
        f"p:7* k:64* p q:7 {kernel}", f"p:7* pack(A) k:64 p q:7 {kernel}",
        f"p:7* pack(A)+16 k:64 p q:7 {kernel}", f"pack(A)+16 p:7* k:64 p q:7 {kernel}",
        f"p:7* k:64 p q:7 stream(C) {kernel}", "p:7* k:64 p q:7 > brgemm_avx512_f32_6x64",
        f"p:7* k:64 q:7 p {kernel}",
    ]  # fmt: skip
    found = cost("random", context, *texts)
    assert len(set(found)) == len(texts) and all(0 <= number < 1 for number in found)
    again = cost("random", context, f"p:7* k:64 k:64 p q:7 {kernel}")
    assert again == found[:1]  # the second k:64 runs once


def test_random_is_uniform() -> None:
    """Ranks carry no trace of the order of the family or of any knob."""
    context = samples.fixed_context(LAYER)
    found = np.concatenate([RANKERS["random"].cost(context, f) for f in samples.families(context)])
    assert len(found) > 5000
    assert np.histogram(found, 8, (0, 1))[0] == pytest.approx(len(found) / 8, rel=0.2)
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.05


# rules


def test_rules_prefer_what_they_say() -> None:
    context = samples.fixed_context(LAYER)
    good, tall, split, between, packed = cost(
        "rules",
        context,
        "k:64 p q:7 > brgemm_avx512_f32_7x64",
        "k:64 p q:2 > brgemm_avx512_f32_2x64",  # too few rows: B is loaded for little work
        "k:64 c:32 p q:7 > brgemm_avx512_f32_7x64",  # the reduction fits in one call
        "p k:64 q:7 > brgemm_avx512_f32_7x64",  # columns between rows and pixels
        "pack(A) k:64 p q:7 > brgemm_avx512_f32_7x64",  # for nothing
    )
    assert good < min(tall, split, between, packed)
    assert tall > max(split, between, packed)  # the register tile weighs most


def test_rules_put_the_larger_operand_outside() -> None:
    weights = Conv2d(N=1, C=512, H=7, W=7, K=512, R=3, S=3, pad=1)
    pixels = Conv2d(N=1, C=64, H=56, W=56, K=128, R=1, S=1)
    for problem, first in ((weights, "k:64 p"), (pixels, "p q:7 k:64")):
        context = samples.fixed_context(problem)
        tail = "> brgemm_avx512_f32_7x64"
        other = "p k:64" if first[0] == "k" else "k:64 p q:7"
        found = cost("rules", context, f"{first} {tail}", f"{other} {tail}")
        assert found[0] < found[1]


def test_rules_share_the_work_evenly() -> None:
    context = samples.fixed_context(Conv2d(N=1, C=64, H=14, W=14, K=256, R=1, S=1), 2)
    even, third, cut, serial = cost(
        "rules",
        context,
        *(f"{loops} > brgemm_avx512_f32_14x32" for loops in (
            "p:7* k:32 p", "p:5* k:32 p", "p:13* k:32 p", "p:7 k:32 p",
        )),
    )  # fmt: skip
    assert even < min(third, cut, serial)


def test_rules_pack_what_falls_into_few_sets() -> None:
    crowded = samples.fixed_context(Conv2d(N=1, C=2048, H=14, W=14, K=64, R=1, S=1))
    plain, packed = cost(
        "rules", crowded,
        "p k:32 > brgemm_avx512_f32_14x32", "pack(A)+16 p k:32 > brgemm_avx512_f32_14x32",
    )  # fmt: skip
    assert packed < plain


def test_use_counts_idle_lanes_and_few_accumulators() -> None:
    def use(K: int, q: int) -> float:
        context = samples.fixed_context(Conv2d(N=1, C=64, H=28, W=28, K=K, R=1, S=1))
        kernel = find(f"brgemm_avx512_f32_{q}x64")
        return use_of(context, RegisterTile(kernel, (("k", 64), ("q", q), ("p", 1)), q))

    assert use(72, 7) == pytest.approx(0.9 * use(64, 7))  # 8 of 16 lanes idle in the last vector
    assert use(80, 7) == pytest.approx(use(64, 7))
    assert use(64, 1) < 0.5 < use(64, 4) < use(64, 7) < 1


# constant


@st.composite
def templates(draw: st.DrawFn) -> Template:
    words = draw(st.lists(st.sampled_from(WORDS), unique=True))
    size = st.integers(1, 12).map(lambda power: 2**power)
    loops = tuple((word, draw(size) if word in "PQKC" else 0) for word in words)
    return Template(
        loops, draw(st.integers(1, 4)), draw(st.sampled_from(ROWS)), draw(st.sampled_from(PLACES)),
        draw(st.integers(0, 4)), draw(st.booleans()),
    )  # fmt: skip


@given(templates())
def test_a_template_is_its_text(template: Template) -> None:
    assert parse(str(template)) == template
    assert "\n" not in str(template)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("k p q", "expected 'LOOPS >"),
        ("k z > 4v rows:most pack:none parallel:1 stream:no", "with loops from"),
        ("K p > 4v rows:most pack:none parallel:1 stream:no", "have sizes"),
        ("k2 p > 4v rows:most pack:none parallel:1 stream:no", "have sizes"),
        ("k k > 4v rows:most pack:none parallel:1 stream:no", "once"),
        ("k > 4v rows:all pack:none parallel:1 stream:no", "rows:all: expected one of few"),
        ("k > 4v rows:most pack:late parallel:1 stream:no", "pack:late: expected one of none"),
    ],
)
def test_a_text_that_is_no_template(text: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        parse(text)


def template_of(context: Context, text: str) -> Template:
    return outlines(*as_family(context, schedule_of(text))).template(0)


@pytest.mark.parametrize(
    ("schedule", "template"),
    [
        ("k:64* p q:7 > brgemm_avx512_f32_7x64",
         "k p q > 4v rows:most pack:none parallel:1 stream:no"),
        ("p:7 c:64 pack(A) k:16 p q:14 > brgemm_avx512_f32_14x16",
         "P8 C64 k p q > 1v rows:half pack:block parallel:0 stream:no"),
        ("pack(A) k:64 k:32 p q:4 > brgemm_avx512_f32_4x32",
         "K2 k p q > 2v rows:few pack:whole parallel:0 stream:no"),
        ("p q:7 pack(A) k:64 > brgemm_avx512_f32_7x64",
         "p q k > 4v rows:most pack:tile parallel:0 stream:no"),
    ],
)  # fmt: skip
def test_the_template_of_a_schedule(schedule: str, template: str) -> None:
    assert str(template_of(samples.fixed_context(LAYER, 2), schedule)) == template


@settings(max_examples=20)
@given(samples.convolutions(most=24, layouts=("nhwc", "nchw")), st.integers(1, 3), st.data())
def test_a_schedule_is_nearest_to_its_own_template(
    problem: Conv2d, threads: int, data: st.DataObject
) -> None:
    context = samples.fixed_context(problem, threads)
    family = data.draw(st.sampled_from(samples.families(context)))
    index = data.draw(st.integers(0, len(family) - 1))
    template = outlines(context, family).template(index)
    apart = distance(context, family, template)
    assert apart[index] == 0 and (apart >= 0).all()
    assert parse(str(template)) == template


def test_distance_counts_mismatches() -> None:
    context = samples.fixed_context(LAYER, 2)
    template = parse("k p q > 4v rows:most pack:none parallel:1 stream:no")
    texts = (
        "k:64* p q:7 > brgemm_avx512_f32_7x64",
        "k:64* p* q:7 > brgemm_avx512_f32_7x64",
        "k:48* p q:7 > brgemm_avx512_f32_7x48",
        "p* q:7 k:64 > brgemm_avx512_f32_7x64",
        "p:14* k:64 p q:7 > brgemm_avx512_f32_7x64",
        "k:64* pack(A) p q:7 > brgemm_avx512_f32_7x64",
    )
    found = [float(distance(*as_family(context, schedule_of(text)), template)[0]) for text in texts]
    assert found == [0.0, 0.5, 0.75, 3.0, 2.0, 3.0]
    serial = samples.fixed_context(LAYER, 1)
    assert distance(*as_family(serial, schedule_of(texts[1])), template)[0] == 0


def trained(threads: int = 1, count: int = 40) -> list[tuple[Context, list[Schedule], np.ndarray]]:
    found = []
    for problem in (LAYER, POINTWISE, Conv2d(N=1, C=64, H=56, W=56, K=64, R=3, S=3, pad=1)):
        context = samples.fixed_context(problem, threads)
        schedules = samples.members(context, count)
        seconds = np.random.default_rng(len(found)).uniform(2.0, 4.0, len(schedules))
        found.append((context, schedules, seconds))
    return found


def test_training_finds_the_template_that_is_best_everywhere() -> None:
    """Schedules of one kind are made fast on every layer; others are faster on one."""
    fast = schedule_of("k:32 p q:14 > brgemm_avx512_f32_14x32")
    training = [
        (context, [*schedules, fast], np.append(seconds, 1.0))
        for context, schedules, seconds in trained()
    ]
    first = training[0]
    first[2][0] = 0.99
    best = best_template(training)
    assert str(best) == "k p q > 2v rows:most pack:none parallel:0 stream:no"


def test_training_needs_something() -> None:
    with pytest.raises(SpecError, match="at least one layer"):
        best_template([])
    context, schedules, seconds = trained()[0]
    with pytest.raises(SpecError, match="have 3 times"):
        best_template([(context, schedules, seconds[:3])])


def test_training_learns_from_merged_groups() -> None:
    context = samples.fixed_context(GROUPED)
    schedules = samples.members(context, 20)
    best = best_template([(context, schedules, np.arange(1.0, len(schedules) + 1))])
    assert parse(str(best)) == best


def test_the_default_is_what_the_code_says() -> None:
    assert str(DEFAULT) == "P4 k p q > 3v rows:half pack:none parallel:1 stream:no"
    context = samples.fixed_context(LAYER)
    best = choices(context, 1, ranker="constant")[0].schedule
    assert str(best) == "p:3 k:64 p q:5 > brgemm_avx512_f32_5x64"


@pytest.mark.perf
def test_training_takes_seconds() -> None:
    training = [layer for _ in range(15) for layer in trained(count=150)]
    start = time.process_time()
    best_template(training)
    assert time.process_time() - start < 10


@pytest.mark.exhaustive
def test_the_package_adds_its_rankers_by_its_entry_points(tmp_path: Path) -> None:
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    points = project["entry-points"]["polysci.rankers"]
    assert {
        name: getattr(polysci_rankers, value.partition(":")[2]) for name, value in points.items()
    } == polysci_rankers.RANKERS
    rows = "".join(f"{name} = {value}\n" for name, value in points.items())
    files = {
        f"polysci_rankers/{path.name}": path.read_text(encoding="utf-8")
        for path in (PACKAGE / "polysci_rankers").glob("*.py")
    }
    install(tmp_path, "polysci_rankers", f"[polysci.rankers]\n{rows}", files)
    (tmp_path / "machine.toml").write_text(MACHINE)
    done = run_with(tmp_path, "-m", "polysci", "rank", "--list", "--wide")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        *polysci.cost.RANKERS, *sorted(points),
    ]  # fmt: skip
    words = ("rank", "mb1ic8ih5oc14oh5kh3ph1", "--machine", "machine.toml", "--ranker", "tiles")
    done = run_with(tmp_path, "-m", "polysci", *words, "--json")
    assert done.returncode == 0 and '"ranker": "tiles"' in done.stdout, done.stderr
