"""How fast are layers on a device, beside what else could compute them?

On an OpenCL device, beside C for this machine's CPU and beside a naive kernel: each layer is
compiled for the device and for the CPU, both with the schedule that level `estimate` takes for the
CPU, where the device has its register tile, and timed in turns by one thread: the device by the
events of its queue, the CPU by the clock. The naive kernel has a work-item an output, the loops of
the textbook (naive.py) and all units of the device. A device that is this CPU tells what its
driver's code is worth; of another one the ratio to the CPU compares machines.

On a CUDA device, beside cuDNN and cuBLAS through PyTorch, in turns: the convolutions of
models/boda.txt (channels_last, cudnn.benchmark) and the products of models/gemm.txt in f32 with
TF32 off, in f32 beside TF32, in f16 and in bf16; then chains of operators beside torch.compile.
Ratios are the seconds of PyTorch over ours. What polysci does not compute is a row "refused: why".

With --rates, on either: the schedules that the model takes by the device's measured rates
(`polysci machine --device NAME`) and by assumed ones, timed in turns where they differ.

Results are compared first, small integers bit for bit. Ctrl-C, and the time limit, keep the rows
that are done. Times things: wants a quiet machine. Writes devices.csv,
devices-torch.csv or devices-rates.csv.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import script
from naive import naive_timer
from torch_device import TorchDevice, chains

import polysci
from polysci.cli.layers import positive, seconds, title
from polysci.errors import CheckError, PolysciError, UnsupportedError
from polysci.numerics.dtypes import from_bf16, to_bf16
from polysci.ops.convolutions import Conv2d
from polysci.ops.problem import Problem
from polysci.runtime.backends import backend_named, backend_of
from polysci.runtime.primitive import Primitive
from polysci.target.host import detect
from polysci.target.machine import Machine, assume_rates
from polysci.target.target import Target
from polysci.text.tables import columns
from polysci.tune import optimize
from polysci.tune.calibrate import load_rates

MODELS = Path(__file__).parents[1] / "models"
SAMPLES = 11  # at most, and at least LEAST of them
LEAST = 3
SAMPLE_S = 5e-3
LIMIT_S = 450.0
FLOOR = 0.8  # the share of rows above it is told
KINDS = {"f32": False, "f32, TF32 there": True, "f16": False, "bf16": False}


def main() -> int:
    return script.run(work, options().parse_args())


def options() -> ArgumentParser:
    parser = script.layer_options(__doc__)
    parser.add_argument("--device", metavar="NAME", help="(cuda:0 where there is one, or opencl:0)")
    parser.add_argument("--rates", action="store_true", help="compare measured with assumed rates")
    parser.add_argument("--samples", type=positive, default=SAMPLES, help=f"({SAMPLES})")
    parser.add_argument(
        "--time-limit", type=seconds, default=LIMIT_S, metavar="SECONDS", help=f"({LIMIT_S:g})"
    )
    return parser


@dataclass(frozen=True, slots=True)
class Budget:
    """Time until ``end``, shared alike by the rows to come."""

    end: float
    samples: int

    def rows(self, steps: Iterable[Callable[[float], Any]], count: int) -> Iterator[Any]:
        """Yield the rows of steps, each of which takes the seconds that it has, until the end."""
        for at, step in enumerate(steps):
            left = self.end - time.monotonic()
            if left <= 0:
                print(f"time limit: {count - at} of {count} rows are left out", file=sys.stderr)
                return
            yield step(left / (count - at))

    def medians(self, timers: Sequence[Callable[[], float]], limit: float) -> list[float]:
        """Return the median of each timer's samples, which are taken in turns."""
        end, taken = time.monotonic() + limit, list[list[float]]()
        while len(taken) < min(LEAST, self.samples) or (
            len(taken) < self.samples and time.monotonic() < end
        ):
            taken.append([sample() for sample in timers])
        return [*map(median, zip(*taken, strict=True))]


def work(arguments: Namespace) -> bool:
    """Compile, compare, time, write, print; False if Ctrl-C cut it short."""
    budget = Budget(time.monotonic() + arguments.time_limit, arguments.samples)
    device = device_of(arguments.device)
    if arguments.rates:
        return beside_assumed(arguments, device, budget)
    if device.backend.startswith("cuda"):
        return beside_torch(arguments, device, TorchDevice.of("cuda"), budget)
    return beside_cpu(arguments, device, budget)


def device_of(name: str | None) -> Target:
    """Return the device of a name, or the first one. Raises UnsupportedError in one line."""
    faults = []
    for own in [name] if name else ["cuda:0", "opencl:0"]:
        try:
            (device,) = backend_named(own).targets()
        except UnsupportedError as error:
            faults.append(str(error))
            continue
        if backend_of(device).measured:
            return device
        faults.append(f"{own}: an architecture, which runs nothing")
    raise UnsupportedError(f"no device: {'; '.join(faults)}")


