"""Rates of a machine, stored where a calibration would store them."""

import os

from polysci.target.host import Target
from polysci.target.machine import Machine
from polysci.tune.calibrate import machine_path


def write_rates(machine: Machine, target: Target, x: str) -> None:
    """Renamed into place: other workers may read the file meanwhile."""
    path = machine_path(target, x)
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text(machine.to_json(), encoding="utf-8")
    aside.rename(path)
