"""Cache directories in which nothing has to be measured."""

import json
import os
from dataclasses import fields
from itertools import product
from pathlib import Path

import pytest

from polysci.numerics.dtypes import PRECISIONS
from polysci.runtime.policy import FILE, Policy
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.tune.calibrate import machine_path

INPUTS = sorted({row.x.name for row in PRECISIONS.values()})


def write_policy(folder: Path) -> None:
    """Have a cache directory suit tests, which all change passes and run beside each other.

    Networks are planned anew, samples count as undisturbed, and no test pays for a check of code
    that another one checks.
    """
    members = dict.fromkeys((field.name for field in fields(Policy)), False)
    (folder / FILE).write_text(json.dumps(members), encoding="utf-8")


def share_builds(shared: Path, folder: Path) -> None:
    """Have ``folder`` hold the builds of ``shared``."""
    for name in ("builds", "headers"):
        (shared / name).mkdir(mode=0o700, exist_ok=True)
        (folder / name).symlink_to(shared / name)


def assume_all_rates(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``folder`` the cache directory, with assumed rates of every instruction set.

    It shares the builds of the cache directory before it.
    """
    folder.mkdir(mode=0o700)
    share_builds(Path(os.environ["POLYSCI_CACHE_DIR"]), folder)
    write_policy(folder)
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(folder))
    for isa, x in product(detect().runnable, INPUTS):
        target = detect(isa)
        machine_path(target, x).write_text(assume_rates(target).to_json(), encoding="utf-8")
