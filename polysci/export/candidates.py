"""One layer for CPUs of several kinds: which schedules an export holds, and how they are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from polysci.errors import SpecError, UnsupportedError
from polysci.export.layers import ExportedLayer, TunedProblem
from polysci.target import microkernels
from polysci.target.host import detect
from polysci.target.isa import Isa
from polysci.target.isas import ISAS, caps, isa_named, up_to
from polysci.target.machine import Machine, assume_rates
from polysci.target.target import Target
from polysci.tune import optimize
from polysci.tune.calibrate import load_rates


@dataclass(frozen=True, slots=True)
class SearchTarget:
    """Arguments of ``optimize`` that search the schedules of one instruction set.

    ``machine`` is None where this machine runs it; else nothing is run and ``level`` says so.
    """

    target: Target
    machine: Machine | None
    level: str

    @property
    def isa(self) -> Isa:
        return self.target.isa


def check_isas(isas: Sequence[str], cap: str | None = None, *, source: str = "isas") -> list[Isa]:
    """Return the rows of ISAS, the best first.

    Raises SpecError, which names ``source``, for a name that is none or stands there twice, or
    that ``cap`` or POLYSCI_ISA forbids.
    """
    if not isas:
        raise SpecError(f"{source}: expected at least one instruction set of {', '.join(ISAS)}")
    named = {name: isa_named(name, source=source) for name in isas}
    if twice := next((name for name in named if list(isas).count(name) > 1), None):
        raise SpecError(f"{source}: {twice!r} stands there twice")
    for setter, limit in caps(cap).items():
        if above := [name for name, isa in named.items() if isa not in up_to(limit)]:
            raise SpecError(f"{source}: {', '.join(above)} is above {limit}, the cap of {setter}")
    return [isa for isa in reversed(tuple(ISAS.values())) if isa.name in named]


def search_targets(
    isas: Sequence[Isa], level: str, *, target: Target | None = None, machine: Machine | None = None
) -> list[SearchTarget]:
    """Return a search target for each instruction set, on this machine or a described one.

    What this machine does not run is estimated on the assumption that its caches stay as they are
    and that the peak grows with the lanes; so is what differs from a described ``machine``.
    """
    here = target or detect()
    return [_stand(isa, level, here, machine) for isa in isas]


def _stand(isa: Isa, level: str, here: Target, machine: Machine | None) -> SearchTarget:
    features = tuple(sorted({*here.features, *isa.features}))
    target = replace(here, isa=isa, features=features)
    if machine is None and isa in here.runnable:
        return SearchTarget(target, None, level)
    rates = machine or load_rates(here) or assume_rates(here)
    if isa != here.isa:
        lanes = isa.lanes_f32 / here.isa.lanes_f32
        rates = replace(
            rates, peak=rates.peak * lanes, efficiency=MappingProxyType({}), measured=False
        )
    quiet = level if machine or level == "wisdom-only" else "estimate"
    return SearchTarget(target, rates, quiet)


def with_isas(
    results: Sequence[TunedProblem], isas: Sequence[str], level: str
) -> list[ExportedLayer]:
    """Return results with schedules of all named instruction sets, their own among them.

    Raises as ``check_isas`` and ``optimize`` do.
    """
    chosen = check_isas(isas)
    homes = [_home(result, chosen) for result in results]
    return merge_layers([
        [
            result if home == stand.isa else _plan(result, stand)
            for result, home in zip(results, homes, strict=True)
        ]
        for stand in search_targets(chosen, level)
    ])  # fmt: skip


def _home(result: TunedProblem, chosen: Sequence[Isa]) -> Isa:
    """Return the least of the instruction sets chosen that runs a result's own schedule."""
    name = microkernels.find(result.schedule.kernel).isa
    if name not in ISAS:
        raise UnsupportedError(f"isas: {result.problem} has a schedule of a device, {name}")
    own = ISAS[name]
    for isa in reversed(chosen):
        if own in up_to(isa):
            return isa
    names = ", ".join(map(str, chosen))
    raise SpecError(f"isas: {result.problem} has a schedule of {own}, which none of {names} runs")


def _plan(result: TunedProblem, stand: SearchTarget) -> TunedProblem:
    return optimize(
        result.problem, stand.level, result.threads, target=stand.target, machine=stand.machine
    )


def merge_layers(alternatives: Sequence[Sequence[TunedProblem]]) -> list[ExportedLayer]:
    """Return the same layers planned for several instruction sets, the best first, as one list."""
    return [
        ExportedLayer(
            first.problem, first.schedule, first.threads, tuple(other.schedule for other in others)
        )
        for first, *others in zip(*alternatives, strict=True)
    ]
