"""Interrupted and killed trainings end with the same bytes as undisturbed ones."""

import os
import random
import signal
import sys
import time
import types

import pytest
from torch import nn

from pathspace.experiments.store import TrialStore
from pathspace.experiments.training import (
    OPTIMIZERS,
    Quiet,
    Training,
    Trial,
    TrialInterrupted,
    engine,
    loading,
    train,
)
from trials import SAME, contents, die, end_of, few_pairs, fork, small

CASES = {name: {"optimizer": name} for name in OPTIMIZERS} | {
    "momentum": {"options": {"momentum": 0.9}, "schedule": "diminishing"},
    "gsgd, momentum": {"optimizer": "gsgd", "options": {"momentum": 0.9}},
    "gsgd, paper": {
        "optimizer": "gsgd",
        "options": {"metric": "paper", "roots": "additive", "start": "skeleton_init"},
        "lr": 0.01,
    },
    "pathsgd, every": {"optimizer": "pathsgd", "options": {"every": 3}},
    "dropout": {"dropout": 0.5, "schedule": "cosine"},
    "batch norm": {"model": "mlp-bn:64-12-10"},
    "unbalanced": {"init": "unbalanced:20", "optimizer": "pathsgd"},
    "penalty": {"penalties": ["basis-path:1e-3", "path-norm:1e-3"], "weight_decay": 1e-3},
    "float64": {"dtype": "float64"},
    "bfloat16": {"mixed": "bfloat16", "loss": "truncated-softmax"},
    "float16": {"mixed": "float16", "penalties": ["basis-path:1e-3"], "optimizer": "gsgd"},
    "iterations": {"epochs": None, "iterations": 13},
}


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    """A killed process loses nothing that it wrote: forcing it to the disk is for power cuts."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def interrupt_at(monkeypatch, *iterations):
    """Send SIGTERM to ourselves after these steps."""
    advance = Training.advance

    def advance_and_signal(self, batch):
        advance(self, batch)
        if self.iteration in iterations and self.iteration not in seen:
            seen.add(self.iteration)
            signal.raise_signal(signal.SIGTERM)

    seen = set()
    monkeypatch.setattr(Training, "advance", advance_and_signal)


def until_done(trial, store, **options):
    """Give the same command until it is done; how often it was interrupted."""
    count = 0
    while True:
        try:
            return train(trial, store, **options), count
        except TrialInterrupted:
            count += 1


@pytest.mark.parametrize("case", CASES)
def test_interrupted_is_the_same_as_undisturbed(case, tmp_path, monkeypatch):
    trial = small(**CASES[case])
    whole = train(trial, tmp_path / "whole")
    # within an epoch, at its end (so before the evaluation), after one step, at the very end
    interrupt_at(monkeypatch, 1, 5, 8, 13, 15)
    resumed, count = until_done(trial, tmp_path / "resumed")
    assert count == (4 if case == "iterations" else 5)
    assert contents(resumed.folder) == contents(whole.folder)
    assert resumed.curves == whole.curves
    assert sorted(os.listdir(resumed.folder)) == sorted([*SAME, "timings.json", "environment.json"])


def test_interrupted_ranking(tmp_path, monkeypatch):
    pairs = few_pairs()
    monkeypatch.setattr(loading, "_interactions", lambda *_: pairs)
    trial = Trial("ncf:4", "ml-1m", optimizer="adam", lr=0.01, epochs=3, batch=128)
    whole = train(trial, tmp_path / "whole")
    interrupt_at(monkeypatch, 3, 8, 9)
    resumed, count = until_done(trial, tmp_path / "resumed")
    assert count == 3
    assert contents(resumed.folder) == contents(whole.folder)


def test_interrupted_augmentation(tmp_path, monkeypatch):
    trial = Trial(
        "zoo_of_a_test:net", "digits", augment="crop_and_flip:2", epochs=1, batch=300,
        evaluate_on=("test",),
    )  # fmt: skip
    zoo = types.ModuleType("zoo_of_a_test")
    zoo.net = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    monkeypatch.setitem(sys.modules, "zoo_of_a_test", zoo)
    whole = train(trial, tmp_path / "whole")
    interrupt_at(monkeypatch, 2, 4)
    resumed, _ = until_done(trial, tmp_path / "resumed")
    assert contents(resumed.folder) == contents(whole.folder)


def test_interrupted_where_divergence_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "LOOK", 2)
    trial = small(lr=1e30, epochs=4)
    whole = train(trial, tmp_path / "whole")
    assert (whole.status, whole.final["iteration"]) == ("diverged", 2)
    interrupt_at(monkeypatch, 1, 2, 3, 4)
    resumed, _ = until_done(trial, tmp_path / "resumed")
    assert contents(resumed.folder) == contents(whole.folder)


def test_interruption_says_how_to_go_on(tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 7)
    with pytest.raises(TrialInterrupted, match="SIGTERM: stopped after step 7 of 15; the same"):
        train(small(), tmp_path)
    assert len(list((tmp_path / "running").iterdir())) == 1
    assert not list((tmp_path / "trials").iterdir())
    assert not list((tmp_path / "locks").iterdir())


def test_checkpoints_do_not_change_the_result(tmp_path):
    seldom = train(small(), tmp_path / "seldom")
    often = train(small(), tmp_path / "often", checkpoint_every=0)
    assert contents(seldom.folder) == contents(often.folder)


# SIGKILL -----------------------------------------------------------------------------------------


def test_killed_at_random_moments(tmp_path):
    """Ten times, wherever it happens to be, with a checkpoint after every step."""
    trial = small(optimizer="gsgd", options={"momentum": 0.9}, dropout=0.1, epochs=20)
    began = time.monotonic()
    whole = train(trial, tmp_path / "whole", checkpoint_every=0)
    duration = time.monotonic() - began
    chance = random.Random(0)
    kills = stores = 0
    while kills < 10:
        store = tmp_path / f"killed{stores}"
        pid = fork(lambda store=store: train(trial, store, checkpoint_every=0))
        time.sleep(chance.uniform(0.02, duration / 6))
        os.kill(pid, signal.SIGKILL)
        if end_of(pid) == 0:  # it was faster: look at it, and kill another one
            assert contents(train(trial, store).folder) == contents(whole.folder)
            stores += 1
        else:
            kills += 1
    resumed = train(trial, store)
    assert contents(resumed.folder) == contents(whole.folder)
    assert resumed.curves == whole.curves


@pytest.mark.parametrize("call", ["fsync", "replace", "rename"])
def test_killed_at_every_file_operation(call, tmp_path):
    """Before and after each call that makes something durable; a chain of deaths, one store."""
    trial = small(epochs=1, batch=160)
    whole = train(trial, tmp_path / "whole")

    def run(store, fatal, *, before):
        plain, count = getattr(os, call), 0

        def deadly(*arguments):
            nonlocal count
            count += 1
            if before and count == fatal:
                die()
            result = plain(*arguments)
            if count == fatal:
                die()
            return result

        setattr(os, call, deadly)
        train(trial, store, checkpoint_every=0)

    deaths = 0
    for before in (True, False):
        fatal = 1
        while True:
            store = tmp_path / f"{before}{fatal}"
            pid = fork(lambda s=store, f=fatal, b=before: run(s, f, before=b))
            if (status := end_of(pid)) == 0:
                break
            assert status == -signal.SIGKILL
            resumed = train(trial, store)
            assert contents(resumed.folder) == contents(whole.folder)
            assert not list((store / "running").iterdir())
            assert sorted(os.listdir(resumed.folder)) == sorted(os.listdir(whole.folder))
            deaths += 1
            fatal += 1
    assert deaths >= {"fsync": 40, "replace": 16, "rename": 2}[call]


def test_what_is_finished_but_not_moved_is_not_trained_again(tmp_path):
    trial = small(epochs=1)

    def run():
        os.rename = lambda *_: die()
        train(trial, tmp_path)

    assert end_of(fork(run)) == -signal.SIGKILL
    store = TrialStore(tmp_path)
    assert store.find(trial) is None
    outcome = train(trial, store)
    assert outcome.was_there


# Two processes -----------------------------------------------------------------------------------


def test_two_processes_do_the_work_once(tmp_path):
    trial = small(epochs=20)
    log = tmp_path / "log"

    class Tells(Quiet):
        def start(self, trial, done, total):
            with log.open("a") as file:
                file.write(f"{os.getpid()}\n")

    children = [
        fork(lambda: train(trial, tmp_path / "store", report=Tells(), checkpoint_every=0))
        for _ in range(3)
    ]
    assert [end_of(pid) for pid in children] == [0, 0, 0]
    assert len(log.read_text().split()) == 1
    assert train(trial, tmp_path / "store").was_there
