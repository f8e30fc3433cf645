"""Reports as text, HTML, data, tables and pictures."""

import dataclasses
import html.parser
import json
import math

import matplotlib as mpl
import pytest
import torch
from torch import nn

import pathspace as ps
from cases import mlp
from pathspace.entries import Entry
from pathspace.measuring import measure
from pathspace.plot import draw_comparison, draw_report
from pathspace.plot.measures import INVARIANT, MOVING
from pathspace.report import Comparison, Report, compare

mpl.use("Agg")


def entry(name="x", value=1.0, log10=None, **options):
    if log10 is None and value is not None and value > 0:
        log10 = math.log10(value)
    about = {"title": "", "symbol": "", "group": "g", "unit": "", "invariant": True} | options
    return Entry(name=name, value=value, log10=log10, **about)


def sample(name="net", factor=1.0):
    return Report(
        name,
        (
            entry("norm", 2.5 * factor, unit="out/in"),
            entry("huge", math.inf, 345.678, group="h", invariant=False),
            entry("nothing", None, group="h", reason="no such thing", invariant=False),
            entry("margin", -0.5, group="h", invariant="in part", notes=("a note",)),
            entry("not a number", math.nan, group="h"),
        ),
        {"streams": "pinned"},
    )


@pytest.fixture
def real():
    torch.manual_seed(0)
    model = mlp(4, 5, 3, bias=True).double()
    x = torch.randn(20, 4).double()
    return measure(model, (x, torch.arange(20) % 3), self_check=True)


# Text --------------------------------------------------------------------------------------------


def test_text_is_aligned():
    assert str(sample()).splitlines() == [
        "net, streams pinned",
        "measure           value   log10  unit    invariant  note",
        "────────────  ─────────  ──────  ──────  ─────────  ───────",
        "g",
        "norm                2.5          out/in  yes",
        "h",
        "huge          10^345.68  345.68          no",
        "nothing               –                  no         [1]",
        "margin             -0.5                  partly     [2] [3]",
        "not a number        nan                  yes",
        "",
        "[1] no such thing",
        "[2] invariant in part",
        "[3] a note",
    ]


def test_text_fits_into_80_columns(real):
    assert max(map(len, str(real).splitlines())) <= 80
    assert max(map(len, str(compare(real, real, names=["a", "b"])).splitlines())) <= 80


def test_repr_says_what_is_missing():
    assert repr(sample()) == "<Report of net: 5 measures, 1 of them not measurable>"


def test_entries_by_name():
    report = sample()
    assert float(report["norm"]) == 2.5
    assert str(report["norm"]) == "norm: 2.5 out/in"
    assert "huge" in report
    assert "huge " not in report
    assert len(report) == len(list(report)) == 5
    with pytest.raises(KeyError, match="did you mean 'margin'"):
        report["margins"]
    with pytest.raises(ValueError, match="nothing was not measured: no such thing"):
        float(report["nothing"])


# HTML --------------------------------------------------------------------------------------------


class Balance(html.parser.HTMLParser):
    """Collects tags, and fails on one that is not closed."""

    VOID = ("meta",)

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], set(), []
        self.scripts, self.attributes = 0, set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.scripts += tag == "script"
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(page):
    parser = Balance()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def test_page_is_well_formed_and_self_contained(real, tmp_path):
    path = tmp_path / "report.html"
    page = real.to_html(path)
    assert path.read_text(encoding="utf-8") == page
    assert page.startswith("<!doctype html>")
    parser = parsed(page)
    assert parser.seen.isdisjoint({"link", "img", "iframe"})
    assert "http:" not in page
    assert "https:" not in page
    text = " ".join(parser.text)
    assert all(name in text for name in real.names())
    assert "as claimed" in text
    parsed(real._repr_html_())


@pytest.mark.parametrize("evil", ["<script>alert(1)</script>", "'><b onclick='x'>&amp;"])
def test_names_are_escaped(evil, tmp_path):
    """A layer may be called anything; it is in the attaining path, and in reasons."""
    model = nn.Sequential()
    model.add_module(evil, nn.Linear(2, 2, bias=False))
    report = measure(model, example_input=torch.ones(1, 2), name=evil)
    page = report.to_html()
    assert evil in str(report["basis-path norm"].notes)
    assert evil not in page
    text = "".join(parsed(page).text)
    assert text.count(evil) >= 2
    hostile = Report(evil, tuple(
        dataclasses.replace(e, name=evil, group=evil, unit=evil, title=evil, reason=evil)
        for e in sample()
    ), {evil: evil})  # fmt: skip
    for thing in (hostile, compare(hostile, sample(evil + "2"))):
        for page in (thing.to_html(), thing._repr_html_()):
            assert evil not in page
            parser = parsed(page)
            assert parser.scripts == ("<!doctype" in page)  # the one that sorts
            assert "onclick" not in parser.attributes


