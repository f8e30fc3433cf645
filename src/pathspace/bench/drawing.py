"""The two pictures: how benchmarks stand against their goals, and how cost grows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pathspace.bench.measurement import SHORT, Benchmark, goal, shown
from pathspace.bench.scaling import REFERENCE, Growth
from pathspace.bench.svg import Canvas

ROW, BAR = 20, 13
LETTER = 6.4  # pixels that a letter takes on average, rather more than less
# Okabe and Ito's colours without black and yellow, which vanish on black and on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
PANELS = (
    ("m", "seconds", "time (s)", "weights"),
    ("depth", "seconds", "time (s)", "layers of 64 units"),
    ("m", "bytes", "peak memory (bytes)", "weights"),
    ("depth", "bytes", "peak memory (bytes)", "layers of 64 units"),
)


def draw_overview(benchmarks: Sequence[Benchmark], about: str) -> str:
    """A bar for every row with a goal, as long as its value in units of the goal.

    Args:
        benchmarks: what was measured; those without goals are left out.
        about: the machine, in one line.

    Returns:
        an SVG picture.
    """
    shown_ = [(b, [row for row in b.rows if row.goal is not None]) for b in benchmarks]
    shown_ = [(b, rows) for b, rows in shown_ if rows]
    count = sum(len(rows) for _, rows in shown_)
    short = sum(row.verdict == SHORT for _, rows in shown_ for row in rows)
    longest = max((len(row.what) for _, rows in shown_ for row in rows), default=0)
    left = max(330, 24 + LETTER * longest)
    right, top = left + 260, 90
    height = top + ROW * count + 32 * len(shown_) + 16
    canvas = Canvas(right + 310, height, "Benchmarks against their goals")
    canvas.text(8, 20, f"Cost against its goal: {count - short} of {count} goals met", "title")
    canvas.text(8, 40, "The line is the goal; bars that end before it meet it.", "soft")
    canvas.text(8, 58, about, "soft")
    unit = (right - left) / 1.6  # pixels per goal; what is longer ends in an arrow
    y = top
    for benchmark, rows in shown_:
        canvas.text(8, y + 6, benchmark.title, "group")
        y += 16
        canvas.line(left + unit, y, left + unit, y + ROW * len(rows), "goal")
        for row in rows:
            assert row.goal is not None
            ratio = row.value / row.goal if row.goal else math.inf
            kind = "short" if row.verdict == SHORT else "met"
            fits = ratio <= 1.55
            length = unit * (ratio if fits else 1.55)
            canvas.text(left - 8, y + 14, row.what, anchor="end")
            canvas.bar(left, y + 4, max(length, 1), BAR, kind)
            if not fits:
                canvas.text(left + length + 2, y + 15, "▸", "soft")
            words = f"{shown(row)}, goal {goal(row)}"
            canvas.text(right + 12, y + 14, words + (f", {SHORT}" if kind == "short" else ""))
            y += ROW
        y += 16
    return str(canvas)


def draw_growth(growth: Growth, about: str) -> str:
    """Time and memory against weights and layers, both axes logarithmic, and all slopes.

    Args:
        growth: what was measured.
        about: the machine, in one line.

    Returns:
        an SVG picture.
    """
    names = growth.operations
    styles = {
        name: (COLOURS[k % len(COLOURS)], ("", "6 3")[k // len(COLOURS) % 2])
        for k, name in enumerate(names)
    }
    wide, high = 430, 290
    table = 60 + 2 * high
    canvas = Canvas(2 * wide, table + 46 + ROW * len(names), "How cost grows")
    canvas.text(8, 20, "How cost grows with the network", "title")
    canvas.text(8, 40, about, "soft")
    for k, (series, cost, label, unit) in enumerate(PANELS):
        curves = {}
        for name in names:
            points = [(p.size, getattr(p, cost)) for p in growth.series(series, name)]
            curves[name] = [(float(x), y) for x, y in points if y > 0 and math.isfinite(y)]
        panel = _Panel(canvas, wide * (k % 2), 60 + high * (k // 2), curves)
        panel.draw(label, unit, styles)
    columns = (240, 400, 560, 700, 840)
    canvas.text(8, table + 16, "Exponents (1 is proportional)", "group")
    heads = ("", "time/weights", "time/layers", "memory/weights", "memory/layers")
    for x, head in zip(columns[1:], heads[1:], strict=True):
        canvas.text(x, table + 16, head, "soft", "end")
    for k, name in enumerate(names):
        y = table + 40 + ROW * k
        canvas.curve([(12, y - 4), (44, y - 4)], *styles[name])
        canvas.text(54, y, name + (" (reference)" if name == REFERENCE else ""))
        for x, (series, cost, _, _) in zip(columns[1:], PANELS, strict=True):
            value = growth.slope(series, name, cost)
            canvas.text(x, y, "–" if math.isnan(value) else f"{value:.2f}", anchor="end")
    return str(canvas)


class _Panel:
    """One diagram with logarithmic axes."""

    def __init__(
        self, canvas: Canvas, x: float, y: float, curves: dict[str, list[tuple[float, float]]]
    ) -> None:
        self.canvas, self.curves = canvas, curves
        self.left, self.top, self.wide, self.high = x + 56, y + 24, 350.0, 210.0
        self.x_range = _decades([p[0] for points in curves.values() for p in points])
        self.y_range = _decades([p[1] for points in curves.values() for p in points])

    def draw(self, label: str, unit: str, styles: dict[str, tuple[str, str]]) -> None:
        canvas, bottom, right = self.canvas, self.top + self.high, self.left + self.wide
        canvas.text(self.left, self.top - 8, f"{label} against {unit}", "group")
        for power in range(self.x_range[0], self.x_range[1] + 1):
            x, _ = self._at(10.0**power, 10.0 ** self.y_range[0])
            canvas.line(x, self.top, x, bottom)
            canvas.text(x, bottom + 16, _power(power), "soft", "middle")
        for power in range(self.y_range[0], self.y_range[1] + 1):
            _, y = self._at(10.0 ** self.x_range[0], 10.0**power)
            canvas.line(self.left, y, right, y)
            canvas.text(self.left - 6, y + 4, _power(power), "soft", "end")
        for name, points in self.curves.items():
            if points:
                canvas.curve([self._at(*point) for point in points], *styles[name])

    def _at(self, x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - self.x_range[0]) / (self.x_range[1] - self.x_range[0])
        up = (math.log10(y) - self.y_range[0]) / (self.y_range[1] - self.y_range[0])
        return self.left + self.wide * across, self.top + self.high * (1 - up)


def _decades(values: list[float]) -> tuple[int, int]:
    """The powers of ten around values."""
    if not values:
        return 0, 1
    low = math.floor(math.log10(min(values)) + 0.02)  # 9,998 weights are 10⁴
    high = math.ceil(math.log10(max(values)) - 0.02)
    return low, max(high, low + 1)


def _power(power: int) -> str:
    """A power of ten in one piece of text."""
    return "10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
