"""What a page is made of: small frozen records that know nothing of HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pathspace.page.curve import Curve
from pathspace.page.downloads import json_text
from pathspace.tables import Table

Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Paragraph:
    """A text; nothing in it is markup."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list of texts."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    """A text whose lines and spaces count, such as a command or a file."""

    text: str
    label: str = "text"


@dataclass(frozen=True)
class DataTable:
    """A table whose columns sort, and its numbers to save in full precision.

    Attributes:
        table: what is shown; groups of rows are sorted each in itself.
        caption: what is seen and how it was obtained.
        records: the data behind it, one mapping per row; empty for none.
        file: how the files to save are called, without an ending.
    """

    table: Table
    caption: str = ""
    records: tuple[Record, ...] = ()
    file: str = "table"


@dataclass(frozen=True)
class Curves:
    """Curves in one plane, to be read off, hidden, zoomed and put on logarithmic axes.

    Attributes:
        curves: what is drawn, in the order of the legend.
        x: what the horizontal axis shows, with its unit.
        y: what the vertical axis shows, with its unit.
        caption: what is seen and how it was obtained.
        alt: the same for those who do not see it: the shape in words.
        log_x: whether the horizontal axis begins logarithmic.
        log_y: whether the vertical axis begins logarithmic.
        records: the data to save; by default the points of the curves.
        file: how the files to save are called, without an ending.
    """

    curves: tuple[Curve, ...]
    x: str
    y: str
    caption: str
    alt: str
    log_x: bool = False
    log_y: bool = False
    records: tuple[Record, ...] = ()
    file: str = "curves"


@dataclass(frozen=True)
class Surface:
    """A plotly figure, which needs about 5 MB of plotly's code in the page, once.

    Attributes:
        figure: the figure's ``data`` and ``layout``, as plotly's ``to_plotly_json`` gives them.
        caption: what is seen and how it was obtained.
        alt: the same for those who do not see it: the shape in words.
        records: the data to save.
        file: how the files to save are called, without an ending.
    """

    figure: Mapping[str, Any]
    caption: str
    alt: str
    records: tuple[Record, ...] = ()
    file: str = "surface"


@dataclass(frozen=True)
class Image:
    """A still picture.

    Attributes:
        content: the bytes of a PNG file.
        caption: what is seen and how it was obtained.
        alt: the same for those who do not see it: the shape in words.
    """

    content: bytes
    caption: str
    alt: str


@dataclass(frozen=True)
class Details:
    """Blocks that are folded away under a line of text, and printed in full."""

    summary: str
    blocks: Sequence[Block]

    @classmethod
    def of(cls, summary: str, data: Mapping[str, Any]) -> Details:
        """Data, as JSON."""
        return cls(summary, [Code(json_text(dict(data), 2), summary)])


@dataclass(frozen=True)
class Section:
    """Blocks under a heading; sections may hold sections."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A page: its title, a line below it, and what follows.

    Attributes:
        title: the heading of the page.
        subtitle: one line on where it comes from.
        blocks: sections and other blocks, in order.
        data: what is behind the page as a whole, to save as JSON; ``None`` for none.
        file: how that file is called, without an ending.
    """

    title: str
    blocks: Sequence[Block]
    subtitle: str = ""
    data: Any = field(default=None, repr=False)
    file: str = "report"


Block: TypeAlias = (
    Paragraph | Bullets | Code | DataTable | Curves | Surface | Image | Details | Section
)
