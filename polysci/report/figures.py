"""Elements of a page, a tree that is escaped when it is written, and figures as inline SVG."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import atan2, ceil, degrees, floor, log10
from xml.etree.ElementTree import Element, tostring

from polysci.explain import Explanation
from polysci.report.model import Report, ReportLayer
from polysci.text.tables import time_text

Child = Element | str | None
_STEPS = ((1.0, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))
_SHORT = 4.0  # ratio of high to low below which ticks are spaced as on a linear axis
WIDE, HIGH = 600, 440
LEFT, RIGHT, TOP, BOTTOM = 86, 14, 14, 46
BAND = 1.25  # predictions within this factor of the measured time lie between the dashed lines
_LETTER = 12.0  # pixels of a letter's height
ROOM = 24  # pixels beside a label in the middle of its tick


def tag(name: str, /, *children: Child | Iterable[Child], **attributes: object) -> Element:
    """An element; ``class_`` sets the attribute class, ``a_b`` a-b, None is left out."""
    element = Element(name)
    for key, value in attributes.items():
        if value is not None:
            element.set(key.rstrip("_").replace("_", "-"), replace_unprintable(str(value)))
    for child in children:
        for part in [child] if child is None or isinstance(child, str | Element) else child:
            _append(element, part)
    return element


def _append(element: Element, child: Child) -> None:
    if isinstance(child, Element):
        element.append(child)
    elif child is not None and len(element):
        element[-1].tail = (element[-1].tail or "") + replace_unprintable(child)
    elif child is not None:
        element.text = (element.text or "") + replace_unprintable(child)


def replace_unprintable(text: str) -> str:
    """The text with U+FFFD for every character that is neither printable nor a newline."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def document(html: Element) -> str:
    """A whole page as text."""
    return "<!DOCTYPE html>\n" + tostring(html, encoding="unicode", method="html")