# Data --------------------------------------------------------------------------------------------


def test_json_round_trip():
    for report in (sample(), sample("other", 3.0)):
        text = json.dumps(report.to_dict(), allow_nan=False)
        again = Report.from_dict(json.loads(text))
        assert str(again) == str(report)
        assert again.to_dict() == report.to_dict()
        assert again["norm"] == report["norm"]
        assert math.isinf(again["huge"].value)
        assert math.isnan(again["not a number"].value)


def test_json_of_a_self_check(real):
    data = json.loads(json.dumps(real.to_dict(), allow_nan=False))
    assert data["self_check"]["ok"] is True
    rows = {row["name"]: row for row in data["self_check"]["rows"]}
    assert rows["weight norm (p=2)"]["moved"] is True
    assert rows["path norm (p=2)"]["before"] == real["path norm (p=2)"].value
    assert Report.from_dict(data).entries == real.entries


def test_frame_has_all_numbers(real):
    table = real.to_frame()
    assert list(table.index) == real.names()
    assert table.loc["path norm (p=2)", "value"] == real["path norm (p=2)"].value
    assert table.loc["path norm (p=2)", "invariant"] is True
    again = json.loads(table.to_json())
    assert again["value"]["weights"] == real["weights"].value
    check = real.check.to_frame()
    assert check.loc["weight norm (p=2)", "moved"]
    assert check.loc["weight norm (p=2)", "before"] == real["weight norm (p=2)"].value


# Comparison --------------------------------------------------------------------------------------


def test_comparison_has_ratios():
    other = dataclasses.replace(sample("b", 3.0), entries=sample("b", 3.0).entries[:2])
    comparison = compare(sample("a"), other)
    rows = {first.name: (found, ratios) for first, found, ratios in comparison.rows()}
    assert rows["norm"][1] == [pytest.approx(3.0)]
    assert rows["huge"][1] == [1.0]  # by logarithms: the values are infinite
    assert rows["margin"] == ([sample()["margin"], None], [None])
    assert rows["nothing"][1] == [None]
    assert "a: no such thing" in str(comparison)
    frame = comparison.to_frame()
    assert frame.loc["norm", "b ratio"] == pytest.approx(3.0)
    assert frame.loc["huge", "a log10"] == 345.678
    data = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert data["ratios"]["norm"]["b"] == pytest.approx(3.0)
    assert data["names"] == ["a", "b"]


def test_comparison_of_many():
    comparison = compare(sample(), sample(factor=2.0), sample(factor=4.0))
    assert comparison.names == ("net 1", "net 2", "net 3")
    line = next(line for line in str(comparison).splitlines() if line.startswith("norm"))
    assert line.split() == ["norm", "2.5", "5", "10", "2", "4", "yes"]
    assert isinstance(comparison, Comparison)


def test_comparison_of_too_few_or_ill_named():
    with pytest.raises(ValueError, match="at least two"):
        compare(sample())
    with pytest.raises(ValueError, match="as many different names"):
        compare(sample(), sample(), names=["a", "a"])


# Pictures ----------------------------------------------------------------------------------------


def test_bars_are_logarithms_coloured_by_invariance(real):
    ax = real.plot()
    drawn = [e for e in real if e.log10 is not None and e.group != "the network"]
    drawn = [e for e in drawn if math.isfinite(e.log10)]
    bars = ax.patches
    assert len(bars) == len(drawn) > 15
    for bar, e in zip(bars, drawn, strict=True):
        assert bar.get_width() == pytest.approx(e.log10)
        wanted = INVARIANT if e.invariant is True else MOVING
        assert mpl.colors.to_hex(bar.get_facecolor()) == wanted
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == [e.name for e in drawn]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["rescaling-invariant", "moved by rescaling"]
    mpl.pyplot.close(ax.figure)


def test_points_of_a_comparison():
    comparison = compare(sample("a"), sample("b", 100.0))
    figure, ax = mpl.pyplot.subplots()
    assert draw_comparison(comparison, ax) is ax
    points = [line.get_xdata()[0] for line in ax.lines if line.get_marker() in ("o", "s")]
    assert points == pytest.approx([math.log10(2.5), math.log10(250), 345.678, 345.678])
    mpl.pyplot.close(figure)


def test_nothing_to_draw():
    empty = Report("empty", (entry("x", -1.0),))
    with pytest.raises(ps.PathspaceError, match="no positive number"):
        draw_report(empty)
    with pytest.raises(ps.PathspaceError, match="no positive number"):
        compare(empty, empty).plot()
