"""Runs on one page: what is read, pooled, said and refused."""

import csv
import dataclasses
import hashlib
import html
import io
import json
import math
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import pathspace as ps
from pages import EVIL
from pathspace.cli.application import application
from pathspace.experiments import training
from pathspace.experiments.store import TrialStore
from pathspace.losslandscape import Landscape, landscape
from pathspace.measuring import measure
from pathspace.page import Curves, DataTable, Details, Image, Section, Surface, render
from pathspace.page.downloads import csv_text
from pathspace.plot.pages import landscape_blocks, landscape_records
from pathspace.summary import Runs, read_runs, summarize
from pathspace.summary.groups import group_trials
from pathspace.summary.metrics import results
from pathspace.summary.reading import RunError
from pathspace.summary.trials import best_table, last_table, metric_curves, trials_table


@dataclasses.dataclass(frozen=True)
class Trial:
    """The least that the store asks of a configuration."""

    optimizer: str
    lr: float
    seed: int
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def key(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "options": dict(self.options)}


def loss(trial: Trial, epoch: int) -> float:
    return math.exp(-trial.lr * epoch) + 0.1 * trial.seed


def metrics(trial: Trial, epoch: int) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "iteration": 10 * epoch,
        "lr": trial.lr,
        "loss": loss(trial, epoch) if epoch else None,
        "test_error": 0.5 / (1 + epoch),
        "hr@5": 0.1,
        "hr@10": 0.2,
        "note": "text",
    }


def run(store: TrialStore, trial: Trial, epochs: int = 3, status: str = "finished") -> Path:
    with store.claim(trial) as place:
        rows = [metrics(trial, epoch) for epoch in range(epochs + 1)]
        if status == "diverged":
            rows[-1]["loss"] = None
        for row in rows:
            place.log(row)
        reason = "the loss is not a number" if status == "diverged" else ""
        ending = {"status": status, "reason": reason, "notes": ["half of the data"]}
        ending |= {"final": rows[-1], "best": rows[1]}
        place.finish(ending, {"w": torch.ones(1)}, {"step": epochs})
    return store.folder(trial)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TrialStore:
    """Three configurations with two seeds each; only read."""
    found = TrialStore(tmp_path_factory.mktemp("folder") / "runs")
    for optimizer, lr in (("sgd", 0.1), ("sgd", 1.0), ("gsgd", 0.1)):
        for seed in (10, 2):
            run(found, Trial(optimizer, lr, seed))
    return found


@pytest.fixture(scope="module")
def network() -> ps.Network:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    return ps.trace(model, torch.ones(1, 2))


@pytest.fixture(scope="module")
def plane(network: ps.Network) -> Landscape:
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(1))
    data = [(x, torch.tensor([0, 1, 0, 1]))]
    return landscape(network, F.cross_entropy, data, grid=3, name="plane")


# Trials ------------------------------------------------------------------------------------------


def test_trials_that_differ_in_their_seed_are_pooled(store: TrialStore) -> None:
    groups = group_trials(read_runs([store.path]).trials)
    assert [group.name for group in groups] == ["gsgd, lr 0.1", "sgd, lr 0.1", "sgd, lr 1"]
    assert [group.seeds for group in groups] == [(2, 10)] * 3
    assert results(groups) == ["loss", "test_error", "hr@10"]  # no texts, positions or settings


def test_results_are_mean_and_deviation(store: TrialStore) -> None:
    block = last_table(group_trials(read_runs([store.path]).trials))
    last = [loss(Trial("sgd", 1.0, seed), 3) for seed in (2, 10)]
    record = block.records[2]
    assert record["loss mean"] == pytest.approx(statistics.fmean(last))
    assert record["loss std"] == pytest.approx(statistics.stdev(last))
    assert [column.name for column in block.table.columns] == [
        "optimizer", "lr", "seeds", "loss", "test error (%)", "hr@10", "status",
    ]  # fmt: skip
    assert [column.number for column in block.table.columns] == [False, *[True] * 5, False]
    assert block.table.rows[2].cells == (
        "sgd", "1", "2", "0.6498 ± 0.57", "12.5 ± 0", "0.2 ± 0", "finished",
    )  # fmt: skip


def test_best_is_what_the_trials_say(store: TrialStore) -> None:
    groups = group_trials(read_runs([store.path]).trials)
    best = best_table(groups)
    assert best is not None
    assert best.table.rows[2].cells[-3] == "25 ± 0"  # epoch 1, not the last
    (trial, *_) = groups[0].trials
    without = dataclasses.replace(trial, result={**trial.result, "best": None})
    assert best_table([dataclasses.replace(groups[0], trials=(without,))]) is None


