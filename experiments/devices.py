"""How fast are layers on a device, beside C for this machine's CPU?

Each layer is compiled for the device and for the CPU, both with the schedule that level `estimate`
takes for the CPU, where the device has its register tile, and timed in turns by one thread: the
device by the events of its queue, the CPU by the clock. The table gives the speeds, and that of the
device over that of the CPU. A device that is this CPU tells what its driver's code is worth; of
another one the ratio compares machines. Results are compared first, integers bit for bit.

Needs pyopencl and a driver. Times things: wants a quiet machine. All of models/boda.txt take some
ten minutes. Writes devices.csv.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import script

import polysci
from polysci.cli.layers import positive, title
from polysci.errors import CheckError, PolysciError
from polysci.ops.problem import Problem
from polysci.runtime.backends import backend_of
from polysci.runtime.primitive import Primitive
from polysci.target.host import detect
from polysci.target.target import Target
from polysci.text.tables import columns

LAYERS = str(Path(__file__).parents[1] / "models/boda.txt")
SAMPLES = 11
SAMPLE_S = 5e-3


def main() -> int:
    return script.run(work, options().parse_args())


def options() -> ArgumentParser:
    parser = script.layer_options(__doc__)
    parser.add_argument("--device", default="opencl:0", metavar="NAME", help="(opencl:0)")
    parser.add_argument("--samples", type=positive, default=SAMPLES, help=f"({SAMPLES})")
    return parser


def work(arguments: Namespace) -> bool:
    """Compile, compare, time, write, print; False if Ctrl-C cut it short."""
    from polysci.runtime.backends import backend_named

    arguments.layers = arguments.layers or [LAYERS]
    (device,) = backend_named(arguments.device).targets()
    layers = script.chosen(arguments, (), quick=3)
    steps = (compare(layer, device, arguments.samples) for layer in layers)
    rows, whole = script.kept(steps, "layers", len(layers))
    if rows:
        script.write_csv(script.stem(arguments, "devices").with_suffix(".csv"), rows)
        print(table(rows, device))
    return whole


def compare(problem: Problem, device: Target, samples: int) -> dict[str, Any]:
    """Time one layer on both in turns: a row of the table."""
    here = polysci.compile(problem, "estimate")
    there = on_device(here, device)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, shape).astype(np.float32)
            for shape in (problem.x_shape, problem.w_shape))  # fmt: skip
    if not np.array_equal(here(x, here.pack_weights(w)), there(x, there.pack_weights(w))):
        raise CheckError(f"{problem}: {device.model_name} computes something else")
    timers = [timer(primitive, target, x, w)
              for primitive, target in ((here, detect()), (there, device))]  # fmt: skip
    taken = [[time() for time in timers] for _ in range(samples)]
    host_s, device_s = map(median, zip(*taken, strict=True))
    return {
        "layer": title(problem), "cpu_gflops": problem.flops / host_s * 1e-9,
        "device_gflops": problem.flops / device_s * 1e-9, "ratio": host_s / device_s,
        "cpu": str(here.schedule), "device": str(there.schedule),
    }  # fmt: skip


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
    y = np.empty(primitive.problem.y_shape, np.float32)
    places = [library.copy_in(types.x.stored)(x), packed.pointer, library.copy_in("float32")(y)]
    arguments = (*places, *[library.null] * 3, library.copy_in("byte")(workspace))
    once = min(backend.time(run, [arguments]) for _ in range(3))
    return lambda: backend.time(run, [arguments] * max(1, round(SAMPLE_S / once)))


def table(rows: Sequence[dict[str, Any]], device: Target) -> str:
    """One line a layer; behind them the geometric mean and the least ratio."""
    head = ["layer", "CPU GFLOP/s", "device GFLOP/s", "device/CPU", "schedule of the device"]
    cells = [
        [row["layer"], f"{row['cpu_gflops']:.1f}", f"{row['device_gflops']:.1f}",
         f"{row['ratio']:.3f}", row["device"]]
        for row in rows
    ]  # fmt: skip
    ratios = [row["ratio"] for row in rows]
    mean = f"geomean {script.geomean(ratios):.3f}, least {min(ratios):.3f}: {device.model_name}"
    return f"{columns([head, *cells], (0, 4))}\n{mean}"


if __name__ == "__main__":
    sys.exit(main())
