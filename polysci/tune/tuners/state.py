"""The file of a tuner's measurements: a tuner that was killed goes on from it."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from polysci.border.files import read_stored
from polysci.errors import PolysciError, WisdomError
from polysci.runtime.build.folder import cache_dir
from polysci.text.tables import time_text
from polysci.tune.tuners.space import Decision, Genome, Space, TunerOptions
from polysci.tune.wisdom import exchange

FORMAT: Final = "polysci-tuner"
FOLDER: Final = "tuners"  # of the cache directory
DIGITS: Final = 16  # of a digest
LEAST_S, MOST_S = 1e-9, 1e6  # seconds that a record may have
_log = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """Seconds of an individual, or None and why it fell out."""

    seconds: float | None
    fault: str = ""


@dataclass(slots=True)
class TunerState:
    """The decisions of a program, and the outcome of every individual that was measured.

    A tuner proposes the same individuals wherever it was told the same times, so this is all that
    it takes to go on. The file has a line of JSON for the program and one for each individual,
    which is appended as it comes: a kill at any moment loses one measurement at most, and processes
    that tune the same program at the same time keep what each of them measures.
    """

    path: Path
    options: TunerOptions
    space: Space
    outcomes: dict[Genome, Outcome] = field(default_factory=dict)
    _kept: bool = True  # until the file could not be written

    @classmethod
    def load(cls, path: Path, options: TunerOptions) -> TunerState | None:
        """The state in a file; None where there is none, or another tuner's, or a damaged one."""
        try:
            state = cls.read(path)
        except FileNotFoundError:
            return None
        except (OSError, WisdomError) as error:
            _log.warning("%s: the tuner starts anew: %s", path, error)
            return None
        return state if state.options == options else None

    @classmethod
    def read(cls, path: Path) -> TunerState:
        """The state in a file. Raises OSError, or WisdomError for a damaged one.

        Lines that were cut off, or hold no outcome, are left out: it is measured again.
        """
        try:
            head, *lines = read_stored(path).decode(errors="replace").split("\n")
            header = json.loads(head)
            if (header["format"], header["program"]) != (FORMAT, path.stem):
                raise ValueError("it was written for another program")
            decisions = tuple(Decision.of(name, texts) for name, texts in header["decisions"])
            space = Space(decisions, tuple(map(tuple, header["seeds"])))
            if header.get("digest") != _digest_of(space):
                raise ValueError("its decisions are not those that were written")
            state = cls(path, TunerOptions(**header["options"]), space)
            for line in lines:
                if its := _outcome_of(line):
                    state.outcomes.setdefault(*its)
            for genome in (*space.seeds, *state.outcomes):
                space.texts(genome)  # LookupError or ValueError for one of another program
        except (
            ValueError, LookupError, TypeError, AttributeError, RecursionError, PolysciError,
        ) as error:  # fmt: skip
            raise WisdomError(str(error)) from error
        return state

    def note(self, genome: Genome, outcome: Outcome) -> None:
        """Keep an outcome; the first one of an individual counts."""
        if genome in self.outcomes:
            return
        self.outcomes[genome] = outcome
        try:
            self._append(json.dumps([genome, *outcome]))
            self._kept = True
        except (OSError, WisdomError) as error:
            if self._kept:
                _log.warning("the tuner's state is not kept: %s", error)
            self._kept = False

    def _append(self, line: str) -> None:
        """Append to the outcomes of the same program; a file of another one is replaced."""
        first = json.dumps({
            "format": FORMAT, "program": self.path.stem, "options": self.options.members(),
            **_members_of(self.space), "digest": _digest_of(self.space),
        }).encode()  # fmt: skip
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            file.seek(0)
            if self._kept and file.readline(len(first) + 1).rstrip(b"\n") == first:
                file.write(f"\n{line}".encode())
                return
        lines = (json.dumps([genome, *its]) for genome, its in self.outcomes.items())
        exchange.write(self.path, "\n".join([first.decode(), *lines]))

    def seconds(self, genome: Genome) -> float:
        """Return the seconds of a measured individual; infinite where it fell out."""
        seconds = self.outcomes[genome].seconds
        return inf if seconds is None else seconds

    @property
    def ranked(self) -> list[Genome]:
        """All that were measured and did not fall out, the fastest first."""
        alive = [genome for genome, its in self.outcomes.items() if its.seconds is not None]
        return sorted(alive, key=self.seconds)

    @property
    def faults(self) -> list[str]:
        """Why individuals fell out, each reason once."""
        return list(dict.fromkeys(its.fault for its in self.outcomes.values() if its.fault))

    @property
    def best(self) -> float | None:
        """The least seconds."""
        return self.seconds(self.ranked[0]) if self.ranked else None

    @property
    def limit(self) -> int:
        """How many individuals are measured at most."""
        return min(self.options.budget, self.space.size)

    def __str__(self) -> str:
        counted = f"{len(self.outcomes)} of at most {self.limit} individuals measured"
        if not self.ranked:
            return f"{self.options.name}: {counted}"
        best = self.space.texts(self.ranked[0])
        rows = [f"{name}: {text}" for name, text in best.items()]
        return "\n".join([f"{self.options.name}: {counted}; {time_text(self.best or 0)}:", *rows])


def _members_of(space: Space) -> dict[str, Any]:
    return {"decisions": [[d.name, d.options] for d in space.decisions], "seeds": space.seeds}


def _digest_of(space: Space) -> str:
    return hashlib.sha256(json.dumps(_members_of(space)).encode()).hexdigest()[:DIGITS]


def _outcome_of(line: str) -> tuple[Genome, Outcome] | None:
    """Return the individual and outcome of a line; None where no tuner wrote it."""
    with suppress(ValueError, TypeError):
        genome, seconds, fault = json.loads(line)
        numbers = [number for number in genome if type(number) is int and number >= 0]
        timed = type(seconds) is float and LEAST_S <= seconds <= MOST_S
        if len(numbers) == len(genome) and isinstance(fault, str) and (timed or seconds is None):
            return tuple(numbers), Outcome(seconds, fault)
    return None


def state_of(
    path: Path, options: TunerOptions, make: Callable[[], Space], *, again: bool = False
) -> TunerState:
    """The state in a file, or, there being none or ``again``, one of the space from ``make()``.

    One of which nothing survived is none: that was the machine's fault, such as a full disk.
    """
    state = None if again else TunerState.load(path, options)
    if state and (state.ranked or not state.outcomes):
        return state
    if state:
        _log.warning("%s: the tuner starts anew: nothing that it measured survived", path)
    if state or again:
        with suppress(OSError):
            path.unlink()
    return TunerState(path, options, make())


def kept_states() -> Iterator[tuple[Path, TunerState | Exception]]:
    """The states in the cache directory, the last one that was changed first, or why not."""
    paths = (cache_dir() / FOLDER).glob("*.jsonl")
    for path in sorted(paths, key=lambda path: (-path.stat().st_mtime, path.name)):
        try:
            yield path, TunerState.read(path)
        except (OSError, WisdomError) as error:
            yield path, error
