"""Pages in a real browser: they load cleanly, sort, react, print, and let nothing in or out."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

import matplotlib.image
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pathspace as ps
from browser import CHROMIUM, MISSING, NARROW, WIDE, Browser, Tab
from pages import EVIL, every_block
from pathspace.losslandscape import Landscape, landscape
from pathspace.measuring import measure
from pathspace.page import (
    Code,
    Curve,
    Curves,
    DataTable,
    Details,
    Page,
    Section,
    mean_curve,
    write,
)
from pathspace.plot.pages import landscape_blocks
from pathspace.tables import Column, Row, Table

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)

NUMBERS = ["1,234,567", "–", "0.5 ± 0.1", "10^400.2", "−3", "1e-07", "10^345.1", "inf", "97"]
IN_ORDER = ["−3", "1e-07", "0.5 ± 0.1", "97", "1,234,567", "10^345.1", "10^400.2", "inf"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables and curves, without plotly."""
    rows = tuple(Row((f"row {k}", text)) for k, text in enumerate(NUMBERS))
    groups = tuple(Row((f"r{k}", str(k * 7 % 5)), "a" if k < 3 else "b") for k in range(6))
    columns = (Column("name"), Column("value", number=True))
    runs = [[(k, 4.0 * math.exp(-rate * k)) for k in range(11)] for rate in (0.8, 0.9, 1.0)]
    curves = (
        mean_curve("mean of three", runs),
        Curve("alone", tuple(range(11)), tuple(2.0 + (k == 5) for k in range(11))),
        Curve(EVIL[0], (0, 1, 2, 3), (1.0, math.nan, -1.0, 0.5)),
    )
    line = Curve("line", (-1.0, 0.0, 1.0), (1.0, 0.0, 1.0))
    blocks = [
        Section("Tables", [
            DataTable(Table("plain", columns, rows), "c", ({"a": 1},)),
            DataTable(Table("grouped", columns, groups), "c"),
        ]),
        Section("Curves", [
            Curves(curves, "epoch", "loss (nats)", "c", "Three curves.", file="loss"),
            Curves((line,), "t", "loss", "c", "A line."),
        ]),
        Section("End", [Details("folded", [Code("{\n}", "configuration")])]),
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("pages") / "page.html"
    write(Page("A page", blocks), path)
    return path


def is_clean(tab: Tab) -> bool:
    assert tab.complaints == []
    assert tab.requests == []
    return True


def texts(tab: Tab, selector: str) -> list[str]:
    return tab.evaluate(
        f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)"
    )


def colours(path: Path) -> int:
    """How many different colours a picture has."""
    pixels = torch.from_numpy(matplotlib.image.imread(path)[..., :3]).mul(255).long()
    return len((pixels @ torch.tensor([1 << 16, 1 << 8, 1])).unique())


# Loading -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [WIDE, NARROW])
@pytest.mark.parametrize("dark", [False, True])
def test_loads_cleanly_and_fits(browser, page, tmp_path, size, dark) -> None:
    tab = browser.open(page, size, dark=dark)
    assert is_clean(tab)
    assert tab.evaluate("document.documentElement.scrollWidth") == size[0]  # no sideways scrolling
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    tab.screenshot(tmp_path / "shot.png")
    assert colours(tmp_path / "shot.png") > 20


def test_driver_sees_complaints_and_requests(browser, tmp_path) -> None:
    """The checks of the other tests can fail."""
    path = tmp_path / "bad.html"
    path.write_text("<script>console.log('hm'); wrong(</script><img src='missing.png'>")
    tab = browser.open(path)
    assert any("SyntaxError" in text for text in tab.complaints)
    assert tab.requests == [(tmp_path / "missing.png").as_uri()]


