"""The directive of the reference pages: a table of names, and below it all that is said of them.

    .. names:: pathspace

        trace
        Network

Without names it takes all that the module exports. Names that are modules have pages of their own.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

import pathspace


class Names(SphinxDirective):
    """``.. names:: module`` with one name per line."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        module = self.arguments[0]
        home = importlib.import_module(module)
        names = [line.strip() for line in self.content if line.strip()] or _exported(home)
        described = [name for name in names if _kind(getattr(home, name)) != "data"]
        rows = [f".. currentmodule:: {module}", "", ".. autosummary::", "   :nosignatures:", ""]
        rows += [f"   {name}" for name in described]
        for name in names:
            rows += ["", *_directive(name, getattr(home, name))]
        node = nodes.container()
        source = self.get_source_info()[0]
        self.state.nested_parse(StringList(rows, source), self.content_offset, node)
        return node.children


def _exported(module: ModuleType) -> list[str]:
    """What a module exports, without modules, and without what it has from elsewhere."""
    return [
        name
        for name in module.__all__
        if getattr(getattr(module, name), "__module__", module.__name__).startswith(module.__name__)
        and not isinstance(getattr(module, name), ModuleType)
    ]


def _kind(thing: Any) -> str:
    if inspect.isclass(thing):
        return "exception" if issubclass(thing, Exception) else "class"
    return "function" if inspect.isroutine(thing) else "data"


def _directive(name: str, thing: Any) -> list[str]:
    kind = _kind(thing)
    if kind == "data":  # autodoc would show the docstring of `dict`
        rows = [f".. py:data:: {name}", ""]
        if isinstance(thing, Mapping):
            return [*rows, "   By name: " + ", ".join(f"``{key}``" for key in thing) + "."]
        return [*rows, f"   ``{thing!r}``" if isinstance(thing, str | int) else "   A type."]
    options = [] if kind == "function" else ["   :members:"]
    if kind != "function" and thing.__base__ is not object:
        options.append("   :show-inheritance:")
    return [f".. auto{kind}:: {name}", *options]


def first_line(app: Sphinx, what: str, name: str, thing: Any, _: Any, lines: list[str]) -> None:
    """Keep napoleon from reading "The best one: it wins" of a property as a type and a text."""
    if what in ("property", "attribute") and lines:
        lines.insert(0, "")


def public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement
) -> nodes.Node | None:
    """Find what a reference names by the module that defines it, under its public name.

    Annotations and docstrings say `pathspace.network.Network`, the site `pathspace.Network`. What
    an annotation names and the site does not stays plain text; a role, which somebody wrote, is an
    error then.
    """
    if node.get("refdomain") != "py":
        return None
    python = env.domains.python_domain
    page = node.get("refdoc", env.docname)
    known = [name for name, entry in python.objects.items() if not entry.aliased]
    for name in _other_names(node["reftarget"], known):
        return python.resolve_xref(env, page, app.builder, "obj", name, node, text)
    return text if "refwarn" not in node else None


def _other_names(target: str, known: Sequence[str]) -> Iterator[str]:
    """Documented names of the thing that a name leads to when it is followed in Python."""
    ends = [name for name in known if f".{name}".endswith(f".{target}")]
    if len(ends) == 1:  # a short name is enough where it is the only one
        yield ends[0]
    head, _, tail = target.rpartition(".")
    for name in known:
        if name.rpartition(".")[2] == tail and _same(name, target):
            yield name
    for owner in _other_names(head, known) if head else ():
        # Methods have entries of their own; attributes stand in that of their class.
        yield f"{owner}.{tail}" if f"{owner}.{tail}" in known else owner


def _same(first: str, second: str) -> bool:
    one, two = _follow(first), _follow(second)
    return one is not None and one is two


def _follow(name: str) -> Any:
    parts = name.split(".")
    if parts[0] != "pathspace":
        return None
    for cut in range(len(parts) - 1, 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            thing = inspect.getattr_static(thing, part, None)
        return thing
    return None


def import_for_annotations() -> None:
    """Give the modules of `plot` what they import for type checkers alone: what they draw."""
    drawn = [getattr(pathspace, name) for name in pathspace.__all__ if name[0].isupper()]
    for module in ("measures", "contributions", "skeleton", "landscape", "surfaces"):
        names = vars(importlib.import_module(f"pathspace.plot.{module}"))
        for thing in drawn:
            names.setdefault(thing.__name__, thing)


def setup(app: Sphinx) -> dict[str, bool]:
    import_for_annotations()
    for kind in PyObject.doc_field_types:
        if kind.name == "variable":
            kind.label = "Attributes"  # as in the docstrings
    app.add_directive("names", Names)
    app.connect("missing-reference", public_name)
    app.connect("autodoc-process-docstring", first_line, priority=400)  # napoleon has 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}
