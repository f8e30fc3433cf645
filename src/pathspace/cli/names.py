"""``pathspace train --list``: the names that a trial may use, as one types them."""

from __future__ import annotations

import inspect
from typing import Any

from rich.console import Console
from rich.text import Text

from pathspace.cli.completion import doc_line
from pathspace.cli.output import show_json
from pathspace.experiments.training import (
    INITIALISATIONS,
    LOSSES,
    OPTIMIZERS,
    PENALTIES,
    RULES,
    SCHEDULES,
)


def show_names(as_json: bool) -> None:
    """Print all names by kind."""
    names: dict[str, dict[str, str]] = {
        "optimizers": {name: entry.description for name, entry in OPTIMIZERS.items()},
        "losses": {name: entry.description for name, entry in LOSSES.items()},
    }
    builders: dict[str, Any] = {
        "schedules": SCHEDULES,
        "stopping rules": RULES,
        "initialisations": INITIALISATIONS,
        "penalties": PENALTIES,
    }
    for kind, table in builders.items():
        names[kind] = {_usage(name, builder): doc_line(builder) for name, builder in table.items()}
    if as_json:
        show_json(names)
        return
    console = Console(highlight=False)
    for kind, table in names.items():
        console.print(Text(kind, "bold"))
        for name, description in table.items():
            console.print(Text.assemble(f"  {name}", ("  " + description, "dim")), soft_wrap=True)


def _usage(name: str, builder: Any) -> str:
    """The name with its arguments, as one types them."""
    parts = [name]
    for key, parameter in inspect.signature(builder).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            parts.append("N:N...")
        elif parameter.default is inspect.Parameter.empty:
            parts.append(key.upper())
        else:
            default = parameter.default
            parts.append(f"[{key}={'' if default is None else str(default).lower()}]")
    return ":".join(parts)
