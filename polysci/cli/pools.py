"""``compile --threads``: how many threads, who starts them, or both."""

from __future__ import annotations

import argparse
import os
from typing import Any

from polysci.cli import layers as shared

KINDS = ("openmp", "pthread", "callback")
NONE = "none"


class ThreadsAction(argparse.Action):
    """Sets ``threads`` and ``pool`` from N, KIND, KIND:N or none."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any
    ) -> None:
        try:
            namespace.threads, namespace.pool = parse(str(values))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None


def parse(text: str) -> tuple[int, str]:
    """The number of threads, and the kind that starts them.

    Where only the kind is said the number is POLYSCI_NUM_THREADS, else that of the CPUs that this
    process may use, and at least 2.
    """
    kind, _, number = text.partition(":")
    if text == NONE:
        return 1, KINDS[0]
    if kind not in KINDS:
        if text.isdigit():
            return shared.threads(text), KINDS[0]
        raise argparse.ArgumentTypeError(
            f"expected a number, {', '.join(KINDS)} or {NONE}, or both, as in pthread:2; "
            f"got {text!r}"
        )
    if number or text != kind:
        count = shared.threads(number)
    elif "POLYSCI_NUM_THREADS" in os.environ:
        count = shared.default_threads()
    else:
        from polysci.target.cpus import available_cores

        count = max(2, available_cores())
    if count == 1 and kind != KINDS[0]:
        raise argparse.ArgumentTypeError(f"{text}: needs 2 threads at least; one is {NONE!r}")
    return count, kind
