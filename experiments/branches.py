"""What could independent stages gain that run beside each other, each on some of the threads?

Today all threads share every stage of a network. For each network and number of threads the model
of costs says what a stage takes on one thread and on all of them, with a barrier where it needs
what was made since the last one. A table has for each network:

  lost     what all stages take beyond their time on one thread over the number of threads
  bound    the part of it in stages that do not depend on some other stage, nor that on them: no
           way to run stages beside each other gains more
  uneven   the part of the bound in stages that all threads make less than 0.85 of that many times
           as fast

all as shares of the network. Nothing is compiled or run. Takes half a minute a network.

  python experiments/branches.py --machine zen4-guest-2 --threads 2
  python experiments/branches.py inception_v1 yolo --machine zen3-desktop-8 --threads 4
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import image_models
import numpy as np
import onnx
import script
import small_models
from image_models import ModelBuilder

from polysci.cli.layers import positive
from polysci.cost.networks import StageCosts
from polysci.errors import SpecError
from polysci.lower.choice import candidates
from polysci.network.options import CompileOptions, PlanOptions
from polysci.network.prepare import (
    fuse_with_schedules,
    graph_of,
    prepare_with,
    search_schedules,
    shares_of,
)
from polysci.ops.problem import Problem
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.thread_shares import work_of
from polysci.program.stages import ConcatStage, LayerStage, RowFusion, Stage, ViewStage, members_of
from polysci.target.machine_file import read
from polysci.text.tables import columns
from polysci.tune import Result, context_of

MACHINES = Path(__file__).parent / "machines"
COEFFICIENTS = {"fork_us": 0.65, "barrier_us": 0.3}  # measured on a Zen 4 guest
UNEVEN = 0.85
QUICK = ("towers",)


def ssd() -> onnx.ModelProto:
    """Liu et al., 2016: six scales from 19 to 1, and heads of boxes and classes on each."""
    b = ModelBuilder((1, 256, 19, 19))
    x = b.conv("x", 256, 3, act="Relu")
    scales, rows = [x], dict[int, list[str]]({4: [], 21: []})
    for k, narrow in ((512, 256), (256, 128), (256, 128), (128, 64), (128, 64)):
        x = b.conv(b.conv(x, narrow, act="Relu"), k, 3, 2, "Relu")
        scales.append(x)
    for scale, anchors in zip(scales, (3, 6, 6, 6, 6, 6), strict=True):
        for size, its in rows.items():
            y = b.conv(scale, anchors * size, 3)
            y = b.node("Transpose", y, channels=anchors * size, perm=[0, 2, 3, 1])
            shape = b.constant(np.array([1, -1, size], np.int64))
            its.append(b.node("Reshape", y, shape, channels=size))
    boxes, scores = (b.concat(*its, axis=1) for its in rows.values())
    return b.model("ssd", boxes, b.node("Softmax", scores, channels=21, axis=2))


def small_inception() -> onnx.ModelProto:
    """Four blocks of GoogLeNet's form with narrow branches, on 7x7."""
    b, x = ModelBuilder((1, 128, 7, 7)), "x"
    for _ in range(4):
        x = b.concat(
            b.conv(x, 32, act="Relu"),
            b.conv(b.conv(x, 24, act="Relu"), 48, 3, act="Relu"),
            b.conv(b.conv(x, 8, act="Relu"), 16, 5, act="Relu"),
            b.conv(b.max_pool(x, 3, 1, 1), 32, act="Relu"),
        )
    return b.model("small_inception", b.dense(b.features(x), 10))


def towers() -> onnx.ModelProto:
    """Three dense layers for each half of 8 rows of numbers, and the products of all results."""
    b = ModelBuilder((8, 512))
    ends = list(b.split("x"))
    for k in (512, 256, 128):
        ends = [b.dense(x, k, "Relu") for x in ends]
    y = b.node("Transpose", ends[1], channels=8)
    return b.model("towers", b.node("MatMul", ends[0], y, channels=8))


