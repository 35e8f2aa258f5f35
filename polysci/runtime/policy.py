"""Decisions for all work in a cache directory: the file ``policy.json`` in it, for who owns it."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Final

from polysci.border.files import read_stored
from polysci.errors import SpecError
from polysci.runtime.build.folder import dirs_to_read

FILE: Final = "policy.json"


@dataclass(frozen=True, slots=True)
class Policy:
    """Precautions that are taken unless the file says ``false``.

    ``first_runs``: new code first runs in a process of its own, where a crash does no harm.
    ``kept_networks``: networks at level ``estimate`` are kept, and loaded by later processes.
    ``disturbance``: timed samples are watched for other work on the processor.
    """

    first_runs: bool = True
    kept_networks: bool = True
    disturbance: bool = True


def read_policy() -> Policy:
    """Return the policy of the cache directory. Raises SpecError for a file that is none."""
    for folder in dirs_to_read():
        path = folder / FILE
        try:
            members = json.loads(read_stored(path))
        except OSError:
            continue
        except (ValueError, RecursionError) as error:
            raise SpecError(f"{path}: not JSON: {error}") from None
        names = [field.name for field in fields(Policy)]
        if not isinstance(members, dict) or not {*members} <= {*names}:
            raise SpecError(f"{path}: expected an object with members of {', '.join(names)}")
        if wrong := [name for name in members if not isinstance(members[name], bool)]:
            raise SpecError(f"{path}: {wrong[0]}: expected true or false")
        return Policy(**members)
    return Policy()
