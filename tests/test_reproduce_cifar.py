"""Experiments with PlainNets and ResNets on CIFAR: shared trainings, words, starts, presets."""

import math
from dataclasses import replace

import pytest
import torch

from pathspace.experiments import data
from pathspace.experiments.data import Dataset, Split
from pathspace.experiments.models import example_input
from pathspace.experiments.reproduce.cifar.images import Case
from pathspace.experiments.reproduce.cifar.presets import (
    PAPER,
    PAPER_REGULARIZED,
    QUICK,
    QUICK_REGULARIZED,
)
from pathspace.experiments.reproduce.cifar.regularizing import regularize
from pathspace.experiments.reproduce.controls import GSGD, PUBLISHED, sgd_and_gsgd
from pathspace.experiments.reproduce.meng2019 import fig7, init, table1
from pathspace.experiments.reproduce.meng2019.starts import Starts
from pathspace.experiments.reproduce.running import conduct
from pathspace.experiments.reproduce.zheng2019 import table2
from pathspace.experiments.training import Outcome, loading, train
from pathspace.optim import GSGD as GSGDOptimizer
from pathspace.tracing import trace

EXPERIMENTS = tuple(module.EXPERIMENT for module in (table1, fig7, init, table2))


def made_up(error):
    """Answers to trials: the error by trial, noise by seed that all arms share but for a little."""
    asked = []

    def execute(jobs):
        asked.extend(jobs)
        return [outcome(job) for job in jobs]

    def outcome(trial):
        chance = torch.Generator().manual_seed(trial.seed)
        shared = torch.randn((), generator=chance).item()
        private = math.sin(int(trial.key[:8], 16)) / 500
        found = error(trial) + 0.01 * shared + private
        rows = []
        for epoch in (0, 2, 4, 6):
            now = 0.9 + (found - 0.9) * epoch / 6
            names = ("train", "validation", "test")
            errors = {f"{split}_error": now for split in names}
            losses = {f"{split}_loss": 2.5 * now for split in names}
            rows.append({"epoch": epoch, "iteration": 40 * epoch, **errors, **losses})
        status = "finished" if math.isfinite(found) else "diverged"
        return Outcome(trial, status, "", tuple(rows), {})

    return execute, asked


def by_arm(errors, penalty=0.0):
    """An error by optimizer and start, less a gain of regularizers."""

    def error(trial):
        gained = trial.weight_decay or trial.penalties or trial.options.get("bp_decay")
        return errors[trial.optimizer, trial.init] - (penalty if gained else 0.0)

    return error


FROM_THE_START = {
    ("sgd", "he"): 0.7,
    ("sgd", "skeleton"): 0.6,
    ("gsgd", "skeleton"): 0.6,
    ("gsgd", "he"): 0.7,
}
FROM_THE_SPACE = FROM_THE_START | {("sgd", "skeleton"): 0.7, ("gsgd", "he"): 0.6}


# Presets -----------------------------------------------------------------------------------------


def test_the_paper_preset_is_the_published_setting():
    trial = PAPER.trial(Case("cifar100", "plainnet34"))
    assert trial.iterations == 64_000
    assert trial.schedule == "steps:32000:48000"
    assert trial.lr == 1.0
    assert trial.batch == 128
    assert trial.augment.startswith("crop_and_flip")
    assert trial.preprocess == ("unit_interval",)
    assert len(PAPER.seeds) == 5
    grid = [share * 10.0**-alpha for alpha in (3, 4, 5, 6) for share in (0.1, 0.2, 0.5)]
    assert PAPER_REGULARIZED.lambdas == pytest.approx(grid)


def test_quick_trainings_are_shared():
    first, asked_first = made_up(by_arm(FROM_THE_START))
    conduct(table1.plan(QUICK), first)
    second, asked_second = made_up(by_arm(FROM_THE_START))
    conduct(fig7.plan(QUICK_REGULARIZED), second)
    third, asked_third = made_up(by_arm(FROM_THE_START))
    conduct(table2.plan(QUICK_REGULARIZED), third)
    assert set(asked_second) == set(asked_third)
    without = {t for t in asked_second if not (t.weight_decay or t.penalties)}
    without = {t for t in without if not t.options.get("bp_decay")}
    assert without
    assert without <= set(asked_first)


