"""Make a ranker's context: a problem on this machine."""

from __future__ import annotations

from collections.abc import Callable

from polysci.cost import Context
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.target.host import detect
from polysci.target.machine import Machine
from polysci.target.target import Target
from polysci.tune.calibrate import machine_of
from polysci.tune.training import load_weights


def context_of(
    problem: Problem,
    threads: int = 1,
    target: Target | None = None,
    progress: Callable[[int, int], None] | None = None,
    machine: Machine | None = None,
) -> Context:
    """The ranker's context of a problem, with the parameters ``machine`` if given.

    Otherwise this machine's parameters; it is calibrated if it never was (less than a minute).
    """
    target = target or detect()
    _, roles, strides = model_of(problem)
    machine = machine or machine_of(target, progress, roles.a.dtype)
    return Context(roles, strides, target, machine, threads, weights=load_weights(target))
