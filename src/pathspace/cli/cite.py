"""``pathspace cite``: how to cite the library and the papers that it builds on."""

from __future__ import annotations

from typing import Annotated

import typer

from pathspace.citing import WORKS, citation
from pathspace.cli.completion import citations


def cite(
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY",
            help=f"What to cite: {', '.join(WORKS)}.",
            show_default="pathspace",
            autocompletion=citations,
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="The library and all papers.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Lines of text, not BibTeX.")] = False,
) -> None:
    """Print the citation of the library, or of a paper that it builds on.

    Examples:
        pathspace cite
        pathspace cite meng2019 yi2019 >> references.bib
        pathspace cite --all --text
    """
    chosen = tuple(WORKS) if all_ else tuple(keys or ())
    typer.echo(citation(*chosen, style="text" if text else "bibtex"))
