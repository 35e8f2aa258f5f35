"""The loops of many schedules at once: the tile inside every loop, and its trip count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polysci.polyhedral.footprint import Count
from polysci.space.enumerate import Family

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TripCounts:
    """Loops over ``dims``, outer first; arrays over schedules.

    ``tiles[j]`` has the extent of every dimension inside the outermost j loops; loop j divides
    what reaches it by its step into ``ratios[j]`` parts and so runs ``trips[j]`` times.
    """

    dims: tuple[str, ...]
    tiles: tuple[Mapping[str, Count], ...]
    ratios: tuple[Count, ...]
    trips: tuple[Count, ...]

    def running(self, position: int) -> Flags:
        """In which schedules a loop runs more than once."""
        flags: Flags = self.trips[position] > 1
        return flags

    def innermost(self, position: int) -> Flags:
        """In which schedules a loop runs, and no loop inside it runs over the same dimension."""
        flags = self.running(position)
        for inner in range(position + 1, len(self.dims)):
            if self.dims[inner] == self.dims[position]:
                flags = flags & ~self.running(inner)
        return flags

    def busiest(self, parallel: NDArray[np.intp], threads: int) -> Count:
        """The busiest thread's share of all work, where threads share ``parallel`` loops.

        Threads take equal runs of tasks; only the last thread gets partial tiles.
        """
        tasks = np.ones(len(parallel))
        for position, trip in enumerate(self.trips):
            tasks = tasks * np.where(position < parallel, trip, 1.0)
        share = np.ceil(tasks / threads)
        cut, spanned, below = np.ones(len(parallel)), np.zeros(len(parallel), dtype=bool), tasks
        for position, (trip, ratio) in enumerate(zip(self.trips, self.ratios, strict=True)):
            on = position < parallel
            cut = np.where(on & ~spanned, cut * trip / ratio, cut)
            below = np.where(on, below / trip, below)
            spanned = spanned | (share >= below)
        busiest_share: Count = np.where(share < tasks, share / tasks * cut, 1.0)
        return busiest_share


def trip_counts(family: Family) -> TripCounts:
    """The loops of a family. The last trip of a loop may be partial: ``trips`` counts it fully."""
    current = {name: np.full(1, float(extent)) for name, extent in family.extents.items()}
    tiles, ratios = [dict(current)], list[Count]()
    for position, dim in enumerate(family.dims):
        inside = np.minimum(family.steps[:, position].astype(np.float64), current[dim])
        ratios.append(current[dim] / inside)
        current[dim] = inside
        tiles.append(dict(current))
    trips = tuple(np.ceil(ratio) for ratio in ratios)
    return TripCounts(family.dims, tuple(tiles), tuple(ratios), trips)
