"""The styles and scripts of a page, and the policy that allows these and nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files


@cache
def asset(name: str) -> str:
    """A file of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def plotly_source() -> str:
    """The code of plotly, which draws surfaces."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError(
            "a surface to turn needs plotly: pip install 'pathspace[plot]'"
        ) from error
    # A parser of HTML reads every line end as one character, and the hash is of what it reads.
    return str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")


def policy(scripts: Sequence[str], styles: Sequence[str], plotly: bool) -> str:
    """The content security policy: these scripts and styles, pictures inside the page, no more.

    Plotly writes styles of its own while it runs, so beside it all styles are allowed; these carry
    no code, and the other rules keep them from loading anything.

    Example:
        >>> for rule in policy(["alert(1)"], [], plotly=False).split("; "):
        ...     print(rule)
        default-src 'none'
        script-src 'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='
        style-src 'none'
        img-src data: blob:
        base-uri 'none'
        form-action 'none'
    """
    rules = {
        "default-src": "'none'",
        "script-src": _hashes(scripts),
        "style-src": "'unsafe-inline'" if plotly else _hashes(styles),
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _hashes(sources: Sequence[str]) -> str:
    digests = (hashlib.sha256(source.encode()).digest() for source in sources)
    return " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in digests) or "'none'"
