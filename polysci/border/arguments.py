"""Types of the arguments of public functions."""

import os
from math import isnan
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, Final

from polysci.errors import SpecError, cut, cut_quoted

PATH_MAX: Final = 4096  # bytes of a name, as Linux bounds it


def check_type(name: str, value: object, *kinds: type) -> None:
    """Raise TypeError where ``value`` is none of ``kinds``; a bool is no number."""
    if is_a(value, *kinds) and (not isinstance(value, bool) or bool in kinds):
        return
    expected = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
    raise TypeError(f"{name}: expected {expected}, got {describe(value)}")


def is_a(value: object, *kinds: type) -> bool:
    """Return whether ``value`` is of one of ``kinds``; an object that raises when asked is not."""
    try:
        return isinstance(value, kinds)
    except Exception:  # a caller's own object: protocols ask it for their attributes
        return False


def check_texts(name: str, value: object) -> None:
    """Raise TypeError for what is neither None nor a list or tuple of str."""
    if value is not None and not (
        isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
    ):
        raise TypeError(f"{name}: expected a list of str or None, got {describe(value)}")
    bad = next((text for text in value or () if not text.isprintable()), None)
    if bad is not None:
        raise ValueError(f"{name}: expected printable texts, got {describe(bad)}")


def check_callable(name: str, value: object) -> None:
    """Raise TypeError for what is neither None nor callable."""
    if value is not None and not callable(value):
        raise TypeError(f"{name}: expected a function or None, got {describe(value)}")


def check_clamp(clamp: Any) -> tuple[float, float]:
    """Return the two bounds of a clamp. Raises TypeError or ValueError."""
    try:
        low, high = map(float, clamp)
    except OverflowError:
        raise ValueError(
            "clamp: expected numbers that fit in a float, got a larger integer"
        ) from None
    except Exception:  # whatever a caller's own object raises
        raise TypeError(f"clamp: expected two numbers (lo, hi), got {describe(clamp)}") from None
    if isnan(low) or isnan(high) or low > high:
        raise ValueError(f"clamp: expected lo <= hi, got ({low}, {high})")
    return low, high


def check_real(name: str, value: Any, least: float = 0.0, below: float = 2.0**128) -> None:
    """Raise TypeError for no real number, SpecError for one outside of the limits, f32's.

    A bool is no number.
    """
    _check_number(name, value, (Real, "a number"), (least, below), f"{least:g}, below {below:g}")


def check_whole(name: str, value: Any, least: int = 1, below: int = 1 << 60) -> None:
    """Raise TypeError for no whole number, SpecError for one outside of the limits."""
    limits = f"{least}, below 2^{below.bit_length() - 1}"
    _check_number(name, value, (Integral, "a whole number"), (least, below), limits)


def as_int(value: Any) -> Any:
    """Return a whole number of another type, as NumPy's, as an int, and anything else as it is."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def _check_number(
    name: str, value: Any, kind: tuple[Any, str], limits: tuple[float, float], text: str
) -> None:
    if not isinstance(value, kind[0]) or isinstance(value, bool):
        raise TypeError(f"{name}: expected {kind[1]}, got {describe(value)}")
    if not limits[0] <= value < limits[1]:
        raise SpecError(f"{name}={describe(value)}: expected {kind[1]} of at least {text}")


def check_path(name: str, value: object) -> Path:
    """The path that a str or PathLike names. Raises TypeError, or ValueError for an impossible one.

    No file's name holds a NUL byte, or characters that the file system's encoding lacks, or is of
    PATH_MAX bytes.
    """
    check_type(name, value, str, PathLike)
    try:
        path = Path(value)  # type: ignore[arg-type]
        possible = b"\0" not in os.fsencode(path) and len(os.fsencode(path)) < PATH_MAX
    except Exception:  # of an encoding, or whatever a caller's own object raises
        possible = False
    if not possible:
        raise ValueError(f"{name}: no file can have the name {describe(value)}")
    return path


def describe(value: Any) -> str:
    """Return a short text of any value."""
    try:
        text = repr(value)
    except Exception:  # a caller's own repr, or an integer of too many digits
        return f"an object of {type(value).__name__}"
    return cut_quoted(text) if isinstance(value, str) else cut(text)
