"""What the experiments on flatness compute, and what they say about numbers that are known."""

import math
from dataclasses import asdict, replace

import pytest
import torch
from torch.nn.functional import cross_entropy

import pathspace as ps
from pathspace.experiments.executors import Result, compute
from pathspace.experiments.reproduce.running import conduct
from pathspace.experiments.reproduce.yi2019 import bounds, fig3, theorem32
from pathspace.experiments.reproduce.yi2019.along import bounds_of
from pathspace.experiments.reproduce.yi2019.driving import driven
from pathspace.experiments.reproduce.yi2019.effort import Effort
from pathspace.experiments.reproduce.yi2019.measuring import (
    flatnesses,
    pictures,
    rescaled_flatnesses,
    root_sizes,
)
from pathspace.experiments.reproduce.yi2019.trained import thin_plainnet18, trained
from pathspace.experiments.training import Outcome, Trial, train

MLP = Trial("mlp-nobias:64-6-6-10", "digits", lr=0.1, epochs=2)
EFFORT = Effort(
    images=40, epsilon=1e-3, sigma=1e-3, restarts=1, steps=5, pairs=4, method="exact"
)  # fmt: skip


@pytest.fixture(scope="module")
def perceptron():
    return train(MLP)


def test_a_trained_network_is_what_training_came_to(perceptron):
    one = trained(perceptron, None, dtype=torch.float64)
    split = one.dataset.train
    wrong = one.network.model(split.inputs).argmax(1) != split.targets
    assert float(wrong.double().mean()) == pytest.approx(perceptron.final["train_error"])
    assert len(one.images(7)) == 7
    start = train(replace(MLP, epochs=None, iterations=1, lr=1e-30)).weights
    for name, tensor in one.start.items():
        torch.testing.assert_close(tensor.float(), start[name])


def test_thin_plainnet18_takes_small_images():
    model = thin_plainnet18()
    network = ps.trace(model, torch.zeros(1, 3, 16, 16))
    assert model(torch.zeros(2, 3, 16, 16)).shape == (2, 10)
    assert network.m == 690_266


# Jobs --------------------------------------------------------------------------------------------


def test_rescaling_moves_weight_flatness_alone(perceptron):
    found = rescaled_flatnesses([perceptron], None, effort=asdict(EFFORT), spread=1.0)
    assert found["outputs"] < 1e-12
    for kind in ("ball", "trace", "expected"):
        before, after = (found[when]["paths"][kind]["value"] for when in ("before", "after"))
        assert after == pytest.approx(before, rel=1e-8)
        before, after = (found[when]["weights"][kind]["value"] for when in ("before", "after"))
        assert abs(after / before - 1) > 0.1


def test_roots_are_those_of_the_definition(perceptron):
    one = trained(perceptron, None)
    first, second, last = (p.detach().abs() for p in one.network.model.parameters())
    # By position: unit i goes on to unit i, then to output i; its root enters from input i.
    roots = [float(first[i, i] * second[i, i] * last[i, i]) for i in range(6)]
    found = root_sizes([perceptron], None)
    assert found["count"] == 6
    assert found["least"] == pytest.approx(min(roots), rel=1e-5)


def test_pictures_share_their_directions(perceptron):
    found = pictures(
        [perceptron, perceptron], None, images=20, grid=3, scale=1e-4, names=["a", "b"]
    )
    assert torch.equal(found["a"]["losses"], found["b"]["losses"])
    one = trained(perceptron, None)
    images = one.images(20)
    loss = float(cross_entropy(one.network.model(images.inputs), images.targets).detach())
    assert found["a"]["center"] == pytest.approx(loss, rel=1e-6)


def test_equation_6_and_theorem_3_2(perceptron):
    found = driven([perceptron], None, effort=asdict(EFFORT), factors=[1.0, 0.01])
    for one in found["unit"].values():
        assert one["trace"] == pytest.approx(one["equation"], rel=1e-9)
    start, end = found["layer"].values()
    assert found["unit"]["1"]["trace"] == pytest.approx(start["weights"]["trace"])
    assert found["unit"]["0.01"]["trace"] > 10 * found["unit"]["1"]["trace"]
    for kind in ("ball", "trace", "expected"):
        assert end["weights"][kind] > 3 * start["weights"][kind]
        assert end["paths"][kind] == pytest.approx(start["paths"][kind], rel=1e-8)
    # The ball with the proof's factors holds the constant function.
    proof = found["proof"]
    assert proof["constant"] == pytest.approx(math.log(10))
    assert proof["outputs"] < 1e-12


def test_bounds_bound(perceptron):
    found = bounds_of([perceptron], None, images=50, pairs=2, restarts=1, steps=5)
    assert found["ball"]["rise"] <= found["ball"]["bound"]
    for prior in ("zero", "start"):
        bayes = found["pac-bayes"][prior]
        assert 10 ** bayes["bound"] > bayes["flatness"]


# Statements --------------------------------------------------------------------------------------


def outcome(trial, error, loss=0.01):
    row = {"epoch": 1, "train_loss": loss, "train_error": 0.0, "test_error": error / 100}
    return Outcome(trial, "finished", "", [row], {})


