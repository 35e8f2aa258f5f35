"""Tuners: which individuals of a program to measure next, by name."""

from polysci.tune.tuners.drive import TUNERS, check_packages, drive
from polysci.tune.tuners.space import (
    Decision,
    Genome,
    Space,
    TunerOptions,
    choose_options,
    options_of,
)
from polysci.tune.tuners.state import Outcome, TunerState, kept_states, state_of

__all__ = [
    "TUNERS",
    "Decision",
    "Genome",
    "Outcome",
    "Space",
    "TunerOptions",
    "TunerState",
    "check_packages",
    "choose_options",
    "drive",
    "kept_states",
    "options_of",
    "state_of",
]
