"""Metrics as TensorBoard itself reads them back, where it is installed."""

import json
import signal

import pytest

from pathspace.experiments.training import Quiet, Training, TrialInterrupted, train
from pathspace.experiments.training.tensorboard import TensorBoard
from trials import small

accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator",
    reason="tensorboard is not installed; `pip install tensorboard` brings it",
)


def scalars(folder):
    """All scalars of a folder: {name: {step: value}}; a step that is there twice is an error."""
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    found = {}
    for name in events.Tags()["scalars"]:
        points = [(event.step, event.value) for event in events.Scalars(name)]
        assert len(dict(points)) == len(points), name
        found[name] = dict(points)
    return found


def expected(folder):
    """The same from the metrics of the trial."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    found = {}
    for row in rows:
        for name, value in row.items():
            if name not in ("epoch", "iteration") and value is not None:
                found.setdefault(name, {})[row["iteration"]] = pytest.approx(value, rel=1e-6)
    return found


def test_tensorboard_reads_the_metrics(tmp_path):
    reporter = TensorBoard(Quiet(), tmp_path / "board")
    outcome = train(small(schedule="diminishing"), tmp_path / "runs", report=reporter)
    assert scalars(tmp_path / "board") == expected(outcome.folder)
    assert len(scalars(tmp_path / "board")["lr"]) == 4


def test_a_training_that_goes_on_leaves_no_step_twice(tmp_path, monkeypatch):
    step = Training.advance

    def advance(training, batch):
        step(training, batch)
        if training.iteration == 8:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Training, "advance", advance)
    with pytest.raises(TrialInterrupted):
        train(small(), tmp_path / "runs", report=TensorBoard(Quiet(), tmp_path / "board"))
    reporter = TensorBoard(Quiet(), tmp_path / "board")
    outcome = train(small(), tmp_path / "runs", report=reporter)
    assert scalars(tmp_path / "board") == expected(outcome.folder)


def test_a_finished_trial_is_replayed_once(tmp_path):
    outcome = train(small(), tmp_path / "runs")
    for _ in range(2):
        TensorBoard(Quiet(), tmp_path / "board").replay(outcome)
    assert scalars(tmp_path / "board") == expected(outcome.folder)
