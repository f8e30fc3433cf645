"""What single experiments say about outcomes that are known beforehand."""

import math
from dataclasses import asdict

import pytest
import torch
from torch.testing import assert_close

from pathspace.experiments.reproduce.controls import (
    GSGD,
    GSGD_NORMALIZED,
    SGD,
    SGD_SKELETON,
    compare,
    sgd_and_gsgd,
)
from pathspace.experiments.reproduce.meng2019 import fig4
from pathspace.experiments.reproduce.meng2019.gaps import TABLE5, size_of
from pathspace.experiments.reproduce.meng2019.influence import influence
from pathspace.experiments.reproduce.neyshabur2017.updates import EXAMPLES, one_update
from pathspace.experiments.reproduce.running import conduct
from pathspace.experiments.training import Outcome, Trial, train


def arm(trial):
    names = {("sgd", "he"): SGD, ("sgd", "skeleton"): SGD_SKELETON, ("gsgd", "skeleton"): GSGD}
    return names.get((trial.optimizer, trial.init), GSGD_NORMALIZED)


def findings(error):
    """What figure 4 says if test errors (%) are such a function of arm, width, rate and seed."""
    settings = fig4.Settings(widths=(8, 32, 128), epochs=1, seeds=(0, 1, 2), rates=(0.01, 0.1))

    def outcome(trial):
        width = int(trial.model.split("-")[2])
        share = error(arm(trial), width, trial.lr, trial.seed) / 100
        row = {"epoch": 1, "train_loss": share, "test_error": share, "validation_error": -trial.lr}
        return Outcome(trial, "finished", "", [row], {})

    return conduct(fig4.plan(settings), lambda jobs: list(map(outcome, jobs)))


def said(found, part):
    (statement,) = [text for text in found.statements if part in text]
    return statement


def test_a_gain_of_the_start_is_called_that():
    gain = {SGD: 0, SGD_SKELETON: 3, GSGD: 4, GSGD_NORMALIZED: 1}
    found = findings(lambda arm, width, rate, seed: 20 + seed - gain[arm] * (rate < 0.1))
    told = (
        "75 % (95 % interval 75 to 75) of G-SGD's mean gain over all widths come from the initial"
    )
    assert told in said(found, "initial weights, not")
    assert "most of the gap at the common rate is a matter of the rate" in said(
        found, "With the best"
    )
    gaps = [claim for claim in found.claims if "test error" in claim.what]
    assert [(claim.number, claim.verdict) for claim in gaps] == [(pytest.approx(-4), "seen")] * 3


def test_what_few_seeds_do_not_tell_of_the_rate_is_not_told():
    """The gap at the best rates is smaller on average, and by seed anything."""

    def error(arm, width, rate, seed):
        return 20 - (arm == GSGD) * (4 if rate < 0.1 else 1 + 5 * (seed - 1))

    told = said(findings(error), "With the best")
    assert "some of the gap at the common rate is a matter of the rate" in told
    assert "these seeds do not tell" in told


def test_widths_at_which_the_sign_is_sure_and_what_diverged_are_said():
    def error(arm, width, rate, seed):
        if (arm, width, seed) == (GSGD, 8, 0):
            return math.inf
        return 20 - (arm == GSGD) * (3 if width == 32 else seed)

    told = said(findings(error), "After")
    assert "below 0 at h = 32; 1 of 9 diverged)" in told


def test_a_gain_of_the_space_is_called_that():
    gain = {SGD: 0, SGD_SKELETON: 1, GSGD: 4, GSGD_NORMALIZED: 3}
    found = findings(lambda arm, width, rate, seed: 20 + seed - gain[arm] * (1 + width / 100))
    told = "explain 25 % (95 % interval 25 to 25) of G-SGD's mean gain over all widths, and most of"
    assert told in said(found, "25 %")
    assert "matter of the rate" not in " ".join(found.statements)
    assert "-1.00 (other than the paper says" in said(found, "Kendall")


def test_no_gain_is_called_that():
    found = findings(lambda arm, width, rate, seed: 20 + seed + (arm == GSGD))
    assert "there is no gain to be explained" in said(found, "gains nothing")
    gaps = [claim for claim in found.claims if "test error" in claim.what]
    assert {claim.verdict for claim in gaps} == {"contrary"}


@pytest.mark.parametrize("width", TABLE5)
def test_table_5(width):
    weights, ratio = TABLE5[width]
    size = size_of(width)
    assert (size.weights, size.hidden) == (weights, 2 * width)
    assert f"{size.ratio / 2:.2e}" == f"{ratio:.2e}"  # the paper prints h/m


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.name)
def test_one_update_is_that_of_the_chain_rule(example):
    found = one_update([], None, asdict(example))
    scales = torch.tensor(example.scales, dtype=torch.float64)
    for start, scale in (("balanced", torch.ones_like(scales)), ("unbalanced", scales)):
        inner = torch.tensor(example.inner, dtype=torch.float64) * scale[:, None]
        outer = torch.tensor(example.outer, dtype=torch.float64) / scale
        before, after = found[start]["before"], found[start]["SGD"]
        assert_close(torch.tensor(before["inner"], dtype=torch.float64), inner)
        assert_close(torch.tensor(before["outer"], dtype=torch.float64), outer)
        # x = 1 and δ = −1: the step adds the sum of weights out of a unit to all into it, and the
        # unit's value to all out of it; all weights are positive, so all units are active.
        grown = inner + outer.sum(0)[:, None], outer + inner.sum(1)
        assert_close(torch.tensor(after["inner"], dtype=torch.float64), grown[0])
        assert_close(torch.tensor(after["outer"], dtype=torch.float64), grown[1])
    path = [torch.tensor(found[s]["Path-SGD"]["output"]) for s in ("balanced", "unbalanced")]
    assert_close(*path)
    plain = [torch.tensor(found[s]["SGD"]["output"]) for s in ("balanced", "unbalanced")]
    assert (plain[0] - plain[1]).abs().min() > 1000


def test_without_a_grid_arms_are_compared_at_the_common_rate():
    base = Trial("mlp:64-8-10", "digits", preprocess=("unit_interval", "flatten"), epochs=1)
    comparison = conduct(compare(sgd_and_gsgd(base), seeds=(0, 1), rates=(), common=0.1))
    assert not comparison.is_tuned
    assert comparison.at_the_edge == ()
    assert {one.trial.lr for arm in comparison.common.values() for one in arm} == {0.1}
    findings = influence({32: comparison}, 1)
    assert "No arm has been tuned" in findings.deviations[-1]
    assert not any("best rate" in statement for statement in findings.statements)
    for figure in findings.figures:
        figure.draw()


def test_rates_may_be_chosen_by_shorter_trainings():
    steps = ("unit_interval", "flatten")
    base = Trial("mlp:64-8-10", "digits", preprocess=steps, epochs=2)
    arms = {"SGD": base}
    plan = compare(arms, seeds=(0,), rates=(0.1,), common=0.1, validation=300, tuning_epochs=1)
    tuning = next(plan)
    assert [trial.epochs for trial in tuning] == [1]
    finals = plan.send([train(trial) for trial in tuning])
    assert {trial.epochs for trial in finals} == {2}
