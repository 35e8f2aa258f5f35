"""Records of two machines beside each other: what the best schedules of one cost on the other."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean
from types import MappingProxyType
from typing import Any, Final

from polysci.border.files import read_named
from polysci.errors import SpecError, WisdomError
from polysci.tune.wisdom import Wisdom, exchange
from polysci.tune.wisdom.record import Record

Layer = tuple[str, int]  # a problem's key, and threads
_SQLITE: Final = b"SQLite format 3\0"
_KERNEL: Final = re.compile(r"(> *[a-z]+)_[a-z0-9]+(_)")  # whose second word is an instruction set


def _kernel(schedule: str) -> str:
    return schedule.rpartition("> ")[2]


def _form(schedule: str) -> str:
    return re.sub(r":\d+", "", schedule)


# What can be set once for all problems, from the text of a schedule.
SETTINGS: Final[Mapping[str, Callable[[str], str]]] = MappingProxyType(
    {"kernel": _kernel, "schedule without sizes": _form}
)


@dataclass(frozen=True)
class MachineRecords:
    """The records of one machine in a file; ``others`` are machines left out."""

    name: str
    host: str
    others: int
    records: tuple[Record, ...]

    @cached_property
    def layers(self) -> Mapping[Layer, tuple[Record, ...]]:
        """The records of every problem and number of threads, the best first."""
        layers = dict[Layer, list[Record]]()
        for record in sorted(self.records, key=lambda r: (r.disturbed, r.seconds, r.schedule)):
            layers.setdefault((record.problem, record.threads), []).append(record)
        return {layer: tuple(records) for layer, records in layers.items()}


@dataclass(frozen=True, slots=True)
class Carried:
    """One machine's best schedule on the other one: its time there over the best there.

    None where the other never timed it. ``near``: it was timed with another instruction set.
    """

    schedule: str
    loss: float | None
    near: bool = False


@dataclass(frozen=True, slots=True)
class LayerPair:
    """A problem that two machines have: the best times in seconds, and each best on the other."""

    problem: str
    threads: int
    seconds: tuple[float, float]
    first_on_second: Carried
    second_on_first: Carried


@dataclass(frozen=True, slots=True)
class SharedSetting:
    """The best single setting of a kind: its times over the best ones, as a geometric mean.

    Of the settings that were timed for most problems, ``layers`` of them, it loses least.
    """

    kind: str
    text: str
    loss: float
    layers: int


@dataclass(frozen=True, slots=True)
class MachinePair:
    """Two machines: their problems, and by machine what one setting for all of these loses."""

    layers: tuple[LayerPair, ...]
    settings: tuple[tuple[SharedSetting, ...], tuple[SharedSetting, ...]]

    @property
    def losses(self) -> tuple[float | None, float | None]:
        """Geometric means of what the first's best lose on the second, and the reverse."""
        return _mean(pair.first_on_second for pair in self.layers), _mean(
            pair.second_on_first for pair in self.layers
        )

    def json_rows(self) -> list[dict[str, Any]]:
        """Return a row a problem, then the summary."""
        summary = {
            "layers": len(self.layers), "geomean_loss": self.losses,
            "settings": [[asdict(setting) for setting in its] for its in self.settings],
        }  # fmt: skip
        return [*map(asdict, self.layers), {"summary": summary}]


def read_machine(path: str | os.PathLike[str], host: str = "") -> MachineRecords:
    """Return the records of a machine in a wisdom file, or in what ``wisdom export`` wrote.

    ``host`` begins its name; without one it is the machine with most problems. Raises WisdomError
    for a file that is not there or damaged, SpecError for a machine that is not in it.
    """
    records = _read(Path(path))
    hosts = Counter(host for host, _, _ in {(r.host, r.problem, r.threads) for r in records})
    chosen = sorted((name for name in hosts if name.startswith(host)), key=lambda it: -hosts[it])
    if not chosen:
        known = ", ".join(sorted(hosts)) or "none"
        raise SpecError(f"{path}: no records of a machine {host!r}; there are: {known:.400}")
    own = tuple(record for record in records if record.host == chosen[0])
    return MachineRecords(str(path), chosen[0], len(hosts) - 1, own)


def _read(path: Path) -> tuple[Record, ...]:
    """Return all records of a file of either kind."""
    try:
        with path.open("rb") as file:
            binary = file.read(len(_SQLITE)) == _SQLITE
        if binary:
            return Wisdom(path).list()
        read_named(path)
    except OSError as error:
        raise WisdomError(f"{path}: cannot be read: {error.strerror}") from None
    return exchange.read(path, lambda record: None)


def compare_machines(first: MachineRecords, second: MachineRecords) -> MachinePair:
    """Compare the problems that both have. Raises SpecError where they share none."""
    shared = [layer for layer in sorted(first.layers) if layer in second.layers]
    if not shared:
        raise SpecError(
            f"{first.name} and {second.name}: no problem in common, of {len(first.layers)} and "
            f"{len(second.layers)}; problems are the same with as many threads, too"
        )
    pairs = [_pair(layer, first.layers[layer], second.layers[layer]) for layer in shared]
    settings = [best_settings([its.layers[layer] for layer in shared]) for its in (first, second)]
    return MachinePair(tuple(pairs), (settings[0], settings[1]))


def _pair(layer: Layer, first: Sequence[Record], second: Sequence[Record]) -> LayerPair:
    seconds = (first[0].seconds, second[0].seconds)
    return LayerPair(*layer, seconds, _carry(first[0], second), _carry(second[0], first))


def _carry(best: Record, others: Sequence[Record]) -> Carried:
    """Return a schedule among those of another machine, whose best one is the first."""
    for form, near in ((str, False), (_any_isa, True)):
        wanted = form(best.schedule)
        for record in others:
            if form(record.schedule) == wanted:
                return Carried(best.schedule, record.seconds / others[0].seconds, near)
    return Carried(best.schedule, None)


def _any_isa(schedule: str) -> str:
    """Return a schedule without the instruction set of its kernel."""
    return _KERNEL.sub(r"\1\2", schedule)


def best_settings(layers: Sequence[Sequence[Record]]) -> tuple[SharedSetting, ...]:
    """Return the best setting of each kind; the first record of a problem is its best.

    None of a kind of which no setting was timed for two problems: each is best where it is alone.
    """
    best = (_best_setting(kind, layers) for kind in SETTINGS)
    return tuple(setting for setting in best if setting.layers > 1)


def _best_setting(kind: str, layers: Sequence[Sequence[Record]]) -> SharedSetting:
    losses = dict[str, list[float]]()
    for records in layers:
        least = dict[str, float]()
        for record in records:
            text = SETTINGS[kind](record.schedule)
            least[text] = min(least.get(text, record.seconds), record.seconds)
        for text, seconds in least.items():
            losses.setdefault(text, []).append(seconds / records[0].seconds)
    known = [
        SharedSetting(kind, text, geometric_mean(its), len(its)) for text, its in losses.items()
    ]
    return min(known, key=lambda its: (-its.layers, its.loss, its.text))


def _mean(carried: Iterable[Carried]) -> float | None:
    losses = [its.loss for its in carried if its.loss is not None]
    return geometric_mean(losses) if losses else None
