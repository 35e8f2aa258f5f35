"""Draw what tuners have reached: the best time so far over the individuals measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf, isfinite
from pathlib import Path
from typing import Final

from polysci.errors import SpecError
from polysci.explain.plot import check
from polysci.runtime.build.folder import cache_dir
from polysci.tune.tuners import TunerState

LONGEST: Final = 60  # characters of a name


def best_so_far(state: TunerState) -> list[tuple[int, float]]:
    """(individuals measured, least seconds of these), from the first that did not fall out on."""
    seconds = (inf if its.seconds is None else its.seconds for its in state.outcomes.values())
    steps = enumerate(accumulate(seconds, min), 1)
    return [(count, best) for count, best in steps if isfinite(best)]


def _time_text(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.4g} ms"


def _tick_text(seconds: float, _: float) -> str:
    """A time on the axis; ticks are round, and those of times that hardly differ lie close."""
    return f"{seconds * 1e6:.7g} us" if seconds < 1e-3 else f"{seconds * 1e3:.7g} ms"


def _title(state: TunerState) -> str:
    """The tuner, and what it decides first, with the beginning of the file's name."""
    names = [decision.name for decision in state.space.decisions]
    first = f"{names[0]:.{LONGEST}}" if names else "nothing"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{state.options.name}, {first}{more} ({state.path.stem[:8]})"


def draw(states: Sequence[TunerState], path: Path) -> None:
    """Write a line for each tuner and program as ``path``, a .png or .svg file.

    Raises SpecError for a path that does not work, or where no tuner has measured anything,
    UnsupportedError without matplotlib.
    """
    check(path)
    lines = [(state, points) for state in states if (points := best_so_far(state))]
    if not lines:
        raise SpecError(
            f"--plot {path}: no tuner has measured anything in {cache_dir()}: polysci optimize and "
            "compile do with --tuner"
        )
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Without a hash salt and date the same states give the same bytes.
    with rc_context({"svg.hashsalt": "polysci", "font.size": 9.5}):
        figure = Figure(figsize=(9.5, 4.5 + 0.18 * len(lines)), layout="constrained")
        FigureCanvasAgg(figure)  # no display is needed
        axes = figure.subplots()
        for state, points in lines:
            counts, seconds = zip(*points, strict=True)
            last = len(state.outcomes)
            axes.step(
                (*counts, last), (*seconds, seconds[-1]), where="post", marker="o", markersize=3,
                markevery=[0, len(points)],
                label=f"{_title(state)}: {_time_text(seconds[-1])} after {last} of at most "
                f"{state.limit}",
            )  # fmt: skip
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_tick_text)
        axes.yaxis.set_minor_formatter(_tick_text)
        axes.set_xlabel("individuals measured")
        axes.set_ylabel("best time so far")
        axes.grid(alpha=0.25)
        for text in figure.legend(loc="outside lower center", frameon=False).get_texts():
            text.set_parse_math(False)  # names may have a $
        try:
            svg = path.suffix.lower() == ".svg"
            figure.savefig(path, dpi=150, metadata={"Date": None} if svg else None)
        except OSError as error:
            raise SpecError(f"--plot {path}: cannot be written: {error.strerror}") from None