def test_reports_of_networks_load_cleanly(browser, tmp_path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model.add_module(EVIL[1], nn.Linear(2, 2, bias=False))
    report = measure(model, example_input=torch.ones(1, 3), name=EVIL[0], self_check=True)
    report.to_html(tmp_path / "report.html")
    tab = browser.open(tmp_path / "report.html", NARROW)
    assert is_clean(tab)
    assert texts(tab, "h1") == [EVIL[0]]
    assert tab.evaluate("document.querySelectorAll('thead button').length") > 8


def test_policy_stops_what_got_in(browser, page) -> None:
    tab = browser.open(page)
    tab.evaluate("""(() => {
        const script = document.createElement('script');
        script.textContent = 'window.hacked = true';
        document.body.append(script);
        const button = document.createElement('p');
        button.setAttribute('onclick', 'window.hacked = true');
        document.body.append(button);
        button.click();
    })()""")
    assert tab.evaluate("window.hacked === undefined")
    said = tab.evaluate("fetch('https://example.org').then(() => 'sent', e => e.message)")
    assert said == "Failed to fetch"
    assert sum("Content Security Policy" in text for text in tab.complaints) >= 3
    assert not any(text.startswith("https:") for text in tab.requests)


def test_without_scripts_the_tables_and_data_are_there(browser, page) -> None:
    target = browser.open(page)
    target.call("Emulation.setScriptExecutionDisabled", value=True)
    target.call("Page.reload")
    target.wait_until("document.readyState === 'complete'")
    assert texts(target, "figure.table tbody tr th")[:2] == ["row 0", "row 1"]
    assert texts(target, "thead button") == []
    assert "scripts are off" in target.evaluate("document.querySelector('.curves').innerText")


# Tables ------------------------------------------------------------------------------------------


def column(tab: Tab) -> list[str]:
    return texts(tab, "figure.table:first-of-type tbody td")


def test_click_sorts_numbers_as_numbers(browser, page) -> None:
    tab = browser.open(page)
    head = "figure.table th:nth-child(2)"
    assert column(tab)[:9] == NUMBERS
    tab.click(f"{head} button")
    assert column(tab)[:9] == [*IN_ORDER, "–"]
    assert (
        tab.evaluate(f"document.querySelector('{head}').getAttribute('aria-sort')") == "ascending"
    )
    assert texts(tab, "[role=status]")[0] == "sorted by value, ascending"
    tab.click(f"{head} button")
    assert column(tab)[:9] == [*reversed(IN_ORDER), "–"]  # nothing stays last
    tab.click("figure.table th:nth-child(1) button")
    assert tab.evaluate(f"document.querySelector('{head}').getAttribute('aria-sort')") == "none"
    assert column(tab)[:9] == NUMBERS  # by name
    assert is_clean(tab)


def test_keys_sort_too_and_lead_back(browser, page) -> None:
    tab = browser.open(page)
    tab.focus("figure.table th:nth-child(2) button")
    tab.press("Enter")
    assert column(tab)[0] == "−3"
    tab.press(" ")
    assert column(tab)[0] == "inf"
    tab.press("Enter")
    assert column(tab)[:9] == NUMBERS


def test_groups_stay_together(browser, page) -> None:
    tab = browser.open(page)
    tab.click("figure.table:nth-of-type(2) th:nth-child(2) button")
    rows = texts(tab, "figure.table:nth-of-type(2) tbody tr")
    assert rows == ["a", "r00", "r12", "r24", "b", "r50", "r31", "r43"]


def test_tab_key_reaches_content_first(browser, page) -> None:
    tab = browser.open(page)
    tab.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    tab.press("Enter")
    assert tab.evaluate("location.hash") == "#main"


# Curves ------------------------------------------------------------------------------------------


def test_pointing_reads_values_off(browser, page) -> None:
    tab = browser.open(page)
    tab.hover(".curves > svg", 0.52)
    values = texts(tab, ".curves:first-of-type .value")
    assert texts(tab, ".reading")[0] == "at epoch 5"
    mean = sum(4 * math.exp(-rate * 5) for rate in (0.8, 0.9, 1.0)) / 3
    assert float(values[0].partition(" ±")[0]) == pytest.approx(mean, rel=1e-3)
    assert values[1:3] == ["3", ""]
    tab.mouse("mouseMoved", 1.0, 1.0)
    assert texts(tab, ".reading")[0] == ""


def test_arrow_keys_read_values_off(browser, page) -> None:
    tab = browser.open(page)
    tab.focus(".curves > svg")
    tab.press("ArrowRight")
    assert texts(tab, ".reading")[0] == "at epoch 0"
    tab.press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert texts(tab, ".reading")[0] == "at epoch 1"
    assert "alone 2" in tab.evaluate("document.querySelector('.curves [role=status]').textContent")
    assert texts(tab, ".curves:first-of-type .value")[2] == "–"  # not finite
    tab.press("End")
    assert texts(tab, ".reading")[0] == "at epoch 10"


def ticks(tab: Tab) -> list[str]:
    selector = ".curves > svg text[text-anchor=end]"
    return tab.evaluate(
        f"[...document.querySelector('.curves').querySelectorAll('{selector}')]"
        ".map(e => e.textContent)"
    )


def lines(tab: Tab) -> int:
    return tab.evaluate("document.querySelector('.curves').querySelectorAll('.line').length")


def test_legend_hides_curves_and_axes_follow(browser, page) -> None:
    tab = browser.open(page)
    assert (lines(tab), ticks(tab)[-1]) == (3, "4")
    assert texts(tab, ".tools button")[:2] == ["log horizontal axis", "show all"]  # one is negative
    tab.click(".legend button:nth-child(1)")
    assert (lines(tab), ticks(tab)[-1]) == (2, "3")
    pressed = "document.querySelector('.legend button').getAttribute('aria-pressed')"
    assert tab.evaluate(pressed) == "false"
    tab.focus(".legend button:nth-child(1)")
    tab.press("Enter")
    assert (lines(tab), tab.evaluate(pressed)) == (3, "true")


def test_axes_become_logarithmic(browser, tmp_path) -> None:
    curve = Curve("a", (1.0, 2.0, 3.0, 4.0), (1e-6, 1e-3, 1.0, 1e3))
    banded = Curve("b", (1.0, 2.0), (1.0, 1.0), (-1.0, 0.5), (3.0, 1.5))
    path = tmp_path / "log.html"
    write(Page("log", [Curves((curve, banded), "x", "y", "c", "a")]), path)
    tab = browser.open(path)
    points = "document.querySelector('.line').getAttribute('points')"
    heights = [float(p.split(",")[1]) for p in tab.evaluate(points).split()]
    assert heights[0] - heights[2] < 1  # flat on a linear axis
    tab.click(".tools button:nth-child(1)")
    heights = [float(p.split(",")[1]) for p in tab.evaluate(points).split()]
    steps = [a - b for a, b in itertools.pairwise(heights)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    assert ticks(tab) == ["10⁻⁵", "0.001", "0.1", "10", "1000"]
    assert is_clean(tab)  # also where a band reaches below zero
    tab.click(".tools button:nth-child(1)")
    assert "10⁻⁵" not in ticks(tab)


def test_drag_zooms_and_escape_shows_all(browser, page) -> None:
    tab = browser.open(page)
    before = ticks(tab)
    tab.drag(tab.place(".curves > svg", 0.3, 0.5), tab.place(".curves > svg", 0.6, 0.8))
    assert ticks(tab) != before
    assert tab.evaluate("document.querySelector('.tools button:last-of-type').disabled") is False
    tab.focus(".curves > svg")
    tab.press("Escape")
    assert ticks(tab) == before
    tab.press("+")
    labels = texts(tab, ".curves > svg text[text-anchor=middle]")
    assert "0" not in labels[:3]
    assert is_clean(tab)


def test_drawing_follows_the_window(browser, page) -> None:
    tab = browser.open(page)
    box = "document.querySelector('.curves > svg').getAttribute('viewBox').split(' ')[2]"
    wide = float(tab.evaluate(box))
    tab.resize(*NARROW)
    tab.wait_until(f"{box} < 400")
    assert wide > 1000
    assert tab.evaluate("document.documentElement.scrollWidth") == NARROW[0]


def test_prints_what_is_folded(browser, page, tmp_path) -> None:
    tab = browser.open(page, NARROW, dark=True)
    seen = "document.querySelector('pre').checkVisibility()"
    assert tab.evaluate(seen) is False
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert tab.evaluate(seen) is True
    ink = tab.evaluate("getComputedStyle(document.body).color")
    assert ink == "rgb(0, 0, 0)"  # whatever the screen has
    assert tab.pdf(tmp_path / "page.pdf").startswith(b"%PDF")


# Surfaces ----------------------------------------------------------------------------------------


def loaded(browser: Browser, path: Path, size: tuple[int, int]) -> Tab:
    tab = browser.open(path, size)
    tab.wait_until("[...document.querySelectorAll('.surface')].every(e => e.dataset.ready)")
    return tab


def only_hints(tab: Tab) -> bool:
    """No complaints but the browser's advice on how plotly could be faster."""
    assert [text for text in tab.complaints if "willReadFrequently" not in text] == []
    assert tab.requests == []
    return True


@pytest.mark.parametrize("evil", EVIL[:1])
def test_hostile_names_on_a_page_with_everything(browser, tmp_path, evil) -> None:
    write(every_block(evil), tmp_path / "all.html")
    tab = loaded(browser, tmp_path / "all.html", NARROW)
    assert only_hints(tab)
    assert tab.evaluate("window.hacked === undefined")
    assert tab.evaluate("document.documentElement.scrollWidth") == NARROW[0]


def plane(name: str) -> Landscape:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    x, y = torch.randn(8, 2), torch.randint(2, (8,))
    return landscape(ps.trace(model, x[:1]), F.cross_entropy, [(x, y)], grid=5, name=name)


def test_surfaces_follow_the_window(browser, tmp_path) -> None:
    """A window that is made narrow, or a phone that is turned."""
    write(Page("Two", landscape_blocks([plane("a"), plane("b")])), tmp_path / "page.html")
    tab = loaded(browser, tmp_path / "page.html", WIDE)
    bars, width = ("document.querySelectorAll('.colorbar').length", "document.documentElement")
    assert tab.evaluate(bars) == 1
    for size, count in ((NARROW, 0), (WIDE, 1)):
        tab.resize(*size)
        tab.wait_until(f"{bars} === {count} && {width}.scrollWidth === {size[0]}")
        drawn = "document.querySelector('.svg-container').clientWidth"
        tab.wait_until(f"{drawn} === document.querySelector('.surface').clientWidth")
    assert only_hints(tab)


def test_landscape_turns(browser, tmp_path) -> None:
    found = plane("<i>%{z}</i>")
    found.to_html(tmp_path / "landscape.html")
    tab = loaded(browser, tmp_path / "landscape.html", WIDE)
    assert only_hints(tab)
    assert "<i>%{z}</i>" in " ".join(texts(tab, ".surface .annotation-text"))
    camera = "JSON.stringify(document.querySelector('.plot').layout.scene.camera.eye)"
    tab.place(".surface")
    tab.screenshot(tmp_path / "before.png")
    first = tab.evaluate(camera)
    tab.focus(".plot")
    tab.press("ArrowLeft")
    tab.wait_until(f"{camera} !== {json.dumps(first)}")
    tab.click(".surface .tools button:last-child")
    tab.wait_until(f"{camera} === {json.dumps(first)}")
    a = tab.place(".surface .plot", 0.5, 0.5)
    tab.drag(a, (a[0] + 60, a[1]), (a[0] + 120, a[1] + 20))
    tab.wait_until(f"{camera} !== {json.dumps(first)}")
    tab.screenshot(tmp_path / "after.png")
    assert colours(tmp_path / "before.png") > 200  # the surface is drawn, not an empty frame
    before, after = (
        torch.from_numpy(matplotlib.image.imread(tmp_path / name))
        for name in ("before.png", "after.png")
    )
    assert (before - after).abs().sum() > 1000
    labels = texts(tab, ".modebar-btn")
    titles = tab.evaluate(
        "[...document.querySelectorAll('.modebar-btn')].map(e => e.dataset.title)"
    )
    assert len(labels) == len(titles) == 5
    assert not any(word in title.lower() for title in titles for word in ("cloud", "link", "share"))
    assert only_hints(tab)