def test_divergence_is_said_and_not_averaged(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "runs")
    run(store, Trial("adam", 0.1, 0))
    run(store, Trial("adam", 0.1, 1), status="diverged")
    groups = group_trials(read_runs([store.path]).trials)
    (adam,) = groups
    block = last_table([adam])
    assert block.table.rows[0].cells[-4:] == (
        "–", "12.5 ± 0", "0.2 ± 0", "1 finished, 1 diverged",
    )  # fmt: skip
    assert "1 of 2 trials" in block.table.rows[0].notes[0]
    curves = metric_curves([adam])[0]
    assert isinstance(curves, Curves)
    (curve,) = curves.curves
    assert curve.x == (1, 2, 3)  # before the first step there is no loss yet
    assert [math.isfinite(y) for y in curve.y] == [True, True, False]
    assert trials_table([adam]).table.rows[1].notes == ("the loss is not a number",)


def test_curves_say_what_they_show_and_keep_every_seed(store: TrialStore) -> None:
    groups = group_trials(read_runs([store.path]).trials)
    curves, errors, shares = metric_curves(groups)
    assert isinstance(curves, Curves)
    assert isinstance(errors, Curves)
    assert (shares.y, errors.y) == ("hr@10", "test error (%)")
    assert errors.curves[0].y == (50.0, 25.0, pytest.approx(50 / 3), 12.5)
    assert errors.records[0]["test_error"] == 0.5  # as it was written
    assert "mean of 2 seeds" in curves.caption
    assert "sgd, lr 1: loss goes from 0.9679 at epoch 1 to 0.6498 at epoch 3" in curves.alt
    rows = list(csv.DictReader(io.StringIO(csv_text(curves.records))))
    assert len(rows) == 24
    assert rows[1] == {
        "configuration": "gsgd, lr 0.1",
        "seed": "2",
        "epoch": "1",
        "loss": repr(loss(Trial("gsgd", 0.1, 2), 1)),
    }


def test_single_trials_admit_that_they_have_no_spread(tmp_path: Path) -> None:
    folder = run(TrialStore(tmp_path / "runs"), Trial("sgd", 0.1, 0), epochs=1)
    groups = group_trials(read_runs([folder]).trials)
    assert "says nothing about the spread" in last_table(groups).caption
    assert [curves.file for curves in metric_curves(groups)] == ["test_error", "hr@10"]
    assert "loss" in results(groups)  # one point is no curve
    assert trials_table(groups).table.rows[0].cells[0] == "sgd"


def test_trials_named_twice_count_once(store: TrialStore) -> None:
    trial = store.folder(Trial("sgd", 0.1, 2))
    assert len(read_runs([trial, store.path, trial]).trials) == 6


def test_configurations_and_environments_are_folded_at_the_end(store: TrialStore) -> None:
    page = summarize(read_runs([store.path]))
    last = page.blocks[-1]
    assert isinstance(last, Section)
    assert all(isinstance(block, Details) for block in last.blocks)
    summaries = [block.summary for block in last.blocks if isinstance(block, Details)]
    assert summaries[0] == "Configuration: gsgd, lr 0.1"
    assert summaries[-1].startswith("Environment of 6 trials")
    assert page.data["trials"][0]["metrics"][1]["epoch"] == 1
    assert "Report of 6 trials" in render(page)


def test_hostile_configurations(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "runs")
    run(store, Trial(EVIL[0], 0.1, 0, ((EVIL[1], EVIL[1]),)))
    run(store, Trial("sgd", 0.1, 0))
    page = render(summarize(read_runs([store.path]), EVIL[1]))
    assert not any(evil in page for evil in EVIL)


def test_trials_of_the_training_engine(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "runs")
    for seed in (0, 1):
        trial = training.Trial("mlp:64-4-10", "digits", lr=0.1, epochs=1, seed=seed)
        training.train(trial, store, report="quiet")
    page = summarize(read_runs([store.path]))
    assert page.title == "Report of 2 trials"
    (group,) = group_trials(read_runs([store.path]).trials)
    assert group.seeds == (0, 1)
    assert {"train_loss", "test_error"} <= set(results([group]))
    assert "model mlp:64-4-10, data digits, optimizer sgd" in render(page)


# Networks and landscapes -------------------------------------------------------------------------


