"""Shapes of the pictures: SVG that is text, reads well on white and on black, and needs nothing."""

from __future__ import annotations

from html import escape
from typing import Literal

Anchor = Literal["start", "middle", "end"]

# Blue and vermilion of Okabe and Ito, which colour-blind people can tell apart.
STYLE = """
text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#24292f}
.title{font-size:15px;font-weight:600}.group{font-weight:600}.soft{fill:#656d76}
.line{stroke:#afb8c1;stroke-width:1;fill:none}.goal{stroke:#24292f;stroke-width:1.5}
.met{fill:#0072b2}.short{fill:#d55e00}.curve{fill:none;stroke-width:2}
@media(prefers-color-scheme:dark){
text{fill:#e6edf3}.soft{fill:#9198a1}.line{stroke:#4b535d}.goal{stroke:#e6edf3}
.met{fill:#56b4e9}.short{fill:#ff9b57}}
"""


class Canvas:
    """Shapes, one after the other; coordinates are pixels from the upper left.

    Example:
        >>> canvas = Canvas(40, 20, "a line")
        >>> canvas.line(0, 10, 40, 10)
        >>> "<line" in str(canvas)
        True
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.shapes: list[str] = []

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: Anchor = "start") -> None:
        """Text on the line y."""
        about = f' class="{kind}"' if kind else ""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self.shapes.append(f"<text {place}{about}>{escape(text)}</text>")

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> None:
        """A straight line."""
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self.shapes.append(f'<line {ends} class="{kind}"/>')

    def bar(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """A bar with its upper left corner at x and y."""
        size = f'width="{width:.1f}" height="{height:.1f}"'
        self.shapes.append(f'<rect x="{x:.1f}" y="{y:.1f}" {size} rx="2" class="{kind}"/>')

    def curve(self, points: list[tuple[float, float]], colour: str, dashes: str = "") -> None:
        """A line through points, with a dot at each."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        style = f'stroke="{colour}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")
        self.shapes.append(f'<polyline points="{path}" class="curve" {style}/>')
        for x, y in points:
            self.shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>')

    def __str__(self) -> str:
        size = f'width="{self.width:g}" height="{self.height:g}"'
        box = f'viewBox="0 0 {self.width:g} {self.height:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} role="img">'
        title = f"<title>{escape(self.title)}</title>"
        return "\n".join([head, title, f"<style>{STYLE}</style>", *self.shapes, "</svg>", ""])
