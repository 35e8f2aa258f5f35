"""Runs of a network in the trace-event format that Perfetto and Chrome's tracing read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from polysci.network.account import NetworkAccount, StageAccount
from polysci.text.tables import shorten

PROCESS: Final = 1
RUNS: Final = 0  # the thread of whole runs; those that compute follow
MICROSECONDS: Final = 1e6
_LONGEST: Final = 200  # characters of a title


def trace_text(account: NetworkAccount) -> str:
    """The JSON of all runs of an account.

    A stage is on every thread that computes it, for as long as all of them take: they meet at its
    end, and its times are read there. The counter tells the bytes of the arena in use.
    """
    network = account.network
    return json.dumps(
        {
            "displayTimeUnit": "ms",
            "otherData": {
                "network": network.name, "threads": network.threads, "runs": len(account.runs),
                "isa": str(network.options.target.isa), "arena_bytes": account.report.arena,
            },
            "traceEvents": [*_names(account), *_events(account)],
        }
    )  # fmt: skip


def _names(account: NetworkAccount) -> Iterator[dict[str, Any]]:
    titles = [("process_name", RUNS, account.network.name), ("thread_name", RUNS, "runs")]
    threads = range(1, account.network.threads + 1)
    titles += [("thread_name", at, f"thread {at}") for at in threads]
    for what, thread, title in titles:
        yield {"name": what, "ph": "M", "pid": PROCESS, "tid": thread, "args": {"name": title}}


def _events(account: NetworkAccount) -> Iterator[dict[str, Any]]:
    live = [account.live(stage.position) for stage in account.stages]
    for number, run in enumerate(account.runs):
        marks = run.marks
        yield _span(f"run {number}", "run", RUNS, marks[0], marks[-1], {"run": number})
        for stage, held in zip(account.stages, live, strict=True):
            start, end = marks[stage.position : stage.position + 2]
            yield _counter(start, held)
            details = {**_arguments(stage), "run": number}
            for thread in range(1, stage.threads + 1):
                title = shorten(stage.name, _LONGEST)
                yield _span(title, stage.kind, thread, start, end, details)
        yield _counter(marks[-1], 0)


def _arguments(stage: StageAccount) -> dict[str, Any]:
    return {
        "stage": stage.position, "kind": stage.kind, "schedule": stage.schedule or "none",
        "result": stage.result, "flops": stage.flops, "bytes": stage.bytes,
        "bytes_read": stage.read, "bytes_written": stage.written, "weight_bytes": stage.weights,
        "threads": stage.threads,
    }  # fmt: skip


def _span(
    name: str, category: str, thread: int, start: float, end: float, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "name": name, "cat": category, "ph": "X", "pid": PROCESS, "tid": thread,
        "ts": start * MICROSECONDS, "dur": (end - start) * MICROSECONDS, "args": dict(arguments),
    }  # fmt: skip


def _counter(at: float, live: int) -> dict[str, Any]:
    return {
        "name": "arena", "ph": "C", "pid": PROCESS, "tid": RUNS, "ts": at * MICROSECONDS,
        "args": {"bytes": live},
    }  # fmt: skip
