"""The page of promises cites tests that exist."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
CITED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)


@functools.cache
def functions_in(path: Path) -> set[str]:
    module = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in module.body if isinstance(node, ast.FunctionDef)}


def test_every_cited_test_exists() -> None:
    assert len(CITED) > 50
    missing = [
        f"{file}::{name}" if name else file
        for file, name in CITED
        if not (ROOT / file).is_file() or (name and name not in functions_in(ROOT / file))
    ]
    assert missing == []


def test_every_promise_cites_something() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    assert len(rows) > 30
    for promise, test in rows:
        if promise not in ("promise", "---"):
            assert "`" in test or test == "the same", promise


def test_every_cited_command_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make (\w+)`", PAGE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