def fig3_findings(sharp, error, *, moved=1.0, least=0.01, seeds=6):
    """What figure 3 says if the flatness of (batch, seed) is so, and the test error (%) is so."""
    settings = replace(fig3.QUICK, seeds=tuple(range(seeds)), grid=3)
    small = settings.batches[0]

    def answer(job):
        if isinstance(job, Trial):
            return outcome(job, error(job.batch == small, job.seed))
        name, trial = job.function.partition(":")[2], job.trials[0]
        value = sharp(trial.batch == small, trial.seed)

        def by_kind(factor=1.0):
            one = {"value": value * factor, "error": 0.1, "loss": 0.01, "reaches_end": False}
            return dict.fromkeys(("ball", "trace", "expected"), one)

        both = {"paths": by_kind(), "weights": by_kind()}
        if name == "root_sizes":
            return Result(job, {"count": 3, "least": least, "median": 2 * least})
        if name == "flatnesses":
            assert job.arguments["effort"]["epsilon"] == pytest.approx(least / 4)
            return Result(job, both)
        if name == "rescaled_flatnesses":
            after = {"paths": by_kind(moved), "weights": by_kind(7.0)}
            return Result(job, {"before": both, "after": after, "outputs": 0.0})
        axis = torch.linspace(-1, 1, 3, dtype=torch.float64)
        kept = {
            label: {
                "axes": [axis, axis],
                "losses": torch.full((3, 3), 1 + sharp(t.batch == small, t.seed)).double(),
                "outside": torch.zeros(3, 3, dtype=torch.bool),
                "center": 1.0,
                "labels": ["x", "y"],
                "scale": job.arguments["scale"],
                "reach": 2.0,
            }
            for label, t in zip(job.arguments["names"], job.trials, strict=True)
        }
        return Result(job, kept)

    return conduct(fig3.plan(settings), lambda jobs: [answer(job) for job in jobs])


def said(found, part):
    (statement,) = [text for text in found.statements if part in text]
    return statement


def verdicts(found, group):
    return {claim.what: claim.verdict for claim in found.claims if group in claim.group}


def test_flatter_is_better_is_said_if_all_pairs_show_it():
    found = fig3_findings(
        lambda small, seed: 1.0 + seed / 10 if small else 3.0 - seed / 10,
        lambda small, seed: 30.0 + seed - 5 * small,
    )
    statement = said(found, "has the lower test error")
    assert "6 of 6, p = 0.031" in statement
    assert "the flatter network generalizes better" in statement
    assert set(verdicts(found, "Flatter generalizes better").values()) == {"seen"}
    assert verdicts(found, "log₁₀")["PSI-flatness, ball"] == "seen"
    assert verdicts(found, "both networks")["test accuracy, small − large batch"] == "seen"
    assert "PSI-flatnesses stay" in said(found, "random rescaling")
    assert "multiplied by 7 to 7" in said(found, "random rescaling")
    assert "at the published 0.05 roots go through zero" in said(found, "least root of all")


def test_the_contrary_is_said_too():
    found = fig3_findings(
        lambda small, seed: 3.0 + seed / 10 if small else 1.0,
        lambda small, seed: 30.0 + seed - 5 * small,
    )
    assert "says the contrary" in said(found, "has the lower test error")
    assert set(verdicts(found, "Flatter generalizes better").values()) == {"contrary"}


def test_few_pairs_decide_nothing():
    found = fig3_findings(
        lambda small, seed: 1.0 if small else 3.0,
        lambda small, seed: 30.0 + seed - 5 * small,
        seeds=3,
    )
    assert "p cannot be below 0.25" in said(found, "has the lower test error")


def test_a_psi_flatness_that_moved_is_reported():
    found = fig3_findings(lambda small, seed: 1.0, lambda small, seed: 30.0 + seed, moved=1.01)
    assert "PSI-flatnesses move" in said(found, "random rescaling")
    (claim,) = [c for c in found.claims if c.what.startswith("PSI-flatness: largest")]
    assert claim.number == pytest.approx(0.01)


def test_diverged_pairs_are_left_out_and_counted():
    settings = replace(fig3.QUICK, seeds=(0, 1))
    found = conduct(
        fig3.plan(settings),
        lambda jobs: [
            replace(outcome(job, 50.0), status="diverged") if isinstance(job, Trial) else None
            for job in jobs
        ],
    )
    assert "there is no flatness to compare" in found.statements[-1]


def test_vacuous_bounds_are_called_that():
    settings = replace(bounds.QUICK, iterations=(1, 10), seeds=(0, 1))

    def findings(log10):
        def answer(job):
            if isinstance(job, Trial):
                return outcome(job, 10.0 + job.iterations)
            length = job.trials[0].iterations
            bayes = {"bound": log10 + length / 100, "KL": 2.0, "sigma": 0.1, "flatness": 0.1}
            ball = {"bound": 20.0 + length, "rise": -5.0, "epsilon": 1e-6, "balance": 1e4}
            return Result(job, {"pac-bayes": {"zero": bayes, "start": bayes}, "ball": ball})

        return conduct(bounds.plan(settings), lambda jobs: [answer(job) for job in jobs])

    high, low = findings(0.5), findings(-1.0)
    assert "it never says anything about an error" in high.statements[0]
    assert "says nothing at 0 of 4 checkpoints" in low.statements[0]
    assert "35 orders of magnitude" in high.statements[1]
    for found, word in ((high, "vacuous"), (low, "not vacuous")):
        (claim, _) = [c for c in found.claims if c.what.startswith("Eq. (8), error")]
        assert claim.verdict == word
    assert {c.verdict for c in high.claims if "Kendall" in c.what} == {"seen"}


def test_jobs_are_importable():
    for function in (flatnesses, rescaled_flatnesses, pictures, root_sizes, driven, bounds_of):
        assert compute(function).resolve() is function
    assert theorem32.QUICK.factors[0] == 1.0
