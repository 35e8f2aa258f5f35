"""An explanation as a picture: working sets against cache sizes, predicted and measured time."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings

from polysci.errors import SpecError, UnsupportedError
from polysci.explain.levels import MEMORY, Inside
from polysci.explain.model import Explanation
from polysci.explain.terms import LEVELS, OTHER
from polysci.text.tables import bytes_text, time_text

SUFFIXES = (".png", ".svg")
INSTALL = "pip install 'polysci[plot]'"
# Okabe and Ito's colours, which colour-blind readers can tell apart; hatches help in grey.
_HOMES = {"L1": "#009E73", "L2": "#56B4E9", "L3": "#E69F00", MEMORY: "#D55E00"}
_TERMS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_REST, _MEASURED, _INK = "#999999", "#444444", "#222222"
_MARKS = {"A": "o", "B": "s", "C": "^"}
_LONGEST = 90  # characters of a title line


def check(path: Path) -> None:
    """Raise SpecError for a file that cannot be written, UnsupportedError without matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise SpecError(f"--plot {path}: expected a name that ends in {' or '.join(SUFFIXES)}")
    if path.is_dir() or not path.parent.is_dir():
        why = "is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise SpecError(f"--plot {path}: cannot be written: {why}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError(f"--plot needs matplotlib, which is not installed: {INSTALL}")


@contextmanager
def new_figure(path: Path, size: tuple[float, float]) -> Iterator[Any]:
    """Yield a figure; write it at the end as ``path``, the same bytes for the same drawing.

    Raises SpecError for a path that does not work, UnsupportedError without matplotlib.
    """
    check(path)
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "polysci", "font.size": 9.5}), catch_warnings():
        filterwarnings("ignore", message="Glyph")  # of a name that the font cannot show
        figure = Figure(figsize=size, layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)  # no display is needed
        yield figure
        try:
            svg = path.suffix.lower() == ".svg"
            figure.savefig(path, dpi=150, metadata={"Date": None} if svg else None)
        except OSError as error:
            raise SpecError(f"--plot {path}: cannot be written: {error.strerror}") from None


def draw(explanation: Explanation, path: Path) -> None:
    """Write the picture of an explanation as ``path``, a .png or .svg file.

    Above: one row a loop, outer to inner, with the bytes that one iteration touches. Below: the
    predicted time stacked by its terms, the measured one, and the rivals' predictions.
    Raises as ``new_figure`` does.
    """
    bars = 2 + len(explanation.rivals)
    tall = (1.3 + 0.42 * len(explanation.inside), 1.5 + 0.42 * bars)
    with new_figure(path, (9.5, sum(tall) + 0.7)) as figure:
        above, below = figure.subplots(2, 1, height_ratios=tall)
        title = f"{_short(explanation.title)}\n{_short(str(explanation.schedule))}"
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", parse_math=False)
        _working_sets(above, explanation)
        _times(below, explanation)


def _short(text: str) -> str:
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"


def _bare(axes: Any) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_axisbelow(True)
    axes.grid(axis="x", alpha=0.25)


def _working_sets(axes: Any, explanation: Explanation) -> None:
    """One row a step of the schedule; the bar is the working set, the marks are A, B and C."""
    from matplotlib.lines import Line2D

    rows = list(enumerate(explanation.inside))
    for at, row in rows:
        axes.barh(at, row.working_set, height=0.62, color=_HOMES[row.fits], alpha=0.75, zorder=2)
        for letter, size in zip("ABC", (row.a, row.b, row.c), strict=True):
            axes.plot(size, at, _MARKS[letter], color=_INK, ms=4.5, mfc="white", zorder=4)
        axes.annotate(
            bytes_text(row.working_set), (row.working_set, at), xytext=(7, 0),
            textcoords="offset points", va="center", zorder=5, bbox=_paper(),
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    sizes = [size for row in explanation.inside for size in (row.a, row.b, row.c)]
    axes.set_xlim(
        min(sizes) / 2.5,
        5 * max(*explanation.caches, *(row.working_set for row in explanation.inside)),
    )
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks([at for at, _ in rows], [_step(row) for _, row in rows])
    for name, size in zip(LEVELS, explanation.caches, strict=False):
        axes.axvspan(explanation.usable * size, size, color=_REST, alpha=0.35, lw=0, zorder=3)
        axes.axvline(size, color=_INK, lw=1.1, ls=(0, (4, 2)), zorder=3)
        axes.annotate(
            f"{name} {bytes_text(size)}", (size, 1), xycoords=("data", "axes fraction"),
            xytext=(0, 3), textcoords="offset points", ha="center", va="bottom",
        )  # fmt: skip
    _byte_ticks(axes)
    usable = f"a cache holds {100 * explanation.usable:.0f} % of its size"
    axes.set_xlabel(f"bytes that one iteration touches; {usable}")
    homes = [
        home for home in (*LEVELS, MEMORY) if any(row.fits == home for row in explanation.inside)
    ]
    handles = [Line2D([], [], color=_HOMES[h], lw=7, alpha=0.75, label=f"held by {h}")
               for h in homes]  # fmt: skip
    handles += [
        Line2D([], [], color=_INK, marker=mark, ls="", mfc="white", ms=5, label=f"{letter} alone")
        for letter, mark in _MARKS.items()
    ]
    _legend(axes, handles)
    _bare(axes)


def _legend(axes: Any, handles: list[Any]) -> None:
    axes.legend(handles=handles, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.02))


