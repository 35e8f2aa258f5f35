"""Turns of members that read each other's rows: no ring is too small, whatever reads what."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from polysci.program.passes.operands import RowWindow
from polysci.program.passes.row_turns import RowRead, RowTurns


@dataclass
class Simulation:
    """Members take turns as their code does; ``most``: rows of each that had to be there."""

    turns: RowTurns
    done: list[int]
    parts: list[int]  # rows of each between borders that no turn crosses
    begin: list[int] = field(init=False)
    most: list[int] = field(init=False)

    def __post_init__(self) -> None:
        for maker in reversed(range(self.turns.last)):
            first = min(it.window.first(self.done[it.reader]) for it in self.turns.readers(maker))
            step, part = self.turns.steps[maker], self.parts[maker]
            border = max(0, first) // part * part
            self.done[maker] = border + (max(0, first) - border) // step * step
        self.begin, self.most = [*self.done], [0] * self.turns.last

    def make(self, member: int, upto: int) -> None:
        """Make rows of a member, those before that it reads first."""
        while self.done[member] < upto:
            border = (self.done[member] // self.parts[member] + 1) * self.parts[member]
            last = min(
                self.done[member] + self.turns.steps[member], border, self.turns.heights[member]
            )
            for read in self.turns.inputs(member):
                self.make(read.maker, min(read.window.extent, read.window.upto(last)))
            if member < self.turns.last:
                needed = [
                    max(0, it.window.first(self.done[it.reader]))
                    for it in self.turns.readers(member)
                ]
                keep = min(self.done[member], *needed)
                self.most[member] = max(self.most[member], last - keep)
            for read in self.turns.inputs(member):
                first = max(0, read.window.first(self.done[member]))
                assert self.begin[read.maker] <= first
                assert self.done[read.maker] >= min(read.window.extent, read.window.upto(last))
            self.done[member] = last


def some_turns(random: np.random.Generator) -> RowTurns:
    """Members in step: each reads some before it, with windows of any reach."""
    count, speed = int(random.integers(2, 7)), int(random.integers(1, 3))
    slow = int(random.integers(0, count))  # members before it make ``speed`` rows for one
    base = int(random.integers(5, 40))
    heights = [
        base * (speed if at < slow else 1) + int(random.integers(-2, 3)) for at in range(count)
    ]
    reads = []
    for maker in range(count - 1):
        others = random.permutation(np.arange(maker + 1, count))
        for reader in sorted(others[: int(random.integers(1, 4))]):
            low = int(random.integers(-6, 3))
            step = speed if maker < slow <= reader else 1
            window = RowWindow(step, low, low + int(random.integers(0, 5)), heights[maker])
            reads.append(RowRead(maker, int(reader), window))
    steps = [int(random.choice([1, 2, 4, 5])) for _ in range(count)]
    return RowTurns(tuple(heights), tuple(steps), tuple(reads))


@pytest.mark.parametrize("seed", range(12))
def test_rows_that_wait_have_room(seed: int) -> None:
    """Every thread's share of rows, from any row on."""
    random = np.random.default_rng(seed)
    for _ in range(6):
        turns = some_turns(random)
        assert turns.in_step
        held = turns.held()
        height, step = turns.heights[-1], turns.steps[-1]
        starts = [*range(0, height, step)]
        parts = [int(random.choice([3, 7, one])) for one in turns.heights[:-1]] + [height]
        for start in {0, int(random.choice(starts)), starts[-1]}:
            run = Simulation(turns, [*[0] * turns.last, start], parts)
            run.make(turns.last, height)
            assert all(a <= b for a, b in zip(run.most, held, strict=True)), (turns, start)


def test_a_chain_waits_no_longer_than_its_windows() -> None:
    """Three rows of a filter, and what it makes at a time beyond one."""
    turns = RowTurns((20, 20), (4, 2), (RowRead(0, 1, RowWindow(1, -1, 1, 20)),))
    assert turns.held() == [1 + 3 + 3]
    assert turns.left() == [2]
    assert turns.overlap() == [2, 0]


def test_a_sum_waits_for_what_it_adds() -> None:
    """What two filters read first is added at last."""
    window = RowWindow(1, -1, 1, 30)
    reads = (RowRead(0, 1, window), RowRead(1, 2, window), RowRead(2, 3, RowWindow(1, 0, 0, 30)),
             RowRead(0, 3, RowWindow(1, 0, 0, 30)))  # fmt: skip
    turns = RowTurns((30,) * 4, (1,) * 4, reads)
    assert turns.held() == [3, 3, 1]
    assert turns.left() == [2, 2, 0]
    assert turns.overlap() == [4, 2, 0, 0]


def test_readers_of_other_speed() -> None:
    """One that takes every second row would leave the other one's rows behind."""
    reads = (RowRead(0, 1, RowWindow(2, 0, 0, 30)), RowRead(0, 2, RowWindow(1, 0, 0, 30)),
             RowRead(1, 2, RowWindow(1, 0, 0, 15)))  # fmt: skip
    assert not RowTurns((30, 15, 15), (1, 1, 1), reads).in_step
