"""Figure 5 of the paper on G-SGD: what is said about gains that are known beforehand."""

import pytest

from pathspace.experiments.reproduce.controls import GSGD, GSGD_NORMALIZED, SGD, SGD_SKELETON
from pathspace.experiments.reproduce.meng2019 import fig5
from pathspace.experiments.reproduce.meng2019.rivals import PATHSGD, PATHSGD_SKELETON
from pathspace.experiments.reproduce.running import conduct
from pathspace.experiments.training import Outcome

SETTINGS = fig5.Settings(epochs=1, seeds=(0, 1, 2), rates=(1.0, 0.1, 0.01), images=100)
NAMES = {
    (trial.optimizer, trial.init): arm for arm, trial in SETTINGS.arms("mnist").items()
}  # distinct: no arm has both in common with another


def findings(error):
    """What figure 5 says if test errors (%) are such a function of arm and rate."""

    def outcome(trial):
        arm = NAMES[trial.optimizer, trial.init]
        share = (error(arm, trial.lr) + trial.seed / 10) / 100
        validation = abs(trial.lr - 0.1)  # best at 0.1 for all
        row = {"epoch": 1, "train_loss": share, "test_error": share, "validation_error": validation}
        return Outcome(trial, "finished", "", [row], {})

    return conduct(fig5.plan(SETTINGS), lambda jobs: list(map(outcome, jobs)))


def said(found, part):
    (statement,) = [text for text in found.statements if text.startswith("MNIST") and part in text]
    return statement


def test_arms():
    arms = SETTINGS.arms("cifar10")
    assert len(NAMES) == len(arms) == 6
    assert {arm.model for arm in arms.values()} == {"mlp-nobias:3072-64-64-64-64-64-10"}
    skeleton = {name for name, trial in arms.items() if trial.init == "skeleton"}
    assert skeleton == {SGD_SKELETON, PATHSGD_SKELETON, GSGD}


def test_a_gain_of_the_start_is_called_that():
    levels = {SGD: 20, PATHSGD: 18, GSGD: 10, SGD_SKELETON: 12, PATHSGD_SKELETON: 12}
    found = findings(lambda arm, rate: levels.get(arm, 20))
    told = said(found, "initial weights")
    come = "of G-SGD's mean gain on {} come from the initial weights, not from the space"
    assert f"So 75 % (95 % interval 75 to 75) {come.format('Path-SGD')}" in told
    assert f"So 80 % (95 % interval 80 to 80) {come.format('SGD')}" in told
    assert {claim.verdict for claim in found.claims} == {"seen"}
    gap = next(claim for claim in found.claims if claim.what == "test error (%), G-SGD − Path-SGD")
    assert gap.number == pytest.approx(-8)


def test_a_gain_of_the_space_is_called_that():
    found = findings(lambda arm, rate: 10 if arm in (GSGD, GSGD_NORMALIZED) else 20)
    told = said(found, "initial weights")
    assert "So none of G-SGD's mean gain on Path-SGD comes from the initial weights" in told
    verdicts = {claim.what.partition(", ")[2]: claim.verdict for claim in found.claims}
    assert verdicts == {"Path-SGD − SGD": "no difference seen", "G-SGD − Path-SGD": "seen"}


def test_no_gain_is_called_that():
    found = findings(lambda arm, rate: 20 + (arm == GSGD))
    told = said(found, "initial weights")
    assert "G-SGD is worse than Path-SGD, so there is no gain" in told


def test_no_end_of_the_grid_is_named_if_none_was_chosen():
    assert not any("end of the grid" in text for text in findings(lambda *_: 1).statements)
