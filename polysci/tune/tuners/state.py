"""What a tuner has measured, as a file: a tuner that was killed goes on from it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from polysci.border.files import read_stored
from polysci.errors import WisdomError
from polysci.text.tables import time_text
from polysci.tune.tuners.options import TunerOptions
from polysci.tune.tuners.space import Decision, Genome, Space
from polysci.tune.wisdom import exchange

FORMAT: Final = "polysci-tuner"
FOLDER: Final = "tuners"  # of the cache directory
_log = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """Seconds of an individual, or None and why it fell out."""

    seconds: float | None
    fault: str = ""


@dataclass(slots=True)
class TunerState:
    """The decisions of a program, and the outcome of every individual that was measured.

    A tuner proposes the same individuals wherever it was told the same times, so this is all that
    it takes to go on. The file has a line of JSON for the program and one for each individual; it
    is replaced as a whole, so that a kill at any moment loses one measurement at most.
    """

    path: Path
    options: TunerOptions
    space: Space
    outcomes: dict[Genome, Outcome] = field(default_factory=dict)
    _lines: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, options: TunerOptions) -> TunerState | None:
        """The state in a file; None where there is none, or another tuner's, or a damaged one."""
        try:
            head, *lines = read_stored(path).decode().splitlines()
            told = json.loads(head)
            if (told["format"], told["options"]) != (FORMAT, options.members()):
                return None
            decisions = tuple(Decision.of(name, texts) for name, texts in told["decisions"])
            space = Space(decisions, tuple(map(tuple, told["seeds"])))
            outcomes = {tuple(genome): Outcome(*its) for genome, *its in map(json.loads, lines)}
            for genome in (*space.seeds, *outcomes):
                space.texts(genome)  # LookupError or ValueError for one of another program
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            _log.warning("%s: the tuner starts anew: %s", path, error)
            return None
        return cls(path, options, space, outcomes, [head, *lines])

    def note(self, genome: Genome, outcome: Outcome) -> None:
        """Keep an outcome; the first one of an individual counts."""
        if genome in self.outcomes:
            return
        self.outcomes[genome] = outcome
        if not self._lines:
            decisions = [[d.name, d.options] for d in self.space.decisions]
            head = {"format": FORMAT, "options": self.options.members(), "decisions": decisions}
            self._lines.append(json.dumps(head | {"seeds": self.space.seeds}))
        self._lines.append(json.dumps([genome, *outcome]))
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            exchange.write(self.path, "\n".join(self._lines) + "\n")
        except (OSError, WisdomError) as error:
            _log.warning("the tuner's state is not kept: %s", error)

    def forget(self) -> None:
        """Delete the file: the next tuner starts anew."""
        self.path.unlink(missing_ok=True)

    def seconds(self, genome: Genome) -> float:
        """Of an individual that was measured; infinite where it fell out."""
        seconds = self.outcomes[genome].seconds
        return inf if seconds is None else seconds

    @property
    def ranked(self) -> list[Genome]:
        """All that were measured and did not fall out, the fastest first."""
        alive = [genome for genome, its in self.outcomes.items() if its.seconds is not None]
        return sorted(alive, key=self.seconds)

    @property
    def best(self) -> float | None:
        """The least seconds."""
        return self.seconds(self.ranked[0]) if self.ranked else None

    def __str__(self) -> str:
        counted = f"{len(self.outcomes)} of at most {self.options.budget} individuals measured"
        if not self.ranked:
            return f"{self.options.name}: {counted}"
        best = self.space.texts(self.ranked[0])
        rows = [f"{name}: {text}" for name, text in best.items()]
        return "\n".join([f"{self.options.name}: {counted}; {time_text(self.best or 0)}:", *rows])


def state_of(
    path: Path, options: TunerOptions, make: Callable[[], Space], *, again: bool = False
) -> TunerState:
    """The state in a file, or a new one of the space that ``make()`` returns."""
    state = None if again else TunerState.load(path, options)
    return state or TunerState(path, options, make())
