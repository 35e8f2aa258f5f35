"""polysci wisdom: the records of earlier searches, two files of them, what tuners have reached."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import inf, isfinite
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from polysci.cli import layers as shared
from polysci.errors import SpecError, WisdomError

if TYPE_CHECKING:
    from polysci.tune.tuners import TunerState
    from polysci.tune.wisdom import Record
    from polysci.tune.wisdom.compare import Carried, MachinePair, MachineRecords

HELP = "list, compare, forget, export, import or repair records of searches; list tuners"
_LONGEST: Final = 60  # characters of a name


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's actions."""
    actions = command.add_subparsers(metavar="ACTION", required=True, dest="action")
    listing = actions.add_parser("list", help="print the best schedules of earlier searches")
    listing.add_argument(
        "--all", action="store_true", help="print the other schedules that were timed, too"
    )
    listing.add_argument(
        "--best", type=shared.positive, metavar="K",
        help="print the K fastest schedules of each problem and machine",
    )  # fmt: skip
    shared.isa_option(listing)
    listing.add_argument("--json", action="store_true", help="print JSON lines")
    shared.wide_option(listing)
    out = actions.add_parser("export", help="write all records to a JSON file")
    out.add_argument("file", metavar="FILE")
    into = actions.add_parser(
        "import",
        help="add the records of a JSON file if all of it is valid; "
        "records of another machine are candidates to try first",
    )  # fmt: skip
    into.add_argument("file", metavar="FILE")
    both = actions.add_parser(
        "compare",
        help="what the best schedules of one machine cost on another, as far as it timed them, "
        "and what one setting for all problems loses",
    )  # fmt: skip
    both.add_argument("first", metavar="FILE", help="a wisdom file, or one that export wrote")
    both.add_argument("second", metavar="FILE", help="the same of the other machine")
    both.add_argument(
        "--hosts", default=",", metavar="A,B",
        help="the machines, by their names in 'wisdom list --json' or how these begin (those with "
        "most problems in each file)",
    )  # fmt: skip
    shared.table_options(both)
    forget = actions.add_parser(
        "forget", help="delete records, so that the next search measures again"
    )
    forget.add_argument("layers", nargs="*", metavar="SPEC|FILE", help="those of these layers")
    forget.add_argument("--layout", choices=("nhwc", "nchw"), default="nhwc", help="(nhwc)")
    forget.add_argument("--dtype", default="f32", metavar="NAME", help="precision (f32)")
    forget.add_argument("--batch", type=int, metavar="N", help="replace the batch size")
    forget.add_argument(
        "--disturbed", action="store_true", help="only those measured while other work ran"
    )
    forget.add_argument("--all", action="store_true", help="all records")
    tuners = actions.add_parser(
        "tuners", help="print what tuners have measured, and their best, the last one first"
    )
    tuners.add_argument("--json", action="store_true", help="print a JSON line for each")
    tuners.add_argument(
        "--plot", type=Path, metavar="FILE", help="also draw the best time so far over the "
        "individuals measured to FILE, as .png or .svg; needs the extra [plot]",
    )  # fmt: skip
    actions.add_parser("repair", help="set a damaged file aside and keep its readable records")


