"""Pages: what is written is escaped, described, and all there is."""

import base64
import csv
import hashlib
import html.parser
import io
import json
import math
import re
import statistics
from pathlib import Path

import pytest

from pages import EVIL, every_block
from pathspace.page import Curve, Curves, DataTable, Page, Paragraph, mean_curve, render, write
from pathspace.page.assets import asset
from pathspace.page.downloads import csv_text
from pathspace.tables import Column, Row, Table


class Reader(html.parser.HTMLParser):
    """The elements of a page with their attributes and texts; fails on one left open."""

    VOID = ("meta", "img")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[tuple[str, list[str]]] = []  # with the text of each
        self.found: list[tuple[str, dict[str, str]]] = []
        self.texts: list[list[str]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.texts.append([])
        if tag not in self.VOID:
            self.open.append((tag, self.texts[-1]))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open:
            self.open[-1][1].append(data)

    def of(self, *tags: str) -> list[tuple[dict[str, str], str]]:
        """Attributes and text of these elements."""
        both = zip(self.found, self.texts, strict=True)
        return [(attributes, "".join(text)) for (tag, attributes), text in both if tag in tags]


@pytest.fixture(scope="module")
def harmless() -> Reader:
    return Reader(render(every_block("a name")))


# Nothing gets in, nothing goes out ---------------------------------------------------------------


@pytest.mark.parametrize("evil", EVIL)
def test_texts_do_not_become_markup(evil: str, harmless: Reader) -> None:
    page = render(every_block(evil))
    assert evil not in page
    reader = Reader(page)
    assert [tag for tag, _ in reader.found] == [tag for tag, _ in harmless.found]
    names = [sorted(attributes) for _, attributes in reader.found]
    assert names == [sorted(attributes) for _, attributes in harmless.found]
    assert reader.of("h1")[0][1] == evil
    assert reader.of("img")[0][0]["alt"] == evil
    curves, surface = (json.loads(text) for a, text in reader.of("script") if "type" in a)
    assert curves["curves"][0] == {"name": evil, "x": [0.0, 1.0, 2.0], "y": [1.0, None, 0.5]}
    assert surface["data"][0] == {"type": "surface", "z": [[1.0, 2.0], [3.0, None]], "name": evil}


def policy_of(reader: Reader) -> dict[str, list[str]]:
    (content,) = (
        attributes["content"]
        for attributes, _ in reader.of("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = (rule.split() for rule in content.split("; "))
    return {name: values for name, *values in rules}


def test_policy_allows_the_scripts_of_the_page_and_no_others(harmless: Reader) -> None:
    policy = policy_of(harmless)
    scripts = [text for attributes, text in harmless.of("script") if "type" not in attributes]
    assert len(scripts) == 4  # sorting, curves, plotly, surfaces
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert policy["script-src"] == [f"'sha256-{digest}'" for digest in digests]
    assert policy["default-src"] == ["'none'"]  # so no connections, frames, fonts or objects
    assert policy["img-src"] == ["data:", "blob:"]
    assert set(policy) == set(
        "default-src script-src style-src img-src base-uri form-action".split()
    )


def test_policy_is_the_first_thing_that_can_forbid() -> None:
    head = render(every_block("x")).partition("</head>")[0]
    assert head.index("Content-Security-Policy") < head.index("<title>") < head.index("<style>")


def test_page_without_surfaces_is_small_and_its_styles_are_by_hash() -> None:
    page = render(Page("t", [Paragraph("x")]))
    reader = Reader(page)
    (style,) = (text for _, text in reader.of("style"))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy_of(reader)["style-src"] == [f"'sha256-{digest}'"]
    assert policy_of(reader)["script-src"] == ["'none'"]
    assert reader.of("script") == []
    assert len(page) < 20_000


def test_page_points_nowhere_outside(harmless: Reader) -> None:
    for _, attributes in harmless.found:
        for name in ("src", "href", "action", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
        assert not any(name.startswith("on") for name in attributes)
    for name in ("page.css", "sorting.js", "curves.js", "surfaces.js"):
        addresses = re.findall(r"https?://[^\"' ]+", asset(name))
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}  # a name, never loaded
        assert "@import" not in asset(name)


def test_file_is_what_was_rendered(tmp_path: Path) -> None:
    page = every_block("x")
    text = write(page, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == text.encode()
    assert text == render(page) == write(page)
    assert b"\r" not in text.encode()  # a parser would drop it, and the hashes would not fit


# For everybody -----------------------------------------------------------------------------------


def test_structure(harmless: Reader) -> None:
    assert harmless.found[0] == ("html", {"lang": "en"})
    levels = [int(tag[1]) for tag, _ in harmless.found if re.fullmatch(r"h[1-6]", tag)]
    assert levels == [1, 2, 3, 2]
    marks = [attributes["id"] for _, attributes in harmless.found if "id" in attributes]
    assert len(set(marks)) == len(marks)
    targets = [a["href"] for a, _ in harmless.of("a") if a["href"].startswith("#")]
    assert targets == ["#main", "#a-name-1", "#a-name-2"]
    assert {target[1:] for target in targets} == set(marks)
    figures = [tag for tag, _ in harmless.found if tag in ("figure", "figcaption")]
    assert figures == ["figure", "figcaption"] * 4
    kinds = [attributes for attributes, _ in harmless.of("div") if "role" in attributes]
    assert all(attributes["aria-label"] == "a name" for attributes in kinds)
    assert len(kinds) == 3  # the table's region, the curves, the surface
    assert [a.get("scope") for a, _ in harmless.of("th")] == ["col"] * 3 + ["rowgroup"] + [
        "row"
    ] * 2


def contrast(a: str, b: str) -> float:
    """The contrast of two colours by the definition of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colours_stand_out() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    light, dark = re.findall(r":root \{(.*?)\}", asset("page.css"), re.DOTALL)[:2]
    for scheme in (light, dark):
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", scheme))
        assert len(colours) == 14
        for text in ("ink", "soft", "link"):
            assert contrast(colours[text], colours["paper"]) >= 4.5
            assert contrast(colours[text], colours["shade"]) >= 4.5
        for k in range(8):
            assert contrast(colours[f"c{k}"], colours["paper"]) >= 3


# Data --------------------------------------------------------------------------------------------


def saved(reader: Reader) -> dict[str, str]:
    """The files that the links of a page save."""
    return {
        attributes["download"]: base64.b64decode(
            attributes["href"].partition(";base64,")[2]
        ).decode()
        for attributes, _ in reader.of("a")
        if "download" in attributes
    }


def test_saved_data_are_exact() -> None:
    records = ({"name": 'a, "b"\n=1', "loss": 0.1 + 0.2}, {"name": "ü", "loss": math.inf, "n": 3})
    table = Table("t", (Column("name"),), (Row(("a",)),))
    data = {"losses": (1 / 3, math.nan), "who": "ü"}
    page = Page("x", [DataTable(table, "c", records, "my table")], data=data, file="All of it")
    files = saved(Reader(render(page)))
    assert set(files) == {"my-table.csv", "all-of-it.json"}
    rows = list(csv.DictReader(io.StringIO(files["my-table.csv"])))
    assert [row["name"] for row in rows] == [record["name"] for record in records]
    assert [float(row["loss"]) for row in rows] == [record["loss"] for record in records]
    assert [row["n"] for row in rows] == ["", "3"]
    assert json.loads(files["all-of-it.json"]) == {"losses": [1 / 3, "nan"], "who": "ü"}


def test_curves_save_their_points() -> None:
    curve = mean_curve("a", [[(0, 1.0), (1, 2.0)], [(0, 2.0), (1, 4.0)]])
    page = Page("x", [Curves((curve,), "x", "y", "c", "a", file="loss")])
    (row, _) = csv.DictReader(io.StringIO(saved(Reader(render(page)))["loss.csv"]))
    assert row["curve"] == "a"
    assert float(row["low"]) == curve.low[0]
    assert row["count"] == "2"


def test_no_records_no_link() -> None:
    table = Table("t", (Column("name"),), (Row(("a",)),))
    assert saved(Reader(render(Page("x", [DataTable(table)])))) == {}
    assert csv_text([]) == "\n"


def test_unknown_block() -> None:
    with pytest.raises(TypeError, match="cannot hold str"):
        render(Page("x", ["text"]))  # type: ignore[list-item]


# Curves ------------------------------------------------------------------------------------------


def test_mean_curve_is_mean_and_deviation() -> None:
    values = [[1.0, 5.0, 2.5], [2.0, 1.0, 2.5], [6.0, 0.5, 2.5]]
    curve = mean_curve("a", [list(enumerate(run)) for run in values])
    for k, (y, low, high) in enumerate(zip(curve.y, curve.low, curve.high, strict=True)):
        column = [run[k] for run in values]
        assert y == pytest.approx(sum(column) / 3)
        assert high - low == pytest.approx(2 * statistics.stdev(column))
        assert high + low == pytest.approx(2 * y)
    assert curve.counts == (3, 3, 3)


def test_divergence_is_not_averaged_away() -> None:
    curve = mean_curve("a", [[(0, 1.0), (1, math.nan)], [(0, 3.0), (1, 2.0)]])
    assert curve.y[0] == 2
    assert math.isnan(curve.y[1])
    assert math.isnan(curve.high[1])


def test_one_run_has_no_band_and_early_ends_count() -> None:
    assert mean_curve("a", [[(1, 2.0), (0, 1.0)]]) == Curve("a", (0, 1), (1.0, 2.0))
    curve = mean_curve("a", [[(0, 1.0)], [(0, 2.0), (1, 3.0)]])
    assert curve.counts == (2, 1)
    assert math.isnan(curve.high[1])  # one value has no spread


def test_curve_refuses_unequal_lengths() -> None:
    with pytest.raises(ValueError, match="x: 2 places and 1 values"):
        Curve("x", (0, 1), (1.0,))
    with pytest.raises(ValueError, match="of the band"):
        Curve("x", (0, 1), (1.0, 2.0), (0.0,), (3.0,))
