"""The parts of the engine, each against something slow and obviously right."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pathspace as ps
from pathspace.experiments.training import (
    INITIALISATIONS,
    OPTIMIZERS,
    RULES,
    SCHEDULES,
    Ranking,
    Trial,
    TrialError,
    truncated_softmax,
)
from pathspace.experiments.training.initialisation import parse_initialisation
from pathspace.experiments.training.naming import build
from pathspace.experiments.training.ranking import item_ranks, top_scores
from pathspace.experiments.training.regularizers import insert_dropout_, parse_penalty
from pathspace.experiments.training.schedules import parse_schedule
from pathspace.experiments.training.stopping import parse_rule
from trials import few_pairs, small


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# Losses ------------------------------------------------------------------------------------------


def f(x):
    return math.exp(x) if x >= -11 else math.exp(-11) * max(x + 13, 0) ** 2 / 4


def test_truncated_softmax_is_the_formula():
    scores = 8 * torch.randn(200, 7, generator=seeded(), dtype=torch.float64)
    targets = torch.randint(7, (200,), generator=seeded(1))
    slow = [
        math.log(sum(f(s - row[c]) for s in row))
        for row, c in zip(scores.tolist(), targets.tolist(), strict=True)
    ]
    expected = torch.tensor(slow, dtype=torch.float64).mean()
    torch.testing.assert_close(truncated_softmax(scores, targets), expected)
    x = scores - scores.gather(1, targets[:, None])
    for part in (x > -11, (x > -13) & (x < -11), x < -13):
        assert part.any()  # all branches were met


def test_truncated_softmax_has_a_gradient_everywhere():
    scores = torch.tensor(
        [[0.0, -11.0, -13.0, -12.0, -40.0, 5.0], [30.0, 0, 0, 0, 0, 0]], dtype=torch.float64
    ).requires_grad_()
    targets = torch.tensor([0, 0])
    truncated_softmax(scores, targets).backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[1] == 0).all()  # margins above 13: nothing to do
    smooth = torch.tensor([[0.0, -12.0, 2.0], [0.0, -10.0, -12.9]], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda s: truncated_softmax(s, targets), smooth.requires_grad_()
    )


def test_truncated_softmax_stays_near_cross_entropy():
    scores = 10 * torch.randn(500, 10, generator=seeded(), dtype=torch.float64)
    targets = torch.randint(10, (500,), generator=seeded(1))
    for row, target in zip(scores.split(1), targets.split(1), strict=True):
        difference = truncated_softmax(row, target) - F.cross_entropy(row, target)
        assert difference.abs() <= 3e-6 * 10
    large = torch.tensor([[-1e4, 1e4]])
    assert truncated_softmax(large, torch.tensor([0])) == 2e4  # does not overflow


# Ranking -----------------------------------------------------------------------------------------


def test_ranking_metrics_are_those_of_a_slow_reference():
    pairs = few_pairs()
    items = pairs.candidates
    scores = torch.randint(5, items.shape, generator=seeded()).float()  # many ties
    found = top_scores(item_ranks(scores, items))
    for k in (1, 5, 10):
        hits = gain = 0.0
        for row in scores.tolist():
            rank = sum(score >= row[0] for score in row[1:])
            hits += rank < k
            gain += math.log(2) / math.log(rank + 2) if rank < k else 0
        assert found[f"hr@{k}"] == pytest.approx(hits / len(items))
        assert found[f"ndcg@{k}"] == pytest.approx(gain / len(items))


def test_a_model_without_opinion_or_with_nan_hits_nothing():
    items = few_pairs().candidates
    for value in (0.0, math.nan):
        scores = torch.full(items.shape, value)
        assert top_scores(item_ranks(scores, items))["hr@10"] == 0


def test_the_test_item_among_its_negatives_does_not_count():
    items = torch.tensor([[4, 1, 4, 2]])
    assert item_ranks(torch.tensor([[1.0, 2.0, 1.0, 0.0]]), items).tolist() == [1]


def test_ranking_asks_the_model_about_every_pair():
    pairs = few_pairs()

    class Knows(nn.Module):
        def forward(self, users, items):
            return (pairs.test_items[users] == items).float()[:, None]

    metrics = Ranking(pairs, 16).evaluate(Knows(), F.mse_loss, lambda: None)
    assert metrics["test_hr@1"] == metrics["test_ndcg@10"] == 1


# Schedules and rules -----------------------------------------------------------------------------


def test_diminishing_is_the_recurrence_of_the_paper():
    schedule, rate, momentum = parse_schedule("diminishing"), 1.0, 0.5
    for epoch in range(60):
        rates = schedule.rates(0, epoch, 0)
        assert rates.factor == pytest.approx(rate)
        assert rates.momentum == pytest.approx(momentum)
        rate, momentum = 0.99 * rate, min(0.9, momentum + 0.02)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("constant", {0: 1, 99: 1}),
        ("steps:32:48", {31: 1, 32: 0.1, 47: 0.1, 48: 0.01}),
        ("steps:3:factor=0.5:unit=epochs", {29: 1, 30: 0.5}),
        ("exponential:0.5", {9: 1, 10: 0.5, 20: 0.25}),
        ("cosine", {0: 1, 50: 0.5, 100: 0}),
        ("cosine:warmup=10:final=0.1", {0: 0.1, 9: 1, 10: 1, 55: 0.55, 100: 0.1}),
        ("one-cycle:peak=0.5:start=0.1:final=0.01", {0: 0.1, 50: 1, 100: 0.01}),
    ],
)
def test_schedules(text, expected):
    schedule = parse_schedule(text)
    found = {i: schedule.rates(i, i // 10, 100).factor for i in expected}
    assert found == pytest.approx(expected)


def test_every_schedule_and_rule_has_a_first_value():
    for name in SCHEDULES:
        text = "steps:5" if name == "steps" else name
        assert parse_schedule(text).rates(0, 0, 10).factor > 0
    for name in RULES:
        assert parse_rule(name).reason([]) is None


def test_rules():
    def row(train_error, train_loss, validation_error=None):
        return locals()

    rows = [row(0.5, 1.0, 0.3), row(0.0, 0.2, 0.2), row(0.0, 0.0, 0.25)]

    def stops_at(text):
        return next((n for n in range(1, 4) if parse_rule(text).reason(rows[:n])), None)

    assert stops_at("never") is None
    assert stops_at("training-error") == 2
    assert stops_at("training-loss:0.5") == 2
    assert stops_at("converged") == 3
    assert stops_at("converged:loss=0.2") == 2
    assert stops_at("overfitting:1") == 3
    assert stops_at("overfitting:2") is None


# Initialisation, penalties, dropout --------------------------------------------------------------


def test_spread_of_drawn_weights():
    model = nn.Sequential(nn.Linear(300, 600), nn.ReLU(), nn.Conv2d(8, 50, 5), nn.BatchNorm2d(50))
    expected = {
        "he": (2 / 300, 2 / 200),
        "balanced": (1 / 300, 1 / 200),
        "glorot": (2 / 900, 2 / (200 + 50 * 25)),
        "torch": (1 / 900, 1 / 600),  # uniform on ±1/sqrt(fan-in)
    }
    for name, variances in expected.items():
        parse_initialisation(name).draw(model, seeded())
        for layer, variance in zip((model[0], model[2]), variances, strict=True):
            assert layer.weight.var().item() == pytest.approx(variance, rel=0.05), name
            assert (layer.bias == 0).all() == (name != "torch")
        assert (model[3].weight == 1).all()


def test_unbalancing_keeps_the_function_and_skeleton_initialisation_does_not():
    model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 3)).double()
    x = torch.randn(7, 5, dtype=torch.float64, generator=seeded())
    network = ps.trace(model, x)
    before, weight = model(x).detach(), model[0].weight.detach().clone()
    parse_initialisation("unbalanced:50").change(network, seeded())
    torch.testing.assert_close(model(x).detach(), before)
    assert (model[0].weight / weight).abs().max() > 50
    parse_initialisation("skeleton").change(network, seeded())
    assert (model(x) - before).abs().max() > 0.1


def test_every_initialisation_can_be_parsed():
    for name in INITIALISATIONS:
        parse_initialisation(name)


def test_penalties_are_those_of_the_library():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    network = ps.trace(model, torch.ones(1, 3))
    made = parse_penalty("basis-path:0.1:lam2=0.3:exact=true")(network)
    torch.testing.assert_close(made(), ps.BasisPathPenalty(network, 0.1, 0.3, exact=True)())
    made = parse_penalty("path-norm:0.1:p=1")(network)
    torch.testing.assert_close(made(), 0.05 * ps.path_norm(network, 1) ** 2)


def test_dropout_keeps_names_and_eval_mode():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    x = torch.randn(5, 3, generator=seeded())
    names, before = list(model.state_dict()), model(x)
    insert_dropout_(model, 0.5)
    model.eval()
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(x), before)
    with pytest.raises(TrialError, match="has none"):
        insert_dropout_(nn.Linear(2, 2), 0.5)


# Names and trials --------------------------------------------------------------------------------


def test_arguments_in_names():
    def made(*at: int, factor: float = 1.0, word: str = "a", flag: bool = False) -> tuple:
        return at, factor, word, flag

    table = {"made": made}
    assert build("thing", "made:1:2:factor=3", table) == ((1, 2), 3.0, "a", False)
    assert build("thing", "made: word = b : flag=true", table) == ((), 1.0, "b", True)
    for text, words in {
        "mad": "did you mean 'made'",
        "made:1.5": "at should be a list, each a whole number",
        "made:factor=x": "factor should be a number, not 'x'",
        "made:facto=1": "unexpected keyword",
        "made:flag=1": "flag should be true or false",
    }.items():
        with pytest.raises(TrialError, match=words):
            build("thing", text, table)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimiser": "sgd"}, r"unknown setting 'optimiser'; did you mean 'optimizer'"),
        ({"lr": "0.1"}, "lr should be a number or nothing, not '0.1'"),
        ({"epochs": 1.5}, "epochs should be a whole number"),
        ({"epochs": True}, "epochs should be a whole number"),
        ({"drop_last": 1}, "drop_last should be true or false"),
        ({"preprocess": "flatten"}, "preprocess should be a list"),
        ({"preprocess": ["flaten"]}, "unknown step 'flaten'; did you mean 'flatten'"),
        ({"dtype": "float16"}, "dtype should be 'float32' or 'float64'"),
        ({"optimizer": "gsdg"}, "unknown optimizer 'gsdg'; did you mean 'gsgd'"),
        ({"options": {"momentun": 0.9}}, "did you mean 'momentum'"),
        ({"options": {"nesterov": "yes"}}, "nesterov of sgd should be true or false"),
        ({"options": {"lr": 0.1}}, "lr is a setting of the trial"),
        ({"optimizer": "adam", "options": {"betas": [0.9]}}, "betas of adam should be a list of 2"),
        ({"schedule": "step:10"}, "unknown schedule 'step'; did you mean 'steps'"),
        ({"optimizer": "adam", "schedule": "diminishing"}, "sets the momentum, which adam has not"),
        ({"loss": "cross_entropy"}, "did you mean 'cross-entropy'"),
        ({"loss": "binary-cross-entropy"}, "is not for digits"),
        ({"init": "hee"}, "did you mean 'he'"),
        ({"penalties": ["basis-path"]}, "missing a required argument: 'lam1'"),
        ({"stop": "overfitting:5"}, "put validation_split:10000 into preprocess"),
        ({"stop": "converged", "evaluate_on": ["test"]}, "put 'train' into evaluate_on"),
        ({"evaluate_on": ["tests"]}, "evaluate_on should be a list"),
        ({"epochs": 2, "iterations": 5}, "both given"),
        ({"batch": 0}, "batch should be at least 1"),
        ({"lr": math.inf}, "lr should be at least 0"),
        ({"dropout": 1.0}, "dropout should be from 0"),
        ({"device": "gpu"}, "try cpu, cuda or mps"),
        ({"device": "meta"}, "not supported"),
        ({"device": "mps", "dtype": "float64"}, "mps has no float64"),
        ({"mixed": "bfloat16", "dtype": "float64"}, "mixed: bfloat16 is for dtype float32"),
        ({"model": "mlp:4-x"}, "ill-formed model"),
        ({"data": "digit"}, "did you mean 'digits'"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings, words):
    with pytest.raises(ps.PathspaceError, match=words):
        Trial.from_dict({"model": "mlp:64-8-10", "data": "digits"} | settings)


def test_a_trial_needs_model_and_data():
    with pytest.raises(TrialError, match="data is missing"):
        Trial.from_dict({"model": "mlp:64-8-10"})


def test_key_depends_on_what_matters_alone():
    trial = small()
    settings = trial.to_dict()
    backwards = Trial.from_dict(dict(reversed(settings.items())))
    assert backwards == trial
    assert backwards.key == trial.key
    assert hash(backwards) == hash(trial)
    assert len({small(seed=seed).key for seed in range(5)}) == 5
    assert small(options={"momentum": 0.5}).key != trial.key
    assert small(lr=1).key == small(lr=1.0).key
    # Said or left open, it is the same.
    assert small(loss="cross-entropy", init="he").key == trial.key
    options = {"momentum": 0.9, "nesterov": True}
    other = dict(reversed(options.items()))
    assert small(options=options).key == small(options=other).key


def test_key_stays_what_it_was():
    """Stores that exist must find their trials again; change this only with the store's format."""
    trial = Trial("mlp:64-8-10", "digits", lr=0.1, epochs=2)
    assert trial.key == "df43155afd91b3eafa169c0f2c9aaa749841d9528e04ab030a0733cfca98b543"


def test_every_optimizer_says_what_it_takes():
    for name, entry in OPTIMIZERS.items():
        trial = small(optimizer=name, lr=None)
        assert trial.lr == entry.lr > 0
        assert "lr" not in entry.options
