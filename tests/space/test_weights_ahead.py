"""Which calls prefetch which lines of the next panel of weights."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.algorithms.lowering import model_of
from polysci.errors import UnsupportedError
from polysci.ops.conv2d import Conv2d
from polysci.polyhedral.schedule import Loop, parse
from polysci.space.weights_ahead import PanelReuse
from polysci.target.microkernels import find

CONV = Conv2d(N=2, C=32, H=7, W=7, K=96, R=3, S=3, pad=1)
P, Q, K = Loop("p"), Loop("q"), Loop("k", 32)


def reuse(text: str) -> PanelReuse:
    schedule = parse(f"{text} ahead(B) > brgemm_avx512_f32_7x32")
    return PanelReuse.of(model_of(CONV)[1], schedule, find(schedule.kernel))


@given(st.integers(1, 12), st.integers(1, 40))
def test_the_calls_of_a_panel_prefetch_every_line_of_a_step_once(lines: int, calls: int) -> None:
    panel = PanelReuse(K, ((P, calls, calls),))
    count, first, end = panel.share(lines)
    assert panel.calls == calls and 0 <= first < end <= calls
    covered = [count * (call - first) + line for call in range(first, end) for line in range(count)]
    assert covered == list(range(len(covered)))
    assert lines <= len(covered) < lines + count
    assert abs(first - (calls - end)) <= 1  # the middle ones


@pytest.mark.parametrize(
    ("text", "mover", "calls"),
    [
        ("n k:32 p", K, 7),
        ("k:32 n p", K, 14),
        ("n k:32 p:4 p", K, 8),
        ("n k:32 c:16 p", Loop("c", 16), 7),
        ("c:16 n k:32 p", K, 7),
        ("n k:32 p c:32", K, 7),  # a loop that runs once moves nothing
    ],
)
def test_the_innermost_loop_over_weights_moves_to_the_next_panel(
    text: str, mover: Loop, calls: int
) -> None:
    panel = reuse(text)
    assert panel.mover == mover
    assert panel.calls == prod(trips for _, trips, _ in panel.loops) == calls


@pytest.mark.parametrize("text", ["n p", "n p k:32", "n k:96 p"])
def test_a_panel_needs_a_successor_and_several_calls(text: str) -> None:
    with pytest.raises(UnsupportedError, match="needs a loop over rows inside one over W"):
        reuse(text)
