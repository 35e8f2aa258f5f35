"""Options of commands that a tuner may drive."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from polysci.cli.layers import positive
from polysci.errors import SpecError

if TYPE_CHECKING:
    from polysci.tune import TunerOptions

NAMES = ("genetic", "bayesian", "random")
_HELP: dict[str, tuple[Callable[[str], Any], str]] = {
    "population": (positive, "individuals of a generation (100)"),
    "generations": (positive, "at most (25)"),
    "crossover": (float, "chance that a child has two parents (0.8)"),
    "mutation": (float, "chance that a gene of a child changes (0.07)"),
    "elites": (int, "individuals of a generation that live on (10)"),
    "seed": (int, "of random numbers: of the search, and of inputs that are made up (0)"),
}


def tuner_options(command: argparse.ArgumentParser) -> None:
    """Add ``--tuner`` and its settings."""
    group = command.add_argument_group(
        "tuner", "What to measure, where the model's order shall not decide that. A tuner goes on "
        "where it was ended or killed, if it is started again with the same options.",
    )  # fmt: skip
    group.add_argument(
        "--tuner", choices=NAMES,
        help="genetic: generations of individuals; bayesian: optuna's estimator (extra [tuners]); "
        "random: to compare with",
    )  # fmt: skip
    for name, (kind, text) in _HELP.items():
        group.add_argument(f"--{name}", type=kind, metavar="N", help=text)


def tuner_of(arguments: argparse.Namespace) -> TunerOptions | None:
    """The tuner that was asked for.

    Raises SpecError for settings of none, UnsupportedError for one whose package is missing.
    """
    from polysci.tune import TunerOptions
    from polysci.tune.tuners import check_packages

    asked = {name: getattr(arguments, name, None) for name in _HELP}
    settings = {name: value for name, value in asked.items() if value is not None}
    if getattr(arguments, "tuner", None) is None:
        if hasattr(arguments, "input"):  # for which --seed is as well
            settings.pop("seed", None)
        if settings:
            raise SpecError(f"--{next(iter(settings))}: a setting of a tuner; it needs --tuner")
        return None
    tuner = TunerOptions(arguments.tuner, **settings)
    check_packages(tuner)
    return tuner