@dataclass(frozen=True, slots=True)
class Log:
    """A logarithmic axis from ``low`` to ``high``, drawn from ``start`` to ``end`` in pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The position of a value; values outside the axis are at the nearer end."""
        share = log10(value / self.low) / log10(self.high / self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ticks(self, limit: int) -> list[float]:
        """Return at most ``limit`` round values on the axis, as dense as possible."""
        if self.high < _SHORT * self.low:
            return self._even(limit)
        for steps in _STEPS:
            values = [value for value in self._multiples(steps) if self.holds(value)]
            if len(values) <= limit:
                return values
        return values[:: ceil(len(values) / limit)]

    def _even(self, limit: int) -> list[float]:
        """Multiples of one round step, as on a linear axis."""
        step = 10.0 ** floor(log10((self.high - self.low) / limit))
        while (self.high - self.low) / step > limit:
            step *= 2.5 if f"{step:e}".startswith("2") else 2  # 1, 2, 5, 10
        first, last = ceil(self.low / step), floor(self.high / step)
        return [count * step for count in range(first, last + 1)]

    def _multiples(self, steps: Sequence[float]) -> Iterator[float]:
        for power in range(floor(log10(self.low)), ceil(log10(self.high)) + 1):
            yield from (step * 10.0**power for step in steps)


@dataclass(frozen=True, slots=True)
class PlotArea:
    """A rectangle in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: PlotArea) -> float:
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, wide) * max(0.0, high)


def labels(
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    frame: PlotArea,
    obstacles: Sequence[PlotArea] = (),
) -> list[tuple[float, float]]:
    """Centres for the labels of points, each near its point, with as little overlap as possible.

    Labels avoid ``obstacles``, and leave ``frame`` only where there is no room.
    """
    taken = [*obstacles, *(PlotArea(x - 6, y - 6, x + 6, y + 6) for x, y in points)]
    centres = []
    for (x, y), text in zip(points, texts, strict=True):
        wide, high = 0.62 * _LETTER * len(text) + 2, _LETTER
        best, lowest = (x, y), float("inf")
        for order, (right, down) in enumerate(_PLACES):
            cx, cy = x + right * (wide / 2 + 8), y + down * (high / 2 + 7)
            box = PlotArea(cx - wide / 2, cy - high / 2, cx + wide / 2, cy + high / 2)
            outside = wide * high - box.overlap(frame)
            cost = sum(box.overlap(other) for other in taken) + 4 * outside + 0.5 * order
            if cost < lowest:
                best, lowest, chosen = (cx, cy), cost, box
        taken.append(chosen)
        centres.append(best)
    return centres


# Right first, then around the point, then the same farther away.
_PLACES = [
    (reach * right, reach * down)
    for reach in (1.0, 1.9, 2.8, 3.8)
    for right, down in ((1, 0), (0, -1), (0, 1), (-1, 0), (1, -1), (1, 1), (-1, -1), (-1, 1))
]


def roofline(report: Report) -> Element | None:
    """Each layer's measured and predicted rate over its flop a byte of memory, under the roofs.

    The whisker leads to the flop a byte that the lower bound on loads allows. None without layers.
    """
    drawn = [layer for layer in report.layers if layer.account]
    if not drawn:
        return None
    x, y = _roof_axes(report, drawn)
    parts = [*grid(x, y, "{:g}"), *titles(x, y, "flop per byte from memory", "GFLOP/s")]
    rates, peak = report.bandwidths, report.peak
    parts += roofs(x, y, rates, peak)
    parts += roof_of_peak(x, y, rates, peak, report.peak_name, "start")
    for layer in drawn:
        if layer.account:
            parts += _layer_marks(layer, layer.account, x, y)
    return svg([*parts, *_numbers(report, drawn, x, y)], WIDE, HIGH, "Roofline of all layers")


def _numbers(report: Report, drawn: Sequence[ReportLayer], x: Log, y: Log) -> Iterator[Element]:
    """Yield the layers' numbers beside their points."""
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
    return numbers_beside(spots, texts, boxes)


def numbers_beside(
    spots: Sequence[tuple[float, float]], texts: Sequence[str], boxes: Sequence[PlotArea]
) -> Iterator[Element]:
    """Yield numbers beside points; a line connects those farther away."""
    places = labels(spots, texts, PlotArea(LEFT, TOP, WIDE - RIGHT, HIGH - BOTTOM), boxes)
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
    x = Log(min(0.55 * nearest, 0.8 * min(reach)), 1.3 * max(reach), LEFT, WIDE - RIGHT)
    y = Log(low, 1.12 * max(report.peak, *rates), HIGH - BOTTOM, TOP)
    return x, y


def _times(own: Explanation) -> list[float]:
    return [own.terms.seconds, *([own.measured.seconds] if own.measured else [])]


def roofs(
    x: Log, y: Log, bandwidths: Mapping[str, float], peak: float, room: float = 0.0
) -> Iterator[Element]:
    """Yield the bandwidths of all threads up to the peak, named if longer than ``room``."""
    for name, rate in bandwidths.items():
        first, last = max(x.low, y.low / rate), min(x.high, peak / rate)
        if first >= last:
            continue
        ends = {"x1": x.at(first), "y1": y.at(first * rate), "x2": x.at(last)}
        yield segment(ends | {"y2": y.at(last * rate)}, f"roof {name}")
        if x.at(last) - x.at(first) > room:
            side = -6 if name == "L2" else 15  # above its roof, so that L3's has room below its own
            yield _along(x, y, (first, last), rate, f"{name} {rate:.0f} GB/s", side)


def roof_of_peak(
    x: Log, y: Log, bandwidths: Mapping[str, float], peak: float, name: str, anchor: str
) -> Iterator[Element]:
    """Yield a peak from the steepest roof on, with its name at the ``anchor`` of the axis."""
    level, start = y.at(peak), x.at(max(x.low, peak / max(bandwidths.values())))
    yield segment({"x1": start, "y1": level, "x2": x.end, "y2": level}, "roof")
    place = x.start + 6 if anchor == "start" else x.end - 6
    yield label_at(place, level - 6, f"{name} {peak:.0f} GFLOP/s", "note", anchor)


def _along(
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
    x = _around([pair[0] for pair in pairs], LEFT, wide - RIGHT)
    y = _around([pair[1] for pair in pairs], high - BOTTOM, TOP)
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
