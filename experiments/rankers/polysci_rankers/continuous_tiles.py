"""Cache blocks as real numbers: the sizes that make the slowest level fastest, by SLSQP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from math import log

import numpy as np
from numpy.typing import NDArray

from polysci.cost.estimate import Context
from polysci.polyhedral.footprint import footprint
from polysci_rankers.bottleneck import OTHERS, STORED, capacities, rates, register_bytes, slowest

Sizes = NDArray[np.float64]
Flags = NDArray[np.bool_]
LATTICE = (0.0, 0.25, 0.5, 0.75, 1.0)  # starting points: fractions of the range of log sizes
STEP = 1e-6  # of the forward differences, on a log scale
TOLERANCE = 1e-9  # by which log sizes may miss a constraint


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which steps to find: those of the loops ``at``, over ``names``, from ``least`` up.

    ``steps`` has the steps of all loops over ``dims``; those of the loops ``at`` are ignored. L1
    keeps what one call touches (``keeps_l1``) or nothing; L2 keeps what the loops inside the
    outermost ``block`` touch, L3 what those inside the outermost ``outer`` touch. The ``shared``
    leading loops must have at least one iteration a thread.
    """

    context: Context
    dims: tuple[str, ...]
    steps: tuple[int, ...]
    names: tuple[str, ...]
    at: tuple[int, ...]
    least: tuple[int, ...]
    block: int
    outer: int = 0
    keeps_l1: bool = False
    shared: int = 0


class Levels:
    """The bottleneck model of a problem in log sizes: footprints, and refetches linear in them.

    A cache that holds the whole problem receives nothing. Loops of a single trip are not removed:
    another class of orders covers that case.
    """

    def __init__(self, blocks: Blocks) -> None:
        context, contraction = blocks.context, blocks.context.contraction
        self.blocks, self.contraction = blocks, contraction
        self.operands = (contraction.a, contraction.b, contraction.out)
        self.low = np.log(np.array(blocks.least, dtype=np.float64))
        self.high = np.log([float(contraction.extent(name)) for name in blocks.names])
        self.depths = (len(blocks.dims), blocks.block, blocks.outer)
        self.sizes, self.ratios = self._linear()
        self.around = np.array(
            [
                [
                    self.ratios[: self._fetch_depth(op.uses, level)].sum(axis=0)
                    for op in self.operands
                ]
                for level in range(3)
            ]
        )
        depths = [d.name for d in contraction.by_role("k")]
        self.parts = sum(
            (self.ratios[at] for at, dim in enumerate(blocks.dims) if dim in depths),
            np.zeros(len(self.low) + 1),
        )
        inside = {d.name: np.ones(1) * d.extent for d in contraction.dims}
        inside |= {
            dim: np.ones(1) * step for dim, step in zip(blocks.dims, blocks.steps, strict=True)
        }
        registers = register_bytes(context, inside, np.array([1.0, 2.0]))
        self.registers = float(registers[0]), float(registers[1] - registers[0])
        self.rates = np.array(rates(context))
        self.rooms = np.log(np.array(capacities(context)))
        keeps = (blocks.keeps_l1, blocks.block > 0, blocks.outer > 0)
        self.kept = np.flatnonzero(keeps)
        problem = {d.name: np.full(1, float(d.extent)) for d in contraction.dims}
        problem_bytes = sum(float(footprint(op, problem)[0]) * op.bytes for op in self.operands)
        self.colder = np.array([problem_bytes > room for room in capacities(context)])
        self.possible = self.slacks(self.low[None])[0] >= -TOLERANCE

    def _linear(self) -> tuple[dict[str, Sizes], Sizes]:
        """Log sizes of every dimension inside each level, and log trips, as coefficients of
        (1, log sizes)."""
        blocks, width = self.blocks, len(self.low) + 1
        current = {d.name: _constant(log(d.extent), width) for d in self.contraction.dims}
        ratios, inside = np.zeros((len(blocks.dims), width)), [dict(current)]
        for at, (dim, step) in enumerate(zip(blocks.dims, blocks.steps, strict=True)):
            size = _constant(log(step), width)
            if at in blocks.at:
                size = np.eye(width)[1 + blocks.at.index(at)]
            ratios[at] = current[dim] - size
            current[dim] = size
            inside.append(dict(current))
        names = [d.name for d in self.contraction.dims]
        return {n: np.array([inside[d][n] for d in self.depths]) for n in names}, ratios

    def _fetch_depth(self, uses: Callable[[str], bool], level: int) -> int:
        """How many of the outermost loops refetch an operand into a level."""
        if level == 0 and not self.blocks.keeps_l1:
            return len(self.blocks.dims)
        dims = self.blocks.dims[: self.depths[level]]
        return max((at + 1 for at, dim in enumerate(dims) if uses(dim)), default=0)

    def bytes(self, logs: Sizes) -> tuple[Sizes, Sizes]:
        """Bytes that L1, L2 and L3 receive, registers first, and hold: (4, n) and (3, n)."""
        ones = np.c_[np.ones(len(logs)), logs].T
        tile = {name: np.exp(size @ ones).ravel() for name, size in self.sizes.items()}
        tile_bytes = np.array(
            [footprint(op, tile) * np.full(3 * len(logs), op.bytes) for op in self.operands]
        )
        tile_bytes = tile_bytes.reshape(3, 3, len(logs)).transpose(1, 0, 2)  # level, operand, n
        into = tile_bytes * np.exp(self.around @ ones)
        into[:, 2] *= STORED
        registers = self.registers[0] + self.registers[1] * (np.exp(self.parts @ ones) - 1)
        total = into.sum(axis=1) * self.colder[:, None] + 1  # a byte, for the logarithm's sake
        return np.vstack([registers, total]), tile_bytes.sum(axis=1)

    def evaluate(self, logs: Sizes) -> tuple[Sizes, Sizes]:
        """Log seconds of the four levels and slack of every constraint: (n, 4) and (n, m).

        Slacks are logarithms: room left in each cache that keeps something, then tasks over
        threads.
        """
        into, occupied = self.bytes(logs)
        slacks = list(self.rooms[self.kept, None] - np.log(occupied[self.kept]))
        if self.blocks.shared:
            trips = self.ratios[: self.blocks.shared].sum(axis=0)
            tasks = np.c_[np.ones(len(logs)), logs] @ trips
            slacks.append(tasks - log(self.blocks.context.threads))
        rows = np.array(slacks).reshape(-1, len(logs))
        return np.log(into / self.rates[:, None]).T, rows.T

    def slacks(self, logs: Sizes) -> Sizes:
        return self.evaluate(logs)[1]

    def seconds(self, logs: Sizes) -> Sizes:
        """Seconds of the slowest level, for rows of log sizes."""
        return slowest(list(np.exp(self.evaluate(logs)[0]).T))

    def feasible(self, logs: Sizes) -> Flags:
        """Which rows of log sizes satisfy all constraints that the smallest sizes satisfy."""
        return np.asarray((self.slacks(logs)[:, self.possible] >= -TOLERANCE).all(axis=1))


