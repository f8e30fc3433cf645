"""A page with everything on it, and names that try to become markup."""

import base64
import math

from pathspace.page import (
    Bullets,
    Code,
    Curve,
    Curves,
    DataTable,
    Details,
    Image,
    Page,
    Paragraph,
    Section,
    Surface,
)
from pathspace.tables import Column, Row, Table

EVIL = ["</script><script>alert(1)</script>", "'\"><img src=x onerror=alert(1)>&amp;<!--"]
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def every_block(name: str) -> Page:
    """A page with every kind of block, in which every text is ``name``."""
    table = Table(
        name,
        (Column(name), Column(name, number=True)),
        (Row((name, name), name, (name,), "invariant", name), Row((name, "1"), name)),
        (name,),
    )
    curve = Curve(name, (0.0, 1.0, 2.0), (1.0, math.nan, 0.5))
    figure = {"data": [{"type": "surface", "z": [[1.0, 2.0], [3.0, math.inf]], "name": name}]}
    blocks = [
        Paragraph(name),
        Bullets((name,)),
        Section(name, [Code(name, name), Section(name, [Paragraph(name)])]),
        DataTable(table, name, ({name: name},), name),
        Curves((curve,), name, name, name, name, file=name),
        Surface({**figure, "layout": {"title": name}}, name, name, ({name: 1},), name),
        Section(name, [Image(PIXEL, name, name), Details(name, [Paragraph(name)])]),
    ]
    return Page(name, blocks, name, {name: name}, name)
