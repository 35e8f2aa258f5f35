"""What do statistics of batch normalisation cost in the tiles of a convolution, and in a pass?

The forward pass of ResNet-18 or ResNet-50 in training, of 224 x 224: each convolution and the loops
behind it that make mean and variance, with their times in both networks, in which all layers sum
their own results or none. Of each there are some processes, since where tensors lie changes times
by more than sums do; their runs take turns, and medians count. ``gain`` is the model's.

  python experiments/batch_statistics.py resnet50 --threads 1 --batch 8
"""

from __future__ import annotations

import multiprocessing
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import script
from training_steps import MODELS

from polysci.errors import SpecError
from polysci.frontends.layers.model import build_model
from polysci.graph.simplify import simplify
from polysci.network.build import runner_of
from polysci.network.codegen.emit import Code
from polysci.network.example_inputs import inputs_of
from polysci.network.prepare import (
    CompileOptions,
    generate_code,
    prepare,
    search_schedules,
)
from polysci.network.retune import gain_of_moments
from polysci.program.passes.joint_loops import join_loops
from polysci.program.passes.layer_calls import refuse_extras
from polysci.program.passes.layer_moments import take_moments
from polysci.program.passes.row_fusion import Setting
from polysci.program.stages import LayerStage
from polysci.target.host import detect
from polysci.text.tables import fit

NAMES = ("resnet18", "resnet50")
PROCESSES, RUNS = 2, 9


def networks(arguments: Namespace) -> tuple[list[Code], Setting]:
    """The code without and with sums in tiles, which notes the time behind each stage."""
    parts, shape, _ = MODELS[arguments.model]()
    made = build_model(parts, [arguments.batch or shape[0], *shape[1:]], training=True)
    target, threads = detect(), arguments.threads
    options = CompileOptions("estimate", threads, "f32", "direct", target)
    prepared = prepare(simplify(made.graph), target=target)
    results = search_schedules(prepared, options)
    schedules = {key: result.schedule for key, result in results.items()}
    refuse = partial(refuse_extras, schedules)
    summed, _ = take_moments(prepared.placed, threads, refuse, lambda *_: 1.0)
    codes = [
        generate_code(join_loops(placed)[0], schedules, f"net{at}", options, timed=True)
        for at, placed in enumerate((prepared.placed, summed))
    ]
    return codes, Setting(schedules, {}, target, options.rates)


def serve(pipe: Connection, code: Code) -> None:
    """Answer with the seconds of every stage in a run, until asked for no more."""
    runner = runner_of(code)
    inputs, context = inputs_of(runner.inputs), runner.context()
    arrays = [inputs[port.name] for port in runner.inputs]
    run, count = runner.bind(context, arrays, runner.results()), len(code.placed.program.stages)
    run()
    while pipe.recv():
        run()
        pipe.send(runner.stage_seconds(context, count))


def medians(codes: Sequence[Code], processes: int, runs: int) -> list[list[float]]:
    """Of every stage of each network, over processes whose runs take turns."""
    context, seconds = multiprocessing.get_context("fork"), [list[list[float]]() for _ in codes]
    pipes = list[tuple[Connection, list[list[float]]]]()
    for _ in range(processes):
        for code, some in zip(codes, seconds, strict=True):
            pipe, end = context.Pipe()
            context.Process(target=serve, args=(end, code), daemon=True).start()
            pipes.append((pipe, some))
    for _ in range(runs):
        for pipe, some in pipes:
            pipe.send(True)
            some.append(pipe.recv())
    for pipe, _ in pipes:
        pipe.send(False)
    return [[median(column) for column in zip(*some, strict=True)] for some in seconds]


def by_layer(code: Code, seconds: Sequence[float]) -> dict[str, tuple[LayerStage, float, float]]:
    """Of the layers with statistics: the seconds of each, and of the loops that make them."""
    program = code.placed.program
    rows = dict[str, tuple[LayerStage, float, float]]()
    own = {name: x for x, names in program.moments.items() for name in names}
    for stage, spent in zip(program.stages, seconds, strict=True):
        if isinstance(stage, LayerStage):
            last = stage.output
            rows[last] = (stage, spent, 0.0)
        elif not rows or last not in program.moments:
            continue
        else:
            layer, alone, loops = rows[last]
            small = all(program.values[it].size < program.values[last].size for it in stage.outputs)
            rows[last] = (layer, alone, loops + spent * small)
    return {x: row for x, row in rows.items() if x in own.values()}


def rows_of(arguments: Namespace) -> list[script.Row]:
    """A row a convolution, and one of all."""
    codes, setting = networks(arguments)
    times = medians(codes, arguments.processes, arguments.runs)
    apart, summed = (by_layer(*pair) for pair in zip(codes, times, strict=True))
    rows = list[script.Row]()
    for x, (layer, alone, loops) in apart.items():
        size = codes[0].placed.program.values[x].size
        gain = gain_of_moments(setting, arguments.threads, layer, size)
        told = (size * 4e-6, alone * 1e6, loops * 1e6, *(it * 1e6 for it in summed[x][1:]))
        rows.append(row(str(layer.problem), *told, gain * 1e6))
    columns = [[float(str(it[name])) for it in rows] for name in COLUMNS]
    rows.append(row("all", *(sum(column) for column in columns)))
    rows.append(row("network", 0, sum(times[0]) * 1e6, 0, sum(times[1]) * 1e6, 0, 0))
    return rows


COLUMNS = ("MB", "layer us", "pass us", "layer with sums us", "joining us", "gain us")


def row(name: str, *numbers: float) -> script.Row:
    return {"layer": name, **{key: f"{x:.1f}" for key, x in zip(COLUMNS, numbers, strict=True)}}


def parser() -> Any:
    words = script.options(__doc__, sample=False)
    words.add_argument("model", nargs="?", default=NAMES[0], help=f"({NAMES[0]})")
    words.add_argument("--threads", type=int, default=1, metavar="N", help="(1)")
    words.add_argument("--batch", type=int, metavar="N", help="(8)")
    words.add_argument("--processes", type=int, default=PROCESSES, metavar="N", help="(2)")
    words.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"({RUNS})")
    return words


def work(arguments: Namespace) -> bool:
    """Measure, print, write the CSV."""
    if arguments.model not in NAMES:
        raise SpecError(f"model {arguments.model!r}: expected one of {', '.join(NAMES)}")
    if arguments.quick:
        arguments.batch, arguments.processes, arguments.runs = 1, 1, 1
    rows = rows_of(arguments)
    print(fit([[*rows[0]], *([str(x) for x in it.values()] for it in rows)], None, left=("layer",)))
    name = f"batch-statistics-{arguments.model}-{arguments.threads}"
    script.write_csv(script.stem(arguments, name).with_suffix(".csv"), rows)
    return True


if __name__ == "__main__":
    sys.exit(script.run(work, parser().parse_args()))
