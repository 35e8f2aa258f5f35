"""How fast is the model's first choice of a matrix product beside the best that was measured?

For each product the schedule that level `estimate` takes and the best of level `measure` (a record
where there is one, else a search) are compiled and timed in turns, by medians. The table gives the
speed of the first over that of the second, geometric mean and least: what a user gives away who
measures nothing. Where both are one schedule the ratio is 1.

With --machine FILE nothing is run: the table shows what the model chooses on the machine of that
file and the seconds that it predicts.

Times things: wants a quiet machine. All of models/gemm.txt take some minutes where level `measure`
has records of them. Writes products.csv.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import script
from time_or_quality import retimed

from polysci import tune
from polysci.cli.layers import positive, title
from polysci.cost import Context
from polysci.lower.choice import candidates, predict_seconds
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.target import machine_file
from polysci.text.tables import columns, time_text

PRODUCTS = str(Path(__file__).parents[1] / "models/gemm.txt")
SAMPLES = 15


def main() -> int:
    return script.run(work, options().parse_args())


def options() -> ArgumentParser:
    parser = script.layer_options(__doc__)
    parser.add_argument("--machine", type=Path, metavar="FILE", help="predict for this machine")
    parser.add_argument("--samples", type=positive, default=SAMPLES, help=f"({SAMPLES})")
    return parser


def work(arguments: Namespace) -> bool:
    """Choose, time, write, print; False if Ctrl-C cut it short."""
    arguments.layers = arguments.layers or [PRODUCTS]
    products = script.chosen(arguments, (), quick=3)
    row_of = predict if arguments.machine else compare
    steps = (row_of(problem, arguments) for problem in products)
    rows, whole = script.kept(steps, "products", len(products))
    if rows:
        script.write_csv(script.stem(arguments, "products").with_suffix(".csv"), rows)
        print(table(rows))
    return whole


def compare(problem: Problem, arguments: Namespace) -> dict[str, Any]:
    """Time the model's choice and the measured best of one product: a row of the table."""
    threads = arguments.threads or 1
    context = tune.context_of(problem, threads)
    chosen = candidates(problem, context, 1)[0].schedule
    best = tune.optimize(problem, "measure", threads).schedule
    pair = [chosen] if chosen == best else [chosen, best]
    seconds = retimed(problem, pair, threads, arguments.samples)
    predicted = [predict_seconds(problem, context, schedule) for schedule in (chosen, best)]
    return {
        "product": title(problem), "ratio": seconds[-1] / seconds[0],
        "predicted": predicted[1] / predicted[0], "seconds": seconds[0],
        "chosen": str(chosen), "best": str(best),
    }  # fmt: skip


def predict(problem: Problem, arguments: Namespace) -> dict[str, Any]:
    """Return what the model chooses on a described machine: a row of the table."""
    described = machine_file.read(arguments.machine)
    _, roles, strides = model_of(problem)
    threads = arguments.threads or 1
    context = Context(roles, strides, described.target, described.machine, threads)
    choice = candidates(problem, context, 1)[0]
    return {
        "product": title(problem), "seconds": choice.seconds, "chosen": str(choice.schedule)
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line a product; behind them the geometric mean and the least ratio."""
    names = [name for name in rows[0] if name not in ("product", "seconds")]
    numbers = [name for name in names if name in ("ratio", "predicted")]
    texts = [name for name in names if name not in numbers]
    head = ["product", "seconds", *numbers, *texts]
    cells = [
        [row["product"], time_text(row["seconds"]), *(f"{row[name]:.3f}" for name in numbers),
         *(row[name] for name in texts)]
        for row in rows
    ]  # fmt: skip
    lines = [columns([head, *cells], (0, *range(2 + len(numbers), len(head))))]
    if numbers:
        ratios = [row["ratio"] for row in rows]
        lines.append(f"geomean {script.geomean(ratios):.3f}, least {min(ratios):.3f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
