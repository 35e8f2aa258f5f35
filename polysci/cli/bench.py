"""polysci bench: time layers beside a peer, in turns."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.cli import output_file
from polysci.errors import CheckError, NoCompilerError, PolysciError, SpecError

if TYPE_CHECKING:
    from polysci.cli.bench_table import ComparedLayer
    from polysci.cli.display import Display
    from polysci.ops.problem import Problem
    from polysci.peers.contest import Comparison
    from polysci.peers.rival import LayerRival
    from polysci.tune import Result

_HELP = "time every layer in turns with other libraries"


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser(
        "bench", help=_HELP, allow_abbrev=False,
        description=f"{_HELP}. The ratio is the fastest peer's time over ours: above "
        "1, polysci is faster.",
    )  # fmt: skip
    shared.layer_options(command, described=False)
    shared.search_options(command)
    command.add_argument(
        "--against",
        required=True,
        action="append",
        metavar="PEER",
        help="the library: torch (oneDNN by PyTorch's fastest path), onednn (its own C API; "
        "the last wheel is 3.2 of 2023); several: torch,onednn",
    )
    command.add_argument(
        "--library", metavar="PATH", help="the libdnnl.so of the peer onednn, version 3"
    )
    command.add_argument(
        "--cold",
        action="store_true",
        help="also time calls with weights from memory instead of caches",
    )
    command.add_argument(
        "--rounds",
        type=shared.positive,
        default=None,
        metavar="N",
        help="timed turns for each layer (15)",
    )
    command.add_argument(
        "--repeats",
        type=shared.positive,
        default=1,
        metavar="N",
        help="times that all layers are timed; the least median of each side counts (1)",
    )
    shared.table_options(command)
    command.add_argument("-o", "--output", metavar="FILE", help="write the table or JSON to FILE")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Optimise where there is no record, compare, print; 1 if a layer failed."""
    from polysci.cli.bench_table import write_json, write_table
    from polysci.cli.display import Display

    output_file.check_writable(arguments.output)
    todo, rivals = shared.problems(arguments), _rivals(arguments)
    comparisons: list[ComparedLayer] = []
    faults: list[tuple[str, str]] = []
    interrupted = False
    with ExitStack() as stack:
        for rival in rivals:
            stack.enter_context(rival).open()
        display = stack.enter_context(Display(len(todo) * arguments.repeats))
        try:
            for layer in shared.tune_layers(todo, arguments, display.watch):
                with _note_error(layer.problem, faults, display):
                    comparisons.append(_compare(layer, rivals, arguments))
                    display.done(_result_line(comparisons[-1]))
            for _ in range(arguments.repeats - 1):
                for at, compared in enumerate(comparisons):
                    problem = compared.times.problem
                    with _note_error(problem, faults, display):
                        again = _time(problem, compared.result, rivals, arguments)
                        comparisons[at] = replace(compared, times=compared.times.best_with(again))
                        display.done(_result_line(comparisons[at]))
        except KeyboardInterrupt:
            interrupted = True
    outcome = (comparisons, faults)
    if comparisons or faults:
        width = shared.table_width(arguments)
        text = write_json(*outcome) if arguments.json else write_table(*outcome, width)
        output_file.write(text, arguments.output)
    if interrupted:
        raise shared.Interrupted
    return int(bool(faults))


@contextmanager
def _note_error(
    problem: Problem, faults: list[tuple[str, str]], display: Display
) -> Iterator[None]:
    """A layer's error goes to ``faults``; one of the request or the compiler ends the command."""
    try:
        yield
    except (SpecError, NoCompilerError):
        raise
    except PolysciError as error:
        name = shared.title(problem)
        faults.append((name, str(error)))
        display.done(f"{name}: FAILED: {error}")


def _rivals(arguments: argparse.Namespace) -> list[LayerRival]:
    """The peers' processes, none started. Raises SpecError and UnsupportedError."""
    from polysci.peers.process import peer_named
    from polysci.peers.rival import LayerRival

    names = [name.strip() for names in arguments.against for name in names.split(",")]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise SpecError(f"--against: {repeated} is there twice")
    threads, path = shared.threads_of(arguments), arguments.library
    peers = [peer_named(name) for name in names]
    if path is not None and not any(peer.takes_library for peer in peers):
        raise SpecError(f"--library {path}: no peer among {', '.join(names)} takes one")
    return [
        LayerRival(peer, threads, library=path if peer.takes_library else None) for peer in peers
    ]


def _result_line(compared: ComparedLayer) -> str:
    """A line for a layer that is done."""
    from polysci.cli.bench_table import number

    times = compared.times
    name = shared.title(times.problem)
    mark = " (disturbed)" if times.disturbed else ""
    return f"{name}: {times.gflops:.1f} GFLOP/s{mark}, ratio {number(times.ratio)}"


def _compare(
    layer: shared.TunedLayer, rivals: Sequence[LayerRival], arguments: argparse.Namespace
) -> ComparedLayer:
    from polysci.cli.bench_table import ComparedLayer

    if layer.result is None:
        raise CheckError(layer.fault)
    return ComparedLayer(_time(layer.problem, layer.result, rivals, arguments), layer.result)


def _time(
    problem: Problem, result: Result, rivals: Sequence[LayerRival], arguments: argparse.Namespace
) -> Comparison:
    """One run of a layer beside all peers."""
    from polysci.numerics.dtypes import precision_named
    from polysci.peers.contest import PEAK_UNITS, ROUNDS, compare
    from polysci.runtime.backends import backend_of
    from polysci.tune import SYMBOL
    from polysci.tune.calibrate import machine_of
    from polysci.tune.probes import peak_text, peak_units

    target = shared.target_of(arguments)
    backend = backend_of(target)
    source, rounds = result.source, arguments.rounds or ROUNDS
    path = backend.build(source.file, symbols=source.symbols, module=source.module)
    x = precision_named(problem.dtype).x.name
    units = peak_units(target.isa.name, x)
    best = units[max(units, key=machine_of(target, x=x).fastest)]
    peak = backend.build(peak_text(best), symbols=("peak",))
    return compare(
        problem, (path, SYMBOL), (peak, "peak"), rivals, cold=arguments.cold,
        unit=PEAK_UNITS[best.compute], rounds=rounds, schedule=result.schedule,
    )  # fmt: skip
