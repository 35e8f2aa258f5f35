"""polysci bench: time layers beside a peer, in turns."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.errors import CheckError, NoCompilerError, PolysciError, SpecError

if TYPE_CHECKING:
    from polysci.cli.bench_table import ComparedLayer
    from polysci.peers.rival import LayerRival

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
        help="the library: torch (oneDNN by PyTorch's fastest path), onednn (its own C API); "
        "several: torch,onednn",
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
    shared.table_options(command)
    command.add_argument("-o", "--output", metavar="FILE", help="write the table or JSON to FILE")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Optimise where there is no record, compare, print; 1 if a layer failed."""
    from polysci.cli.bench_table import number, write_json, write_table
    from polysci.cli.display import Display

    todo, rivals = shared.problems(arguments), _rivals(arguments)
    comparisons: list[ComparedLayer] = []
    faults: list[tuple[str, str]] = []
    interrupted = False
    with ExitStack() as stack:
        for rival in rivals:
            stack.enter_context(rival).open()
        display = stack.enter_context(Display(len(todo)))
        try:
            for layer in shared.tune_layers(todo, arguments, display.watch):
                name = shared.title(layer.problem)
                try:
                    compared = _compare(layer, rivals, arguments)
                except (SpecError, NoCompilerError):
                    raise
                except PolysciError as error:
                    faults.append((name, str(error)))
                    display.done(f"{name}: FAILED: {error}")
                    continue
                comparisons.append(compared)
                times = compared.times
                display.done(f"{name}: {times.gflops:.1f} GFLOP/s, ratio {number(times.ratio)}")
        except KeyboardInterrupt:
            interrupted = True
    outcome = (comparisons, faults)
    if comparisons or faults:
        width = shared.table_width(arguments)
        text = write_json(*outcome) if arguments.json else write_table(*outcome, width)
        shared.write(text, arguments.output)
    if interrupted:
        raise shared.Interrupted
    return int(bool(faults))


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


def _compare(
    layer: shared.TunedLayer, rivals: Sequence[LayerRival], arguments: argparse.Namespace
) -> ComparedLayer:
    from polysci.cli.bench_table import ComparedLayer
    from polysci.numerics.dtypes import precision_named
    from polysci.peers.contest import PEAK_UNITS, ROUNDS, compare
    from polysci.runtime.backend import backend_of
    from polysci.tune import SYMBOL
    from polysci.tune.calibrate import machine_of
    from polysci.tune.probes import peak_text, peak_units

    if layer.result is None:
        raise CheckError(layer.fault)
    target = shared.target_of(arguments)
    backend = backend_of(target.isa)
    source, rounds = layer.result.source, arguments.rounds or ROUNDS
    path = backend.build(source.file, symbols=source.symbols)
    x = precision_named(layer.problem.dtype).x.name
    units = peak_units(target.isa.name, x)
    best = units[max(units, key=machine_of(target, x=x).fastest)]
    peak = backend.build(peak_text(best), symbols=("peak",))
    times = compare(
        layer.problem, (path, SYMBOL), (peak, "peak"), rivals, cold=arguments.cold,
        unit=PEAK_UNITS[best.compute], rounds=rounds, schedule=layer.result.schedule,
    )  # fmt: skip
    return ComparedLayer(times, layer.result)
