"""Settings of PyTorch's operators: how far a search goes, how many threads a call takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from polysci.border.arguments import check_type
from polysci.errors import SpecError
from polysci.lower import registry
from polysci.lower.registry import DEFAULT
from polysci.target.target import MOST_THREADS
from polysci.text.names import suggest
from polysci.tune import check_options


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of operators; ``threads`` 0: what ``torch.get_num_threads()`` says at the call."""

    level: str = "estimate"
    algorithm: str = DEFAULT
    threads: int = 0
    reproducible: bool = False


_get_num_threads: Callable[[], int] = torch.get_num_threads
_settings, _base = Settings(), 0
_is_child = False  # of fork: threads of the parent are not there
_bases = {_settings: 0}  # by settings whose threads are 0


class options:  # noqa: N801  (a function to its callers, or a context manager)
    """Change settings from now on, or in a ``with`` block until its end, for the whole process.

    ``level`` and ``algorithm`` as ``polysci.compile`` takes them (default: ``estimate`` and
    ``direct``). ``threads`` of each call; 0, the default: what ``torch.get_num_threads()`` returns.
    ``reproducible``: any number of threads gives the same bits, also of gradients; sums that
    PyTorch takes over what was broadcast, biases among it, have its own order. Raises TypeError or
    SpecError for a value that is none.
    """

    def __init__(
        self, *, level: str | None = None, algorithm: str | None = None,
        threads: int | None = None, reproducible: bool | None = None,
    ) -> None:  # fmt: skip
        self._before = _settings
        changes: dict[str, Any] = {
            "level": level, "algorithm": algorithm, "threads": threads,
            "reproducible": reproducible,
        }  # fmt: skip
        chosen = replace(_settings, **{n: x for n, x in changes.items() if x is not None})
        check_options(chosen.level, chosen.threads or 1, None, None, None, None)
        check_type("reproducible", chosen.reproducible, bool)
        check_algorithm(chosen.algorithm)
        _use(chosen)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        _use(self._before)


def check_algorithm(algorithm: Any) -> None:
    """Raise TypeError or SpecError for what is no algorithm."""
    check_type("algorithm", algorithm, str)
    if algorithm not in (known := registry.options()):
        hint = f"{', '.join(known)}{suggest(algorithm, known)}"
        raise SpecError(f"algorithm {algorithm!r:.40}: expected one of {hint}")


def set_threads(count: int) -> None:
    """Set ``options(threads=count)``: 0 follows ``torch.get_num_threads()`` again."""
    options(threads=count)


def current() -> Settings:
    """Return the settings of a call that begins now."""
    return _settings


def threads() -> int:
    """Return the threads of a call that begins now."""
    return _settings.threads or _get_num_threads()


def is_child() -> bool:
    """Tell whether this process is a child of fork."""
    return _is_child


def key() -> int:
    """Return a number for what applies to a call that begins now; as quick as can be."""
    return _base + (_settings.threads or _get_num_threads())


def _use(chosen: Settings) -> None:
    global _settings, _base
    _settings = chosen
    _base = _bases.setdefault(replace(chosen, threads=0), len(_bases) * (MOST_THREADS + 1))


def _have_one_thread() -> None:
    """Use one thread in a child of fork: OpenMP's runtime would wait for those of its parent."""
    global _is_child
    _is_child = True
    _use(replace(_settings, threads=1))


os.register_at_fork(after_in_child=_have_one_thread)
