"""Cache directories of tests: their policy, and the builds that they share."""

import json
import os
from dataclasses import fields
from pathlib import Path

import pytest

from polysci.runtime.policy import FILE, Policy


def write_policy(folder: Path) -> None:
    """Have a cache directory suit tests, which all change passes and run beside each other.

    Networks are planned anew, samples count as undisturbed, and no test pays for a check of code
    that another one checks.
    """
    members = dict.fromkeys((field.name for field in fields(Policy)), False)
    (folder / FILE).write_text(json.dumps(members), encoding="utf-8")


def enter_cache(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make ``folder`` the cache directory, with the builds of the one before it and no rates."""
    shared = Path(os.environ["POLYSCI_CACHE_DIR"])
    folder.mkdir(mode=0o700, exist_ok=True)
    for name in ("builds", "headers"):
        (shared / name).mkdir(mode=0o700, exist_ok=True)
        (folder / name).symlink_to(shared / name)
    write_policy(folder)
    patch.setenv("POLYSCI_CACHE_DIR", str(folder))
