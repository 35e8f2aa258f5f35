"""Residue classes beside zero-insertion: which one computes gradients of strided inputs faster?

Zero-insertion puts ``stride - 1`` zeros between the pixels of dY and computes the gradient of the
same convolution without strides. Most of its products are with those zeros. What inserting them
takes is not counted, so the ratio is the least that residue classes gain.

For every layer with strides, of a list or network: the search's time of both (predicted and
measured), and how much more the nest of zero-insertion computes. Writes backward_data.csv and
backward_data.png. Takes some 20 s a layer at level measure, none at level estimate.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence

import plots
import script

from polysci import tune
from polysci.cli.layers import LEVELS, positive, problems, title
from polysci.errors import SpecError
from polysci.ops import Conv2d, Conv2dBackwardData
from polysci.text.tables import columns, time_text


def main() -> int:
    parser = script.options(__doc__, sample=False)
    parser.add_argument(
        "layers", nargs="*", default=["resnet50_v15"], metavar="SPEC|FILE",
        help="convolutions, as of 'polysci optimize' (resnet50_v15)",
    )  # fmt: skip
    parser.add_argument("--layout", choices=("nhwc", "nchw"), default="nhwc", help="(nhwc)")
    parser.add_argument("--batch", type=positive, metavar="N", help="replace the batch of all")
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="(1)")
    parser.add_argument("--level", choices=LEVELS, default="measure", help="(measure)")
    return script.run(work, parser.parse_args())


def work(arguments: Namespace) -> bool:
    """Search, write, print, draw; False if Ctrl-C cut it short."""
    words = Namespace(
        layers=arguments.layers, layout=arguments.layout, dtype="f32", batch=arguments.batch
    )
    every = {problem.key: problem for problem in problems(words)}.values()
    strided = [it for it in every if isinstance(it, Conv2d) and it.stride != (1, 1)]
    if not strided:
        raise SpecError("no convolution with strides among the layers")
    strided = strided[:1] if arguments.quick else strided
    steps = compare(strided, arguments.level, arguments.threads)
    rows, whole = script.kept(steps, "gradients", len(strided))
    if not rows:
        return whole
    path = script.stem(arguments, "backward_data")
    script.write_csv(path.with_suffix(".csv"), rows)
    print(table(rows))
    draw(rows, path.with_suffix(".png"))
    return whole


def insert_zeros(conv: Conv2d) -> Conv2dBackwardData:
    """The gradient whose dY has zeros between the pixels of the strided one's."""
    (sh, sw), P, Q = conv.stride, conv.P, conv.Q
    return Conv2dBackwardData(conv.with_(stride=1, P=(P - 1) * sh + 1, Q=(Q - 1) * sw + 1))


def compare(layers: Sequence[Conv2d], level: str, threads: int) -> Iterator[script.Row]:
    """A row a layer; times in seconds, 0 where nothing was measured."""
    for conv in layers:
        ways = {"classes": Conv2dBackwardData(conv), "zeros": insert_zeros(conv)}
        row: dict[str, object] = {"layer": title(conv), "threads": threads}
        row["work"] = ways["zeros"].flops / ways["classes"].flops
        predicted, measured = dict[str, float](), dict[str, float]()
        for name, problem in ways.items():
            result = tune.optimize(problem, level, threads)
            predicted[name] = result.predicted
            measured[name] = result.measurement.median if result.measurement else 0.0
            row |= {f"{name}_schedule": str(result.schedule)}
        row |= {f"{name}_predicted": value for name, value in predicted.items()}
        row |= {f"{name}_measured": value for name, value in measured.items()}
        row["predicted_ratio"] = predicted["zeros"] / predicted["classes"]
        some = measured["classes"] > 0
        row["measured_ratio"] = measured["zeros"] / measured["classes"] if some else 0.0
        yield row


def table(rows: Sequence[script.Row]) -> str:
    """The rows, and geometric means of the ratios."""
    head = ("layer", "work", "classes", "zeros", "predicted ratio", "measured ratio")
    body = [
        (
            str(row["layer"]), f"{row['work']:.2f}", _time(row, "classes"), _time(row, "zeros"),
            f"{row['predicted_ratio']:.2f}", f"{row['measured_ratio']:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    means = [
        f"{name} {script.geomean(float(str(row[f'{name}_ratio'])) for row in rows):.2f}"
        for name in ("predicted", "measured")
        if all(float(str(row[f"{name}_ratio"])) > 0 for row in rows)
    ]
    return f"{columns([head, *body], (0,))}\nzero-insertion over classes, geomean: " + ", ".join(
        means
    )


def _time(row: script.Row, way: str) -> str:
    measured, predicted = (float(str(row[f"{way}_{kind}"])) for kind in ("measured", "predicted"))
    return time_text(measured or predicted)


def draw(rows: Sequence[script.Row], path: plots.Path) -> None:
    """Bars of both ratios, layer by layer, and the ratio of the work as a mark."""

    def paint(axes: plots.Any) -> None:
        axis, at = axes[0][0], range(len(rows))
        for shift, kind in ((-0.2, "predicted"), (0.2, "measured")):
            values = [float(str(row[f"{kind}_ratio"])) for row in rows]
            axis.bar([x + shift for x in at], values, 0.4, label=kind,
                     color=plots.COLOURS[kind == "measured"])  # fmt: skip
        axis.plot(at, [float(str(row["work"])) for row in rows], "k_", markersize=24, label="work")
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_xticks(list(at), [str(row["layer"]) for row in rows], rotation=30, ha="right")
        axis.set_ylabel("zero-insertion over residue classes, time")
        axis.legend()

    plots.draw(path, paint)


if __name__ == "__main__":
    sys.exit(main())