def _constant(value: float, width: int) -> Sizes:
    row = np.zeros(width)
    row[0] = value
    return row


def solve(blocks: Blocks) -> Mapping[str, float]:
    """The sizes of least ``seconds`` that are feasible.

    SLSQP from the best point of a lattice, on t + OTHERS * sum(exp(L - t)) over log sizes and t,
    where every level's log seconds L <= t: with footprints that are sums of products, a geometric
    program and so convex.
    """
    if not blocks.names:
        return {}
    levels = Levels(blocks)
    low, high = levels.low, levels.high
    lattice = low + np.array(list(product(LATTICE, repeat=len(low)))) * (high - low)
    lattice = lattice[levels.feasible(lattice)]
    start = lattice[int(np.argmin(levels.seconds(lattice)))]
    rows = np.array([start, _pull_in(levels, _descend(levels, start))])
    best = rows[int(np.argmin(levels.seconds(rows)))]
    return dict(zip(blocks.names, np.exp(best).tolist(), strict=True))


def _descend(levels: Levels, start: Sizes) -> Sizes:
    from scipy.optimize import minimize  # half a second to import, and only this ranker needs it

    low, high = levels.low, levels.high
    away = np.vstack([np.zeros(len(low)), STEP * np.eye(len(low))])
    shift = float(levels.evaluate(start[None])[0].max())
    memo: dict[bytes, tuple[Sizes, Sizes, Sizes, Sizes]] = {}

    def values(z: Sizes) -> tuple[Sizes, Sizes, Sizes, Sizes]:
        """Log seconds and slacks at z, and how they change with each log size."""
        key = z[:-1].tobytes()
        if key not in memo:
            memo.clear()
            seconds, slacks = levels.evaluate(z[:-1] + away)
            slacks = slacks[:, levels.possible]
            slopes = [(part[1:] - part[0]).T / STEP for part in (seconds, slacks)]
            memo[key] = seconds[0] - shift, slacks[0], slopes[0], slopes[1]
        return memo[key]

    def objective(z: Sizes) -> tuple[float, Sizes]:
        seconds, _, slopes, _ = values(z)
        parts = OTHERS * np.exp(seconds - z[-1])
        return float(z[-1] + parts.sum()), np.r_[parts @ slopes, 1 - parts.sum()]

    def room(z: Sizes) -> Sizes:
        seconds, slacks, _, _ = values(z)
        return np.concatenate([z[-1] - seconds, slacks])

    def room_slopes(z: Sizes) -> Sizes:
        _, _, seconds, slacks = values(z)
        return np.vstack([np.c_[-seconds, np.ones(4)], np.c_[slacks, np.zeros(len(slacks))]])

    optimum = minimize(
        objective,
        np.r_[start, 0.0],
        jac=True,
        method="SLSQP",
        bounds=[*zip(low, high, strict=True), (-50.0, 50.0)],
        constraints={"type": "ineq", "fun": room, "jac": room_slopes},
        options={"maxiter": 30, "ftol": 1e-6},
    )
    point: Sizes = np.where(np.isfinite(optimum.x[:-1]), optimum.x[:-1], start)
    inside: Sizes = np.clip(point, low, high)
    return inside


def _pull_in(levels: Levels, point: Sizes) -> Sizes:
    """The point, moved towards the smallest sizes until it is feasible."""
    line = levels.low + np.linspace(1, 0, 257)[:, None] * (point - levels.low)
    feasible: Sizes = line[int(np.argmax(levels.feasible(line)))]
    return feasible