def attention(tokens: int, width: int, heads: int = 4, layers: int = 2) -> onnx.ModelProto:
    """Layers of a small transformer, without normalisation."""
    b, x = ModelBuilder((1, tokens, width)), "x"

    def product(x: str, c: int, k: int) -> str:
        return b.node("MatMul", x, b.weights(c, k), channels=k)

    b.channels["x"] = width
    split = b.constant(np.array([1, tokens, heads, width // heads], np.int64))
    joined = b.constant(np.array([1, tokens, width], np.int64))
    for _ in range(layers):
        q, k, v = (
            b.node(
                "Transpose", b.node("Reshape", product(x, width, width), split, channels=width),
                channels=width, perm=perm,
            )
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )  # fmt: skip
        scores = b.node("Softmax", b.node("MatMul", q, k, channels=1), channels=1, axis=3)
        y = b.node("MatMul", scores, v, channels=1)
        y = b.node("Transpose", y, channels=width, perm=[0, 2, 1, 3])
        y = b.node("Reshape", y, joined, channels=width)
        x = b.add(x, product(y, width, width))
        x = b.add(x, product(b.act(product(x, width, 4 * width), "Relu"), 4 * width, width))
    return b.model("attention", x)


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "ssd": ssd,
    "small_inception": small_inception,
    "towers": towers,
    "attention16_256": lambda: attention(16, 256),
    "attention64_128": lambda: attention(64, 128),
    **{
        name: image_models.MODELS[name]
        for name in ("inception_v1", "inception_v2", "squeezenet", "shufflenet", "yolo")
    },
    "wavenet32_1024": small_models.SETS["recurrent"]["wavenet32_1024"],
}


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds of a stage on one thread and on all, its barrier included."""

    one: float
    all: float

    def lost(self, threads: int) -> float:
        """Return what it takes beyond an even share of its work."""
        return max(0.0, self.all - self.one / threads)


@dataclass(frozen=True, slots=True)
class Clock:
    """What a network's stages take by the model of costs; ``results`` by key of a problem."""

    placed: PlacedProgram
    results: Mapping[str, Result]
    plan: PlanOptions

    def times(self) -> list[Times]:
        """Return the times of all stages, in order."""
        program, pending, rows = self.placed.program, set[int](), list[Times]()
        needs, shares = needs_of(self.placed), shares_of(program, self.plan)
        barrier = self.plan.rates.coefficient("barrier_us")
        for at, stage in enumerate(program.stages):
            own = self.stage(stage)
            if (neighbours := shares.neighbours(at)) is not None:
                turns = -(-len(neighbours) // self.plan.threads)
                own = replace(own, all=own.one * turns / len(neighbours))
            elif shares.serial(at):
                own = replace(own, all=own.one)
            if own.all and needs[at] & pending:
                own, pending = replace(own, all=own.all + barrier), set()
            pending |= {at} if own.all else set()
            rows.append(own)
        return rows

    def stage(self, stage: Stage) -> Times:
        """Return the times of a stage, without a barrier; loops and row fusions split evenly."""
        threads, program = self.plan.threads, self.placed.program
        if isinstance(stage, ViewStage | ConcatStage):
            return Times(0.0, 0.0)
        if isinstance(stage, LayerStage):
            return self.layer(stage)
        if isinstance(stage, RowFusion):
            one = sum(self.stage(member).one for member in members_of(stage))
        else:
            one = StageCosts(self.plan.rates, self.plan.target).serial(work_of(stage, program))
        return Times(one, one / threads)

    def layer(self, layer: LayerStage) -> Times:
        """Return the times of a layer, of which threads share a stack, too."""
        problem, threads, count = layer.problem, self.plan.threads, len(layer.stack) or 1
        result, start = self.results[problem.key], self.context(problem, threads).fork_seconds
        one = candidates(problem, self.context(problem, 1), 1)[0].seconds * 1e6
        together = 1e6 * (result.predicted - start * bool(result.schedule.parallel))
        if layer.stack:
            together = min(together, one * -(-count // threads) / count)
        return Times(count * one, count * together)

    def context(self, problem: Problem, threads: int) -> Any:
        return context_of(problem, threads, self.plan.target, machine=self.plan.machine)


def needs_of(placed: PlacedProgram) -> list[set[int]]:
    """Return the stages that each one needs, by position; parts of a joined tensor are apart."""
    written: dict[str, list[tuple[int, Any]]] = {}
    read: dict[str, list[int]] = {}
    needs = list[set[int]]()
    for at, stage in enumerate(placed.program.stages):
        inputs = [placed.places[name].buffer for name in stage.inputs if name in placed.places]
        outputs = [] if isinstance(stage, ViewStage) else [placed.places[n] for n in stage.outputs]
        before = {maker for buffer in inputs for maker, _ in written.get(buffer, ())}
        for place in outputs:
            before |= {maker for maker, its in written.get(place.buffer, ()) if its == place}
            before |= {*read.get(place.buffer, ())}
            written.setdefault(place.buffer, []).append((at, place))
        for buffer in inputs:
            read.setdefault(buffer, []).append(at)
        before -= {at}
        needs.append(before.union(*(needs[other] for other in before)))
    return needs


def row_of(name: str, machine: str, threads: int) -> script.Row:
    """Return the row of a network on a machine."""
    described = read(MACHINES / f"{machine}.toml")
    rates = described.machine.with_coefficients(COEFFICIENTS)
    options = CompileOptions(
        "estimate", threads=threads, target=described.target, machine=rates
    )  # fmt: skip
    plan = options.plan()
    prepared = prepare_with(graph_of(MODELS[name]()), options)
    results = search_schedules(prepared, plan)
    schedules = {key: result.schedule for key, result in results.items()}
    seconds = {key: result.predicted for key, result in results.items()}
    placed = fuse_with_schedules(prepared, schedules, seconds, plan, {}).placed
    times, needs = Clock(placed, results, plan).times(), needs_of(placed)
    free = [
        own for at, own in enumerate(times)
        if any(
            its.one > 1 and other != at and other not in needs[at] and at not in needs[other]
            for other, its in enumerate(times)
        )
    ]  # fmt: skip
    uneven = [own for own in free if own.all and own.one / own.all < UNEVEN * threads]
    whole = sum(own.all for own in times)

    def share(some: Sequence[Times]) -> float:
        return sum(own.lost(threads) for own in some) / whole

    return {
        "network": name, "threads": threads, "us": whole, "stages": len(times),
        "lost": share(times), "bound": share(free), "uneven": share(uneven),
    }  # fmt: skip


def work(arguments: Namespace) -> bool:
    """Predict, write, print; False if Ctrl-C cut it short."""
    names = arguments.networks or (QUICK if arguments.quick else [*MODELS])
    for name in names:
        if name not in MODELS:
            raise SpecError(f"network {name!r}: expected one of {', '.join(MODELS)}")
    steps = (row_of(name, arguments.machine, arguments.threads) for name in names)
    rows, whole = script.kept(steps, "predicting", len(names))
    if rows:
        script.write_csv(script.stem(arguments, "branches").with_suffix(".csv"), rows)
        shown = [[_text(key, value) for key, value in row.items()] for row in rows]
        print(columns([[*rows[0]], *shown], left=(0,), indent=""))
    return whole


def _text(name: str, value: Any) -> str:
    if name in ("lost", "bound", "uneven"):
        return f"{100 * value:.1f} %"
    return f"{value:.0f}" if isinstance(value, float) else str(value)


def main() -> int:
    parser = script.options(__doc__, sample=False)
    parser.add_argument("networks", nargs="*", metavar="NAME", help="(all)")
    parser.add_argument(
        "--machine", choices=[path.stem for path in sorted(MACHINES.glob("*.toml"))],
        default="zen4-guest-2", help="(zen4-guest-2)",
    )  # fmt: skip
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="(2)")
    return script.run(work, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
