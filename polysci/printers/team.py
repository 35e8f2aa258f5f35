"""The threads that run a piece of generated code."""

from enum import Enum


class Team(Enum):
    """The threads that share the work of a piece of code."""

    OWN = "those of a parallel region of its own"
    OPENMP = "those of the parallel region around its call"
    POOL = "those of a team, of which the caller tells"
