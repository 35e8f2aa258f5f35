"""polysci bench: time layers beside a peer, in turns."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.errors import CheckError, NoCompilerError, PolysciError, SpecError
from polysci.text.tables import fit, time_text

if TYPE_CHECKING:
    from polysci.cli.display import Display
    from polysci.ops.problem import Problem
    from polysci.peers.contest import LayerComparison
    from polysci.peers.process import LayerRival
    from polysci.tune import Result

HELP = "time every layer in turns with other libraries"
MORE = "The ratio is the fastest peer's time over ours: above 1, polysci is faster."
_MARK = " (!)"
Fault = tuple[str, str]  # a layer, and what went wrong


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
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


def run(arguments: argparse.Namespace) -> int:
    """Optimise where there is no record, compare, print; 1 if a layer failed."""
    from polysci.cli.display import Display

    shared.check_writable(arguments.output)
    todo, rivals = shared.problems(arguments), _rivals(arguments)
    comparisons: list[ComparedLayer] = []
    faults: list[Fault] = []
    with ExitStack() as stack:
        for rival in rivals:
            stack.enter_context(rival).open()
        display = stack.enter_context(Display(len(todo) * arguments.repeats))
        stack.enter_context(display.hold())
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
    if comparisons or faults:
        width = shared.table_width(arguments)
        text = (
            write_json(comparisons, faults)
            if arguments.json
            else write_table(comparisons, faults, width)
        )
        shared.write(text, arguments.output)
    display.end()
    return int(bool(faults))


@contextmanager
def _note_error(problem: Problem, faults: list[Fault], display: Display) -> Iterator[None]:
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
    from polysci.peers.process import LayerRival, peer_named

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

    times = compared.times
    name = shared.title(times.problem)
    mark = " (disturbed)" if times.disturbed else ""
    return f"{name}: {times.gflops:.1f} GFLOP/s{mark}, ratio {number(times.ratio)}"


def _compare(
    layer: shared.TunedLayer, rivals: Sequence[LayerRival], arguments: argparse.Namespace
) -> ComparedLayer:

    if layer.result is None:
        raise CheckError(layer.fault)
    return ComparedLayer(_time(layer.problem, layer.result, rivals, arguments), layer.result)


def _time(
    problem: Problem, result: Result, rivals: Sequence[LayerRival], arguments: argparse.Namespace
) -> LayerComparison:
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


@dataclass(frozen=True, slots=True)
class ComparedLayer:
    """A layer's times beside the peers', and the search that chose our schedule."""

    times: LayerComparison
    result: Result

    @property
    def recorded(self) -> bool:
        """Return whether the schedule comes from the record of an earlier search."""
        return bool(self.result.measurement and self.result.measurement.recorded)

    @property
    def disturbed(self) -> bool:
        """Return whether other work disturbed the search's measurement."""
        return bool(self.result.measurement and self.result.measurement.disturbed)

    def row(self) -> dict[str, Any]:
        """The numbers as JSON members."""
        return self.times.row() | {
            "schedule": str(self.result.schedule),
            "schedule_recorded": self.recorded,
            "schedule_disturbed": self.disturbed,
        }


def number(ratio: float | None) -> str:
    """A ratio as text; a dash where there is none."""
    return "-" if ratio is None else f"{ratio:.3f}"


def write_json(comparisons: Sequence[ComparedLayer], faults: Sequence[Fault]) -> str:
    """A line for each layer, then one with the summary."""
    lines = [json.dumps(compared.row()) for compared in comparisons]
    lines += [json.dumps({"layer": name, "error": fault}) for name, fault in faults]
    return "\n".join([*lines, json.dumps({"summary": _summary(comparisons, faults)})])


def write_table(
    comparisons: Sequence[ComparedLayer], faults: Sequence[Fault], width: int | None
) -> str:
    """A table of at most ``width`` characters a line, and the summary below it."""
    left = ("layer", "peer's path", "fastest peer's path")
    drop = (*left[1:], "cold", "% of peak")
    lines = [fit(_rows(comparisons), width, drop=drop, clip=("layer",), left=left)]
    lines += [
        f"{shared.title(compared.times.problem)}: {peer.path}"
        for compared in comparisons
        for peer in compared.times.peers
        if peer.median is None
    ]
    lines += [f"{name}: FAILED: {fault}" for name, fault in faults]
    if recorded := sum(compared.recorded for compared in comparisons):
        lines.append(f"{recorded} of {len(comparisons)} schedules from records of earlier searches")
    if marked := sum(_is_marked(compared.times) for compared in comparisons):
        lines.append(
            f"{_MARK.strip()}: other work disturbed most samples of {marked} of "
            f"{len(comparisons)} layers, of ours, a peer's or the peak's: measure again"
        )
    if repeats := max((compared.times.repeats for compared in comparisons), default=1) - 1:
        lines.append(f"the best of {repeats + 1} medians on each side")
    if disturbed := sum(compared.disturbed for compared in comparisons):
        lines.append(
            f"{disturbed} of {len(comparisons)} schedules chosen by disturbed measurements"
        )
    if comparisons:
        lines += _conclusion(_summary(comparisons, faults))
    return "\n".join(lines)


