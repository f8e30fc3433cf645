"""Benchmarks: how they are measured, listed, run, printed and drawn. No test looks at times."""

import json
import math
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import pathspace
from pathspace.bench import (
    Benchmark,
    Measurement,
    interleaved,
    interleaved_parts,
    machine,
    peak_memory,
    results_table,
    scaling,
)
from pathspace.bench.drawing import draw_growth, draw_overview
from pathspace.bench.repository import BenchmarkError, find_repository, listings, run_benchmark
from pathspace.cli.application import application

ROOT = Path(__file__).parents[1]
ROWS = (
    Measurement("fast enough", 1.02, "× SGD", 1.1),
    Measurement("too slow <&>", 1.3, "× SGD", 1.1, "by far"),
    Measurement("for comparison", 1234.5, "ms"),
)
DONE = Benchmark("mine", "A title", ROWS, 10, 1, 2.5)
TINY = '''"""A tiny benchmark, of nothing.

More words.
"""

import torch

from pathspace.bench import Measurement

THREADS = 1


def measure(repeats):
    yield Measurement("repeats", float(repeats), "", 5.0)
    yield Measurement("threads", float(torch.get_num_threads()), "")
'''


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder that looks like a clone, with two benchmarks and a helper."""
    (tmp_path / "src" / "pathspace").mkdir(parents=True)
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "tiny.py").write_text(TINY)
    (folder / "broken.py").write_text(
        '"""Never ends well."""\nON_REQUEST = "it fails"\n'
        "def measure(repeats):\n    raise OSError('no such luck')\n"
    )
    (folder / "helper.py").write_text('"""No benchmark."""\n')
    return tmp_path


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return lambda *arguments: CliRunner().invoke(
        application(), ["bench", *arguments], env={"COLUMNS": "200"}
    )


def said(result: Result, code: int) -> str:
    assert result.exit_code == code, result.output
    return " ".join(result.output.replace("│", " ").split())


# Rows --------------------------------------------------------------------------------------------


def test_verdicts() -> None:
    assert [row.verdict for row in ROWS] == ["met", "falls short", ""]
    assert Measurement("", 1.1, "", 1.1).verdict == "met"
    assert Measurement("", math.nan, "", 1.1).verdict == "falls short"


def test_benchmark_survives_json() -> None:
    data = json.loads(json.dumps(DONE.to_dict()))
    assert data["rows"][1]["verdict"] == "falls short"
    assert Benchmark.from_dict(data) == DONE


def test_table_has_values_goals_verdicts_and_the_count() -> None:
    text = results_table([DONE]).text()
    lines = [line.split() for line in text.splitlines()]
    assert ["fast", "enough", "1.02", "×", "SGD", "≤", "1.1", "met"] in lines
    assert [
        "too",
        "slow",
        "<&>",
        "1.30",
        "×",
        "SGD",
        "≤",
        "1.1",
        "falls",
        "short",
        "by",
        "far",
    ] in (lines)
    assert ["for", "comparison", "1,234", "ms", "–"] in lines
    assert "goals met: 1 of 2" in text
    together = results_table([DONE, DONE])
    assert [row.group for row in together.rows] == ["A title"] * 6
    assert together.remarks == ("goals met: 2 of 4",)


def test_machine_is_described_without_its_name() -> None:
    about = machine(ROOT)
    assert about["cpu"]
    assert {"cores", "threads", "torch", "date", "commit"} <= about.keys()
    assert "host" not in about
    json.dumps(about)


# Timing ------------------------------------------------------------------------------------------


def test_tasks_take_turns_after_a_round_that_does_not_count() -> None:
    calls: list[str] = []
    tasks = {name: (lambda name=name: calls.append(name)) for name in "ab"}
    seconds = interleaved(tasks, 2)
    assert calls == ["a", "b"] * 3
    assert all(0 <= value < math.inf for value in seconds.values())


def test_parts_of_tasks_take_turns_too_and_are_timed_one_by_one() -> None:
    calls: list[str] = []

    def part(name: str, seconds: float = 0.0) -> Callable[[], None]:
        def run() -> None:
            calls.append(name)
            time.sleep(seconds)

        return run

    tasks = {"one": (part("a", 0.02), part("b")), "two": (part("c"),)}
    seconds = interleaved_parts(tasks, 2)
    assert calls == ["a", "b", "c"] * 3
    first, second, whole = seconds["one"]
    assert second < 0.02 <= first <= whole
    assert len(seconds["two"]) == 2


def test_limit_ends_repetitions_after_two() -> None:
    calls: list[int] = []
    interleaved({"a": lambda: calls.append(1)}, 100, limit=0.0)
    assert len(calls) == 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_peak_memory_sees_what_a_task_takes_and_gives_back() -> None:
    size = 64 * 2**20

    def task() -> float:
        first = torch.ones(size // 4)  # 64 MB, freed again
        del first
        second = torch.ones(size // 2)  # 128 MB
        return float(second[0])

    found = peak_memory(task)
    assert 1.9 * size < found < 2.6 * size
    assert peak_memory(lambda: None) < 0.1 * size


# Growth ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.7])
def test_slope_is_the_exponent(exponent: float) -> None:
    points = [(x, 3 * x**exponent) for x in (10.0, 30.0, 1000.0)]
    assert scaling.slope(points) == pytest.approx(exponent, abs=1e-12)
    assert scaling.slope([*points, (5.0, 0.0), (7.0, math.nan)]) == pytest.approx(exponent)


def test_slope_needs_two_sizes() -> None:
    assert math.isnan(scaling.slope([(1.0, 2.0)]))
    assert math.isnan(scaling.slope([(1.0, 2.0), (1.0, 3.0)]))


def test_only_the_largest_sizes_count() -> None:
    sizes = [1, 10, 1000, 10_000, 100_000]
    seconds = [7.0, 7.0, 1.0, 10.0, 100.0]
    points = [
        scaling.Point("m", "op", size, size, s, math.nan)
        for size, s in zip(sizes, seconds, strict=True)
    ]
    assert scaling.Growth(tuple(points)).slope("m", "op") == pytest.approx(1)


def test_goal_is_near_1_or_that_of_a_copy_for_what_is_as_large_as_one() -> None:
    points = tuple(
        scaling.Point("m", name, size, size, size**1.3, math.nan)
        for name in (scaling.REFERENCE, "values", "G-SGD step")
        for size in (10, 100)
    )
    goals = [row.goal for row in scaling.Growth(points).rows()]
    assert goals == [None, pytest.approx(1.3), 1.1]


def test_networks_have_the_weights_they_should() -> None:
    found = scaling.networks(1e8)
    weights = [sum(w[k + 1] * (w[k] + 1) for k in range(len(w) - 1)) for _, w in found]
    sizes = [m for (series, _), m in zip(found, weights, strict=True) if series == "m"]
    assert len(sizes) == 9
    assert all(m == pytest.approx(10 ** (4 + k / 2), rel=0.03) for k, m in enumerate(sizes))
    depths = [len(widths) - 1 for series, widths in found if series == "depth"]
    assert depths == [10, 32, 100, 316, 1000]


def test_growth_is_measured_for_every_operation() -> None:
    seen: list[str] = []
    growth = scaling.measure_growth(3.2e4, repeats=1, advance=seen.append)
    assert len(seen) == 2
    names = set(scaling.operations((4, 4, 4)))
    assert set(growth.operations) == names
    assert len(growth.points) == 2 * len(names)
    assert all(point.seconds > 0 for point in growth.points)
    rows = growth.rows()
    assert {row.what for row in rows} == {f"time against weights: {name}" for name in names}
    assert [row.goal for row in rows if scaling.REFERENCE in row.what] == [None]
    assert scaling.Growth.from_dict(json.loads(json.dumps(growth.to_dict()))) == growth


def test_what_does_not_fit_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "free_memory", lambda: 64e4)
    monkeypatch.setattr(scaling, "operations", lambda widths: {"nothing": lambda: None})
    growth = scaling.measure_growth(4.2e4, repeats=1)
    assert {point.weights for point in growth.points} == {10_200}
    assert [line.partition(":")[0] for line in growth.left_out] == [
        "32,040 weights in 4 layers",
        "41,600 weights in 10 layers",
    ]


@pytest.mark.parametrize("layers", [4, 150])  # 2^150 is beyond float32
def test_operations_stay_finite_at_any_depth(layers: int) -> None:
    tasks = scaling.operations((32,) * (layers + 1))
    for task in tasks.values():
        task()
    results = {name: tasks[name]() for name in ("values", "pull", "push", scaling.REFERENCE)}
    for name in ("values", "pull", "push"):
        found = results[name]
        assert isinstance(found, dict)
        assert all(bool(tensor.isfinite().all()) for tensor in found.values()), name
    weights = results[scaling.REFERENCE]
    assert isinstance(weights, list)
    assert all(float(w.abs().max()) < 10 for w in weights)  # the optimizers' steps are tiny


# Pictures ----------------------------------------------------------------------------------------


def texts(svg: str) -> list[str]:
    """All texts of a picture that is well-formed and asks for nothing from elsewhere."""
    assert "href" not in svg
    assert "url(" not in svg
    tree = ElementTree.fromstring(svg)
    assert "prefers-color-scheme:dark" in svg
    return [element.text or "" for element in tree.iter("{http://www.w3.org/2000/svg}text")]


def test_overview_has_a_bar_per_goal_and_says_what_falls_short() -> None:
    many = Benchmark("far", "Another", (Measurement("far off", 50.0, "×", 1.0),), 1, 1, 1.0)
    none = Benchmark("none", "Without goals", ROWS[2:], 1, 1, 1.0)
    svg = draw_overview([DONE, many, none], "a machine")
    found = texts(svg)
    assert "Cost against its goal: 1 of 3 goals met" in found
    assert "1.02 × SGD, goal ≤ 1.1" in found
    assert "1.30 × SGD, goal ≤ 1.1, falls short" in found
    assert "too slow <&>" in found
    assert "Without goals" not in found
    assert "for comparison" not in found
    assert svg.count('class="met"') == 1
    assert svg.count('class="short"') == 2
    bars = [float(r.get("width", 0)) + float(r.get("x", 0)) for r in rectangles(svg)]
    goal = next(float(line.get("x1", 0)) for line in lines(svg))
    assert bars[0] < goal < bars[1] < bars[2] < 600  # what is far off ends at the edge


def test_long_names_have_room() -> None:
    """They end where bars begin, and must not begin before the picture does."""
    long = Measurement(
        "784-4000-4000-10: a penalty inside an optimizer, of a certain kind", 1, "", 2
    )
    svg = draw_overview([Benchmark("long", "Long", (long,), 10, 1, 2.5)], "a machine")
    (bar,) = rectangles(svg)
    assert float(bar.get("x", 0)) > 6 * len(long.what)
    width = float(ElementTree.fromstring(svg).get("viewBox", "").split()[2])
    assert width > float(bar.get("x", 0)) + 500


def rectangles(svg: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect"))


def lines(svg: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}line"))


def test_growth_is_drawn_with_its_slopes() -> None:
    points = tuple(
        scaling.Point(series, name, size, size, 1e-9 * size**power, 4.0 * size)
        for series in scaling.SERIES
        for name, power in (("linear", 1.0), ("quadratic", 2.0))
        for size in (10, 100, 1000)
    )
    svg = draw_growth(scaling.Growth(points), "a machine")
    found = texts(svg)
    assert found.count("2.00") == 2
    assert found.count("1.00") == 6
    assert svg.count("<polyline") == 8 + 2  # and the legend
    texts(draw_growth(scaling.Growth(points[:1]), ""))  # one point is enough for a picture


# The repository's --------------------------------------------------------------------------------


def test_every_file_with_a_measure_is_listed(clone: Path) -> None:
    found = listings(clone)
    assert {name: (entry.title, entry.on_request) for name, entry in found.items()} == {
        "broken": ("Never ends well", "it fails"),
        "tiny": ("A tiny benchmark, of nothing", ""),
    }


def test_benchmarks_of_this_repository_have_titles() -> None:
    found = listings(ROOT)
    assert {"trace", "basis", "norms", "optim", "flatness", "importing"} <= found.keys()
    for name, entry in found.items():
        assert entry.title != name
    assert found["stability"].on_request


def test_benchmark_runs_in_its_own_process(clone: Path) -> None:
    threads = torch.get_num_threads()
    done = run_benchmark(clone, listings(clone)["tiny"], 7)
    assert [row.value for row in done.rows] == [7.0, 1.0]
    assert (done.name, done.title, done.repeats, done.threads) == (
        "tiny", "A tiny benchmark, of nothing", 7, 1,
    )  # fmt: skip
    assert done.rows[0].verdict == "falls short"
    assert torch.get_num_threads() == threads
    assert "benchmarks.tiny" not in sys.modules


def test_failure_is_told_with_its_last_words(clone: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"`broken` failed:[\s\S]*no such luck"):
        run_benchmark(clone, listings(clone)["broken"], 1)


def test_clone_is_found_from_inside_or_where_the_package_is(
    clone: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert find_repository(clone / "src" / "pathspace") == clone
    assert find_repository(elsewhere) == ROOT  # installed in place
    monkeypatch.setattr(pathspace, "__file__", str(elsewhere / "a" / "b" / "__init__.py"))
    with pytest.raises(BenchmarkError, match="not part of the installed package; run this in a cl"):
        find_repository(elsewhere)


# The command -------------------------------------------------------------------------------------


def test_command_runs_saves_and_draws(clone: Path, invoke: Callable[..., Result]) -> None:
    result = invoke("--quick", "--json", "out.json", "--plot", "out.svg")
    text = said(result, 0)
    assert "repeats 3.00 ≤ 5 met" in text
    assert "broken" not in text  # only by name
    data = json.loads((clone / "out.json").read_text())
    assert data["machine"]["cores"]
    assert [benchmark["name"] for benchmark in data["benchmarks"]] == ["tiny"]
    assert "3.00, goal ≤ 5" in texts((clone / "out.svg").read_text())


def test_failed_benchmark_does_not_stop_the_others(
    clone: Path, invoke: Callable[..., Result]
) -> None:
    text = said(invoke("broken", "tiny"), 1)
    assert "repeats 10.0 ≤ 5 falls short" in text
    assert "`broken` failed" in text


def test_scaling_saves_and_draws(tmp_path: Path, invoke: Callable[..., Result]) -> None:
    names = ("--json", "out.json", "--plot", "out.svg")
    text = said(invoke("scaling", "--max", "10000", "--quick", *names), 0)
    assert "goals met: 0 of 0" in text  # one size has no slope
    data = json.loads((tmp_path / "out.json").read_text())
    assert {"machine", "points", "slopes", "rows"} <= data.keys()
    assert "G-SGD step" in texts((tmp_path / "out.svg").read_text())


def test_list(clone: Path, invoke: Callable[..., Result]) -> None:
    text = said(invoke("--list"), 0)
    assert "tiny A tiny benchmark, of nothing" in text
    assert "broken Never ends well (only by name: it fails)" in text
    assert "scaling" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonesuch"], "no benchmark 'nonesuch'; there are: broken, tiny, scaling"),
        (["scaling", "tiny"], "run it alone"),
        (["tiny", "--plot", "out.png"], "the picture is an .svg file"),
        (["tiny", "--json", "nowhere/out.json"], "there is no folder nowhere"),
    ],
)
def test_wrong_arguments(
    clone: Path, invoke: Callable[..., Result], arguments: list[str], words: str
) -> None:
    assert words in said(invoke(*arguments), 2)


# What is committed -------------------------------------------------------------------------------


def test_pages_and_pictures_are_those_of_the_committed_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.pages import pages

    for path, text in pages().items():
        assert path.read_text() == text, f"{path} is not up to date; run python -m benchmarks.pages"
