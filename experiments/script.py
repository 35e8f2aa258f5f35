"""What the analysing scripts share: options, one line for an error, progress, a CSV, the sample."""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import exp, log
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tarfile import TarError
from typing import Any, TypeVar

import records
from rich.console import Console
from rich.progress import track

from polysci.cli.layers import positive, problems
from polysci.errors import PolysciError, SpecError
from polysci.measure.network_samples import PAUSE_S, SAMPLE_S, WARM_UP_S, mean_seconds
from polysci.ops import layer_lists
from polysci.ops.problem import Problem

BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130
SETTINGS = ("1 warm", "1 cold", "2 warm", "2 cold")
Step = TypeVar("Step")
Row = Mapping[str, object]


def options(document: str | None, *, sample: bool = True) -> argparse.ArgumentParser:
    """``--quick``, ``--output`` and, where the script reads one, ``--sample``."""
    parser = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few layers; the files are called NAME-quick"
    )
    parser.add_argument(
        "--output", type=Path, default=records.RESULTS, metavar="DIR", help="(experiments/results)"
    )
    if sample:
        parser.add_argument(
            "--sample", type=Path, default=records.default(), metavar="FILE",
            help="what sample.py measured (results/sample.jsonl, else the one in results.tar.xz)",
        )  # fmt: skip
    return parser


def layer_options(document: str | None) -> argparse.ArgumentParser:
    """``options`` of a script that times layers: which, their layout, and threads."""
    parser = options(document, sample=False)
    parser.add_argument(
        "layers", nargs="*", metavar="SPEC|FILE", help="as of 'polysci optimize' (five of resnet50)"
    )
    parser.add_argument("--layout", choices=("nhwc", "nchw"), default="nhwc", help="(nhwc)")
    parser.add_argument("--threads", type=positive, metavar="N", help="(1)")
    return parser


def chosen(arguments: argparse.Namespace, usual: Sequence[str], quick: int) -> list[Problem]:
    """The requested layers, or the ``usual`` ones of ResNet-50; with ``--quick`` so many."""
    layout = arguments.layout
    if arguments.layers:
        words = argparse.Namespace(layers=arguments.layers, layout=layout, dtype="f32", batch=None)
        layers = problems(words)
    else:
        known = {layer.name: layer for layer in layer_lists.load("resnet50", layout)}
        layers = [known[name] for name in usual]
    return layers[:quick] if arguments.quick else layers


def run(work: Callable[[argparse.Namespace], bool], arguments: argparse.Namespace) -> int:
    """The exit status of ``work``, which says whether it came to its end.

    An error becomes one line on standard error, with the status that the command line uses.
    """
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
        return 0 if work(arguments) else INTERRUPTED
    except KeyboardInterrupt:
        print("interrupted before there was a result", file=sys.stderr)
        return INTERRUPTED
    except (PolysciError, OSError) as error:
        print(f"{Path(sys.argv[0]).stem}: error: {error}", file=sys.stderr)
        return BAD_INPUT if isinstance(error, SpecError) else FAILED


def stem(arguments: argparse.Namespace, name: str) -> Path:
    """Where the files go, without their suffix: a quick run does not replace a whole one."""
    return Path(arguments.output) / (f"{name}-quick" if arguments.quick else name)


def kept(steps: Iterable[Step], what: str, total: int | None = None) -> tuple[list[Step], bool]:
    """All steps with progress on standard error, or those before Ctrl-C; and whether it was all."""
    results: list[Step] = []
    console = Console(stderr=True)
    try:
        # On no terminal a bar is a line a second in somebody's log.
        for step in track(steps, what, total, console=console, disable=not console.is_terminal):
            results.append(step)
    except KeyboardInterrupt:
        print(f"interrupted: {what}: what follows rests on the {len(results)} that were done",
              file=sys.stderr)  # fmt: skip
        return results, False
    return results, True


Run = Callable[[], object]


