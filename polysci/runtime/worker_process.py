"""Both ends of a worker: the Python process that answers JSON lines, and its parent's handle."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from polysci.errors import CheckError, PolysciError, UnsupportedError
from polysci.runtime.build.process import Child, exit_with_parent

_ROOT: Final = str(Path(__file__).resolve().parents[2])  # where the worker finds this package


class WorkerProcess:
    """A worker that runs ``python -m module arguments`` until ``close`` or the end of a with.

    ``threads`` bounds the OpenMP pool of code that does not fix its own, ``env`` is added to the
    environment, ``timeout`` is the limit in seconds for one answer. ``name`` says in errors whose
    fault it is.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        threads: int,
        env: Mapping[str, str],
        timeout: float,
        name: str = "",
    ) -> None:
        self.threads, self.timeout = threads, timeout
        self._fault = f"{name} failed: " if name else ""
        limits = {
            "OMP_NUM_THREADS": str(threads),
            # Idle threads of NumPy's matrix product would disturb the first timings.
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        # -P: no module of the current directory stands in for one of ours.
        self._child = Child([sys.executable, "-P", "-m", module, *arguments], {**limits, **env})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Tell whether the process runs."""
        return self._child.alive

    @property
    def pid(self) -> int | None:
        """The process id; None after the end."""
        return self._child.pid

    def start(self) -> None:
        """Start the process again where it has ended."""
        if not self.alive:
            self.restart()

    def restart(self) -> None:
        """End the process if it runs, and start it afresh."""
        self._child.restart()

    def close(self) -> None:
        """End the process; any number of times."""
        self._child.close()

    def ask(self, question: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """Return the answer, within ``timeout`` seconds.

        Raises UnsupportedError for what the worker does not have, else CheckError where it fails.
        """
        answer = self._child.ask(question, self.timeout if timeout is None else timeout)
        if "fault" not in answer:
            return answer
        if answer.get("unsupported"):
            raise UnsupportedError(str(answer["fault"]))
        raise CheckError(f"{self._fault}{answer['fault']}")


def serve(service: object, operations: tuple[str, ...]) -> None:
    """Answer, in the worker process, the questions on stdin until it ends.

    One question a line, ``{"op": "check", "so": ...}``: the methods of ``service`` called
    ``operations``. One answer a line; an error that the process survives is ``{"fault": text,
    "unsupported": whether it is an UnsupportedError}``. What else is printed goes to stderr.
    """
    exit_with_parent()
    questions, answers = _private_pipes()
    for line in questions:
        question = json.loads(line)
        op = question.pop("op")
        if op not in operations:
            raise ValueError(f"op: expected one of {', '.join(operations)}, got {op!r}")
        try:
            answer = getattr(service, op)(**question)
        except (PolysciError, MemoryError) as error:
            answer = {"fault": str(error), "unsupported": isinstance(error, UnsupportedError)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _private_pipes() -> tuple[IO[str], IO[str]]:
    """Take stdin and stdout away from the code that will be loaded: its stdout joins stderr."""
    questions = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return questions, answers
