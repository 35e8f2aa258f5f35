"""Shared by several commands: layers from arguments, common options, tuned results."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from polysci.errors import (
    NoCompilerError,
    PolysciError,
    SpecError,
    UnsupportedError,
    cut_message,
)
from polysci.target.isas import ISAS, isa_named
from polysci.text.names import known_name, suggest

if TYPE_CHECKING:
    from polysci.export.candidates import SearchTarget
    from polysci.ops.problem import Problem
    from polysci.space.schedule import Schedule
    from polysci.target.isa import Isa
    from polysci.target.machine import Machine
    from polysci.target.machine_file import MachineFile
    from polysci.target.target import Target
    from polysci.tune import Progress, Result, TunerOptions

_FILES = (".txt", ".c", ".onnx")  # an argument that ends so is a file
_DIRECTIONS = ("fwd", "bwd_d", "bwd_w")
_COLUMNS = 80  # of a table in a pipe, a file or a narrow terminal
FORMS = ("ir", "c", "asm")  # of code, from what is decided to what runs
LEVELS = ("wisdom-only", "estimate", "measure", "patient", "exhaustive")


def layer_options(
    command: argparse.ArgumentParser, *, nargs: str = "+", described: bool = True
) -> None:
    """SPEC|FILE and how to read them; ``described``: also for a machine that is not this one."""
    command.add_argument(
        "layers", nargs=nargs, metavar="SPEC|FILE",
        help="a layer in benchdnn's grammar (mb1ic64ih56oc64kh3ph1), the gradient of its input or "
        "filters ('bwd_d mb1ic64...', 'bwd_w ...'), a matrix product (mm:128x64x256), "
        "a file of layers, a network in models/ (resnet50), or a .c file with a loop nest between "
        "#pragma scop and endscop",
    )  # fmt: skip
    command.add_argument(
        "--layout", type=str.lower, choices=("nhwc", "nchw"), default="nhwc",
        help="memory layout of input and output (nhwc)",
    )  # fmt: skip
    command.add_argument(
        "--dir", dest="direction", type=str.lower, choices=_DIRECTIONS, default="",
        help="of the convolutions, as benchdnn has it: fwd, or the gradient of the input (bwd_d) "
        "or of the filters (bwd_w)",
    )  # fmt: skip
    command.add_argument(
        "--dtype", default="f32", metavar="NAME",
        help="precision: f32, bf16, f16, int8, or types of input, weights and result: u8:s8:s8 "
        "or bf16:bf16:f32; float32, bfloat16, float16 and half are other names (f32)",
    )  # fmt: skip
    batch = "replace the batch size of all layers"
    command.add_argument("--batch", type=positive, metavar="N", help=batch)
    machine_options(command, described=described)


def machine_options(
    command: argparse.ArgumentParser, *, described: bool = True, threads_option: bool = True
) -> None:
    """Options for threads and the machine."""
    if threads_option:
        command.add_argument(
            "--threads", type=threads, default=None, metavar="N",
            help="number of OpenMP threads, or compute units of a device (all of the device, else "
            "POLYSCI_NUM_THREADS, else 1)",
        )  # fmt: skip
    isa_option(command)
    if described:
        command.add_argument(
            "--machine", metavar="FILE.toml",
            help="predict for the machine of this file; 'polysci machine -o FILE.toml' writes one",
        )  # fmt: skip


def device_option(command: argparse.ArgumentParser) -> None:
    """Add ``--device``, for commands whose code devices run."""
    command.add_argument(
        "--device", metavar="NAME",
        help="run on a device, as opencl:0; 'polysci machine' lists devices (host)",
    )  # fmt: skip


def isa_option(command: argparse.ArgumentParser) -> None:
    """Add ``--isa``."""
    command.add_argument(
        "--isa", type=isa, metavar="NAME",
        help="best instruction set to use, as POLYSCI_ISA; the lower of the two counts; one of "
        f"another kind of CPU: predict for it, where nothing has to run: {', '.join(ISAS)}",
    )  # fmt: skip


def search_options(command: argparse.ArgumentParser, level: str = "measure") -> None:
    """Options for the search."""
    level_option(command, level)
    command.add_argument(
        "--ranker", default="traffic", metavar="NAME",
        help="cost model (traffic); 'polysci rank --list' prints all",
    )  # fmt: skip
    algorithm_option(command)
    verify_option(command)
    command.add_argument(
        "--time-limit", type=seconds, metavar="S",
        help="end the search of all layers after S seconds",
    )  # fmt: skip


def level_option(
    command: argparse.ArgumentParser, level: str | None = "measure", default: str = ""
) -> None:
    """Add ``--level``; ``default`` says what a level of None becomes."""
    command.add_argument(
        "--level", choices=LEVELS, default=level, metavar="LEVEL",
        help=f"how hard to search: {', '.join(LEVELS)} ({level or default})",
    )  # fmt: skip


def show_option(command: argparse.ArgumentParser) -> None:
    """Add ``--show``, for a command that chooses a schedule for each layer."""
    command.add_argument(
        "--show", choices=FORMS,
        help="print the chosen code instead of the table: as loop IR, as C, or as the assembly "
        "that the C compiler makes of it",
    )  # fmt: skip


def show_layers(layers: list[TunedLayer], form: str) -> str:
    """Return the code of layers as loop IR, C or assembly; of several ones each below its title."""
    results = [(title(layer.problem), layer.result) for layer in layers if layer.result]
    start, end = ("# ", "") if form == "ir" else ("/* ", " */")
    heads = [f"{start}{name}{end}\n" if len(results) > 1 else "" for name, _ in results]
    texts = [_code(result, form).rstrip("\n") for _, result in results]
    return "\n\n".join(f"{head}{text}" for head, text in zip(heads, texts, strict=True))


def _code(result: Result, form: str) -> str:
    """Return the code of one layer."""
    from polysci.runtime.primitive import assemble_primitive

    if form == "asm":
        return assemble_primitive(result.source, backend=result.backend)
    return str(result.source.module) if form == "ir" else result.source.file


def table_options(command: argparse.ArgumentParser) -> None:
    """Add ``--json`` and ``--wide``, for commands that print tables."""
    command.add_argument("--json", action="store_true", help="print JSON lines and a summary")
    wide_option(command)


def wide_option(command: argparse.ArgumentParser) -> None:
    """Add ``--wide``."""
    command.add_argument(
        "--wide", action="store_true",
        help="print whole tables; otherwise they fit the terminal, or 80 columns",
    )  # fmt: skip


def table_width(arguments: argparse.Namespace) -> int | None:
    """Columns of text that a table may take; None: any number."""
    if arguments.wide:
        return None
    screen = sys.stdout.isatty() and not getattr(arguments, "output", None)
    return max(_COLUMNS, shutil.get_terminal_size().columns) if screen else _COLUMNS


def isa(text: str) -> str:
    """The name of an instruction set; argparse prints the error."""
    try:
        return isa_named(text).name
    except SpecError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("isa: ")) from None


def algorithm_option(command: argparse.ArgumentParser) -> None:
    """Add ``--algorithm`` and ``--reproducible``."""
    from polysci.lower.registry import DEFAULT, help_text, options

    command.add_argument(
        "--algorithm", choices=options(), default=DEFAULT, metavar="NAME", help=help_text()
    )
    command.add_argument("--reproducible", action="store_true", help="same bits for any threads")


def verify_option(command: argparse.ArgumentParser) -> None:
    """Return whether code that was not measured first runs in a process of its own."""
    meaning = "no first run in a process of its own for code that was not measured"
    command.add_argument("--no-verify", dest="verify", action="store_false", help=meaning)


def threads(text: str) -> int:
    """A number of threads; argparse prints the error."""
    from polysci.target.target import MOST_THREADS

    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= MOST_THREADS:
        raise argparse.ArgumentTypeError(f"expected 1 to {MOST_THREADS} threads, got {text!r}")
    return int(text)


def positive(text: str) -> int:
    """A positive integer; argparse prints the error."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"expected a positive integer below 2^31, got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """A positive number of seconds; argparse prints the error."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text!r}")
    return value


def threads_of(arguments: argparse.Namespace) -> int:
    """``--threads``, else the compute units of ``--device``, POLYSCI_NUM_THREADS, 1."""
    if arguments.threads is not None:
        return int(arguments.threads)
    device = device_of(arguments)
    return device.cores if device else default_threads()


def default_threads() -> int:
    """POLYSCI_NUM_THREADS, else 1."""
    text = os.environ.get("POLYSCI_NUM_THREADS", "1")
    try:
        return threads(text)
    except argparse.ArgumentTypeError as error:
        raise SpecError(f"POLYSCI_NUM_THREADS: {error}") from None


def target_of(arguments: argparse.Namespace) -> Target:
    """The device of ``--device``, or the machine of ``--machine``; else this one, capped."""
    from polysci.target.host import detect

    if device := device_of(arguments):
        return device
    if described := load_machine_file(arguments):
        return described.target
    foreign = foreign_target(arguments)
    return foreign.target if foreign else detect(arguments.isa)


def device_of(arguments: argparse.Namespace) -> Target | None:
    """Return the device of ``--device``; None without it and for the CPU that runs this.

    Raises SpecError, UnsupportedError.
    """
    from polysci.runtime.backends import device_named
    from polysci.target.target import HOST

    name = getattr(arguments, "device", None)
    if name in (None, HOST):
        return None
    for option in ("isa", "machine", "scheduler"):
        if getattr(arguments, option, None) is not None:
            raise SpecError(f"--device {name}: it has its own description; leave out --{option}")
    return device_named(name)


def foreign_target(arguments: argparse.Namespace) -> SearchTarget | None:
    """Return the search target of an ``--isa`` of another kind of CPU.

    None otherwise, and for commands that run code.
    """
    from polysci.export.candidates import check_isas, search_targets
    from polysci.target.host import detect

    if arguments.isa is None or not (hasattr(arguments, "layers") or hasattr(arguments, "out")):
        return None
    if getattr(arguments, "machine", "") is not None:
        return None
    here, named = detect(), isa_named(arguments.isa, source="--isa")
    if named.machine in ("", *(own.machine for own in here.runnable)):
        return None  # a cap, of which the lower one counts
    (isa,) = check_isas([arguments.isa], source="--isa")
    (search_target,) = search_targets([isa], getattr(arguments, "level", "estimate"), target=here)
    return search_target


def written_isas(arguments: argparse.Namespace) -> list[Isa]:
    """Return the instruction sets that options name for code to write; none where none is named."""
    from polysci.export.candidates import check_isas

    if arguments.isas:
        return check_isas(arguments.isas, arguments.isa, source="--isas")
    return [target_of(arguments).isa] if arguments.isa or arguments.machine else []


def search_targets_of(arguments: argparse.Namespace, level: str) -> list[SearchTarget]:
    """One for every instruction set of ``--isas``, the best first. Raises SpecError."""
    from polysci.export.candidates import check_isas, search_targets

    if arguments.isas is None:
        return []
    if arguments.python:
        raise UnsupportedError("--isas: a Python package holds the code of one instruction set")
    described = load_machine_file(arguments)
    chosen = check_isas(arguments.isas, arguments.isa, source="--isas")
    target, machine = target_of(arguments), machine_of(arguments)
    if described and level not in ("estimate", "wisdom-only"):
        raise SpecError(f"--level {level}: nothing runs on the machine of {arguments.machine}")
    targets = search_targets(chosen, level, target=target, machine=machine)
    for search_target in targets:
        if search_target.machine and not described:
            say_unmeasured(search_target)
    return targets


def say_unmeasured(search_target: SearchTarget) -> None:
    """Say that the code of an instruction set is not timed."""
    say(f"{search_target.isa}: this CPU does not run it: the model chooses unmeasured")


def schedule_of(arguments: argparse.Namespace) -> Schedule | None:
    """The schedule of ``--schedule``, if there is one and no cap forbids its instruction set."""
    from polysci.lower.choice import admits
    from polysci.lower.registry import DEFAULT, name_of
    from polysci.space import schedule
    from polysci.target.microkernels import find

    if arguments.schedule is None:
        return None
    requested, target = schedule.parse(arguments.schedule), target_of(arguments)
    name = name_of(requested)
    if arguments.algorithm != DEFAULT and not admits(arguments.algorithm, requested):
        raise SpecError(
            f"--schedule: {requested} is {name}, and --algorithm asks for {arguments.algorithm}"
        )
    if reason := target.refusal(find(requested.kernel).isa):
        raise SpecError(f"--schedule: {requested.kernel} {reason}")
    return requested


def machine_of(arguments: argparse.Namespace) -> Machine | None:
    """The parameters of ``--machine``, or assumed of another kind of CPU; None for this machine."""
    if described := load_machine_file(arguments):
        return described.machine
    foreign = foreign_target(arguments)
    return foreign.machine if foreign else None


def load_machine_file(arguments: argparse.Namespace) -> MachineFile | None:
    """The contents of the file of ``--machine``, None without it. Raises SpecError."""
    if getattr(arguments, "machine", None) is None:
        return None
    if arguments.isa is not None:
        raise SpecError(
            f"--isa {arguments.isa}: {arguments.machine} has an instruction set; "
            "change its isa and peak"
        )
    from polysci.target.machine_file import read

    return read(arguments.machine)


def problems(arguments: argparse.Namespace) -> list[Problem]:
    """The layers that the arguments name, in order. Raises SpecError and UnsupportedError."""
    from polysci.ops import in_direction

    layers = [
        problem
        for text in arguments.layers
        for problem in _read(text, arguments.layout, arguments.dtype)
    ]
    if direction := getattr(arguments, "direction", ""):
        layers = [in_direction(problem, direction) for problem in layers]
    if arguments.batch is not None:
        layers = [problem.with_batch(arguments.batch) for problem in layers]
    for problem in layers:
        problem.check_memory()
    return layers


def _read(text: str, layout: str, dtype: str) -> list[Problem]:
    from polysci.frontends.layers.words import describes_model
    from polysci.ops import layer_lists, parse_problem

    if describes_model(text):
        raise SpecError(f"{text!r} is a network, not a layer: polysci compile {text!r}")
    networks = layer_lists.names()
    file = Path(text).suffix.lower() in _FILES or (os.sep in text and '"' not in text)
    if file or known_name(text, networks) in networks:
        return layer_lists.load(text, layout, dtype)
    try:
        return [parse_problem(text, layout, dtype)]
    except SpecError:
        if hint := suggest(text, networks):
            raise SpecError(f"{text!r} is neither a layer nor a network{hint}") from None
        raise


@dataclass(frozen=True, slots=True)
class TunedLayer:
    """A layer's result, or the error in ``fault``."""

    problem: Problem
    result: Result | None
    fault: str = ""