def test_quick_sets_validation_images_aside_for_good():
    execute, asked = made_up(by_arm(FROM_THE_START))
    conduct(table1.plan(QUICK), execute)
    assert all(trial.preprocess[-1].startswith("validation_split:1000") for trial in asked)
    # Rates are chosen by the first seed, whose trainings are final ones as well.
    assert len({t for t in asked if t.model == "plainnet8-thin-small"}) <= 4 * (3 + 2 + 2)


def test_lambdas_are_kept_for_the_other_data():
    execute, asked = made_up(by_arm(FROM_THE_START, penalty=0.05))
    small = replace(PAPER_REGULARIZED, lambdas=(1e-4, 1e-3), seeds=(0, 1), rates=(0.3, 1.0))
    conduct(fig7.plan(small), execute)
    chosen = {"cifar10": set(), "cifar100": set()}
    for t in asked:
        if t.seed == 1:
            decay = (t.weight_decay, t.penalties, t.options.get("bp_decay"))
            chosen[t.data].add((t.model, t.optimizer, t.init, *decay))
    assert chosen["cifar10"] == chosen["cifar100"]


# Words -------------------------------------------------------------------------------------------


def test_a_gain_of_the_start_is_said_to_be_one():
    execute, _ = made_up(by_arm(FROM_THE_START))
    findings = conduct(table1.plan(QUICK), execute)
    assert "lower in 4, higher in 0" in findings.statements[0]
    assert all("come from the initial weights" in said for said in findings.statements[1:5])
    assert findings.table().text().count("seen") >= 8


def test_a_gain_of_the_space_is_not_ascribed_to_the_start():
    execute, _ = made_up(by_arm(FROM_THE_SPACE))
    findings = conduct(table1.plan(QUICK), execute)
    assert not any("come from the initial weights" in said for said in findings.statements)
    assert all("explain" in said for said in findings.statements[1:5])


def test_a_gain_of_the_rate_is_said_to_be_one():
    def error(trial):
        worse = trial.optimizer == "sgd" and trial.init == "he" and trial.lr == 1.0
        return 0.8 if worse else 0.6

    execute, _ = made_up(error)
    findings = conduct(table1.plan(QUICK), execute)
    assert all("is a matter of the rate" in said for said in findings.statements[1:5])


def test_arms_that_learn_nothing_are_named():
    execute, _ = made_up(lambda trial: 0.9 if trial.optimizer == "gsgd" else 0.7)
    said = conduct(table1.plan(QUICK), execute).statements
    (named,) = [text for text in said if text.startswith("Within 3 points of guessing")]
    assert "G-SGD at rate 1 (thin PlainNet-20, CIFAR-10: 90" in named
    assert "SGD from skeleton" not in named


def test_no_gain_is_not_explained():
    execute, _ = made_up(lambda trial: 0.7)
    findings = conduct(table1.plan(QUICK), execute)
    assert not any("of the gain" in said for said in findings.statements[1:5])


def test_regularized_words():
    execute, _ = made_up(by_arm(FROM_THE_START, penalty=0.05))
    findings = conduct(table2.plan(QUICK_REGULARIZED), execute)
    assert any("changes SGD's test error by -" in said for said in findings.statements)
    assert any("the least mean test error has G-SGD + BPR" in said for said in findings.statements)
    claims = {claim.what: claim for claim in findings.claims if "thin PlainNet" in claim.group}
    assert claims["SGD + BPR, test error (%)"].paper == "5.99 (PlainNet-34)"


def test_start_words():
    def error(trial):
        return 0.8 if "twos" in trial.model and trial.lr == 1.0 else 0.6

    execute, _ = made_up(error)
    findings = conduct(init.plan(init.EXPERIMENT.quick.settings), execute)
    assert "no difference can be told" in findings.statements[0]
    assert any("all 2 instead" in s and "like another rate" in s for s in findings.statements)


def test_a_size_that_diverges_makes_a_difference():
    def error(trial):
        return math.inf if "halves" in trial.model else 0.8 if "twos" in trial.model else 0.6

    execute, _ = made_up(error)
    findings = conduct(init.plan(init.EXPERIMENT.quick.settings), execute)
    for arm in ("all 1/2", "all 2"):
        (told,) = [text for text in findings.statements if f"weights {arm} instead" in text]
        assert "the rate does not make up for" in told
        claims = [claim for claim in findings.claims if claim.what.startswith(f"{arm} − all 1")]
        assert [claim.verdict for claim in claims] == ["seen", "contrary"]


