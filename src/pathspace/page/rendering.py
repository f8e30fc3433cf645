"""From blocks to HTML: the only place that writes tags, and that escapes every text."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

from pathspace.page.assets import asset, plotly_source, policy
from pathspace.page.blocks import (
    Block,
    Bullets,
    Code,
    Curves,
    DataTable,
    Details,
    Image,
    Page,
    Paragraph,
    Record,
    Section,
    Surface,
)
from pathspace.page.curve import Curve
from pathspace.page.downloads import csv_text, data_url, file_stem, json_text


def render(page: Page) -> str:
    """The page as one HTML document.

    Example:
        >>> text = render(Page("Two < three", [Section("Facts", [Paragraph("a & b")])]))
        >>> "<h1>Two &lt; three</h1>" in text, "<p>a &amp; b</p>" in text
        (True, True)
    """
    writer = _Writer()
    body = writer.all(page.blocks, 2)
    styles = [asset("page.css")]
    scripts = [asset(name) for name in ("sorting.js", "curves.js") if name in writer.needs]
    plotly = "surfaces.js" in writer.needs
    scripts += [plotly_source(), asset("surfaces.js")] if plotly else []
    title = html.escape(page.title)
    security = html.escape(policy(scripts, styles, plotly))
    contents = "".join(
        f'<li><a href="#{mark}">{html.escape(name)}</a></li>' for mark, name in writer.contents
    )
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{security}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            f"<title>{title}</title>\n",
            *(f"<style>{style}</style>\n" for style in styles),
            '</head>\n<body>\n<a class="skip" href="#main">Skip to the content</a>\n',
            f"<header>\n<h1>{title}</h1>\n",
            f'<p class="subtitle">{html.escape(page.subtitle)}</p>\n' if page.subtitle else "",
            "" if page.data is None else _link(page.file, ".json", json_text(page.data)),
            "</header>\n",
            f'<nav aria-label="Contents"><ol>{contents}</ol></nav>\n'
            if len(writer.contents) > 1
            else "",
            f'<main id="main" tabindex="-1">\n{body}</main>\n',
            *(f"<script>{script}</script>\n" for script in scripts),
            "</body>\n</html>\n",
        ]
    )


def write(page: Page, path: str | Path | None = None) -> str:
    """The page as HTML, also written to ``path`` if there is one."""
    text = render(page)
    if path is not None:
        # Bytes, because another line end on another system would not fit the policy's hashes.
        Path(path).write_bytes(text.encode())
    return text


class _Writer:
    """Writes blocks, counting figures and tables and noting which scripts the page needs."""

    def __init__(self) -> None:
        self.needs: set[str] = set()
        self.contents: list[tuple[str, str]] = []
        self.figures = self.tables = 0

    def all(self, blocks: Iterable[Block], level: int) -> str:
        return "".join(self.one(block, level) for block in blocks)

    @singledispatchmethod
    def one(self, block: Block, level: int) -> str:
        raise TypeError(f"a page cannot hold {type(block).__name__}")

    @one.register
    def _(self, block: Paragraph, level: int) -> str:
        return f"<p>{html.escape(block.text)}</p>\n"

    @one.register
    def _(self, block: Bullets, level: int) -> str:
        items = "".join(f"<li>{html.escape(item)}</li>" for item in block.items)
        return f"<ul>{items}</ul>\n"

    @one.register
    def _(self, block: Code, level: int) -> str:
        label = html.escape(block.label)
        return (
            f'<pre tabindex="0" aria-label="{label}"><code>{html.escape(block.text)}</code></pre>\n'
        )

    @one.register
    def _(self, block: Section, level: int) -> str:
        mark = f"{file_stem(block.title)}-{len(self.contents) + 1}" if level == 2 else ""
        if mark:
            self.contents.append((mark, block.title))
        head = f"h{min(level, 6)}"
        return (
            f"<section{_attribute('id', mark)}>\n<{head}>{html.escape(block.title)}</{head}>\n"
            f"{self.all(block.blocks, level + 1)}</section>\n"
        )

    @one.register
    def _(self, block: Details, level: int) -> str:
        return (
            f"<details><summary>{html.escape(block.summary)}</summary>\n"
            f"{self.all(block.blocks, level)}</details>\n"
        )

    @one.register
    def _(self, block: DataTable, level: int) -> str:
        self.needs.add("sorting.js")
        self.tables += 1
        title = html.escape(block.table.title)
        return (
            f'<figure class="table">\n<div class="scroll" tabindex="0" role="region" '
            f'aria-label="{title}">{block.table.element()}</div>\n{block.table.footnotes()}'
            f"{_caption('Table', self.tables, block.caption) if block.caption else ''}"
            f"{_csv(block.file, block.records)}</figure>\n"
        )

    @one.register
    def _(self, block: Curves, level: int) -> str:
        self.needs.add("curves.js")
        data = {
            "x": block.x,
            "y": block.y,
            "logX": block.log_x,
            "logY": block.log_y,
            "curves": [_drawn(curve) for curve in block.curves],
        }
        records = block.records or tuple(r for curve in block.curves for r in curve.records())
        return self._figure(block, "curves", data, records)

    @one.register
    def _(self, block: Surface, level: int) -> str:
        self.needs.add("surfaces.js")
        return self._figure(block, "surface", _clean(block.figure), block.records)

    @one.register
    def _(self, block: Image, level: int) -> str:
        self.figures += 1
        return (
            f'<figure>\n<img src="{data_url(block.content, "image/png")}" '
            f'alt="{html.escape(block.alt)}">\n'
            f"{_caption('Figure', self.figures, block.caption)}</figure>\n"
        )

    def _figure(
        self, block: Curves | Surface, kind: str, data: Any, records: Sequence[Record]
    ) -> str:
        """A figure that a script draws from the data inside it."""
        self.figures += 1
        return (
            f'<figure>\n<div class="{kind}" role="group" aria-label="{html.escape(block.alt)}">'
            f'<script type="application/json">{_script_json(data)}</script>'
            "<noscript><p>This figure is drawn by a script of this page, and scripts are off. "
            "Its data can be saved below.</p></noscript></div>\n"
            f"{_caption('Figure', self.figures, block.caption)}"
            f"{_csv(block.file, records)}</figure>\n"
        )


# Helpers -----------------------------------------------------------------------------------------


def _caption(kind: str, number: int, text: str) -> str:
    return f"<figcaption><b>{kind} {number}.</b> {html.escape(text)}</figcaption>\n"


def _csv(file: str, records: Sequence[Record]) -> str:
    return _link(file, ".csv", csv_text(records)) if records else ""


def _link(file: str, ending: str, content: str) -> str:
    """A link that saves the content as a file."""
    kind, what = _FILES[ending]
    return (
        f'<p class="save">Save <a download="{file_stem(file)}{ending}" '
        f'href="{data_url(content, kind)}">{what}</a></p>\n'
    )


_FILES = {
    ".csv": ("text/csv;charset=utf-8", "the data as CSV"),
    ".json": ("application/json", "all data of this page as JSON"),
}


def _drawn(curve: Curve) -> dict[str, Any]:
    """A curve as the script draws it: seven digits are finer than a screen."""
    parts = {"x": curve.x, "y": curve.y, "low": curve.low, "high": curve.high}
    numbers = {
        key: [float(f"{v:.7g}") if math.isfinite(v) else None for v in values]
        for key, values in parts.items()
        if values
    }
    return {"name": curve.name, **numbers}


def _clean(data: Any) -> Any:
    """A figure as JSON knows it: tuples and arrays as lists, what is not finite as nothing."""
    if isinstance(data, dict):
        return {key: _clean(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_clean(value) for value in data]
    if hasattr(data, "tolist"):
        return _clean(data.tolist())
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _script_json(data: Any) -> str:
    """JSON for inside a script element, which no text in it can end."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _attribute(name: str, value: str) -> str:
    return f' {name}="{html.escape(value)}"' if value else ""
