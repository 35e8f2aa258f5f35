"""Make a ranker's context, a problem on this machine; keep the weights that it learned."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from polysci.border.files import read_stored, replace_file
from polysci.cost import Context
from polysci.cost.weights import Weights, from_json
from polysci.errors import PolysciError, UnsupportedError
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.runtime.build.folder import cache_dir
from polysci.runtime.measurement import host_of
from polysci.target.host import detect
from polysci.target.machine import Machine
from polysci.target.microkernels import ways
from polysci.target.target import Target
from polysci.tune.calibrate import machine_of

_log = logging.getLogger(__name__)


def context_of(
    problem: Problem,
    threads: int = 1,
    target: Target | None = None,
    progress: Callable[[int, int], None] | None = None,
    machine: Machine | None = None,
) -> Context:
    """The ranker's context of a problem, with the parameters ``machine`` if given.

    Otherwise this machine's parameters; it is calibrated if it never was (less than a minute).
    Raises UnsupportedError where the target has no kernels for the problem's element types.
    """
    target = target or detect()
    _, roles, strides = model_of(problem)
    if not ways("brgemm", target.isa.name, roles.multiplied):
        raise UnsupportedError(f"{target.isa}: no kernels for inputs of {roles.a.dtype}")
    if target.isa.language != "c" and roles.weights != "f32":
        raise UnsupportedError(f"{target.isa}: no kernels for weights of {roles.b.dtype} by f32")
    machine = machine or machine_of(target, progress, roles.a.dtype)
    return Context(roles, strides, target, machine, threads, weights=load_weights(target))


def weights_path(target: Target) -> Path:
    """Return the file of a machine's weights."""
    return cache_dir() / f"learned-{host_of(target)}.json"


def load_weights(target: Target) -> Weights | None:
    """The weights of this machine; None if nothing was learned or the file is damaged (logged)."""
    path = weights_path(target)
    try:
        return from_json(read_stored(path).decode("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, PolysciError) as error:
        _log.warning("ignoring %s: %s; 'polysci learn' writes it anew", path, error)
        return None


def keep_weights(target: Target, weights: Weights) -> Path:
    """Replace the machine's weights; returns the file. Raises OSError."""
    path = weights_path(target)
    with replace_file(path) as file:
        file.write(weights.to_json().encode())
    return path