def layers_of(arguments: Namespace, *lists: str) -> list[Problem]:
    """Return the requested layers, or those of lists of models/."""
    usual = [str(MODELS / f"{name}.txt") for name in lists]
    if arguments.layers or not arguments.quick:
        chosen = Namespace(**{**vars(arguments), "layers": arguments.layers or usual})
        return script.chosen(chosen, (), quick=3)
    parts = (Namespace(**{**vars(arguments), "layers": [path]}) for path in usual)
    return [layer for part in parts for layer in script.chosen(part, (), quick=3)]


# Beside C for the CPU, and a naive kernel.


def beside_cpu(arguments: Namespace, device: Target, budget: Budget) -> bool:
    """Compare the layers with C and with naive kernels."""
    layers = layers_of(arguments, "boda")
    steps = (lambda limit, it=it: compare(it, device, budget, limit) for it in layers)
    rows, whole = script.kept(budget.rows(steps, len(layers)), "layers", len(layers))
    if rows:
        script.write_csv(script.stem(arguments, "devices").with_suffix(".csv"), rows)
        print(table(rows, device))
    return whole


def compare(problem: Problem, device: Target, budget: Budget, limit: float) -> dict[str, Any]:
    """Time one layer on both in turns: a row of the table."""
    here = polysci.compile(problem, "estimate")
    there = on_device(here, device)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, shape).astype(np.float32)
            for shape in (problem.x_shape, problem.w_shape))  # fmt: skip
    expected = here(x, here.pack_weights(w))
    same(problem, device.model_name, expected, there(x, there.pack_weights(w)))
    timers = [timer(primitive, target, x, w)
              for primitive, target in ((here, detect()), (there, device))]  # fmt: skip
    naive_s = time_naive(problem, device, (x, w), expected)
    host_s, device_s = budget.medians(timers, limit)
    return {
        "layer": title(problem), "cpu_gflops": problem.flops / host_s * 1e-9,
        "device_gflops": problem.flops / device_s * 1e-9, "ratio": host_s / device_s,
        "naive_gflops": problem.flops / naive_s * 1e-9, "over_naive": naive_s / device_s,
        "cpu": str(here.schedule), "device": str(there.schedule),
    }  # fmt: skip


def same(problem: Problem, whose: str, expected: Any, result: Any) -> None:
    """Raise CheckError where a result is not the expected one."""
    if not np.array_equal(expected, result):
        raise CheckError(f"{problem}: {whose} computes something else")


def time_naive(problem: Problem, device: Target, arrays: Sequence[Any], expected: Any) -> float:
    """Return the least seconds of three runs of the naive kernel, or of one that takes long."""
    x, w = arrays
    images = isinstance(problem, Conv2d) and problem.layout == "nhwc"
    plain = problem.with_(layout="nchw") if images else problem
    own = np.ascontiguousarray(np.moveaxis(x, -1, 1)) if images else x
    sample, y = naive_timer(plain, device, own, w)
    same(problem, "the naive kernel", expected, np.moveaxis(y, 1, -1) if images else y)
    first = sample()
    return first if first > 20 * SAMPLE_S else min(first, sample(), sample())


def on_device(primitive: Primitive, device: Target) -> Primitive:
    """Return a layer for the device, with the same schedule where the device has its tile."""
    loops, _, tile = str(primitive.schedule).partition("> ")
    family, _, *rest = tile.split("_")
    schedule = f"{loops}> {'_'.join([family, str(device.isa), *rest])}"
    try:
        return polysci.compile(primitive.problem, target=device, schedule=schedule)
    except PolysciError:
        return polysci.compile(primitive.problem, "estimate", target=device)


def timer(primitive: Primitive, target: Target, x: Any, w: Any) -> Callable[[], float]:
    """Return what takes a sample: the mean seconds of a call, without copies to the device."""
    backend, library = backend_of(target), primitive.library
    run, types = library.function(primitive.symbol), primitive.source.precision
    packed = primitive.pack_weights(w)
    workspace = np.empty(max(1, primitive.source.workspace), np.int8)
    y = np.empty(primitive.problem.y_shape, np.dtype(types.y.stored))
    places = [
        library.copy_in(types.x.stored)(x),
        packed.pointer,
        library.copy_in(types.y.stored)(y),
    ]
    arguments = (*places, *[library.null] * 3, library.copy_in("byte")(workspace))
    once = min(backend.time(run, [arguments]) for _ in range(3))
    return lambda: backend.time(run, [arguments] * max(1, round(SAMPLE_S / once)))


