"""All mutants of a source file, by the operators of mutmut, and what is left out.

Left out are docstrings, annotations, imports, decorators, the texts of errors and warnings
(everything inside a `raise`, or in a call of something named `...Error`, `...Warning` or `warn`),
`__all__`, and calls of `len` and `isinstance`, as in mutmut.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

LEFT_OUT = (cst.Annotation, cst.Import, cst.ImportFrom, cst.Decorator, cst.Raise)
STATEMENT = (cst.BaseSmallStatement, cst.BaseCompoundStatement)


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: Path
    number: int  # among the mutants of the file, from 1 on
    lines: range  # of the statement that is changed
    module: cst.Module
    node: cst.CSTNode
    replacement: cst.CSTNode

    @property
    def name(self) -> str:
        return f"{self.file.parent.name}/{self.file.stem}:{self.number}"

    @property
    def source(self) -> str:
        """The changed file."""
        changed = self.module.deep_replace(self.node, self.replacement)
        assert isinstance(changed, cst.Module)
        return changed.code

    @property
    def change(self) -> str:
        """The lines that differ, before and after."""
        old, new = self.module.code.splitlines(), self.source.splitlines()
        differing = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
        before, after = (
            " ".join(line[1:].strip() for line in differing if line.startswith(sign))
            for sign in "-+"
        )
        return f"{before} → {after}"


def mutants(file: Path) -> list[Mutant]:
    """All mutants of a file, in the order of the source."""
    text = file.read_text(encoding="utf-8")
    wrapper = MetadataWrapper(cst.parse_module(text))
    collector = _Collector(file, wrapper.module, range(1, text.count("\n") + 1))
    wrapper.visit(collector)
    return collector.found


class _Collector(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, file: Path, module: cst.Module, lines: range) -> None:
        super().__init__()
        self.file, self.module, self.lines = file, module, lines
        self.found: list[Mutant] = []
        self.spans: list[range] = []  # of the statements around a node; inside functions only

    def on_visit(self, node: cst.CSTNode) -> bool:
        if self.spans or isinstance(node, cst.FunctionDef):
            self.spans.append(self.span(node))
        if isinstance(node, LEFT_OUT) or _is_left_out(node):
            return False
        lines = self.spans[-1] if self.spans else self.lines
        for replacement in _replacements(node):
            number = len(self.found) + 1
            self.found.append(Mutant(self.file, number, lines, self.module, node, replacement))
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if self.spans:
            self.spans.pop()

    def span(self, node: cst.CSTNode) -> range:
        """The lines of the statement around a node; of a compound one, those before its body."""
        place = self.get_metadata(PositionProvider, node, None)
        if place is None or not isinstance(node, STATEMENT):
            return self.spans[-1]
        last = place.end.line
        body = getattr(node, "body", None)
        if isinstance(body, cst.IndentedBlock) and not isinstance(node, cst.FunctionDef):
            last = self.get_metadata(PositionProvider, body.body[0]).start.line - 1
        return range(place.start.line, max(last, place.start.line) + 1)


def _replacements(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            yield from operator(node)


def _is_left_out(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Call):
        name = getattr(node.func, "attr", node.func)
        called = name.value if isinstance(name, cst.Name) else ""
        return called in ("len", "isinstance", "warn") or called.endswith(("Error", "Warning"))
    if isinstance(node, cst.Assign):
        target = node.targets[0].target
        return isinstance(target, cst.Name) and target.value == "__all__"
    return isinstance(node, cst.Expr) and isinstance(node.value, cst.BaseString)
