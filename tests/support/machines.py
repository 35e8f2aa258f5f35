"""Cache directories in which nothing has to be measured."""

from itertools import product
from pathlib import Path

import pytest

from polysci.numerics.dtypes import PRECISIONS
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.tune.calibrate import machine_path

INPUTS = sorted({row.x.name for row in PRECISIONS.values()})


def assume_all_rates(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``folder`` the cache directory, with assumed rates of every instruction set."""
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(folder))
    for isa, x in product(detect().runnable, INPUTS):
        target = detect(isa)
        machine_path(target, x).write_text(assume_rates(target).to_json(), encoding="utf-8")