def test_reports_stand_side_by_side(network: ps.Network, tmp_path: Path) -> None:
    for name in ("a", "b"):
        report = measure(network, name=name, measures=["path norm"])
        (tmp_path / f"{name}.json").write_text(json.dumps(report.to_dict()))
    one = summarize(read_runs([tmp_path / "a.json"]))
    both = summarize(read_runs([tmp_path / "a.json", tmp_path / "b.json"]))
    titles = [
        [b.table.title for s in page.blocks if isinstance(s, Section) for b in s.blocks
         if isinstance(b, DataTable)] for page in (one, both)
    ]  # fmt: skip
    assert titles[0][0].startswith("a, streams")
    assert titles[1] == ["a, b side by side; ratios are to a"]
    comparison = ps.compare(report, report).to_dict()
    (tmp_path / "both.json").write_text(json.dumps(comparison))
    assert len(read_runs([tmp_path / "both.json"]).reports) == 2


def test_landscapes_become_surfaces_maps_and_curves(
    network: ps.Network, plane: Landscape, tmp_path: Path
) -> None:
    data = [(torch.ones(2, 2), torch.tensor([0, 1]))]
    line = landscape(network, F.cross_entropy, data, dims=1, grid=3, name="line")
    plane.save(tmp_path / "two" / "plane")
    line.save(tmp_path / "two" / "line")
    found = read_runs([tmp_path / "two"]).landscapes
    assert [one.name for one in found] == ["line", "plane"]
    kinds = [type(block).__name__ for block in landscape_blocks(found)]
    assert kinds[:3] == ["Surface", "Image", "Curves"]
    assert len(read_runs([tmp_path / "two" / "line"]).landscapes) == 1


def test_landscapes_that_were_made_otherwise_do_not_share_a_caption(network: ps.Network) -> None:
    data = [(torch.ones(2, 2), torch.tensor([0, 1]))]
    kinds = [("a", "paths", 3), ("b", "weights", 3), ("c", "paths", 3), ("d", "paths", 5)]
    made = tuple(
        landscape(network, F.cross_entropy, data, grid=grid, space=space, name=name)
        for name, space, grid in kinds
    )
    page = summarize(Runs(landscapes=made))
    (section,) = (b for b in page.blocks if isinstance(b, Section) and "land" in b.title)
    captions = [block.caption for block in section.blocks if isinstance(block, Surface)]
    assert len(captions) == 3
    for caption, words in zip(
        captions,
        [("through a and c", "3×3", "basis-path"), ("through b", "weight space"), ("d", "5×5")],
        strict=True,
    ):
        assert all(word in caption for word in words)


def test_landscape_in_words_and_numbers(plane: Landscape) -> None:
    losses = torch.arange(9.0, dtype=torch.float64).view(3, 3).add(1)
    losses[0, 0] = math.nan
    known = dataclasses.replace(plane, losses=losses, center=5.0)
    records = landscape_records(known)
    assert len(records) == 9
    assert math.isnan(records[0]["loss"])
    assert records[5] == {"model": "plane", "t1": 0.0, "t2": 1.0, "loss": 6.0, "outside": False}
    surface = landscape_blocks([known])[0]
    assert isinstance(surface, Surface)
    assert "5 at the model, from 2 (near t = -1, 0) to 9" in surface.alt
    nowhere = dataclasses.replace(plane, losses=losses * math.nan, center=math.nan)
    assert math.isnan(nowhere.range[0])


@pytest.mark.parametrize("name", ["$x^$", "$\\frac$", *EVIL])
def test_any_name_can_be_drawn(plane: Landscape, name: str) -> None:
    named = dataclasses.replace(plane, name=name, marks={name: (0.5, 0.5)})
    surface, image, *_ = landscape_blocks([named])
    assert isinstance(surface, Surface)
    assert name in surface.alt
    assert isinstance(image, Image)
    assert image.content.startswith(b"\x89PNG")


# Refusals ----------------------------------------------------------------------------------------


def text_file(name: str, text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        return folder / name

    return write


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nothing", "there is no .*nothing; a run is"),
        (lambda folder: folder, "holds no run; a run is"),
        (text_file("a.json", "{"), "is not JSON"),
        (text_file("a.png", "\x89"), "is not JSON"),
        (text_file("a.json", '{"name": "x"}'), "not the report of a network.*KeyError.*measures"),
        (text_file("a.json", "[1]"), "not the report of a network"),
        (text_file("run/config.json", "{}"), "part of a run; name its folder, .*run"),
        (lambda folder: text_file("run/config.json", "{}")(folder).parent, "is not finished"),
        (lambda folder: text_file("s/store.json", '{"format": 1}')(folder).parent, "no finished"),
    ],
)
def test_refuses_by_name(make, message: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=message):
        read_runs([make(tmp_path)])


def test_unfinished_trials_are_named(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "runs")
    run(store, Trial("sgd", 0.1, 0))
    with store.claim(Trial("sgd", 5.0, 0)) as place:
        place.log({"epoch": 1})
    runs = read_runs([store.path])
    assert runs.remarks == (f"1 trial of {store.path} is not finished and was left out.",)
    assert "not finished and was left out" in render(summarize(runs))


