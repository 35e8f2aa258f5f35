"""Types of the arguments of public functions."""

import os
from math import isnan
from os import PathLike
from pathlib import Path
from typing import Any


def check_type(name: str, value: object, *kinds: type) -> None:
    """Raise TypeError where ``value`` is none of ``kinds``; a bool is no number."""
    if isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds):
        return
    expected = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
    raise TypeError(f"{name}: expected {expected}, got {describe(value)}")


def check_callable(name: str, value: object) -> None:
    """Raise TypeError for what is neither None nor callable."""
    if value is not None and not callable(value):
        raise TypeError(f"{name}: expected a function or None, got {describe(value)}")


def check_clamp(clamp: Any) -> tuple[float, float]:
    """The two bounds of a clamp. Raises TypeError or ValueError."""
    try:
        low, high = map(float, clamp)
    except (TypeError, ValueError):
        raise TypeError(f"clamp: expected two numbers (lo, hi), got {describe(clamp)}") from None
    except OverflowError:
        raise ValueError(
            "clamp: expected numbers that fit in a float, got a larger integer"
        ) from None
    if isnan(low) or isnan(high) or low > high:
        raise ValueError(f"clamp: expected lo <= hi, got ({low}, {high})")
    return low, high


def check_path(name: str, value: object) -> Path:
    """The path that a str or PathLike names. Raises TypeError, or ValueError for an impossible one.

    No file's name holds a NUL byte, or characters that the file system's encoding lacks.
    """
    check_type(name, value, str, PathLike)
    path = Path(value)  # type: ignore[arg-type]
    try:
        possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise ValueError(f"{name}: no file can have the name {describe(str(path))}")
    return path


def describe(value: Any) -> str:
    """A short text of any value."""
    try:
        return f"{value!r:.80}"
    except Exception:  # a caller's own repr, or an integer of too many digits
        return f"an object of {type(value).__name__}"
