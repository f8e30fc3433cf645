"""Markdown pages as programs: their Python blocks, run in order, and what they say is printed."""

import contextlib
import io
import re
from dataclasses import dataclass, field
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path
from types import ModuleType

OPENING = re.compile(r"^```python\b.*\n", re.MULTILINE)
CLOSING = re.compile(r"^```[ ]*$", re.MULTILINE)
OUTPUT = re.compile(r"\n+```text\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced Python block.

    Attributes:
        line: the line of its first statement on the page.
        code: its code.
        output: the text block right behind it, which is what it prints; nothing is said without.
    """

    line: int
    code: str
    output: str | None = None


def python_blocks(text: str) -> list[Block]:
    """All fenced Python blocks of a Markdown text, in order."""
    blocks = []
    for opening in OPENING.finditer(text):
        closing = CLOSING.search(text, opening.end())
        line = text.count("\n", 0, opening.end()) + 1
        if closing is None:
            raise ValueError(f"the block before line {line} is never closed")
        output = OUTPUT.match(text, closing.end())
        code = text[opening.end() : closing.start()]
        blocks.append(Block(line, code, output[1] if output else None))
    return blocks


@dataclass
class Program:
    """The blocks of a page as one growing module, run in a directory of its own.

    Attributes:
        finished: how many blocks have run.
        failed: the line of the block that failed, 0 while none has; nothing runs after it.
    """

    page: Path
    blocks: list[Block]
    directory: Path
    # A real module and not a bare dict: classes defined on a page look themselves up in it.
    module: ModuleType = field(init=False)
    finished: int = 0
    failed: int = 0

    def __post_init__(self) -> None:
        self.module = ModuleType(f"page_{self.page.stem}")

    def run_through(self, index: int) -> None:
        """Run the blocks that have not run yet, up to and including block `index`."""
        if self.failed:
            raise AssertionError(f"not run: the block in line {self.failed} failed")
        while self.finished <= index:
            block = self.blocks[self.finished]
            self.failed = block.line
            # The empty lines in front give tracebacks the page's own line numbers.
            padded = "\n" * (block.line - 1) + block.code
            code = compile(padded, str(self.page), "exec", dont_inherit=True)
            printed = io.StringIO()
            with contextlib.chdir(self.directory), contextlib.redirect_stdout(printed):
                exec(code, self.module.__dict__)
            if block.output is not None:
                expect(block.output, printed.getvalue())
            self.finished, self.failed = self.finished + 1, 0


def expect(wanted: str, printed: str) -> None:
    """Compare as doctests do: spaces are alike, `...` stands for anything."""
    flags = ELLIPSIS | NORMALIZE_WHITESPACE
    if not OutputChecker().check_output(wanted, printed, flags):
        raise AssertionError(f"the page says\n{wanted}\nbut this was printed:\n{printed}")
