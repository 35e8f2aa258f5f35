"""Rates of a machine, stored where a calibration would store them."""

import os
import tempfile
from itertools import product
from pathlib import Path

import pytest

from polysci.cost.fusion import FusionCosts
from polysci.cost.group_fusion import GroupFusionCosts
from polysci.numerics.dtypes import PRECISIONS
from polysci.target.host import detect
from polysci.target.machine import Machine, assume_rates, from_json
from polysci.target.target import Target
from polysci.tune.calibrate import machine_path
from tests.support.caches import enter_cache

INPUTS = sorted({row.x.name for row in PRECISIONS.values()})


def write_rates(machine: Machine, target: Target, x: str) -> None:
    """Renamed into place: other workers may read the file meanwhile."""
    path = machine_path(target, x)
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text(machine.to_json(), encoding="utf-8")
    aside.rename(path)


def set_coefficients(patch: pytest.MonkeyPatch, **values: float) -> None:
    """Make another cache directory the current one, whose rates have these coefficients."""
    before = Path(os.environ["POLYSCI_CACHE_DIR"])
    folder = Path(tempfile.mkdtemp(prefix="coefficients-", dir=before))
    enter_cache(folder, patch)
    for file in before.glob("machine-*.json"):
        machine = from_json(file.read_text(encoding="utf-8")).with_coefficients(values)
        (folder / file.name).write_text(machine.to_json(), encoding="utf-8")


def fuse_rows_everywhere(patch: pytest.MonkeyPatch) -> None:
    """Let no tensor have room in L2, and stages cost less the more of them run together."""
    patch.setattr(FusionCosts, "room", 1e-3)
    for costs, cost in product((FusionCosts, GroupFusionCosts), ("together", "bound")):
        patch.setattr(costs, cost, lambda costs, work: -(len(work.members) ** 2))


def assume_rates_of_all() -> None:
    """Write assumed rates of what runs, or of what the cap leaves of it, to the cache directory.

    Threads share the stages of small networks too: no wait is dear, no saving too small.
    """
    for isa, x in product(detect().allowed, INPUTS):
        rates = assume_rates(detect(isa)).with_coefficients({"barrier_us": 0.0, "team_us": 0.0})
        write_rates(rates, detect(isa), x)


def assume_all_rates(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make ``folder`` the cache directory, with the rates that users' machines assume."""
    enter_cache(folder, patch)
    for isa, x in product(detect().runnable, INPUTS):
        write_rates(assume_rates(detect(isa)), detect(isa), x)
