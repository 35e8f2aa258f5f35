"""Which calls prefetch which lines of the next panel of weights, and where that lies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.errors import UnsupportedError
from polysci.ops.convolutions import Conv2d
from polysci.ops.model import model_of
from polysci.space.directives.ahead import PanelReuse, Panels, follow_in_cache, share_lines
from polysci.space.schedule import parse
from polysci.target.microkernels import find

CONV = Conv2d(N=2, C=32, H=7, W=7, K=96, R=3, S=3, pad=1)
KERNEL = find("brgemm_avx512_f32_7x32")


def reuse(text: str) -> PanelReuse:
    schedule = parse(f"{text} ahead(B) > {KERNEL}")
    return PanelReuse.of(model_of(CONV)[1], schedule, KERNEL)


@given(st.integers(1, 12), st.integers(1, 40))
def test_the_calls_of_a_panel_prefetch_every_line_of_a_step_once(lines: int, calls: int) -> None:
    count, first, end = share_lines(lines, calls)
    assert 0 <= first < end <= calls
    covered = [count * (call - first) + line for call in range(first, end) for line in range(count)]
    assert covered == list(range(len(covered)))
    assert lines <= len(covered) < lines + count
    assert abs(first - (calls - end)) <= 1  # the middle ones
    one = np.ones(1, dtype=np.int64)
    (share,) = Panels(one, calls * one, lines * one, calls * one, one).shares(np.array([True]))
    assert share == (end - first) / calls


@pytest.mark.parametrize(
    ("text", "mover", "calls"),
    [
        ("n k:32 p", "k", 7),
        ("k:32 n p", "k", 14),
        ("n k:32 p:4 p", "k", 8),
        ("n k:32 c:16 p", "c", 7),
        ("c:16 n k:32 p", "k", 7),
        ("n k:32 p c:32", "k", 7),  # a loop that runs once moves nothing
        ("n p k:32", "k", 1),
    ],
)
def test_the_innermost_loop_over_weights_moves_to_the_next_panel(
    text: str, mover: str, calls: int
) -> None:
    panel = reuse(text)
    assert panel.outer[-1].dim == mover and panel.calls == calls
    schedule = parse(f"{text} > {KERNEL}")
    steps = np.array([[loop.step for loop in schedule.loops]])
    dims = [loop.dim for loop in schedule.loops]
    panels = Panels.of(model_of(CONV)[1], KERNEL, dims, steps, 1e9)
    inside = schedule.tile({"c": 32, "k": 96, "n": 2, "p": 7, "q": 7, "r": 3, "s": 3})
    assert panels.calls[0] == calls and panels.lines[0] == 2
    assert panels.reuse[0] == (16 if "p:4" in text else 14)
    assert panels.size[0] == 4 * inside["k"] * inside["c"] * 9


@pytest.mark.parametrize("text", ["n p", "n k:96 p"])
def test_a_panel_needs_a_successor(text: str) -> None:
    with pytest.raises(UnsupportedError, match="needs a loop over W: its calls read one panel"):
        reuse(text)


def test_two_panels_must_fit_the_cache_and_all_of_them_must_not() -> None:
    roles, dims = model_of(CONV)[1], ("n", "k", "p")
    steps = np.array([[1, k, p] for k in (32, 64) for p in (1, 7)])
    panel, everything = 4 * 32 * 32 * 9, 4 * 96 * 32 * 9
    for l2, follows in (
        (everything, [False, False, False, False]),
        (everything - 1, [True, True, False, False]),  # two of 64 columns are 4/3 of all
        (panel * 8 / 3 - 1, [False, False, False, False]),
    ):
        assert list(follow_in_cache(roles, KERNEL, dims, steps, l2)) == follows
    for size, follows in ((4, [False]), (5, [True])):  # one call a panel, of 4 or 9 rows
        small = model_of(Conv2d(N=1, C=32, H=size, W=size, K=96, R=3, S=3))[1]
        assert (
            list(follow_in_cache(small, KERNEL, ["k"], steps[:1, 1:2], everything - 1)) == follows
        )
    depthwise = find("depthwise_avx512_f32_7x16")
    assert not follow_in_cache(roles, depthwise, dims, steps, 1.0).any()


def test_reuse_counts_the_loops_that_find_weights_in_the_cache() -> None:
    roles, dims = model_of(CONV)[1], ("n", "k", "p", "k")
    steps = np.array([[1, 64, 1, 32], [1, 96, 7, 32]])
    block, everything = 4 * 64 * 32 * 9, 4 * 96 * 32 * 9
    for l2, reuse in ((everything, [14, 2]), (block, [7, 1]), (block - 1, [1, 1])):
        assert list(Panels.of(roles, KERNEL, dims, steps, l2).reuse) == reuse