def table(rows: Sequence[dict[str, Any]], device: Target) -> str:
    """One line a layer; behind them the geometric mean and the least ratio."""
    head = ["layer", "CPU GFLOP/s", "device GFLOP/s", "device/CPU", "device/naive", "schedule"]
    cells = [
        [row["layer"], f"{row['cpu_gflops']:.1f}", f"{row['device_gflops']:.1f}",
         f"{row['ratio']:.3f}", f"{row['over_naive']:.1f}", row["device"]]
        for row in rows
    ]  # fmt: skip
    lines = [columns([head, *cells], (0, 5))]
    for name, word in (("ratio", "device/CPU"), ("over_naive", "device/naive")):
        ratios = [row[name] for row in rows]
        lines.append(
            f"{word}: geomean {script.geomean(ratios):.3f}, least {min(ratios):.3f}: "
            f"{device.model_name}"
        )
    return "\n".join(lines)


# Measured rates beside assumed ones.


def beside_assumed(arguments: Namespace, device: Target, budget: Budget) -> bool:
    """Compare the schedules of measured rates with those of assumed ones."""
    measured = load_rates(device)
    if measured is None:
        raise UnsupportedError(f"no rates: polysci machine --device {device.backend}")
    layers = layers_of(arguments, "boda")
    steps = (lambda limit, it=it: by_rates(it, device, measured, budget, limit) for it in layers)
    rows, whole = script.kept(budget.rows(steps, len(layers)), "layers", len(layers))
    if rows:
        script.write_csv(script.stem(arguments, "devices-rates").with_suffix(".csv"), rows)
        cells = [[row["layer"], f"{row['ratio']:.3f}", row["measured"], row["assumed"]]
                 for row in rows]  # fmt: skip
        print(columns([["layer", "assumed/measured", "by measured", "by assumed"], *cells], (0, 2)))
        ratios = [row["ratio"] for row in rows]
        other = sum(row["measured"] != row["assumed"] for row in rows)
        print(f"seconds by assumed rates over those by measured ones: geomean "
              f"{script.geomean(ratios):.3f}, least {min(ratios):.3f}; {other} of {len(rows)} "
              f"schedules differ: {device.model_name}")  # fmt: skip
    return whole


def by_rates(
    problem: Problem, device: Target, measured: Machine, budget: Budget, limit: float
) -> dict[str, Any]:
    """Time a layer with the schedules of both rates in turns: a row of the table."""
    machines = {"measured": measured, "assumed": assume_rates(device)}
    chosen = {
        name: optimize(problem, "estimate", target=device, machine=machine, threads=device.cores)
        for name, machine in machines.items()
    }
    row = {name: str(result.schedule) for name, result in chosen.items()}
    if row["measured"] == row["assumed"]:
        return {"layer": title(problem), "ratio": 1.0, **row}
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, shape).astype(np.float32)
            for shape in (problem.x_shape, problem.w_shape))  # fmt: skip
    own = {name: result.primitive() for name, result in chosen.items()}
    one, other = (it(x, it.pack_weights(w)) for it in own.values())
    same(problem, device.model_name, one, other)
    timers = [timer(it, device, x, w) for it in own.values()]
    measured_s, assumed_s = budget.medians(timers, limit)
    return {"layer": title(problem), "ratio": assumed_s / measured_s, **row}


# Beside PyTorch.


def beside_torch(
    arguments: Namespace, device: Target, there: TorchDevice, budget: Budget,
    backend: str = "inductor",
) -> bool:  # fmt: skip
    """Compare layers in every kind of element, and chains, with PyTorch on its device."""
    layers = layers_of(arguments, "boda", "gemm")
    pairs = [(layer, kind) for layer in layers for kind in KINDS]
    steps: list[Callable[[float], Any]] = [
        lambda limit, it=it: torch_row(it, device, there, budget, limit) for it in pairs
    ]
    if not arguments.layers:
        steps += [
            lambda limit, name=name: chain_row(name, device, there, budget, limit, backend)
            for name in chains(there.torch)
        ]
    rows, whole = script.kept(budget.rows(steps, len(steps)), "rows", len(steps))
    if rows:
        script.write_csv(script.stem(arguments, "devices-torch").with_suffix(".csv"), rows)
        print(torch_table(rows))
        print(f"{device.model_name} beside {there.title}")
    return whole