def test_damaged_trial_is_an_error(tmp_path: Path) -> None:
    folder = run(TrialStore(tmp_path / "runs"), Trial("sgd", 0.1, 2))
    (folder / "config.json").write_text("{}")
    with pytest.raises(ps.PathspaceError, match=r"config\.json"):
        read_runs([folder])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def alter(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.1", 1))  # still JSON, other numbers


@pytest.mark.parametrize(
    ("name", "harm", "words"),
    [
        ("metrics.jsonl", alter, "does not match its checksum"),
        ("metrics.jsonl", cut, "does not match its checksum"),
        ("metrics.jsonl", Path.unlink, "is missing"),
        ("config.json", alter, "does not match its checksum"),
        ("result.json", cut, "result.json"),
        ("timings.json", cut, "timings.json"),
        ("environment.json", Path.unlink, "environment.json"),
    ],
)
def test_damaged_trials_are_left_out_and_named(name, harm, words: str, tmp_path: Path) -> None:
    """On the page and to the one who asks, and never drawn."""
    store = TrialStore(tmp_path / "runs")
    run(store, Trial("sgd", 0.1, 1))
    folder = run(store, Trial("sgd", 0.5, 2))
    harm(folder / name)
    (store.path / "trials" / "notes").mkdir()
    runs = read_runs([store.path])
    assert [trial.config["seed"] for trial in runs.trials] == [1]
    damaged, foreign = sorted(runs.remarks, key=lambda text: "notes" in text)
    assert damaged.startswith(f"Left out: {folder / name}")
    assert words in damaged
    assert foreign == f"Left out: {store.path / 'trials' / 'notes'} is no trial."
    assert damaged in html.unescape(render(summarize(runs)))
    with pytest.raises(ps.PathspaceError, match=name):
        read_runs([folder])
    page = tmp_path / "report.html"
    result = CliRunner().invoke(application(), ["report", str(store.path), "--out", str(page)])
    assert result.exit_code == 0, result.output
    assert damaged in result.stderr


def test_a_store_with_damaged_trials_alone_says_so(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "runs")
    cut(run(store, Trial("sgd", 0.1, 1)) / "metrics.jsonl")
    with pytest.raises(RunError, match=r"no finished trial; Left out: .*metrics\.jsonl"):
        read_runs([store.path])


def test_the_folder_inside_a_store_leads_to_the_store(store: TrialStore) -> None:
    with pytest.raises(RunError, match=f"name the store, {re.escape(str(store.path))}"):
        read_runs([store.path / "trials"])


@pytest.mark.parametrize(
    ("file", "harm"),
    [("landscape.json", cut), ("landscape.json", Path.unlink), ("landscape.npz", Path.unlink)],
)
def test_damaged_landscapes_are_an_error(plane: Landscape, file, harm, tmp_path: Path) -> None:
    folder = plane.save(tmp_path / "plane")
    harm(folder / file)
    with pytest.raises(RunError, match=rf"{re.escape(str(folder))} (is damaged|holds no)"):
        read_runs([folder])


def test_nothing_is_a_page_too() -> None:
    assert "Report of nothing" in render(summarize(Runs()))


# The command -------------------------------------------------------------------------------------


def test_command_writes_one_page(store: TrialStore, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(
        application(), ["report", str(store.path), "--title", "Digits & <more>"]
    )
    assert result.exit_code == 0, result.output
    assert result.output.startswith("report.html: Digits & <more> (0.")
    page = Path("report.html").read_text(encoding="utf-8")
    assert "<h1>Digits &amp; &lt;more&gt;</h1>" in page
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["report.html"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "there is no nothing"),
        ([".", "--out", "nowhere/x.html"], "there is no folder nowhere"),
        (["--title", "x"], "missing; name at least one"),
        (["runs", "--out", "."], ". cannot be written: Is a directory"),
    ],
)
def test_command_refuses(tmp_path, monkeypatch, arguments, message) -> None:
    monkeypatch.chdir(tmp_path)
    run(TrialStore("runs"), Trial("sgd", 0.1, 0))
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(application(), ["report", *arguments])
    assert result.exit_code != 0
    assert message in result.output + result.stderr
    assert not Path("report.html").exists()


def test_command_says_what_to_install(plane: Landscape, tmp_path: Path, monkeypatch) -> None:
    plane.save(tmp_path / "plane")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setitem(sys.modules, "plotly", None)  # as if it were not installed
    result = CliRunner().invoke(application(), ["report", "plane"])
    assert result.exit_code == 1
    assert "pip install 'pathspace[plot]'" in result.stderr
