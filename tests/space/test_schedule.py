"""Schedules as text, and every rule of their loops with its message."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.errors import SpecError
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import DIRECTIVES, Ahead, Pack, Private, Stream, Swap
from polysci.space.schedule import Schedule, parse

EXTENTS = {"n": 2, "k": 64, "p": 56, "q": 56, "c": 64, "r": 3, "s": 3}
KERNEL = "brgemm_avx512_f32_14x32"

identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
loops = st.builds(Loop, identifiers, st.integers(1, 10**12 - 1), st.booleans())
packs = st.builds(Pack, st.integers(0, 999_999))


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    steps: list[Loop | Pack] = draw(st.lists(loops, max_size=8))
    if draw(st.booleans()):
        steps.insert(draw(st.integers(0, len(steps))), draw(packs))
    rows = draw(
        st.lists(st.sampled_from([row for row in DIRECTIVES if row is not Pack]), unique=True)
    )
    return Schedule(tuple(steps), draw(identifiers)).having(*(row() for row in rows))


@pytest.mark.exhaustive
@given(schedules())
def test_parse_reads_what_str_writes(schedule: Schedule) -> None:
    assert parse(str(schedule)) == schedule
    assert parse(f"  {str(schedule).replace(' ', '   ')}\n") == schedule
    assert "\n" not in str(schedule)


@given(st.text(alphabet="abk:*>()+ 0pAck\n", max_size=40))
def test_any_text_is_a_schedule_or_a_spec_error(text: str) -> None:
    try:
        schedule = parse(text)
    except SpecError as error:
        assert repr(text) in str(error)
    else:
        assert parse(str(schedule)) == schedule


def test_the_text_of_the_documentation() -> None:
    schedule = parse(f"n* k:64* pack(A)+16 c:64 p q:14 k:32 > {KERNEL}")
    assert schedule.steps == (
        Loop("n", parallel=True), Loop("k", 64, parallel=True), Pack(16),
        Loop("c", 64), Loop("p"), Loop("q", 14), Loop("k", 32),
    )  # fmt: skip
    assert str(schedule) == f"n* k:64* pack(A)+16 c:64 p q:14 k:32 > {KERNEL}"
    assert [loop.dim for loop in schedule.loops] == ["n", "k", "c", "p", "q", "k"]
    assert [str(loop) for loop in schedule.parallel] == ["n*", "k:64*"]
    assert (schedule.pack, schedule.pack_depth) == (Pack(16), 2)
    schedule.check(EXTENTS)


def test_weights_may_be_prefetched() -> None:
    schedule = parse(f"k:32 p ahead(B) stream(C) > {KERNEL}")
    assert schedule.has(Ahead) and schedule.has(Stream)
    assert parse(f"k:32 p ahead(B) > {KERNEL}").has(Ahead)
    assert not parse(f"k:32 p > {KERNEL}").has(Ahead)
    for text in ("k:32 p stream(C) ahead(B)", "k:32 ahead(B) p", "k:32 ahead(B) ahead(B)"):
        with pytest.raises(SpecError, match=r"nor a last 'ahead\(B\) stream\(C\)'"):
            parse(f"{text} > {KERNEL}")


def test_the_factors_may_change_places() -> None:
    schedule = parse(f"swap(A,B) q:32 k:8 > {KERNEL}")
    assert schedule.has(Swap) and not parse(f"q:32 k:8 > {KERNEL}").has(Swap)
    assert str(schedule) == f"swap(A,B) q:32 k:8 > {KERNEL}"
    assert [loop.dim for loop in schedule.loops] == ["q", "k"]
    assert parse(f"swap(A,B) stream(C) > {KERNEL}") == Schedule((Swap(), Stream()), KERNEL)
    both = parse(f"swap(A,B) private(C) c:8* k > {KERNEL}")
    assert both.has(Swap) and both.has(Private)
    assert str(both) == f"swap(A,B) private(C) c:8* k > {KERNEL}"


def test_the_output_may_be_streamed() -> None:
    schedule = parse(f"p k:32 stream(C) > {KERNEL}")
    assert schedule.has(Stream) and not parse(f"p k:32 > {KERNEL}").has(Stream)
    assert str(schedule) == f"p k:32 stream(C) > {KERNEL}"
    assert parse(f"stream(C) > {KERNEL}") == Schedule((Stream(),), KERNEL)


def test_tiles_shrink_from_the_outside_in() -> None:
    schedule = parse(f"k:32 p:7 k:16 q:100 > {KERNEL}")
    sizes = [schedule.tile(EXTENTS, depth) for depth in range(4)]
    assert [(size["k"], size["p"], size["q"]) for size in sizes] == [
        (64, 56, 56), (32, 56, 56), (32, 7, 56), (16, 7, 56),
    ]  # fmt: skip
    assert schedule.tile(EXTENTS) == EXTENTS | {"k": 16, "p": 7}


def test_a_schedule_without_loops_or_packing() -> None:
    schedule = parse(f"> {KERNEL}")
    assert (schedule.steps, schedule.pack, schedule.pack_depth) == ((), None, 0)
    assert schedule.tile(EXTENTS) == EXTENTS
    schedule.check(EXTENTS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "schedule '': expected 'LOOPS > KERNEL'"),
        ("k p", "expected 'LOOPS > KERNEL'"),
        ("k >", "expected 'LOOPS > KERNEL'"),
        ("k > two words", "expected 'LOOPS > KERNEL'"),
        ("k > a > b", "expected 'LOOPS > KERNEL'"),
        ("k > x;y", "expected 'LOOPS > KERNEL'"),
        ("k:x > a", "'k:x' is neither a loop 'dim[:step][*]' or 'dim[:step]@axis' nor 'pack("),
        ("k:-1 > a", "'k:-1' is neither a loop"),
        ("k:1:2 > a", "'k:1:2' is neither a loop"),
        ("k*:2 > a", "'k*:2' is neither a loop"),
        ("k:9999999999999 > a", "'k:9999999999999' is neither a loop"),
        ("pack(C) k > a", "'pack(C)' is neither a loop"),
        ("hilbert(C) k p > a", "'hilbert(C)' is neither a loop"),
        ("k pack(B)+16 > a", "'pack(B)+16' is neither a loop"),
        ("pack(A)- k > a", "'pack(A)-' is neither a loop"),
        ("pack(A) k pack(A)+16 p > a", "'pack(A)+16': one packing of each at most"),
        ("k:² > a", "'k:²' is neither a loop"),
        ("stream(C) k > a", "'stream(C)' is neither a loop"),
        ("k stream(A) > a", "'stream(A)' is neither a loop"),
        ("k swap(A,B) > a", "'swap(A,B)' is neither a loop"),
        ("swap(B,A) k > a", "'swap(B,A)' is neither a loop"),
    ],
)
def test_bad_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("z k:32", "schedule: loop z: no dimension 'z' among n, k, p, q, c, r, s"),
        ("k:0", "schedule: loop k:0: the step must be at least 1"),
        ("k:65", "schedule: loop k:65: step 65 exceeds the 64 of 'k' that reach it"),
        ("k:16 k:32", "schedule: loop k:32: step 32 exceeds the 16 of 'k' that reach it"),
        ("k:24 p k:16", "schedule: loop k:24: its step must be a multiple of k:16's inside it"),
        ("k:48 k:24 k:16", "must be a multiple of k:16's inside it"),
        ("k:32 p*", "parallel loops must be the outermost ones"),
        ("n* k:32 p*", "parallel loops must be the outermost ones"),
        ("k:32* k:16*", "a dimension can be parallel once"),
        ("n* pack(A) p* q:14", "packing may not stand between parallel loops"),
    ],
)
def test_loops_that_do_not_nest_are_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        parse(f"{text} > {KERNEL}").check(EXTENTS)


@pytest.mark.parametrize(
    "text",
    [
        "k:64",
        "k:48 p k:16",
        "k:32 k:32",
        "p:13 q:55",
        "pack(A) n* p*",
        "n* p* pack(A) q",
        "n* k:32* p k:16",
        "r s c:7",
    ],
)
def test_loops_that_nest_are_accepted(text: str) -> None:
    parse(f"{text} > {KERNEL}").check(EXTENTS)


def test_schedules_are_values() -> None:
    text = f"k:32 p > {KERNEL}"
    assert len({parse(text), parse(text)}) == 1
    with pytest.raises(AttributeError):
        parse(text).kernel = "other"  # type: ignore[misc]
