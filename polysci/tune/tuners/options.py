"""Settings of a tuner."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from polysci.border.arguments import check_type
from polysci.errors import SpecError
from polysci.text.names import suggest
from polysci.tune.tuners.space import Genome

# Yields individuals to measure, and is sent their seconds: infinite for one that fell out.
Proposals = Generator[Sequence[Genome], Sequence[float], None]

NAMES: Final = ("genetic", "bayesian", "random")
_LEAST: Final = {"population": 2, "generations": 1, "elites": 0, "seed": 0}
_MOST: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class TunerOptions:
    """A tuner and its limit: at most ``population`` times ``generations`` individuals.

    The others are of the genetic one. ``crossover``: the chance that a child has two parents, not
    one; ``mutation``: that a gene changes; ``elites``: so many of a generation live on. The
    defaults are those of Vasilache and others, Tensor Comprehensions (2018), section 5. Raises
    SpecError or TypeError for what is out of range.
    """

    name: str = "genetic"
    population: int = 100
    generations: int = 25
    crossover: float = 0.8
    mutation: float = 0.07
    elites: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        check_type("tuner", self.name, str)
        if self.name not in NAMES:
            known = f"{', '.join(NAMES)}{suggest(self.name, NAMES)}"
            raise SpecError(f"tuner {self.name!r}: expected one of {known}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            check_type(name, value, int)
            if not least <= value < _MOST:
                raise SpecError(f"{name}={value}: a tuner has at least {least}, below 2^31")
        if self.elites >= self.population:
            raise SpecError(f"elites={self.elites}: expected fewer than population")
        for name in ("crossover", "mutation"):
            check_type(name, getattr(self, name), int, float)
            if not 0 <= getattr(self, name) <= 1:
                raise SpecError(f"{name}={getattr(self, name)}: expected a chance from 0 to 1")

    @property
    def budget(self) -> int:
        """How many individuals are proposed at most."""
        return self.population * self.generations

    def members(self) -> dict[str, Any]:
        """Return the options as JSON members."""
        return asdict(self)


def options_of(tuner: object) -> TunerOptions | None:
    """The settings that a caller means by them or by a name; None: no tuner."""
    if tuner is None or isinstance(tuner, TunerOptions):
        return tuner
    check_type("tuner", tuner, str, TunerOptions)
    return TunerOptions(str(tuner))
