"""The gallery keeps its word: every example runs, draws, and its assertions hold."""

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Sizes of the figures that were shown; each is rendered, no window is opened."""
    sizes: list[int] = []

    def show() -> None:
        for number in plt.get_fignums():
            figure = plt.figure(number)
            figure.canvas.draw()  # what does not fit, or has no glyph, warns only here
            sizes.append(len(figure.get_axes()))
        plt.close("all")

    plt.switch_backend("Agg")
    monkeypatch.setattr(plt, "show", show)
    with torch.random.fork_rng(devices=[]):  # examples call torch.manual_seed
        yield sizes
    plt.close("all")


def test_there_are_nine_lessons() -> None:
    assert [path.name[:2] for path in EXAMPLES] == [f"{k:02}" for k in range(1, 10)]


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_example_runs(
    path: Path, drawn: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # what an example writes, it writes somewhere else
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = dict(matplotlib.rcParams)
    runpy.run_path(str(path), run_name="__main__")
    assert drawn, "the example shows no figure"
    assert all(drawn), "a figure is empty"
    assert dict(matplotlib.rcParams) == settings, "the next example would look different"


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_example_ends_in_what_it_showed(path: Path) -> None:
    program = ast.parse(path.read_text(encoding="utf-8"))
    title, underline, *_ = (ast.get_docstring(program) or "").splitlines()
    assert underline == "=" * len(title), "the docstring starts with a title"
    last = ast.unparse(program.body[-1])
    assert "assert" in last, f"the last statement is no assertion: {last}"
