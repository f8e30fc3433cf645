"""Data inside a page, to save as CSV or JSON: links that need neither a server nor a script."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pathspace.tables import plain


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as CSV, with all columns that any of them has.

    Floats are written so that they come back; a list or mapping becomes JSON.

    Example:
        >>> print(csv_text([{"name": "a, b", "loss": 0.1}, {"name": "c", "steps": 3}]), end="")
        name,loss,steps
        "a, b",0.1,
        c,,3
    """
    columns = list(dict.fromkeys(column for record in records for column in record))
    content = io.StringIO()
    writer = csv.DictWriter(content, columns, lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({key: _cell(value) for key, value in record.items()})
    return content.getvalue()


def json_text(data: Any, indent: int | None = None) -> str:
    """Data as JSON; numbers that are not finite become texts."""
    return json.dumps(plain(data), indent=indent, ensure_ascii=False, allow_nan=False, default=str)


def data_url(content: bytes | str, media_type: str) -> str:
    """The content as an address of its own."""
    raw = content.encode() if isinstance(content, str) else content
    return f"data:{media_type};base64,{base64.b64encode(raw).decode()}"


def file_stem(name: str) -> str:
    """A name as the name of a file: letters, digits and single dashes.

    Example:
        >>> file_stem("Test error (%), 3 seeds"), file_stem("../<x>"), file_stem("?")
        ('test-error-3-seeds', 'x', 'data')
    """
    return re.sub(r"[^0-9a-z]+", "-", name.lower()).strip("-") or "data"


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(plain(value), ensure_ascii=False, default=str)
    return value
