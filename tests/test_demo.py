"""`pathspace demo`: that it runs, what it claims in numbers, and what it leaves as it was."""

import json
import math
import re
import socket
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from browser import CHROMIUM, MISSING, NARROW, WIDE, Browser
from pathspace.cli.application import application
from pathspace.experiments.demo import (
    QUICK,
    STARTS,
    Errors,
    Settings,
    run_demo,
    running,
    train_all,
)
from pathspace.experiments.demo import trainings as demo_trainings
from pathspace.experiments.demo.page import SECTIONS, demo_page
from pathspace.experiments.demo.tables import rate_table
from pathspace.experiments.demo.trainings import Trainings
from pathspace.experiments.training import Outcome
from pathspace.page import render, write


@pytest.fixture(scope="module")
def demo():
    return run_demo(QUICK)


@pytest.fixture(scope="module")
def page(demo):
    return demo_page(demo)


def invoke(*arguments):
    env = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    return CliRunner().invoke(application(), ["demo", *arguments], env=env)


def test_the_command_prints_tables_and_writes_a_page(tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("the demonstration asked for a network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(tmp_path)
    random = torch.get_rng_state()
    result = invoke("--quick", "--seed", "3")
    assert result.exit_code == 0, result.output
    assert torch.equal(torch.get_rng_state(), random)
    report = tmp_path / "pathspace-demo" / "report.html"
    assert result.stdout.splitlines()[-1].startswith("pathspace-demo/report.html: the report")
    assert max(map(len, result.stdout.splitlines())) <= 80
    differences = result.stdout.partition("Balanced against unbalanced")[2]
    for name, small in {"SGD": False, "AdaGrad": False, "Path-SGD": True, "G-SGD": True}.items():
        rows = re.findall(rf"^{name} +\S+ +\S+ +(\S+) +\S+ %$", differences, re.MULTILINE)
        assert len(rows) == 2
        assert all(float(cell) < 1e-12 if small else float(cell) > 1e-2 for cell in rows)
    page = report.read_text(encoding="utf-8")
    assert [title for title in SECTIONS if f"<h2>{title}</h2>" not in page] == []
    assert "Seeds: 3." in page
    assert not re.search(r"""(src|href)=["']https?:""", page.partition("<script>")[0])


def test_both_starts_are_one_function_in_different_weights(demo):
    trainings = demo.trainings
    balanced, unbalanced = (trainings.initial_weights(start, 0) for start in STARTS)
    assert trainings.initial_difference().relative < 1e-13
    changed = [name for name in balanced if not torch.equal(balanced[name], unbalanced[name])]
    assert any("weight" in name for name in changed)


def test_who_notices_the_rescaling(demo):
    for rate in QUICK.rates:
        for optimizer in ("pathsgd", "gsgd"):
            assert demo.trainings.difference(optimizer, rate).relative < 1e-12
        for optimizer in ("sgd", "adagrad"):
            difference = demo.trainings.difference(optimizer, rate)
            assert difference.relative > 1e-2
            assert difference.predictions > 0


def test_measures_of_paths_see_one_function_and_those_of_weights_two(demo):
    looks = {(look.name, look.start): look for look in demo.looks}
    assert len(looks) == 10
    for name in ("before training", "Path-SGD", "G-SGD"):
        one, other = (looks[name, start] for start in STARTS)
        for measure in ("loss", "path norm (p=2)", "basis-path norm"):
            assert one.measures[measure] == pytest.approx(other.measures[measure], rel=1e-9)
        assert one.flatness["paths"].value == pytest.approx(other.flatness["paths"].value, rel=1e-6)
        assert other.measures["weight norm (p=2)"] > 2 * one.measures["weight norm (p=2)"]
        assert other.flatness["weights"].value > 2 * one.flatness["weights"].value


def test_landscapes_of_paths_agree_and_those_of_weights_do_not(demo):
    one, other = demo.landscapes["paths"]
    torch.testing.assert_close(one.losses, other.losses, rtol=1e-9, atol=0.0)
    one, other = demo.landscapes["weights"]
    assert (one.losses - other.losses).abs().max() > 0.1


def test_controls_are_balanced_up_to_rounding_and_say_how_rounding_grows(monkeypatch):
    monkeypatch.setattr(demo_trainings, "ROUNDING", 0.0)  # every difference asks for one
    settings = replace(QUICK, rates=(0.1,))
    trainings = train_all(settings)
    assert trainings.controls == [("pathsgd", 0.1), ("gsgd", 0.1)]
    balanced, control = (trainings.initial_weights(s, 0) for s in ("balanced", "rounded"))
    assert any(not torch.equal(balanced[name], control[name]) for name in balanced)
    torch.testing.assert_close(dict(balanced), dict(control), rtol=1e-13, atol=0.0)
    for optimizer, rate in trainings.controls:
        assert 0 < trainings.difference(optimizer, rate, "rounded").relative < 1e-12
    remarks = rate_table(trainings).remarks
    assert [remark.partition(" at")[0] for remark in remarks] == [
        "Control for Path-SGD",
        "Control for G-SGD",
    ]


def test_no_control_where_rounding_stays_small(demo):
    assert demo.trainings.controls == []
    assert rate_table(demo.trainings).remarks == ()


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_the_page_in_a_browser(page, tmp_path):
    write(page, tmp_path / "report.html")
    with Browser() as browser:
        tab = browser.open(tmp_path / "report.html", WIDE)
        tab.wait_until("[...document.querySelectorAll('.surface')].every(e => e.dataset.ready)")
        for size in (WIDE, NARROW):
            tab.resize(*size)
            tab.wait_until(f"document.documentElement.scrollWidth === {size[0]}")
        # The browser's advice on how plotly could be faster is no complaint about the page.
        assert [text for text in tab.complaints if "willReadFrequently" not in text] == []
        assert tab.requests == []
        assert tab.evaluate("document.querySelectorAll('.surface').length") == 2  # landscapes
        assert tab.evaluate("document.querySelectorAll('.curves').length") == 3
        figures = "[...document.querySelectorAll('figure')]"
        assert tab.evaluate(f"{figures}.every(e => e.querySelector('figcaption'))")
        images = "[...document.querySelectorAll('img')]"
        assert tab.evaluate(f"{images}.every(e => e.alt && e.naturalWidth)")


def test_configuration_and_environment_are_folded_at_the_end(page):
    last = page.blocks[-1]
    assert last.title == "Configuration and environment"
    choices, first, environment = (json.loads(block.blocks[0].text) for block in last.blocks)
    assert choices["rates"] == list(QUICK.rates)
    assert first["optimizer"] == "sgd"
    assert environment["torch"] == torch.__version__


def test_rates_are_chosen_by_validation_and_never_by_test():
    def outcome(validation, test):
        row = {"epoch": 1, "validation_error": validation, "test_error": test}
        return Outcome(None, "finished", "", [row], {})

    settings = replace(QUICK, seeds=(0, 1), rates=(0.1, 0.3, 1.0))
    results = {
        0.1: [(0.3, 0.1), (0.3, 0.1)],
        0.3: [(0.2, 0.4), (0.3, 0.6)],
        1.0: [(0, 0), (None,) * 2],
    }
    outcomes = {
        ("sgd", "balanced", rate, seed): outcome(*results[rate][seed])
        for rate in settings.rates
        for seed in settings.seeds
    }
    trainings = Trainings(settings, outcomes, None)
    assert trainings.best_rate("sgd", "balanced") == 0.3
    assert trainings.errors("sgd", "balanced", 0.3).mean == pytest.approx(0.5)
    assert str(trainings.errors("sgd", "balanced", 1.0)) == "diverged"
    assert math.isnan(Errors((0.1,)).deviation)


def test_a_training_that_diverges_is_shown_and_breaks_nothing():
    settings = replace(QUICK, rates=(0.1, 1e200), common=1e200, epochs=1)
    found = run_demo(settings)
    statuses = {outcome.status for outcome in found.trainings.outcomes.values()}
    assert "diverged" in statuses
    assert {look.name for look in found.looks} >= {"SGD", "G-SGD"}  # at the rate 0.1
    assert "diverged" in render(demo_page(found))


def test_threads_are_one_inside_and_restored_even_after_an_error(monkeypatch):
    seen = []

    def fail(*_):
        seen.append(torch.get_num_threads())
        raise ZeroDivisionError

    monkeypatch.setattr(running, "train_all", fail)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(ZeroDivisionError):
            run_demo(QUICK)
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_a_folder_that_cannot_be_made_is_said_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    result = invoke("--quick", "--out", str(tmp_path / "file"))
    assert result.exit_code == 2
    assert "--out" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_common_rate_is_one_of_the_grid():
    with pytest.raises(ValueError, match="common rate"):
        Settings(rates=(0.3,), common=0.1)
