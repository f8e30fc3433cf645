"""The README keeps its word: its Python blocks run, top to bottom, as one program."""

import contextlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

README = Path(__file__).parents[1] / "README.md"
OPENING = re.compile(r"^```python\b.*\n", re.MULTILINE)
CLOSING = re.compile(r"^```[ ]*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced Python block: its code and the README line of its first statement."""

    line: int
    code: str


def python_blocks(text: str) -> list[Block]:
    """All fenced Python blocks of a Markdown text, in order."""
    blocks = []
    for opening in OPENING.finditer(text):
        closing = CLOSING.search(text, opening.end())
        line = text.count("\n", 0, opening.end()) + 1
        if closing is None:
            raise ValueError(f"the block before line {line} is never closed")
        blocks.append(Block(line, text[opening.end() : closing.start()]))
    return blocks


BLOCKS = python_blocks(README.read_text(encoding="utf-8"))


@dataclass
class Program:
    """The blocks as one growing module, run in a directory of its own."""

    directory: Path
    # A real module and not a bare dict: classes defined in the README look themselves up in it.
    module: ModuleType = field(default_factory=lambda: ModuleType("readme"))
    finished: int = 0

    def run_through(self, index: int) -> None:
        """Run the blocks that have not run yet, up to and including block `index`."""
        while self.finished <= index:
            block = BLOCKS[self.finished]
            # The empty lines in front give tracebacks the README's own line numbers.
            padded = "\n" * (block.line - 1) + block.code
            code = compile(padded, str(README), "exec", dont_inherit=True)
            with contextlib.chdir(self.directory):
                exec(code, self.module.__dict__)
            self.finished += 1


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLBACKEND", "Agg")  # figures are drawn, windows are not opened
        program = Program(tmp_path_factory.mktemp("readme"))
        patch.setitem(sys.modules, program.module.__name__, program.module)
        yield program


def test_readme_has_python_blocks() -> None:
    assert BLOCKS


@pytest.mark.parametrize(
    "index", range(len(BLOCKS)), ids=[f"line-{block.line}" for block in BLOCKS]
)
def test_readme_block_runs(program: Program, index: int) -> None:
    program.run_through(index)


def test_python_blocks_finds_python_and_nothing_else() -> None:
    text = "intro\n```python\na = 1\n```\n```console\n$ ls\n```\n```python\nb = 2\n\nc = 3\n```\n"
    assert python_blocks(text) == [Block(3, "a = 1\n"), Block(9, "b = 2\n\nc = 3\n")]
    with pytest.raises(ValueError, match="line 2 is never closed"):
        python_blocks("```python\na = 1\n")
