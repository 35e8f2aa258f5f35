"""The figures of a report as inline SVG, styled by the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import atan2, degrees
from xml.etree.ElementTree import Element

from polysci.explain import Explanation
from polysci.report.axes import Log, PlotArea, labels
from polysci.report.markup import tag
from polysci.report.model import Report, ReportLayer
from polysci.text.tables import time_text

WIDE, HIGH = 600, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 86, 14, 14, 46
BAND = 1.25  # predictions within this factor of the measured time lie between the dashed lines
ROOM = 24  # pixels beside a label in the middle of its tick


def roofline(report: Report) -> Element | None:
    """Each layer's measured and predicted rate over its flop a byte of memory, under the roofs.

    The whisker leads to the flop a byte that the lower bound on loads allows. None without layers.
    """
    drawn = [layer for layer in report.layers if layer.account]
    if not drawn:
        return None
    x, y = _roof_axes(report, drawn)
    parts = [*grid(x, y, "{:g}"), *titles(x, y, "flop per byte from memory", "GFLOP/s")]
    parts += _roofs(report, x, y)
    for layer in drawn:
        if layer.account:
            parts += _layer_marks(layer, layer.account, x, y)
    return svg([*parts, *_numbers(report, drawn, x, y)], WIDE, HIGH, "Roofline of all layers")


def _numbers(report: Report, drawn: Sequence[ReportLayer], x: Log, y: Log) -> Iterable[Element]:
    """The layers' numbers beside their points; a line connects those farther away."""
    spots, texts, boxes = [], [], []
    for layer in drawn:
        own = layer.account
        if own is None:
            continue
        px, py = x.at(_intensity(own)), y.at(_best_rate(own))
        spots.append((px, py))
        texts.append(str(1 + report.layers.index(layer)))
        predicted = y.at(own.needed_rate(own.terms.seconds))
        boxes.append(PlotArea(px - 7, predicted - 7, px + 7, predicted + 7))
        boxes.append(PlotArea(px, py - 4, x.at(own.multiplied / own.flows[-1].bound) + 2, py + 4))
    frame = PlotArea(_LEFT, _TOP, WIDE - _RIGHT, HIGH - _BOTTOM)
    places = labels(spots, texts, frame, boxes)
    for (px, py), (cx, cy), text in zip(spots, places, texts, strict=True):
        if abs(cx - px) + abs(cy - py) > 30:
            yield segment({"x1": px, "y1": py, "x2": cx, "y2": cy}, "lead")
        yield label_at(cx, cy + 4, text, "number")


def _intensity(own: Explanation) -> float:
    return own.multiplied / own.flows[-1].total


def _best_rate(own: Explanation) -> float:
    return own.needed_rate(_times(own)[-1])


def _roof_axes(report: Report, drawn: Sequence[ReportLayer]) -> tuple[Log, Log]:
    owns = [layer.account for layer in drawn if layer.account]
    rates = [own.needed_rate(seconds) for own in owns for seconds in _times(own)]
    reach = [
        value for own in owns for value in (_intensity(own), own.multiplied / own.flows[-1].bound)
    ]
    low = 0.8 * min(*rates, report.peak)
    nearest = low / max(report.bandwidths.values())  # where the steepest roof begins
    x = Log(min(0.55 * nearest, 0.8 * min(reach)), 1.3 * max(reach), _LEFT, WIDE - _RIGHT)
    y = Log(low, 1.12 * max(report.peak, *rates), HIGH - _BOTTOM, _TOP)
    return x, y


def _times(own: Explanation) -> list[float]:
    return [own.terms.seconds, *([own.measured.seconds] if own.measured else [])]


def _roofs(report: Report, x: Log, y: Log) -> list[Element]:
    """The peak, and the bandwidths of all threads."""
    parts = list[Element]()
    for name, rate in report.bandwidths.items():
        first, last = max(x.low, y.low / rate), min(x.high, report.peak / rate)
        if first >= last:
            continue
        ends = {"x1": x.at(first), "y1": y.at(first * rate), "x2": x.at(last)}
        parts.append(segment(ends | {"y2": y.at(last * rate)}, f"roof {name}"))
        side = -6 if name == "L2" else 15  # above its roof, so that L3's has room below its own
        parts.append(along(x, y, (first, last), rate, f"{name} {rate:.0f} GB/s", side))
    ridge, level = max(x.low, report.peak / max(report.bandwidths.values())), y.at(report.peak)
    parts.append(segment({"x1": x.at(ridge), "y1": level, "x2": x.end, "y2": level}, "roof"))
    label = f"{report.peak_name} {report.peak:.0f} GFLOP/s"
    return [*parts, label_at(x.start + 6, level - 6, label, "note", "start")]


def along(
    x: Log, y: Log, span: tuple[float, float], rate: float, text: str, side: float
) -> Element:
    """A label beside a bandwidth roof, in the middle of it."""
    first, last = span
    x1, y1, x2, y2 = x.at(first), y.at(first * rate), x.at(last), y.at(last * rate)
    px, py = (x1 + x2) / 2, (y1 + y2) / 2
    label = label_at(px, py + side, text, "note", "middle")
    label.set("transform", f"rotate({degrees(atan2(y2 - y1, x2 - x1)):.1f} {px:.1f} {py:.1f})")
    return label


