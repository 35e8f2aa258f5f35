"""Turns with isl, one thread at a time: all its objects share a context, and what it counts.

A thread that computes while another one's operations are bounded would spend those, or fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Final, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")

TURN: Final = RLock()
os.register_at_fork(before=TURN.acquire, after_in_parent=TURN.release, after_in_child=TURN.release)


def in_turn(compute: Callable[Parameters, Value]) -> Callable[Parameters, Value]:
    """Return the function that waits until no other thread computes with isl, then computes."""

    @wraps(compute)
    def wait(*arguments: Parameters.args, **options: Parameters.kwargs) -> Value:
        with TURN:
            return compute(*arguments, **options)

    return wait
