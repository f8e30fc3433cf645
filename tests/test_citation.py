"""Citations: one set of facts, in the package, in CITATION.cff and on the command line."""

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import pathspace as ps
from pathspace.citing import LIBRARY, WORKS, UnknownCitation
from pathspace.cli.application import application
from pathspace.experiments.reproduce import PAPERS

CFF = yaml.safe_load((Path(__file__).parents[1] / "CITATION.cff").read_text(encoding="utf-8"))


def test_the_file_and_the_package_agree_on_the_library() -> None:
    work = WORKS[LIBRARY]
    assert work.title == CFF["title"]
    assert [name.strip("{}") for name in work.authors] == [a["name"] for a in CFF["authors"]]


def test_the_file_and_the_package_agree_on_the_papers() -> None:
    kinds = {"article": "article", "conference-paper": "inproceedings"}
    written = [
        (
            kinds[paper["type"]],
            tuple(f"{a['given-names']} {a['family-names']}" for a in paper["authors"]),
            paper["title"],
            paper.get("collection-title", ""),
            paper["year"],
            paper["identifiers"][0]["value"].removeprefix("arXiv:"),
            paper["notes"],
        )
        for paper in CFF["references"]
    ]
    held = [
        (w.kind, w.authors, w.title, w.where, w.year, w.arxiv, w.about)
        for key, w in WORKS.items()
        if key != LIBRARY
    ]
    assert held == written


def test_keys_are_those_of_the_reproductions() -> None:
    assert [key for key in WORKS if key != LIBRARY] == list(PAPERS)
    for key, paper in PAPERS.items():
        families = ", ".join(name.split()[-1] for name in WORKS[key].authors)
        assert (paper.authors, paper.title) == (families, WORKS[key].title)
        assert paper.year == WORKS[key].year


@pytest.mark.parametrize("key", WORKS)
def test_bibtex_is_well_formed(key: str) -> None:
    text = ps.citation(key)
    first, *fields, last = text.splitlines()
    assert re.fullmatch(rf"@\w+\{{{key},", first)
    assert last == "}"
    assert all(re.fullmatch(r"  [a-z]+ = \{.+\},", line) for line in fields)
    assert text.count("{") == text.count("}")
    names = [line.split()[0] for line in fields]
    assert len(names) == len(set(names))
    assert {"author", "title"} <= set(names)
    assert ("version" in names) != ("year" in names)


def test_the_library_is_the_default_and_names_its_version() -> None:
    assert ps.citation() == ps.citation("pathspace")
    assert ps.__version__ in ps.citation()
    assert ps.__version__ in ps.citation(style="text")
    assert "{" not in ps.citation(*WORKS, style="text")


def test_several_at_once() -> None:
    both = ps.citation("yi2019", "meng2019")
    assert both == ps.citation("yi2019") + "\n\n" + ps.citation("meng2019")


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(UnknownCitation, match=r"^no citation 'meng'; there are: pathspace, ney"):
        ps.citation("meng")
    with pytest.raises(ValueError, match="'apa' should be 'bibtex' or 'text'"):
        ps.citation(style="apa")  # type: ignore[arg-type]


def test_command() -> None:
    run = CliRunner().invoke(application(), ["cite", "meng2019", "yi2019"])
    assert (run.exit_code, run.stdout) == (0, ps.citation("meng2019", "yi2019") + "\n")
    run = CliRunner().invoke(application(), ["cite", "--text"])
    assert run.stdout == ps.citation(style="text") + "\n"
    run = CliRunner().invoke(application(), ["cite", "--all"])
    assert run.stdout == ps.citation(*WORKS) + "\n"
    run = CliRunner().invoke(application(), ["cite", "meng"])
    assert run.exit_code == 1
    assert "no citation 'meng'" in run.stderr