Watch = Callable[["Problem", "Progress"], None]


def tune_layers(
    layers: list[Problem],
    arguments: argparse.Namespace,
    watch: Watch | None = None,
    *,
    search_target: SearchTarget | None = None,
    tuner: TunerOptions | None = None,
) -> Iterator[TunedLayer]:
    """Optimise the layers one after the other; equal ones once. Ends after Ctrl-C.

    What remains of ``--time-limit`` is divided evenly among the remaining layers. ``search_target``
    overrides ``--isa``, ``--machine`` and ``--level``; a ``tuner`` chooses what is measured.
    """
    from polysci.runtime.backends import backend_of
    from polysci.tune import SearchOptions, optimize

    if search_target is None and (search_target := foreign_target(arguments)):
        say_unmeasured(search_target)
    start, tuned = time.monotonic(), dict[str, TunedLayer]()
    threads = threads_of(arguments)
    target = search_target.target if search_target else target_of(arguments)
    machine = search_target.machine if search_target else machine_of(arguments)
    level = search_target.level if search_target else arguments.level
    if not backend_of(target).measured:
        level = "estimate"  # its code is compiled here, and does not run
    keys = list(dict.fromkeys(problem.key for problem in layers))
    for problem in layers:
        if problem.key in tuned:
            yield rename(tuned[problem.key], problem)
            continue
        limit = None
        if arguments.time_limit is not None:
            left = max(0.01, arguments.time_limit - (time.monotonic() - start))
            limit = left / max(1, len(keys) - len(tuned))
        options = SearchOptions(
            level, threads, target, ranker=arguments.ranker, time_limit=limit,
            progress=partial(watch, problem) if watch else None, machine=machine,
            algorithm=arguments.algorithm, again=getattr(arguments, "again", False),
            reproducible=arguments.reproducible, verify=arguments.verify, tuner=tuner,
        )  # fmt: skip
        try:
            tuned_layer = TunedLayer(problem, optimize(problem, options))
        except (SpecError, NoCompilerError):
            raise
        except PolysciError as error:
            tuned_layer = TunedLayer(problem, None, str(error))
        tuned[problem.key] = tuned_layer
        yield tuned_layer
        if tuned_layer.result and tuned_layer.result.interrupted:
            raise KeyboardInterrupt