def _paper() -> dict[str, Any]:
    return {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.85}


def _step(row: Inside) -> str:
    if not row.step:
        return "whole nest"
    return f"{row.step}   x{row.trips}" if row.trips > 1 else row.step


def _byte_ticks(axes: Any) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = axes.get_xlim()
    powers = [4.0**power for power in range(16) if low <= 4.0**power <= high]
    powers = powers if len(powers) <= 9 else powers[::2]
    axes.xaxis.set_major_locator(FixedLocator(powers))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: bytes_text(size)))


def _times(axes: Any, explanation: Explanation) -> None:
    """Predicted by terms, measured, and the rivals; the dotted line is the peak's time."""
    from matplotlib.lines import Line2D

    stacks = [explanation.terms, *(rival.terms for rival in explanation.rivals)]
    names = list(dict.fromkeys(name for terms in stacks for name, _ in terms.shares))
    colours = dict(zip(names, _TERMS * len(names), strict=False)) | {OTHER: _REST}
    for at, terms in enumerate(stacks):
        place, left = at + (at > 0), 0.0  # the measured time stands below the prediction
        for name, seconds in terms.stack():
            axes.barh(place, seconds, left=left, height=0.62, color=colours[name],
                      alpha=0.5 if at else 1.0, edgecolor="white", lw=0.5)  # fmt: skip
            left += seconds
        more = f"  {100 * (terms.seconds / explanation.terms.seconds - 1):+.1f} %" if at else ""
        _annotate(axes, time_text(terms.seconds) + more, left, place)
    _draw_measured(axes, explanation)
    peak_seconds = explanation.multiplied / explanation.peak * 1e-9
    axes.axvline(peak_seconds, color=_INK, lw=1.1, ls=":", zorder=1)
    measured = explanation.measured.seconds if explanation.measured else 0.0
    longest = max(measured, peak_seconds, *(terms.seconds for terms in stacks))
    axes.set_xlim(0, 1.38 * longest)
    axes.set_ylim(len(stacks) + 0.6, -0.6)
    labels = ["predicted", "measured", *(f"other {rival.trait}" for rival in explanation.rivals)]
    axes.set_yticks(range(len(labels)), labels)
    axes.xaxis.set_major_formatter(lambda seconds, _: time_text(seconds) if seconds else "0")
    axes.set_xlabel("time of one call; below, the nearest rivals as predicted")
    used = {name for terms in stacks for name, _ in terms.stack()}
    handles = [Line2D([], [], color=colours[n], lw=7, label=n) for n in colours if n in used]
    peak = Line2D([], [], color=_INK, lw=1.1, ls=":", label=explanation.peak_name)
    _legend(axes, [*handles, peak])
    _bare(axes)


def _draw_measured(axes: Any, explanation: Explanation) -> None:
    measured = explanation.measured
    if measured is None:
        _annotate(axes, "not measured: no record of this schedule", 0.0, 1)
        return
    hatch = "///" if measured.disturbed else None
    axes.barh(1, measured.seconds, height=0.62, color=_MEASURED, hatch=hatch, edgecolor="white")
    speed = f"{time_text(measured.seconds)}, {explanation.rate(measured.seconds):.1f} GFLOP/s"
    text = f"{speed}\n{measured.disturbance}".rstrip()
    _annotate(axes, text, measured.seconds, 1)


def _annotate(axes: Any, text: str, end: float, place: int) -> None:
    axes.annotate(text, (end, place), xytext=(6, 0), textcoords="offset points", va="center",
                  bbox=_paper(), zorder=5)  # fmt: skip
