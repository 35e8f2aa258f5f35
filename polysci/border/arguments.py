"""Types of the arguments of public functions."""

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


def describe(value: Any) -> str:
    """A short text of any value."""
    try:
        return f"{value!r:.80}"
    except Exception:  # a caller's own repr, or an integer of too many digits
        return f"an object of {type(value).__name__}"