def row_of(name: str, kind: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a row: what ``work`` measures, or why it is refused or wrong."""
    row = {"layer": name, "kind": kind, "ms": "", "torch_ms": "", "gflops": "", "ratio": "",
           "note": ""}  # fmt: skip
    try:
        return row | work()
    except CheckError as error:
        return row | {"note": f"wrong: {error}"}
    except (PolysciError, MemoryError) as error:
        return row | {"note": f"refused: {error}"}


def torch_row(
    pair: tuple[Problem, str], device: Target, there: TorchDevice, budget: Budget, limit: float
) -> dict[str, Any]:
    """Time one layer in one kind of element on both in turns: a row of the table."""
    problem, kind = pair
    dtype = kind.partition(",")[0]
    there.use_tf32(KINDS[kind])

    def work() -> dict[str, Any]:
        own = problem.with_(dtype=dtype)
        primitive = polysci.compile(own, "estimate", device.cores, target=device)
        rng = np.random.default_rng(0)
        x, w = (rng.integers(-1, 2, shape).astype(np.float32)
                for shape in (own.x_shape, own.w_shape))  # fmt: skip
        call = there.call(own, x, w, dtype)
        mine = [stored(array, dtype) for array in (x, w)]
        y = primitive(mine[0], primitive.pack_weights(mine[1]))
        same(own, device.model_name, there.result(own, call), as_f32(y, dtype))
        timers = [timer(primitive, device, *mine), there.timer(call)]
        taken = budget.medians(timers, limit)
        return measured(*taken, own.flops, str(primitive.schedule))

    return row_of(title(problem), kind, work)


def stored(array: Any, dtype: str) -> Any:
    """Return f32 as polysci takes a type."""
    if dtype == "bf16":
        return to_bf16(array)
    return array.astype(np.float16) if dtype == "f16" else array


def as_f32(array: Any, dtype: str) -> Any:
    """Return a result as f32."""
    return from_bf16(array) if array.dtype == np.uint16 else array.astype(np.float32)


def measured(own_s: float, torch_s: float, flops: int, note: str) -> dict[str, Any]:
    """Return the numbers of a row."""
    return {
        "ms": own_s * 1e3, "torch_ms": torch_s * 1e3, "ratio": torch_s / own_s, "note": note,
        "gflops": flops / own_s * 1e-9 if flops else "",
    }  # fmt: skip


def chain_row(
    name: str, device: Target, there: TorchDevice, budget: Budget, limit: float, backend: str
) -> dict[str, Any]:
    """Time a chain of operators beside torch.compile: a row of the table."""
    there.use_tf32(False)

    def work() -> dict[str, Any]:
        torch = there.torch
        module, shape = chains(torch)[name]
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        program = torch.export.export(module, (torch.from_numpy(x),))
        options = polysci.CompileOptions("estimate", device.cores, target=device)
        network = polysci.compile_network(program, options)
        compiled = torch.compile(module.to(there.name), backend=backend)
        tensor = there.tensor(x, "f32")
        expected = there.result(None, lambda: compiled(tensor))
        y = next(iter(network({network.inputs[0].name: x}).values()))
        if not np.allclose(y, expected, rtol=1e-3, atol=1e-3):
            raise CheckError(f"{name}: results are {abs(y - expected).max():.2g} apart")
        timers = [network_timer(network, x), there.timer(lambda: compiled(tensor))]
        return measured(*budget.medians(timers, limit), 0, f"torch.compile, {backend}")

    return row_of(name, "chain, f32", work)


def network_timer(network: Any, x: Any) -> Callable[[], float]:
    """Return what takes a sample: the mean seconds of a run on the device, without copies."""
    runner = network.runner
    context, queue = runner.context(), runner.library.queue
    places = [queue.copy_in(x), *(queue.buffer(array.nbytes) for array in runner.results())]

    def sample(count: int) -> float:
        before = queue.seconds
        for _ in range(count):
            runner.network.run(context, *places)
        return (queue.seconds - before) / count

    once = min(sample(1) for _ in range(3))
    return lambda: sample(max(1, round(SAMPLE_S / once)))


def torch_table(rows: Sequence[dict[str, Any]]) -> str:
    """One line a row; behind them the mean, the least and the share above FLOOR of each kind."""
    head = ["layer", "kind", "ms", "PyTorch ms", "GFLOP/s", "PyTorch/ours", "note"]
    cells = [
        [row["layer"], row["kind"], *(f"{row[name]:.{digits}f}" if row[name] != "" else ""
         for name, digits in (("ms", 4), ("torch_ms", 4), ("gflops", 0), ("ratio", 3))),
         row["note"][:60]]
        for row in rows
    ]  # fmt: skip
    lines = [columns([head, *cells], (0, 1, 6))]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        ratios = [row["ratio"] for row in own if row["ratio"] != ""]
        refused = f"{len(own) - len(ratios)} of {len(own)} refused or wrong"
        if not ratios:
            lines.append(f"{kind}: {refused}")
            continue
        share = sum(ratio >= FLOOR for ratio in ratios) / len(ratios)
        lines.append(
            f"{kind}: geomean {script.geomean(ratios):.3f}, least {min(ratios):.3f}, "
            f"{100 * share:.0f} % at {FLOOR} or more; {refused}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