def in_turns(
    ways: Mapping[str, tuple[Any, ...]], make: Callable[..., tuple[Run, Any]], rounds: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """What ``make`` tells of each way, or its exception, and the median seconds of its runs.

    ``make`` is a function of a module; of a way's words it makes, in a process of its own, what is
    to run, and what it tells. The processes run one after the other, ``rounds`` times.
    """
    context, pipes = multiprocessing.get_context("spawn"), dict[str, Connection]()
    told: dict[str, Any] = {}
    for way, words in ways.items():
        pipes[way], end = context.Pipe()
        context.Process(target=_serve, args=(end, make, words), daemon=True).start()
        end.close()
        try:
            told[way] = pipes[way].recv()
        except EOFError:
            told[way] = RuntimeError("its process ended")
        if isinstance(told[way], Exception):
            del pipes[way]
    seconds: dict[str, list[float]] = {way: [] for way in pipes}
    for _ in range(rounds):
        for way, pipe in pipes.items():
            time.sleep(PAUSE_S)
            pipe.send(True)
            seconds[way].append(pipe.recv())
    for pipe in pipes.values():
        pipe.send(False)
    return told, {way: median(values) for way, values in seconds.items() if values}


def _serve(pipe: Connection, make: Callable[..., tuple[Run, Any]], words: tuple[Any, ...]) -> None:
    """Tell what ``make`` does, then seconds a run, until asked for no more."""
    try:
        run, told = make(*words)
        run()
    except Exception as error:  # of libraries, each of which has many of its own
        pipe.send(RuntimeError(f"{type(error).__name__}: {' '.join(str(error).split()):.300}"))
        return
    pipe.send(told)
    while pipe.recv():
        mean_seconds(run, WARM_UP_S)
        pipe.send(mean_seconds(run, SAMPLE_S))


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """What is compiled, calibrated and recorded meanwhile goes to ``folder``."""
    before = os.environ.get("POLYSCI_CACHE_DIR")
    os.environ["POLYSCI_CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        del os.environ["POLYSCI_CACHE_DIR"]
        if before is not None:
            os.environ["POLYSCI_CACHE_DIR"] = before


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """A header and one line a row; all rows have the members of the first."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def sampled(
    path: Path, quick: bool = False, least: int = 2, member: str = records.SAMPLE
) -> Iterator[records.Layer]:
    """Yield the layers of the sample, setting by setting; with ``quick`` three of each.

    ``member`` is the file to read where ``path`` is an archive. Layers with fewer than ``least``
    schedules are left out. Raises SpecError where the file is missing, is none, or has no layer to
    offer.
    """
    if not path.is_file():
        raise SpecError(f"{path}: no such file; 'python experiments/sample.py' makes it")
    empty = True
    for setting in SETTINGS:
        layers = [layer for layer in _layers(path, setting, member) if len(layer.seconds) >= least]
        empty = empty and not layers
        yield from few(layers) if quick else layers
    if empty:
        raise SpecError(
            f"{path}: no layer with {least} measured schedules or more in it; "
            f"'python experiments/sample.py' makes such a file"
        )


def few(layers: Sequence[records.Layer], count: int = 3) -> list[records.Layer]:
    """The first layers of different networks, as far as there are any."""
    seen = Counter[str]()
    turn = []
    for layer in layers:
        turn.append(seen[layer.network])
        seen[layer.network] += 1
    return [layers[at] for at in sorted(range(len(layers)), key=lambda at: turn[at])[:count]]


def _layers(path: Path, setting: str, member: str) -> list[records.Layer]:
    try:
        return records.layers(path, setting, member)
    except (EOFError, LookupError, TypeError, ValueError, TarError) as error:  # and SpecError
        raise SpecError(
            f"{path}: not a sample: {type(error).__name__}: {error}; "
            f"'python experiments/sample.py' makes one"
        ) from None


def title(layer: records.Layer) -> str:
    """Network and name of a layer, or the words of one without a name."""
    return f"{layer.network} {layer.problem.name or layer.problem}"


def geomean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers, of which there is at least one."""
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))
