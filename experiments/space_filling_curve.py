"""When does a Hilbert curve over blocks of C beat loops, and what does the model say?

For each matrix product and number of threads the model's best loop order is timed in turns with the
best curve: of blocks of register tiles along a generalised Hilbert curve (arXiv 2601.16294), the
size that the model prefers. Both have the same register tile.

  predicted  the model's seconds of the loops over those of the curve
  measured   the same of medians, in turns: above 1 the curve is faster

Times things: wants a quiet machine and some minutes. Writes space_filling_curve.csv and .png.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from itertools import product
from typing import Any

import plots
import script
from time_or_quality import retimed

from polysci.cli.layers import positive
from polysci.cost import shortlist
from polysci.cost.curve_groups import curve_forms
from polysci.lower.choice import candidates
from polysci.ops.matmul import Matmul
from polysci.space.directives import Hilbert
from polysci.text.tables import columns
from polysci.tune.context import context_of

SIZES = ((512, 512), (1024, 1024), (2048, 2048), (4096, 4096), (8192, 512), (16384, 256))
SAMPLES = 9


def main() -> int:
    parser = script.options(__doc__, sample=False)
    parser.add_argument("--samples", type=positive, default=SAMPLES, help=f"({SAMPLES})")
    parser.add_argument("--threads", type=positive, nargs="+", default=[1, 2], help="(1 2)")
    return script.run(work, parser.parse_args())


def work(arguments: Namespace) -> bool:
    """Predict, time, write, print; False if Ctrl-C cut it short."""
    sizes = SIZES[:2] if arguments.quick else SIZES
    cases = list(product(sizes, arguments.threads))
    steps = (compared(rows, size, threads, arguments.samples) for (rows, size), threads in cases)
    results, whole = script.kept(steps, "comparing", len(cases))
    if results:
        path = script.stem(arguments, "space_filling_curve")
        script.write_csv(path.with_suffix(".csv"), results)
        plots.draw(path.with_suffix(".png"), lambda axes: paint(axes[0][0], results))
        print(table(results))
    return whole


def compared(rows: int, size: int, threads: int, samples: int) -> dict[str, Any]:
    """One product of ``rows`` x ``size`` by ``size`` x ``size``: a row of the table."""
    problem = Matmul(rows, size, size, constant="b")
    context = context_of(problem, threads)
    loops = next(c.schedule for c in candidates(problem, context, 2) if not c.schedule.has(Hilbert))
    curve = min(
        curve_forms(context, loops), key=lambda form: shortlist.predict_seconds(context, form)
    )
    seconds = [shortlist.predict_seconds(context, form) for form in (loops, curve)]
    times = retimed(problem, [loops, curve], threads, samples)
    return {
        "layer": str(problem), "threads": threads, "loops": str(loops), "curve": str(curve),
        "gflops": problem.flops / min(times) * 1e-9,
        "predicted": seconds[0] / seconds[1], "measured": times[0] / times[1],
    }  # fmt: skip


def paint(axis: Any, rows: list[dict[str, Any]]) -> None:
    """Measured against predicted, a colour for each number of threads."""
    counts = sorted({row["threads"] for row in rows})
    for colour, threads in zip(plots.COLOURS, counts, strict=False):
        own = [row for row in rows if row["threads"] == threads]
        axis.scatter(
            [row["predicted"] for row in own], [row["measured"] for row in own],
            color=colour, label=f"{threads} threads",
        )  # fmt: skip
    axis.axline((1, 1), slope=1, color="#999999", linewidth=1)
    axis.set_xlabel("loops over curve, predicted")
    axis.set_ylabel("loops over curve, measured")
    axis.legend()


def table(rows: list[dict[str, Any]]) -> str:
    """One line a case."""
    head = ["layer", "threads", "GFLOP/s", "predicted", "measured", "curve"]
    cells = [
        [row["layer"], str(row["threads"]), f"{row['gflops']:.1f}", f"{row['predicted']:.3f}",
         f"{row['measured']:.3f}", row["curve"]]
        for row in rows
    ]  # fmt: skip
    return columns([head, *cells], (0, 5))


if __name__ == "__main__":
    sys.exit(main())
