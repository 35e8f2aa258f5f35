"""Wavefronts and sectors of a warp, by known patterns of addresses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.cost.warps import BANKS, sectors, wavefronts

LANES = np.arange(32)
ALL = np.ones((1, 32), bool)


def instruction(places: np.ndarray, width: int = 1) -> np.ndarray:
    """Words of one instruction whose items take ``width`` words from their places on."""
    return places[None, :, None] + np.arange(width)


@pytest.mark.parametrize(
    ("places", "width", "turns"),
    [(LANES, 1, 1),  # neighbours
     (2 * LANES, 1, 2), (4 * LANES, 1, 4), (32 * LANES, 1, 32),  # every second, fourth, all in one
     (33 * LANES, 1, 1),  # lines of 33
     (0 * LANES, 1, 1), (LANES // 16 * 128, 4, 2),  # the same words for many; 2 in the same banks
     (4 * LANES, 4, 4), (LANES // 8 * 4, 4, 1)],  # vectors of neighbours; four words for eight
)  # fmt: skip
def test_banks_give_a_word_a_turn(places: np.ndarray, width: int, turns: int) -> None:
    assert wavefronts(instruction(places, width), ALL)[0] == turns


def test_items_that_take_no_part_cost_nothing() -> None:
    some = LANES[None] < 3
    assert wavefronts(instruction(32 * LANES), some) == (3, 1)
    assert wavefronts(instruction(LANES), LANES[None] < 0) == (0, 0)
    assert sectors(instruction(8 * LANES), some) == 3


def test_sectors_are_eight_words() -> None:
    assert sectors(instruction(LANES), ALL) == 4
    assert sectors(instruction(LANES + 1), ALL) == 5
    assert sectors(instruction(64 * LANES, 4), ALL) == 32
    two = np.concatenate([instruction(LANES), instruction(LANES)])
    assert sectors(two, np.ones((2, 32), bool)) == 8  # each instruction for itself


@given(st.lists(st.integers(0, 200), min_size=32, max_size=32), st.integers(1, 4))
def test_as_counting_one_by_one(places: list[int], width: int) -> None:
    words = {place + part for place in places for part in range(width)}
    turns = max(sum(word % BANKS == bank for word in words) for bank in range(BANKS))
    counted, even = wavefronts(instruction(np.array(places), width), ALL)
    assert counted == turns and even == -(-len(words) // BANKS) <= counted
    assert sectors(instruction(np.array(places), width), ALL) == len({it // 8 for it in words})
