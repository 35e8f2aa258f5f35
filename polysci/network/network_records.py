"""What tuners found for whole networks, kept in wisdom by what a network computes.

Names do not matter: tensors are numbered in the order in which stages use them. Networks that
differ in numbers alone are the same one in other sizes.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from polysci.errors import PolysciError, WisdomError
from polysci.graph.graph import Graph
from polysci.graph.operators.lower import lower
from polysci.network.options import PlanOptions
from polysci.runtime.measurement import host_of
from polysci.tune.individuals import LAYER, NETWORK, parse_texts, text_of
from polysci.tune.wisdom import LEVELS, Record, Wisdom

DIGITS: Final = 16  # of a digest
_NAME, _WORD, _NUMBER = re.compile(r"name='[^']*'"), re.compile(r"'([^']*)'"), re.compile(r"\d+")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NetworkRecords:
    """The records of one network for these options."""

    graph: Graph
    options: PlanOptions
    wisdom: Wisdom

    @cached_property
    def numbers(self) -> dict[str, str]:
        """``v0``, ``v1`` ... for the tensors that the model names, in the order of their use."""
        return self._canonical[1]

    @cached_property
    def _canonical(self) -> tuple[str, dict[str, str]]:
        """The text of what is computed, with those names instead of the model's."""
        program, names = lower(self.graph), dict[str, str]()

        def number(match: re.Match[str]) -> str:
            name = match[1]
            if name in program.values:
                names.setdefault(name, f"v{len(names)}")
            return names.get(name, match[0])

        stages = repr((program.inputs, program.stages, program.outputs))
        text = _WORD.sub(number, _NAME.sub("", stages))
        values = [(program.values[name].shape, program.values[name].dtype) for name in names]
        return f"{text} {values}", names

    @property
    def _words(self) -> str:
        """The beginning of the key that other sizes have too."""
        options = self.options
        digest = _digest(_NUMBER.sub("#", self._canonical[0]))
        order = ("reproducible ",) if options.reproducible else ()
        return " ".join((NETWORK, digest, options.dtype, options.algorithm, *order)) + " "

    @property
    def key(self) -> str:
        """Under which records are kept."""
        return self._words + _digest(" ".join(_NUMBER.findall(self._canonical[0])))

    def best(self) -> dict[str, str] | None:
        """The choices of the fastest on this machine, at the level asked for or above."""
        options = self.options
        level = "estimate" if options.level == "wisdom-only" else options.level
        with suppress(WisdomError):
            if not self.wisdom.starting_with(NETWORK):  # the graph need not be read
                return None
            record = self.wisdom.best(
                self.key, options.threads, options.target.isa.features,
                host=host_of(options.target), level=level,
            )  # fmt: skip
            return parse_texts(record.schedule) if record else None
        return None

    def seeds(self, layers: Sequence[str], count: int) -> list[dict[str, str]]:
        """Choices that did well: of this network, here first, then of other sizes."""
        records: Sequence[Record] = ()
        with suppress(WisdomError):
            records = self.wisdom.starting_with(self._words)
        host, key, threads = host_of(self.options.target), self.key, self.options.threads
        ranked = sorted(
            records,
            key=lambda r: (r.problem != key, r.host != host, r.threads != threads, r.seconds),
        )
        found = list[dict[str, str]]()
        for record in ranked[:count]:
            with suppress(PolysciError):
                found.append(_for_layers(parse_texts(record.schedule), layers))
        return found

    def keep(self, texts: Mapping[str, str], seconds: float, *, whole: bool) -> None:
        """Record an individual; one of a tuner that was ended counts as the level asked for."""
        options = self.options
        least = options.level if options.level in LEVELS else "estimate"
        level = max(least, "patient", key=LEVELS.index) if whole else least
        try:
            self.wisdom.record(
                self.key, options.threads, options.target.isa.features, level, text_of(texts),
                seconds, host=host_of(options.target), isa=options.target.isa.name,
            )  # fmt: skip
        except (WisdomError, ValueError) as error:  # thousands of characters, of hundreds of layers
            _log.warning("what the tuner chose is not recorded: %s", error)


def _for_layers(texts: Mapping[str, str], layers: Sequence[str]) -> dict[str, str]:
    """Choices with the keys of layers of other sizes, which are in the same order."""
    own = [name for name in texts if name.startswith(f"{LAYER} ")]
    names = dict(zip(own, [f"{LAYER} {key}" for key in layers], strict=False))
    return {names.get(name, name): text for name, text in texts.items()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
