"""Pictures: matplotlib where it is installed, and one line that says so where it is not."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Okabe and Ito's colours, which colour-blind readers can tell apart; then black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999", "#000000")


def draw(path: Path, paint: Callable[[Any], None], *, rows: int = 1, columns: int = 1,
         size: tuple[float, float] = (9.0, 5.0)) -> None:  # fmt: skip
    """Save as ``path`` what ``paint`` draws on a grid of axes (an array, rows by columns).

    ``size`` in inches. Without matplotlib there is no picture, and a line on standard error.
    """
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no {path.name}: matplotlib is not installed; pip install 'polysci[plot]'",
              file=sys.stderr)  # fmt: skip
        return
    import matplotlib as mpl

    mpl.use("Agg")  # no display is needed
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    paint(axes)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def doublings(set_scale: Callable[..., None], axis: Any) -> None:
    """Plain numbers at powers of two: ``doublings(plot.set_xscale, plot.xaxis)``."""
    set_scale("log", base=2)
    axis.set_major_formatter("{x:g}")