def _layer_marks(layer: ReportLayer, own: Explanation, x: Log, y: Log) -> Iterable[Element]:
    here, bound = _intensity(own), own.multiplied / own.flows[-1].bound
    px, py = x.at(here), y.at(_best_rate(own))
    end = x.at(bound)
    yield segment({"x1": px, "y1": py, "x2": end, "y2": py}, "bound")
    yield segment({"x1": end, "y1": py - 4, "x2": end, "y2": py + 4}, "bound")
    predicted = y.at(own.needed_rate(own.terms.seconds))
    label = (
        f"{layer.title}: {here:.3g} flop a byte ({bound:.3g} at most), predicted "
        f"{own.needed_rate(own.terms.seconds):.1f} GFLOP/s"
    )
    if own.measured:
        label += ", ".join(
            [f", measured {own.needed_rate(own.measured.seconds):.1f}", *own.measured.remarks]
        )
        yield segment({"x1": px, "y1": py, "x2": px, "y2": predicted}, "link")
    yield _diamond(px, predicted, label)
    if own.measured:
        yield _dot(px, py, "chosen", label)


def scatter(layers: Sequence[ReportLayer], wide: int = WIDE, high: int = HIGH) -> Element | None:
    """Predicted against measured time of every schedule tried; None where none was measured."""
    pairs = [
        (trial.predicted, trial.seconds, trial, layer)
        for layer in layers
        for trial in layer.trials
        if trial.seconds
    ]
    if not pairs:
        return None
    x = _around([pair[0] for pair in pairs], _LEFT, wide - _RIGHT)
    y = _around([pair[1] for pair in pairs], high - _BOTTOM, _TOP)
    parts = [*grid(x, y, ""), *titles(x, y, "predicted", "measured"), *_equals(x, y)]
    dots: dict[str, list[Element]] = {"tried": [], "chosen": []}
    for predicted, seconds, trial, layer in pairs:
        label = (f"{layer.title}: {trial.schedule}: predicted {time_text(predicted)}, "
                f"measured {time_text(seconds)}")  # fmt: skip
        chosen = layer.result is not None and trial.schedule == layer.result.schedule
        name = label if chosen or len(layers) == 1 else None  # thousands would double the page
        kind = "chosen" if chosen else "tried"
        dots[kind].append(_dot(x.at(predicted), y.at(seconds), kind, name))
    parts += [*dots["tried"], *dots["chosen"]]  # the chosen on top
    return svg(parts, wide, high, "Predicted against measured time of every schedule tried")


def _around(values: Sequence[float], start: float, end: float) -> Log:
    """An axis with some room around the values, long enough for ticks."""
    low, high = min(values), max(values)
    room = max(1.03, (high / low) ** 0.06)
    return Log(low / room, high * room, start, end)


def _equals(x: Log, y: Log) -> Iterable[Element]:
    """Lines where the prediction equals the measured time, and where it is off by BAND."""
    for factor, kind in ((1.0, "equal"), (BAND, "band"), (1 / BAND, "band")):
        first, last = max(x.low, y.low / factor), min(x.high, y.high / factor)
        if first < last:
            ends = {"x1": x.at(first), "y1": y.at(first * factor)}
            yield segment(ends | {"x2": x.at(last), "y2": y.at(last * factor)}, kind)


def grid(x: Log, y: Log, form: str) -> Iterable[Element]:
    for value in x.ticks(int((x.end - x.start) / 72)):
        at = x.at(value)
        yield segment({"x1": at, "y1": y.start, "x2": at, "y2": y.end}, "grid")
        inside = "middle" if x.end - at > ROOM else "end"  # a label ends within the picture
        yield label_at(at, y.start + 16, form.format(value) or _tick(value), "tick", inside)
    for value in y.ticks(int((y.start - y.end) / 40)):
        at = y.at(value)
        yield segment({"x1": x.start, "y1": at, "x2": x.end, "y2": at}, "grid")
        yield label_at(x.start - 6, at + 4, form.format(value) or _tick(value), "tick", "end")


def _tick(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= 0.9999 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def titles(x: Log, y: Log, below: str, beside: str) -> Iterable[Element]:
    yield label_at((x.start + x.end) / 2, y.start + 36, below, "axis", "middle")
    middle = (y.start + y.end) / 2
    side = label_at(14, middle, beside, "axis", "middle")
    side.set("transform", f"rotate(-90 14 {middle:.1f})")
    yield side


def svg(parts: Sequence[Element], wide: int, high: int, title: str) -> Element:
    return tag("svg", tag("title", title), parts, viewBox=f"0 0 {wide} {high}", role="img",
               xmlns="http://www.w3.org/2000/svg")  # fmt: skip


def pixels(value: float) -> str:
    return f"{value:.1f}"


def segment(ends: dict[str, float], kind: str) -> Element:
    return tag("line", class_=kind, **{name: pixels(value) for name, value in ends.items()})


def label_at(x: float, y: float, text: str, kind: str, anchor: str = "middle") -> Element:
    return tag("text", text, x=pixels(x), y=pixels(y), class_=kind, text_anchor=anchor)


def _dot(x: float, y: float, kind: str, label: str | None) -> Element:
    return tag(
        "circle", label and tag("title", label), cx=pixels(x), cy=pixels(y), r="4.5", class_=kind
    )


def _diamond(x: float, y: float, label: str) -> Element:
    corners = ((x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y))
    points = " ".join(f"{pixels(a)},{pixels(b)}" for a, b in corners)
    return tag("polygon", tag("title", label), points=points, class_="predicted")
