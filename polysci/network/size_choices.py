"""The entries of a library of several sizes: the choices of these, and the network of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from numbers import Integral
from typing import Any

import numpy as np

from polysci.border.arguments import check_type, check_whole
from polysci.errors import SpecError
from polysci.graph.graph import Graph
from polysci.lower.layer_calls import packings_of
from polysci.network.code import Size
from polysci.network.compiled import PlannedNetwork, plan_network
from polysci.network.options import CompileOptions
from polysci.network.prepare import RunSizes, prepare_with
from polysci.numerics.size_classes import classes_of
from polysci.tune.tuners import options_of


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """RunSizes of an entry: ``sizes`` are those of dimensions that have several, ``bound`` of all.

    Of a range ``bound`` is the largest.
    """

    sizes: Mapping[str, Size]
    bound: Mapping[str, int]

    def read(self, graph: Read) -> tuple[Graph, RunSizes]:
        """Return the graph of the largest sizes, and what runs are told."""
        spans = {name: size for name, size in self.sizes.items() if isinstance(size, range)}

        def read(name: str, size: int) -> Graph:
            return graph({**self.bound, name: size})

        others = tuple(
            (name, size, read(name, size))
            for name, span in spans.items()
            for size in dict.fromkeys((span[0], span[len(span) // 2]))
            if size != span[-1]
        )
        return graph(self.bound), RunSizes(spans, others, read)


def plan_sizes(
    graph: Graph, sizes: RunSizes, options: CompileOptions, title: str
) -> PlannedNetwork:
    """Return the network of a graph whose runs are told sizes."""
    return plan_network(
        prepare_with(graph, options, sizes=sizes), options.plan(), title, wisdom=options.wisdom,
        time_limit=options.time_limit, watch=options.watch, tuner=options_of(options.tuner),
        progress=options.progress,
    )  # fmt: skip


Read = Callable[[Mapping[str, int]], Graph]
Plan = Callable[[Graph, RunSizes], PlannedNetwork]


def plan_choices(
    choices: Sequence[SizeChoice], read: Read, plan: Plan
) -> list[tuple[Mapping[str, Size], PlannedNetwork]]:
    """Return the networks of all entries of a library, in order; of ranges the last one first.

    The others of ranges pack their weights as that one does.
    """
    networks = list[tuple[Mapping[str, Size], PlannedNetwork]]()
    packings: Mapping[str, tuple[str, int]] = {}
    for choice in reversed(choices):
        graph, sizes = choice.read(read)
        network = plan(graph, replace(sizes, packings=packings))
        networks.insert(0, (choice.sizes, network))
        if not packings and sizes.spans:
            packings = packings_of(network.code.calls.values())
    return networks


def whole_sizes(dims: Mapping[str, Any]) -> dict[str, int | range | tuple[int, ...]]:
    """Return the sizes of dimensions as ints. Raises TypeError or SpecError for others."""
    check_type("dims", dims, Mapping)
    sizes = dict[str, int | range | tuple[int, ...]]()
    for name, own in dims.items():
        if isinstance(own, range):
            sizes[name] = own
            continue
        title, listed = f"dims: {name!r:.100}", not isinstance(own, Integral)
        if listed and (not isinstance(own, Sequence | np.ndarray) or isinstance(own, str)):
            raise TypeError(f"{title}: expected a size or several, got {own!r:.100}")
        if listed and not len(own):
            raise SpecError(f"{title}: no size is given")
        for size in own if listed else (own,):
            check_whole(title, size, below=1 << 31)
        sizes[name] = tuple(map(int, own)) if listed else int(own)
    return sizes


def size_choices(dims: Mapping[str, int | Sequence[int]]) -> list[SizeChoice]:
    """Return the entries of a library. Raises SpecError where no dimension has several sizes."""
    check_type("dims", dims, Mapping)
    lists = dict[str, tuple[Size, ...]]()
    for name, own in dims.items():
        if isinstance(own, range):
            if own.step != 1 or len(own) < 2 or own[0] < 1:
                raise SpecError(f"dims: {name!r:.100}: expected a range of sizes from 1 on, in "
                                f"steps of 1, got {own}")  # fmt: skip
            lists[name] = classes_of(own)
        else:
            lists[name] = (own,) if isinstance(own, int) else tuple(dict.fromkeys(own))
    several = [name for name, own in lists.items() if len(own) > 1 or isinstance(own[0], range)]
    if not several:
        raise SpecError(f"dims {dict(dims)!r:.200}: none has several sizes; use compile_network")
    chosen = [dict(zip(lists, own, strict=True)) for own in product(*lists.values())]
    return [
        SizeChoice(
            {name: own[name] for name in several},
            {name: size if isinstance(size, int) else size[-1] for name, size in own.items()},
        )
        for own in chosen
    ]