def rename(layer: TunedLayer, problem: Problem) -> TunedLayer:
    """The outcome of the search of an equal layer."""
    from dataclasses import replace

    result = replace(layer.result, problem=problem, spent=0.0) if layer.result else None
    return TunedLayer(problem, result, layer.fault)


def mark_disturbed(result: Result) -> str:
    """Return the mark behind the speed of a disturbed result; empty for others."""
    return " (disturbed)" if result.measurement and result.measurement.disturbed else ""


def say(text: str) -> None:
    """Print progress to standard error."""
    print(cut_message(text), file=sys.stderr, flush=True)


def title(problem: Problem) -> str:
    """The name of a layer in tables."""
    return problem.name or str(problem)


def check_writable(path: str | None, option: str = "-o") -> None:
    """Raise SpecError where there is no folder for the file, or a folder in its place."""
    if path is None:
        return
    file = Path(path)
    if file.is_dir() or not file.parent.is_dir():
        why = "it is a folder" if file.is_dir() else f"there is no folder {file.parent}"
        raise SpecError(f"{option} {path}: cannot be written: {why}")


def write(text: str, path: str | None, option: str = "-o") -> None:
    """Write to the file ``path``, or to standard output."""
    if path is None:
        print(text)
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{option} {path}: cannot be written: {error.strerror}") from None
