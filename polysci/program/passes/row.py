"""A row of a table of passes, what it tells of fusions, and what runs such a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fusion:
    """A fusion that was considered: ``first`` computed inside ``second``, or why not.

    ``saved``: bytes that are neither written nor read again.
    """

    first: str
    second: str
    tensor: str
    saved: int
    refusal: str = ""

    @property
    def done(self) -> bool:
        return not self.refusal


@dataclass(frozen=True, slots=True)
class FusionGroup:
    """Neighbouring stages that may run together: seconds by the model, and why they do not.

    No code takes less than ``bound``; ``together`` and ``apart`` are predicted. ``measured``: the
    seconds of both, in this order, where they were timed.
    """

    members: tuple[str, ...]
    bound: float
    together: float
    apart: float
    measured: tuple[float, float] | None = None
    refusal: str = ""
    pruned: bool = False  # the bound alone refuses them
    done: bool = False


Considered = Fusion | FusionGroup


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass: its name, a line that says what it does, and its function.

    ``run`` takes a graph, a program or a placed program, and a context; it returns the changed one
    and what it considered.
    """

    name: str
    text: str
    run: Callable[[Any, Any], tuple[Any, tuple[Considered, ...]]]


def plain(name: str, text: str, change: Callable[[Any], Any]) -> Pass:
    """Return a pass that needs no context and considers no fusions."""
    return Pass(name, text, lambda subject, _: (change(subject), ()))


PassWatch = Callable[[Pass, Any, Any], None]  # a pass, and what it took and returned


def run_table(
    table: Iterable[Pass], subject: Any, context: Any = None, watch: PassWatch | None = None
) -> tuple[Any, tuple[Considered, ...]]:
    """Return what the passes make of a subject, one after the other, and what was considered."""
    considered: tuple[Considered, ...] = ()
    for row in table:
        changed, others = row.run(subject, context)
        if watch:
            watch(row, subject, changed)
        subject, considered = changed, (*considered, *others)
    return subject, considered
