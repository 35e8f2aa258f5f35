"""Kept choices of the model, by problem and machine, for later processes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from polysci.border.files import read_stored
from polysci.runtime.build.eviction import SCRATCH, note_insertion
from polysci.runtime.build.folder import cache_dir, dirs_to_read

FOLDER: Final = "predictions"
_PACKAGE: Final = Path(__file__).parents[1]
# The rooms whose code decides what the model chooses.
_ROOMS: Final = ("cost", "lower", "ops", "polyhedral", "space", "target", "tune")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The text of the schedule that a search chose, and the seconds that it will take."""

    schedule: str
    seconds: float


def key_of(parts: Sequence[str]) -> str:
    """A name for all that decides about a search: ``parts``, and the code of this package."""
    text = "\n".join((_code(), *parts))
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _code() -> str:
    """A digest of the code that chooses."""
    files = [path for room in _ROOMS for path in sorted((_PACKAGE / room).rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def load(key: str) -> Prediction | None:
    """Return the prediction kept under the key; None if none can be read."""
    for folder in dirs_to_read():
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            path = folder / FOLDER / key
            entry = json.loads(read_stored(path))
            prediction = Prediction(str(entry["schedule"]), float(entry["seconds"]))
            with suppress(OSError):  # now the youngest; another's folder may forbid that
                os.utime(path)
            return prediction
    return None


def keep(key: str, prediction: Prediction) -> None:
    """Keep a prediction for later processes; a full disk is no error."""
    entry = {"schedule": prediction.schedule, "seconds": prediction.seconds}
    try:
        root = cache_dir()
        path = root / FOLDER / key
        path.parent.mkdir(mode=0o700, exist_ok=True)
        aside = path.with_name(f"{SCRATCH}{key}")
        aside.write_text(json.dumps(entry), encoding="utf-8")
        aside.replace(path)
        note_insertion(root)
    except OSError as error:
        _log.debug("the choice of a search is not kept: %s", error)