def _is_marked(times: LayerComparison) -> bool:
    """Return whether other work disturbed most samples of a side, or all of the peak's."""
    return times.disturbed or times.peak_disturbed or any(peer.disturbed for peer in times.peers)


def _rows(comparisons: Sequence[ComparedLayer]) -> list[tuple[str, ...]]:
    """The headings and a row for each layer; times of one peer, ratios of several."""
    all_times = [compared.times for compared in comparisons]
    names = [peer.name for peer in all_times[0].peers] if all_times else []
    cold = ("cold", "cold ratio") if all_times and all_times[0].cold else ()
    titles = [_title(name, all_times) for name in names] or ["peer"]
    beside = [f"to {title}" for title in titles] if len(names) > 1 else titles
    path = "fastest peer's path" if len(names) > 1 else "peer's path"
    rows = [("layer", "GFLOP/s", "% of peak", "ours", *beside, "ratio", *cold, path)]
    for times in all_times:
        peers, fastest = times.peers, times.fastest or times.peers[0]
        if len(peers) > 1:
            cells = [number(times.ratio_to(peer)) + _MARK * peer.disturbed for peer in peers]
        else:
            cells = ["-" if peers[0].median is None else time_text(peers[0].median)]
            cells[0] += _MARK * peers[0].disturbed
        share = f"{100 * times.peak_fraction:.0f}{_MARK * times.peak_disturbed}"
        rows.append((
            shared.title(times.problem), f"{times.gflops:.1f}{_MARK * times.disturbed}", share,
            time_text(median(times.seconds)), *cells, number(times.ratio),
            *((time_text(median(times.cold)), number(times.cold_ratio)) if cold else ()),
            f"{fastest.name}: {fastest.path}" if len(peers) > 1 else fastest.path,
        ))  # fmt: skip
    return rows


def _title(name: str, all_times: Sequence[LayerComparison]) -> str:
    """A peer's name and version, as far as some layer tells it."""
    versions = (p.version for times in all_times for p in times.peers if p.name == name)
    return f"{name} {next(filter(None, versions), '').split(' ')[0]}".strip()


def _summary(comparisons: Sequence[ComparedLayer], faults: Sequence[Fault]) -> dict[str, Any]:
    all_times = [compared.times for compared in comparisons]
    shares = [times.peak_fraction for times in all_times]
    peers = _peers(all_times)
    ratios = _ratios([times.ratio for times in all_times])
    cold = _ratios([times.cold_ratio for times in all_times if times.cold])
    return {
        "geomean_ratio": ratios["geomean_ratio"],
        "min_ratio": ratios["min_ratio"],
        "geomean_peak_fraction": geometric_mean(shares) if shares else None,
        "layers": len(comparisons),
        "failed": len(faults),
        "disturbed": sum(_is_marked(times) for times in all_times),
        "peak_disturbed": any(times.peak_disturbed for times in all_times),
        "peer": ", ".join(text for text, _ in peers.values()) or None,
        "dtype": all_times[0].problem.dtype if comparisons else None,
        "peak_unit": all_times[0].unit if comparisons else None,
        **({"peers": dict(peers.values())} if len(peers) > 1 else {}),
        **(
            {f"cold_{member}": value for member, value in cold.items()}
            if cold["min_ratio"] is not None
            else {}
        ),
    }


def _peers(all_times: Sequence[LayerComparison]) -> dict[str, tuple[str, dict[str, float | None]]]:
    """Return the name with version, and the ratios, of every peer that ran a layer."""
    peers = [peer for times in all_times for peer in times.peers if peer.version]
    versions = {peer.name: f"{peer.name} {peer.version}" for peer in peers}
    ratios = {
        name: [
            times.ratio_to(peer) for times in all_times for peer in times.peers if peer.name == name
        ]
        for name in versions
    }
    return {name: (text, _ratios(ratios[name])) for name, text in versions.items()}


def _ratios(values: Sequence[float | None]) -> dict[str, float | None]:
    ratios = [value for value in values if value is not None]
    return {
        "geomean_ratio": geometric_mean(ratios) if ratios else None,
        "min_ratio": min(ratios, default=None),
    }


def _conclusion(total: dict[str, Any]) -> list[str]:
    from polysci.runtime.measurement import PEAK_COUNTS

    several, lines = total.get("peers", {}), []
    if total["peer"]:
        to = "the fastest peer of each layer" if several else total["peer"]
        lines.append(f"{total['dtype']}, ratio to {to}: {_means(total)}")
    else:
        lines.append(str(total["dtype"]))
    lines += [f"ratio to {text}: {_means(numbers)}" for text, numbers in several.items()]
    if "cold_min_ratio" in total:
        lines.append(f"with weights from memory: {_means(total, 'cold_')}")
    mark = _MARK * total["peak_disturbed"]
    lines.append(
        f"{100 * total['geomean_peak_fraction']:.1f} %{mark} of the {total['peak_unit']} peak "
        "measured in this run (geomean)"
    )
    lines.append(PEAK_COUNTS)
    return lines


def _means(numbers: dict[str, Any], prefix: str = "") -> str:
    geometric, least = numbers[f"{prefix}geomean_ratio"], numbers[f"{prefix}min_ratio"]
    return f"geomean {geometric:.3f}, least {least:.3f}"
