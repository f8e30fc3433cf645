"""Figures 1 and 3: rules and numbers on outcomes that are known beforehand, and Path-SGD's law."""

import math
from dataclasses import replace

import pytest
import torch

from pathspace.experiments import data
from pathspace.experiments.data import Dataset, Split
from pathspace.experiments.reproduce.neyshabur2017 import fig1, fig3
from pathspace.experiments.reproduce.neyshabur2017.race import (
    ADAGRAD,
    PATHSGD,
    SGD,
    SGD_UNBALANCED,
    Race,
    apart,
    racers,
    reaches_first,
)
from pathspace.experiments.reproduce.running import conduct
from pathspace.experiments.training import Outcome, Trial, loading, train

TRIAL = Trial("mlp:64-8-8-10", "digits", init="balanced")


def outcome(values, name="validation_error", trial=TRIAL, status="finished"):
    rows = [{"epoch": epoch, name: value} for epoch, value in enumerate(values)]
    return Outcome(trial, status, "", rows, {})


# Figure 1 ----------------------------------------------------------------------------------------


def sizes(train_error, test_error):
    """What figure 1 says if errors are such functions of width and seed after the last epoch.

    Zero training error comes one epoch before the end, where test errors are higher by 0.01; the
    least validation error comes at the start, where they are higher by 0.02.
    """
    settings = fig1.Settings(widths=(4, 16, 64, 256), epochs=2, seeds=(0, 1, 2))

    def answer(trial):
        width = int(trial.model.split("-")[2])
        fit, error = train_error(width, trial.seed), test_error(width, trial.seed)
        rows = [
            {"epoch": 0, "train_error": 0.9, "test_error": error + 0.02, "validation_error": 0.1},
            {"epoch": 1, "train_error": fit, "test_error": error + 0.01, "validation_error": 0.2},
            {"epoch": 2, "train_error": fit, "test_error": error, "validation_error": 0.2},
        ]
        return Outcome(trial, "finished", "", rows, {})

    return conduct(fig1.plan(settings), lambda jobs: list(map(answer, jobs)))


def test_falling_past_zero_training_error_is_called_that():
    found = sizes(
        lambda width, seed: 0.0 if width >= 16 else 0.05,
        lambda width, seed: 0.5 / width**0.5 + 0.001 * seed * (width == 16),
    )
    mnist = [claim for claim in found.claims if claim.group == "MNIST"]
    assert mnist[0].paper == 32
    assert mnist[0].ours == 16
    assert [claim.verdict for claim in mnist[1:]] == ["seen", "seen"]
    assert mnist[1].number == pytest.approx(100 * (0.5 / 16 - 0.5 / 4) - 0.1)
    assert "goes on falling past zero training error, as the paper" in found.statements[0]
    assert "the least of all widths" in found.statements[1]


def test_rising_past_zero_training_error_is_called_that():
    found = sizes(
        lambda width, seed: 0.0 if width >= 16 else 0.05,
        lambda width, seed: 0.1 + width / 1000 + seed / 1000,
    )
    assert {claim.verdict for claim in found.claims if claim.paper == "below 0"} == {"contrary"}
    assert "rises past zero training error" in found.statements[0]
    assert "the least is 10.5 ± 0.1 % at H = 4" in found.statements[1]


def test_one_seed_that_does_not_fit_counts():
    found = sizes(lambda width, seed: 0.01 * (seed == 2), lambda width, seed: 0.1)
    assert "no network reaches zero training error with all seeds" in found.statements[0]
    (table,) = found.tables
    assert "reached by 2 of 3" in table.table.rows[0].cells


def test_the_three_rules_stop_at_their_epochs():
    found = sizes(lambda width, seed: 0.0, lambda width, seed: 0.1)
    (table,) = found.tables
    *_, converged, zero, early, _ = table.table.rows[0].cells
    assert (converged, zero, early) == ("10 ± 0", "11 ± 0", "12 ± 0")


# Figure 3 ----------------------------------------------------------------------------------------


def test_the_rule_takes_the_least_error_then_the_fastest():
    curves = {1.0: [0.9, 0.1, 0.3], 0.1: [0.9, 0.3, 0.1], 0.01: [0.9, 0.8, 0.7]}
    tried = {rate: [outcome(errors)] for rate, errors in curves.items()}
    assert reaches_first(tried) == 1.0
    assert reaches_first(dict(reversed(tried.items()))) == 1.0
    assert reaches_first({**tried, 0.1: [outcome([0.9, 0.3, 0.05])]}) == 0.1
    diverged = outcome([0.9, 0.0, None], status="diverged")
    assert reaches_first({**tried, 0.1: [diverged]}) == 1.0
    assert reaches_first({0.1: [diverged], 0.01: [diverged]}) == 0.1


def test_apart_is_the_largest_difference():
    one, other = [outcome([0.5, 0.2], "train_loss")], [outcome([0.5, 0.6], "train_loss")]
    assert apart(one, other, "train_loss") == pytest.approx(0.4)
    assert apart(one, one, "train_loss") == 0
    broken = [outcome([0.5, None], "train_loss", status="diverged")]
    assert apart(one, broken, "train_loss") == math.inf