# Starts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", init.ARMS.values())
def test_starts_differ_on_the_skeleton_alone(method):
    torch.manual_seed(3)
    model = getattr(Starts("plainnet8-thin"), method)()
    torch.manual_seed(3)
    reference = Starts("plainnet8-thin").ones()
    if method == "random_sizes":
        x = example_input("plainnet8-thin", batch=2)
        torch.testing.assert_close(model.eval()(x), reference.eval()(x), rtol=1e-3, atol=1e-4)
        return
    centre = model.stage2[0].branch[3].weight[:, :, 1, 1].diagonal().detach()
    size = {"halves": 0.5, "twos": 2.0}.get(method, 1.0)
    assert (centre.abs() == size).all()
    assert (centre.min() < 0) == (method in ("drawn_signs", "random_signs"))
    marked = reference.stage2[0].branch[3].weight == 1
    kept = model.stage2[0].branch[3].weight[~marked]
    assert torch.equal(kept, reference.stage2[0].branch[3].weight[~marked])


@pytest.mark.parametrize(("options", "same"), [(PUBLISHED, False), ({}, True)])
def test_rescaled_starts_train_alike_where_batch_norms_are_not_looked_through(options, same):
    """As the page says of sizes at random: not exactly without effect to the published rule."""

    def loss_after_a_step(method):
        torch.manual_seed(0)
        model = getattr(Starts("plainnet8-thin"), method)().double().train()
        images = torch.randn(4, 3, 32, 32, dtype=torch.float64)  # after the seed: always the same
        network = trace(model, images[:1])
        optimizer = GSGDOptimizer(model.parameters(), lr=0.1, network=network, **options)
        for _ in range(2):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), torch.arange(4))
            loss.backward()
            optimizer.step()
        return loss.item()

    one, other = map(loss_after_a_step, ("ones", "random_sizes"))
    assert (abs(one - other) < 1e-6 * one) == same


def test_starts_depend_on_the_seed():
    def weights(seed):
        torch.manual_seed(seed)
        return Starts("plainnet8-thin").ones().stem[0].weight.detach()

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


# Both presets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["quick", "paper"])
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.slug)
def test_plans_come_to_an_end(experiment, preset):
    execute, asked = made_up(lambda trial: 0.7 - (0.1 if trial.lr == 0.3 else 0))
    stated = experiment.preset(preset)
    findings = conduct(experiment.plan(stated.settings), execute)
    assert len(set(asked)) == stated.jobs  # no best rate is the common one
    assert findings.claims
    assert findings.statements
    assert findings.deviations
    for table in (findings.table(), *(block.table for block in findings.tables)):
        assert table.text()


def test_figures_are_drawn():
    execute, _ = made_up(by_arm(FROM_THE_START, penalty=0.05))
    findings = conduct(fig7.plan(QUICK_REGULARIZED), execute)
    for figure in findings.figures:
        assert figure.render("png").startswith(b"\x89PNG")


def few_images(name, *_, **__):
    generator = torch.Generator().manual_seed(0)
    classes = data.find_source(name).classes

    def split(count):
        images = torch.randint(256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
        return Split(images, torch.arange(count) % classes)

    return Dataset(name, split(8), split(4), classes=classes, maximum=255)


@pytest.fixture
def few_data(monkeypatch):
    monkeypatch.setattr(data, "load", few_images)
    loading._dataset.cache_clear()
    yield
    loading._dataset.cache_clear()


def few(trial):
    return replace(trial, iterations=2, batch=4, evaluate_on=("test",), lr=1e-3)


@pytest.mark.parametrize("network", ["plainnet34", "resnet34"])
def test_the_papers_networks_start(network, few_data):
    base = PAPER.trial(Case("cifar100", network))
    trial = regularize(sgd_and_gsgd(base)[GSGD], "BPR", 1e-4)
    assert train(few(trial)).final["iteration"] == 2


def test_starts_are_models_of_trials(few_data):
    (case,) = init.EXPERIMENT.quick.settings.cases
    arms = init.arms_of(replace(PAPER, networks=("plainnet8-thin",)), case)
    first, second = (train(few(arms["signs at random, sizes 1"])) for _ in range(2))
    assert first.final == second.final
    other = train(few(replace(arms["signs at random, sizes 1"], seed=1)))
    assert other.final != first.final
