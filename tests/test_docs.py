"""The README and the site keep their word, as far as that can be seen without building the site.

Python blocks run, page by page, and print what the page says; links and references lead somewhere;
commands exist; every public name has an entry in the reference. `make docs` builds the site itself.
"""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import pathspace
from prose import Block, Program, expect, python_blocks
from test_cli_docs import parse, shown_commands

ROOT = Path(__file__).parents[1]
MADE = ("docs/_build", "docs/gallery", "docs/generated")  # by `make docs`
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if not page.relative_to(ROOT).as_posix().startswith(MADE)
)
REFERENCE = sorted((ROOT / "docs" / "api").rglob("*.rst"))
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
BLOCKS = {page: python_blocks(text) for page, text in TEXTS.items()}
FENCED = re.compile(r"^(`{3,}|:{3,}).*?^\1`*[ ]*$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).with_suffix("").as_posix()


# Blocks ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Program]]:
    programs: dict[Path, Program] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLBACKEND", "Agg")  # figures are drawn, windows are not opened

        def of(page: Path) -> Program:
            if page not in programs:
                new = Program(page, BLOCKS[page], tmp_path_factory.mktemp(page.stem))
                patch.setitem(sys.modules, new.module.__name__, new.module)
                programs[page] = new
            return programs[page]

        yield of


@pytest.mark.parametrize(
    ("page", "index"),
    [
        pytest.param(page, index, id=f"{name_of(page)}-line-{block.line}")
        for page, blocks in BLOCKS.items()
        for index, block in enumerate(blocks)
    ],
)
def test_block_runs(program: Callable[[Path], Program], page: Path, index: int) -> None:
    program(page).run_through(index)


@pytest.mark.parametrize("name", ["README", "docs/index", "docs/one-step"])
def test_page_has_python_blocks(name: str) -> None:
    assert BLOCKS[ROOT / f"{name}.md"]


def test_python_blocks_finds_python_and_its_output_and_nothing_else() -> None:
    text = (
        "intro\n```python\na = 1\n```\n```console\n$ ls\n```\n"
        "```python\nb = 2\n\nc = 3\n```\n\n```text\n4\n```\n```{code-block} python\nd = 5\n```\n"
    )
    assert python_blocks(text) == [Block(3, "a = 1\n"), Block(9, "b = 2\n\nc = 3\n", "4\n")]
    with pytest.raises(ValueError, match="line 2 is never closed"):
        python_blocks("```python\na = 1\n")


def test_output_is_compared() -> None:
    expect("a  1.23...\n", "a 1.2345\n")
    with pytest.raises(AssertionError, match="but this was printed"):
        expect("1\n", "2\n")


# Links -------------------------------------------------------------------------------------------

LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?\)")


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+?)[ ]*$", FENCED.sub("", text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found.add(next(s for k in range(99) if (s := f"{slug}-{k}" if k else slug) not in found))
    return found | set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))


def broken_links(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere; those to the outside are not looked at."""
    broken = []
    for link in LINK.findall(re.sub(r"`[^`\n]+`", "", FENCED.sub("", text))):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        inside = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else ""
        if inside.startswith(MADE):  # the build of the site looks at these
            continue
        if not target.exists():
            broken.append(f"{link}: there is no {inside or target}")
        elif anchor and target.suffix == ".md":
            there = text if target == page else target.read_text(encoding="utf-8")
            if anchor not in anchors(there):
                broken.append(f"{link}: {inside} has no such heading")
    return broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, TEXTS[page]) == []


def test_broken_links_are_noticed() -> None:
    page = ROOT / "README.md"
    text = (
        "# A `b` c!\n[a](docs/nowhere.md) [b](#a-b-c) [c](#a-b-d) ![d](LICENSE) [e](https://e.x)\n"
    )
    assert [found.partition(":")[0] for found in broken_links(page, text)] == [
        "docs/nowhere.md",
        "#a-b-d",
    ]


ROLE = re.compile(r"\{(?:py:)?(?:class|func|meth|mod|attr|exc|data|obj)\}`(?:[^`<]*<)?~?([\w.]+)")


def follow(name: str) -> object:
    """What a dotted name leads to in Python, packages before what hides them."""
    parts = name.split(".")
    thing: object = importlib.import_module(parts[0])
    for k, part in enumerate(parts[1:], 2):
        if isinstance(thing, ModuleType) and not hasattr(thing, part):
            thing = importlib.import_module(".".join(parts[:k]))
        else:
            thing = getattr(thing, part)
    return thing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_references_name_something(page: Path) -> None:
    for name in ROLE.findall(TEXTS[page]):
        if name.startswith("pathspace"):
            assert follow(name) is not None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_real(page: Path) -> None:
    for line in shown_commands(TEXTS[page]):
        parse(line)


# The reference -----------------------------------------------------------------------------------

ENTRIES = re.compile(r"^\.\. names:: ([\w.]+)\n\n?((?:   \w+\n)*)", re.MULTILINE)


def documented() -> list[str]:
    """The full names that the pages of the reference have entries for."""
    found = []
    for page in REFERENCE:
        text = page.read_text(encoding="utf-8")
        for module, names in ENTRIES.findall(text):
            chosen = names.split() or importlib.import_module(module).__all__
            found += [f"{module}.{name}" for name in chosen]
    return found


def test_reference_has_every_public_name_once() -> None:
    names = documented()
    assert len(names) == len(set(names))
    for package in ("pathspace", "pathspace.optim", "pathspace.bounds"):
        module = importlib.import_module(package)
        # The packages themselves have pages, see below.
        wanted = {n for n in module.__all__ if not isinstance(getattr(module, n), ModuleType)}
        missing = {f"{package}.{name}" for name in wanted} - set(names)
        assert not missing, f"write these into docs/api: {sorted(missing)}"


def test_reference_has_every_package_of_experiments() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in REFERENCE)
    folder = ROOT / "src" / "pathspace" / "experiments"
    packages = [path.parent.name for path in folder.glob("*/__init__.py")]
    modules = [f"pathspace.experiments.{name}" for name in packages if name != "demo"]
    modules += [
        f"pathspace.{name}"
        for name in pathspace.__all__
        if isinstance(getattr(pathspace, name), ModuleType)
    ]
    assert len(modules) >= 10
    assert set(modules) <= set(re.findall(r"^\.\. automodule:: (\S+)", text, re.MULTILINE))


def test_reference_names_things_that_are_there() -> None:
    for name in documented():
        module, _, tail = name.rpartition(".")
        assert hasattr(importlib.import_module(module), tail), name
