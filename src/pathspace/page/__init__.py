"""One self-contained web page: a tree of blocks, and one renderer that turns it into HTML.

A page loads nothing from anywhere: styles, scripts, figures and data are inside the file, and its
content security policy forbids everything else, by hash. Every text is escaped.
"""

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
    Section,
    Surface,
)
from pathspace.page.curve import Curve, mean_curve
from pathspace.page.rendering import render, write

__all__ = [
    "Block",
    "Bullets",
    "Code",
    "Curve",
    "Curves",
    "DataTable",
    "Details",
    "Image",
    "Page",
    "Paragraph",
    "Section",
    "Surface",
    "mean_curve",
    "render",
    "write",
]
