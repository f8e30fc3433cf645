"""How help is laid out: from plain docstrings to what a terminal of any width shows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

EXAMPLES = "Examples:"
INDENT, CONTINUED = "  ", "      "


class Command(TyperCommand):
    """A command whose flags are shown without a type, of which they have none."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, ready to be shown."""
        return without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """The same for a group of commands."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, ready to be shown."""
        return without_types_of_flags(super().get_params(ctx))


def without_types_of_flags(parameters: list[Any]) -> list[Any]:
    """The parameters, flags with an empty type instead of one that says ``bool``."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def help_text(command: Callable[..., Any]) -> str:
    r"""A docstring as rich shows it: paragraphs in full width, examples as one types them.

    Args:
        command: its docstring has paragraphs, which may hold rich's markup, and a section
            ``Examples:`` with one command per line; a line that is indented further goes on.

    Example:
        >>> def knit():
        ...     '''Knit
        ...     a scarf.
        ...
        ...     Examples:
        ...         pathspace knit --wool blue
        ...             --out scarf
        ...     '''
        >>> print(help_text(knit))
        Knit a scarf.
        <BLANKLINE>
        [bold]Examples[/]
        [cyan]  pathspace knit --wool blue \\[/]
        [cyan]      --out scarf[/]
    """
    shown = []
    for block in inspect.cleandoc(command.__doc__ or "").split("\n\n"):
        first, *rest = block.splitlines()
        if first == EXAMPLES:
            shown.append("\n".join(["[bold]Examples[/]", *_examples(rest)]))
        else:
            shown.append(" ".join(block.split()))
    return "\n\n".join(shown)


def examples(command: Callable[..., Any]) -> list[str]:
    """The commands in the examples of a docstring, each on one line."""
    for block in inspect.cleandoc(command.__doc__ or "").split("\n\n"):
        first, *rest = block.splitlines()
        if first == EXAMPLES:
            return [" ".join(lines) for lines in _commands(rest)]
    return []


def _examples(lines: list[str]) -> list[str]:
    shown = []
    for first, *rest in _commands(lines):
        for k, line in enumerate([first, *rest]):
            goes_on = " \\\\" if k < len(rest) else ""  # a backslash, escaped before the markup
            indent = CONTINUED if k else INDENT  # inside the markup, or typer takes it away
            shown.append(f"[cyan]{indent}{escape(line)}{goes_on}[/]")
    return shown


def _commands(lines: list[str]) -> list[list[str]]:
    """The lines of each command."""
    margin = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    commands: list[list[str]] = []
    for line in lines:
        if len(line) - len(line.lstrip()) == margin:
            commands.append([line.strip()])
        else:
            commands[-1].append(line.strip())
    return commands