def test_epochs_until_a_loss():
    runs = {
        SGD: [outcome([3.0, 2.0, 1.0], "train_loss"), outcome([3.0, 2.0, 0.5], "train_loss")],
        PATHSGD: [outcome([3.0, 1.0, 0.9], "train_loss"), outcome([3.0, 1.0, 0.9], "train_loss")],
    }
    race = Race((0, 1), {}, {}, runs)
    assert race.epochs_to(PATHSGD, SGD).values == (1.0, math.inf)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_path_sgd_is_the_same_from_both_starts_and_sgd_is_not(dropout):
    steps = ("unit_interval", "flatten", "subset:train=300")
    base = replace(TRIAL, preprocess=steps, dtype="float64", epochs=2, lr=0.01, dropout=dropout)
    arms = racers(base, 8)
    both = {
        PATHSGD: (arms[PATHSGD], replace(arms[PATHSGD], init="unbalanced:8")),
        SGD: (arms[SGD], arms[SGD_UNBALANCED]),
    }
    found = {
        arm: apart(*([train(trial)] for trial in pair), "train_loss") for arm, pair in both.items()
    }
    assert found[PATHSGD] < 1e-9
    assert found[SGD] > 0.01


def races(error):
    """What figure 3 says if errors are such a function of optimizer, start, rate and seed."""
    settings = fig3.Settings(
        width=8, epochs=1, seeds=(0, 1, 2), rates=(0.1, 0.01, 0.001), images=100, validation=10
    )

    def answer(trial):
        share = error(trial.optimizer, trial.init.partition(":")[0], trial.lr) + trial.seed / 1000
        names = ("train_loss", "train_error", "test_error", "validation_error")
        rows = [
            {"epoch": 0, **dict.fromkeys(names, 0.9)},
            {"epoch": 1, **dict.fromkeys(names, share)},
        ]
        return Outcome(trial, "finished", "", rows, {})

    return conduct(fig3.plan(settings), lambda jobs: list(map(answer, jobs)))


def test_a_gain_of_path_sgd_is_called_that():
    def error(optimizer, init, rate):
        if optimizer == "pathsgd":
            return 0.2 + abs(math.log10(rate) + 2) / 10  # best at 0.01
        return 0.25 + abs(math.log10(rate) + 1) / 10 + 0.1 * (init == "unbalanced")  # at 0.1

    found = races(error)
    text = "\n".join(found.statements)
    assert f"{PATHSGD} is below {SGD} in 8, above it in 0, undecided in 0 of 8, -5 points" in text
    assert f"{PATHSGD} is below {ADAGRAD} in 8" in text
    assert f"SGD (unbalanced) is below {SGD} in 0, above it in 8" in text
    assert "at most 0 in training loss and 0 points" in text
    assert "+5 with SGD's for both: Path-SGD's gain needs a step size of its own" in text
    assert "end of the grid" in text
    levels = found.tables[0].table.rows
    assert {row.cells[1] for row in levels if row.cells[0].startswith(PATHSGD)} == {"0.01"}
    gaps = [claim for claim in found.claims if claim.what.startswith("test error")]
    assert {claim.verdict for claim in gaps} == {"seen"}


def test_what_small_trials_have_settled_is_said():
    pages = (
        sizes(lambda width, seed: 0.0, lambda width, seed: 0.1),
        races(lambda optimizer, init, rate: 0.1),
    )
    for found in pages:
        (scaled,) = [text for text in found.deviations if "inputs are scaled" in text]
        assert "after looking at small trials" in scaled


def test_path_sgd_that_is_not_invariant_shows():
    found = races(lambda optimizer, init, rate: 0.2 + 0.1 * (init == "unbalanced"))
    (text,) = [text for text in found.statements if text.startswith("Path-SGD's curves")]
    assert "by at most 0.1 in training loss and 10 points" in text
    assert "gains nothing here" in "\n".join(found.statements)


def test_the_paper_preset_starts_at_its_full_width(few_images):
    trial = fig3.EXPERIMENT.paper.settings.trial("cifar10", 0.5)
    assert trial.model == "mlp:3072-4000-4000-10"
    arm = racers(trial, fig3.EXPERIMENT.paper.settings.picks)[SGD_UNBALANCED]
    assert arm.init == "unbalanced:2000"
    short = replace(arm, epochs=None, iterations=2, batch=8, optimizer="pathsgd", lr=1e-3)
    assert train(short).status == "finished"


@pytest.fixture
def few_images(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (24, 3, 32, 32), generator=generator, dtype=torch.uint8)
    split = Split(images, torch.arange(24) % 10)
    few = Dataset("cifar10", split, split, classes=10, maximum=255)
    monkeypatch.setattr(data, "load", lambda *_, **__: few)
    loading._dataset.cache_clear()
    yield
    loading._dataset.cache_clear()
