"""The driver behind `make mutate`: what it changes, what it leaves out, and that changes arrive."""

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mutation.reach import Reach
from mutation.transplant import transplant

SOURCE = '''
"""A docstring."""

import functools
from dataclasses import dataclass

TABLE = {"a": 1}
__all__ = ["plain"]


@dataclass
class Thing:
    size: int = 2

    @property
    def doubled(self) -> int:
        return self.size * 2

    @functools.cached_property
    def tripled(self) -> int:
        return self.size * 3

    @staticmethod
    def fixed() -> int:
        return 5


def plain(x: int = 1) -> int:
    if x < 0:
        raise ValueError("x must not be negative")
    return sum(map(lambda y: y + x, [1, 2]))


def told() -> int:
    return TABLE["a"]
'''


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("mutated_example")
    module.__file__, module.__package__ = "mutated_example.py", "example"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(SOURCE, module.__dict__)
    return module


@pytest.mark.parametrize(
    ("old", "new", "call", "before", "after"),
    [
        ("y + x", "y - x", lambda m: m.plain(), 5, 1),
        ("x: int = 1", "x: int = 2", lambda m: m.plain(), 5, 7),
        ("self.size * 2", "self.size / 2", lambda m: m.Thing(3).doubled, 6, 1.5),
        ("self.size * 3", "self.size + 3", lambda m: m.Thing(3).tripled, 9, 6),
        ("return 5", "return 6", lambda m: m.Thing.fixed(), 5, 6),
        ("size: int = 2", "size: int = 4", lambda m: m.Thing().size, 2, 4),
        ('"a": 1', '"a": 9', lambda m: m.told(), 1, 9),
    ],
)
def test_a_change_arrives_where_the_old_function_is_held(
    module: types.ModuleType,
    old: str,
    new: str,
    call: Callable[[Any], float],
    before: float,
    after: float,
) -> None:
    kept = module.plain, module.Thing
    assert call(module) == before
    assert SOURCE.count(old) == 1
    assert transplant(module, SOURCE.replace(old, new))
    assert (module.plain, module.Thing) == kept
    assert call(module) == after


def test_the_same_source_changes_nothing(module: types.ModuleType) -> None:
    assert not transplant(module, SOURCE)


def test_texts_and_annotations_are_left_out(tmp_path: Path) -> None:
    pytest.importorskip("mutmut", reason="the extra `mutation` is not installed")
    from mutation.mutants import mutants

    file = tmp_path / "example.py"
    file.write_text(SOURCE, encoding="utf-8")
    changes = [mutant.change for mutant in mutants(file)]
    assert "return self.size * 2 → return self.size / 2" in changes
    assert "def plain(x: int = 1) -> int: → def plain(x: int = 2) -> int:" in changes
    assert 'TABLE = {"a": 1} → TABLE = {"a": 2}' in changes
    assert len(changes) == len(set(changes))
    for text in ("docstring", "negative", "import", "dataclass", "__all__", "-> str"):
        assert not any(text in change for change in changes)
    for mutant in mutants(file):
        assert mutant.source != SOURCE
        compile(mutant.source, "example.py", "exec")


def test_one_case_of_every_test_comes_first() -> None:
    file = Path("source.py")
    seconds = {"a[1]": 1.0, "a[2]": 2.0, "b[1]": 4.0, "b[2]": 3.0, "c": 0.5}
    lines = {str(file): {test: ["7"] for test in ("a[1]", "a[2]", "b[1]", "b[2]")} | {"c": ["8"]}}
    reach = Reach(seconds, [], lines)
    assert reach.tests(file, range(7, 8)) == ["a[1]", "b[2]", "a[2]", "b[1]"]
    assert reach.tests(file, range(8, 9)) == ["c"]
    assert reach.tests(file, range(1, 7)) == []