def run(arguments: argparse.Namespace) -> int:
    """Do the action."""
    return _ACTIONS[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from polysci.target.isas import caps, up_to
    from polysci.tune.wisdom import TRIAL, Wisdom

    allowed = [{isa.name for isa in up_to(cap)} for cap in caps(arguments.isa).values()]
    known: tuple[Record, ...] = ()
    try:
        known = Wisdom().best_k(arguments.best) if arguments.best else Wisdom().list()
    except WisdomError as error:
        shared.say(f"polysci: no records: {error}")
    records = [
        record
        for record in known
        if (record.level != TRIAL or arguments.all or arguments.best)
        and all(record.isa in names for names in allowed)
    ]
    if arguments.json:
        for record in records:
            print(json.dumps(asdict(record) | {"disturbed": record.disturbed}))
    elif records:
        print(_table(records, shared.table_width(arguments)))
    return 0


def _table(records: list[Record], width: int | None) -> str:
    """A line a record; those that are disturbed say so at its end."""
    from polysci.text.tables import fit, time_text

    head = ("problem", "schedule", "GFLOP/s", "time", "threads", "level", "date")
    rows = [(*head, "note" if any(record.disturbed for record in records) else "")]
    for record in records:
        note = f"disturbed: {100 * record.dropped:.0f} % dropped" if record.disturbed else ""
        rows.append((
            record.problem, record.schedule, f"{record.gflops:.1f}", time_text(record.seconds),
            str(record.threads), record.level, record.timestamp[:10], note,
        ))  # fmt: skip
    return fit(rows, width, drop=("date", "level", "time"), clip=("schedule", "problem"),
               left=("problem", "schedule", "level", rows[0][-1]))  # fmt: skip


def _forget(arguments: argparse.Namespace) -> int:
    from polysci.errors import SpecError
    from polysci.lower.choice import keys_of
    from polysci.tune.wisdom import Wisdom

    wisdom = Wisdom()
    if arguments.all == bool(arguments.layers or arguments.disturbed):
        raise SpecError("wisdom forget: give layers, --disturbed, both of them, or --all alone")
    if arguments.all:
        gone = wisdom.forget_all()
    elif arguments.layers:
        keys = [key for problem in shared.problems(arguments) for key in keys_of(problem)]
        gone = sum(wisdom.forget(key, disturbed=arguments.disturbed) for key in dict.fromkeys(keys))
    else:
        gone = wisdom.forget(disturbed=True)
    print(f"{gone} record{'s' * (gone != 1)} deleted from {wisdom.path}")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from polysci.tune.wisdom import Wisdom

    print(f"{Wisdom().export(arguments.file)} records written to {arguments.file}")
    return 0


def _import(arguments: argparse.Namespace) -> int:
    from polysci.tune.records import check_record
    from polysci.tune.wisdom import Wisdom

    print(
        f"{Wisdom().import_(arguments.file, check_record)} records imported from {arguments.file}"
    )
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from polysci.tune.wisdom.compare import compare_machines, read_machine

    first, second = arguments.first, arguments.second
    hosts = arguments.hosts.split(",")
    if len(hosts) != 2:
        raise SpecError(f"--hosts {arguments.hosts}: expected two names, as in 3f2a,91bc")
    machines = [read_machine(path, host) for path, host in zip((first, second), hosts, strict=True)]
    if Path(first).samefile(second) and machines[0].host == machines[1].host:
        raise SpecError(f"{first}: given twice; its machines are told apart by --hosts A,B")
    pair = compare_machines(*machines)
    if arguments.json:
        print("\n".join(map(json.dumps, pair.json_rows())))
    else:
        print(_pair_table(pair, shared.table_width(arguments)))
        print("\n".join(_pair_lines(pair, machines)))
    return 0


def _pair_table(pair: MachinePair, width: int | None) -> str:
    """A line a problem: the times, and what each best schedule costs on the other machine."""
    from polysci.text.tables import fit, time_text

    schedules = ("A's schedule", "B's schedule")
    head = ("problem", "threads", "A", "B", "A's on B", "B's on A", *schedules)
    rows: list[tuple[str, ...]] = [head]
    for its in pair.layers:
        rows.append((
            its.problem, str(its.threads), *map(time_text, its.seconds), _loss(its.first_on_second),
            _loss(its.second_on_first), its.first_on_second.schedule, its.second_on_first.schedule,
        ))  # fmt: skip
    return fit(rows, width, drop=(*reversed(schedules), "threads"), clip=("problem",),
               left=("problem", *schedules))  # fmt: skip


def _loss(carried: Carried) -> str:
    """The time over the best; a dash where there is none."""
    return "-" if carried.loss is None else f"{'~' * carried.near}{carried.loss:.3f}"


def _pair_lines(pair: MachinePair, machines: Sequence[MachineRecords]) -> list[str]:
    """The files, the means, and the best single settings."""
    names, lines = "AB", list[str]()
    for name, machine in zip(names, machines, strict=True):
        others = f", one of {machine.others + 1} in it" if machine.others else ""
        lines.append(f"{name}: {machine.name}, machine {machine.host}{others}")
    carried = [[its.first_on_second for its in pair.layers],
               [its.second_on_first for its in pair.layers]]  # fmt: skip
    for at, mean in enumerate(pair.losses):
        timed = sum(its.loss is not None for its in carried[at])
        text = f"{mean:.3f} of its best (geomean)" if mean else "no time"
        lines.append(
            f"{names[at]}'s best schedules take on {names[1 - at]}: {text}, {timed} of "
            f"{len(pair.layers)} timed there"
        )
    if any(its.near for rows in carried for its in rows):
        lines.append("~: timed with the kernel of another instruction set")
    lines += [
        f"{name}, one {its.kind} for all: {its.loss:.3f} of tuning each (geomean of the "
        f"{its.layers} of {len(pair.layers)} that it was timed for): {its.text}"
        for name, settings in zip(names, pair.settings, strict=True)
        for its in settings
    ]
    return lines


def _tuners(arguments: argparse.Namespace) -> int:
    from polysci.tune.tuners import kept_states

    known = list(kept_states())
    if arguments.plot:
        draw([state for _, state in known if not isinstance(state, Exception)], arguments.plot)
    for path, state in known:
        if isinstance(state, Exception):
            shared.say(f"polysci: {path}: not read: {state}")
        elif arguments.json:
            best = state.space.texts(state.ranked[0]) if state.ranked else None
            print(json.dumps({
                "file": str(path), "options": state.options.members(), "best": best,
                "measured": len(state.outcomes), "limit": state.limit, "seconds": state.best,
            }))  # fmt: skip
        else:
            print(f"{path}\n{state}\n")
    return 0


def _repair(arguments: argparse.Namespace) -> int:
    from polysci.tune.wisdom import Wisdom

    done = Wisdom().repair()
    where = f"the damaged file is now {done.aside}" if done.aside else "the file is sound"
    print(f"{where}; {done.kept} records")
    return 0


_ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = MappingProxyType(
    {
        "list": _list, "export": _export, "import": _import, "forget": _forget,
        "compare": _compare,
        "tuners": _tuners, "repair": _repair,
    }
)  # fmt: skip


def best_so_far(state: TunerState) -> list[tuple[int, float]]:
    """(individuals measured, least seconds of these), from the first that did not fall out on."""
    seconds = (inf if its.seconds is None else its.seconds for its in state.outcomes.values())
    steps = enumerate(accumulate(seconds, min), 1)
    return [(count, best) for count, best in steps if isfinite(best)]


def _time_text(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.4g} ms"


def _tick_text(seconds: float, _: float) -> str:
    """A time on the axis; ticks are round, and those of times that hardly differ lie close."""
    return f"{seconds * 1e6:.7g} us" if seconds < 1e-3 else f"{seconds * 1e3:.7g} ms"


def _state_title(state: TunerState) -> str:
    """The tuner, and what it decides first, with the beginning of the file's name."""
    names = [decision.name for decision in state.space.decisions]
    first = f"{names[0]:.{_LONGEST}}" if names else "nothing"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{state.options.name}, {first}{more} ({state.path.stem[:8]})"


def draw(states: Sequence[TunerState], path: Path) -> None:
    """Write a line for each tuner and program as ``path``, a .png or .svg file.

    Raises SpecError where no tuner has measured anything, and as ``new_figure`` does.
    """
    from polysci.explain.plot import check, new_figure
    from polysci.runtime.build.folder import cache_dir

    check(path)
    lines = [(state, points) for state in states if (points := best_so_far(state))]
    if not lines:
        raise SpecError(
            f"--plot {path}: no tuner has measured anything in {cache_dir()}: polysci optimize and "
            "compile do with --tuner"
        )
    with new_figure(path, (9.5, 4.5 + 0.18 * len(lines))) as figure:
        axes = figure.subplots()
        for state, points in lines:
            counts, seconds = zip(*points, strict=True)
            last = len(state.outcomes)
            axes.step(
                (*counts, last), (*seconds, seconds[-1]), where="post", marker="o", markersize=3,
                markevery=[0, len(points)],
                label=f"{_state_title(state)}: {_time_text(seconds[-1])} after {last} of at most "
                f"{state.limit}",
            )  # fmt: skip
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_tick_text)
        axes.yaxis.set_minor_formatter(_tick_text)
        axes.set_xlabel("individuals measured")
        axes.set_ylabel("best time so far")
        axes.grid(alpha=0.25)
        for text in figure.legend(loc="outside lower center", frameon=False).get_texts():
            text.set_parse_math(False)  # names may have a $
