"""A case of a campaign: a frozen dataclass whose fields are axes that are drawn together."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any, ClassVar, Self

Drawn = dict[str, Any]
DrawAxis = Callable[[Random, Drawn], Any]


def axis(draw: DrawAxis) -> Any:
    """A field whose value ``draw(random, fields before it)`` gives: a new axis is one such row."""
    return field(metadata={"draw": draw})


def one_of(*values: Any) -> Any:
    """An axis that has these values, each as often as it is named."""
    return axis(lambda random, _: random.choice(values))


@dataclass(frozen=True, slots=True)
class Case:
    """The axes of a case; ``parse(str(case)) == case``. The text begins with the KIND."""

    KIND: ClassVar[str] = ""

    @classmethod
    def draw(cls, random: Random) -> Self:
        """Every axis in the order of the fields: a draw may look at what was drawn before."""
        drawn: Drawn = {}
        for row in fields(cls):
            drawn[row.name] = row.metadata["draw"](random, drawn)
        return cls(**drawn)

    @classmethod
    def parse(cls, text: str) -> Self:
        kind, *words = shlex.split(text)
        assert kind == cls.KIND, f"{kind}: expected {cls.KIND}"
        values = dict(word.split("=", 1) for word in words)
        return cls(**{row.name: row.type(values[row.name]) for row in fields(cls)})  # type: ignore[operator]

    def __str__(self) -> str:
        words = [f"{row.name}={getattr(self, row.name)}" for row in fields(self)]
        return shlex.join([self.KIND, *words])
