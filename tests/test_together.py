"""Trials in one tensor program come to what they come to alone."""

import os
import random
import signal
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pathspace as ps
from pathspace.experiments.store import TrialStore
from pathspace.experiments.together import Fleet, Stack, groups, train_together
from pathspace.experiments.together.losses import cross_entropies
from pathspace.experiments.together.states import Correspondence
from pathspace.experiments.training import Trial, TrialError, TrialInterrupted, train
from trials import contents, die, end_of, fork, small

# What the trials of a group differ in: (settings of all, settings of each).
CASES = {
    "sgd": ({}, [{"lr": 0.1}, {"lr": 0.3, "seed": 1}, {"lr": 0.01, "weight_decay": 1e-2}]),
    "momentum": (
        {"schedule": "diminishing"},
        [{"options": {"momentum": m, "dampening": d}} for m, d in ((0.9, 0.1), (0.5, 0.2))],
    ),
    "nesterov": (
        {"schedule": "cosine"},
        [{"options": {"momentum": m, "nesterov": True}} for m in (0.9, 0.5)],
    ),
    "adagrad": (
        {"optimizer": "adagrad"},
        [{"options": {"lr_decay": d, "eps": e}} for d, e in ((0.1, 1e-3), (0.2, 1e-2))],
    ),
    "adam": (
        {"optimizer": "adam", "lr": 0.01},
        [{"options": {"betas": b, "eps": e}} for b, e in (([0.9, 0.99], 1e-8), ([0.5, 0.9], 1e-3))],
    ),
    "amsgrad": ({"optimizer": "adam", "options": {"amsgrad": True}}, [{"seed": 0}, {"seed": 1}]),
    "gsgd": ({"optimizer": "gsgd"}, [{"lr": 0.1}, {"lr": 1.0, "seed": 1}, {"lr": 0.01}]),
    "gsgd, momentum": (
        {"optimizer": "gsgd", "lr": 0.5},
        [{"options": {"momentum": m}, "seed": s} for m, s in ((0.9, 0), (0.5, 1))],
    ),
    "gsgd, largest": (
        {"optimizer": "gsgd", "options": {"skeleton": "largest"}},
        [{"seed": s} for s in range(3)],
    ),
    "gsgd, as published": (
        {
            "optimizer": "gsgd",
            "options": {"metric": "paper", "roots": "additive", "start": "skeleton_init"},
        },
        [{"lr": 0.1}, {"lr": 0.01, "seed": 1}],
    ),
    "gsgd, bp_decay": (
        {"optimizer": "gsgd"},
        [{"options": {"bp_decay": d}} for d in (0.1, 0.01, (0.02, 0.03))],
    ),
    "gadam": ({"optimizer": "gadam", "lr": 0.01}, [{"seed": 0}, {"lr": 0.1}]),
    "gadagrad": ({"optimizer": "gadagrad"}, [{"seed": 0}, {"lr": 0.1}]),
    "pathsgd": ({"optimizer": "pathsgd"}, [{"seed": 0}, {"lr": 0.3}]),
    "pathsgd, p": ({"optimizer": "pathsgd", "options": {"p": 1.0}}, [{"seed": 0}, {"lr": 0.3}]),
    "pathadam": ({"optimizer": "pathadam"}, [{"seed": 0}, {"lr": 0.1}]),
    "penalties": (
        {},
        [
            {"penalties": [f"basis-path:{a}:{b}", f"path-norm:{c}"]}
            for a, b, c in ((1e-3, 1e-2, 1e-3), (1e-2, 1e-3, 0.0))
        ],
    ),
    "exact penalty": (
        {"optimizer": "gsgd"},
        [{"penalties": [f"basis-path:{a}:exact=true"]} for a in (1e-3, 1e-2)],
    ),
    "dropout": ({"dropout": 0.5, "model": "mlp:64-12-8-10"}, [{"seed": 0}, {"seed": 1}]),
    "initial scale": ({"optimizer": "pathsgd"}, [{"init": "he"}, {"init": "unbalanced:20"}]),
    "truncated softmax": ({"loss": "truncated-softmax"}, [{"seed": 0}, {"seed": 1}]),
    "no biases": ({"model": "mlp-nobias:64-12-10", "optimizer": "gsgd"}, [{"seed": 0}, {"lr": 1}]),
    "iterations": ({"epochs": None, "iterations": 13}, [{"seed": 0}, {"seed": 1}]),
    "one layer": ({"model": "mlp:64-10", "optimizer": "gsgd"}, [{"seed": 0}, {"seed": 1}]),
    "stops": (
        {"stop": "training-error:0.05", "epochs": 20, "evaluate_every": 2},
        [{"lr": 1.0}, {"lr": 0.01}],
    ),
}


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    """A killed process loses nothing that it wrote: forcing it to the disk is for power cuts."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def family(case, **settings):
    common, each = CASES[case]
    return [small(**common | one | settings) for one in each]


def assert_same(found, alone, tolerance):
    assert (found.status, found.reason) == (alone.status, alone.reason)
    assert len(found.curves) == len(alone.curves)
    for row, other in zip(found.curves, alone.curves, strict=True):
        assert row.keys() == other.keys()
        for name, value in other.items():
            assert row[name] == (None if value is None else pytest.approx(value, rel=tolerance))


@pytest.mark.parametrize("case", CASES)
def test_together_is_as_alone(case):
    trials = family(case, dtype="float64")
    assert groups(trials) == [trials]
    for found, trial in zip(train_together(trials), trials, strict=True):
        alone = train(trial)
        assert_same(found, alone, 1e-9)
        for name, weight in alone.weights.items():
            assert torch.allclose(found.weights[name], weight, rtol=1e-7, atol=1e-9), name


@pytest.mark.parametrize("case", ["sgd", "gsgd", "pathsgd", "adam"])
def test_in_float32_they_agree_to_rounding(case):
    trials = family(case)
    for found, trial in zip(train_together(trials), trials, strict=True):
        alone = train(trial)
        assert found.final["train_loss"] == pytest.approx(alone.final["train_loss"], rel=1e-4)
        assert found.final["test_error"] == pytest.approx(alone.final["test_error"], abs=0.021)


@pytest.mark.parametrize("optimizer", ["sgd", "gsgd", "pathsgd", "gadam"])
def test_a_diverging_trial_does_not_touch_the_others(optimizer):
    calm = small(optimizer=optimizer, dtype="float64")
    wild = [replace(calm, lr=1e30, seed=1), replace(calm, lr=1e6, seed=2), replace(calm, lr=1e300)]
    with_wild = train_together([calm, *wild, replace(calm, seed=3)])
    for found, trial in ((with_wild[0], calm), (with_wild[-1], replace(calm, seed=3))):
        assert_same(found, train(trial), 1e-9)
    for found, trial in zip(with_wild[1:-1], wild, strict=True):
        alone = train(trial)
        assert (found.status, found.reason) == (alone.status, alone.reason)
    if optimizer == "sgd":
        assert "diverged" in [outcome.status for outcome in with_wild]


def test_labels_may_differ():
    steps = small().preprocess
    trials = [
        small(preprocess=(*steps, f"corrupt_labels:{k}"), dtype="float64") for k in (0.2, 0.8)
    ]
    (group,) = groups(trials)
    found = train_together(group)
    assert found[0].final["train_loss"] != found[1].final["train_loss"]
    for outcome, trial in zip(found, trials, strict=True):
        assert_same(outcome, train(trial), 1e-9)


# Groups ------------------------------------------------------------------------------------------


def test_groups_keep_apart_what_differs_in_kind():
    base = small()
    alone = [
        replace(base, batch=16),
        replace(base, model="mlp:64-13-10"),
        replace(base, optimizer="gsgd"),
        replace(base, dropout=0.1),
        replace(base, epochs=4),
        replace(base, options={"momentum": 0.9}),
        replace(base, schedule="cosine"),
        replace(base, penalties=("basis-path:1e-3",)),
        replace(base, penalties=("basis-path:1e-3:exact=true",)),
    ]
    assert [len(group) for group in groups([base, *alone])] == [1] * 10


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "balancedsgd"},
        {"optimizer": "adamw"},
        {"optimizer": "pathsgd", "options": {"every": 2}},
        {"optimizer": "gsgd", "options": {"nonfinite": "raise"}},
        {"model": "mlp-bn:64-12-10"},
        {"penalties": ("path-norm:1e-3:1.5",)},
        {"mixed": "bfloat16"},
    ],
)
def test_what_cannot_be_stacked_runs_alone(settings):
    trials = [small(**settings, seed=seed) for seed in (0, 1)]
    assert [len(group) for group in groups(trials)] == [1, 1]
    with pytest.raises(TrialError, match="cannot run together"):
        train_together(trials)


def test_groups_are_even_and_every_trial_is_in_one():
    trials = [small(seed=seed) for seed in range(100)]
    found = groups([*trials, trials[0]])
    assert [trial for group in found for trial in group] == trials
    assert {len(group) for group in found} == {50}


# Interrupted and killed --------------------------------------------------------------------------


def interrupt_at(monkeypatch, *iterations):
    advance, seen = Fleet.advance, set()

    def advance_and_signal(self):
        advance(self)
        if self.lead.iteration in iterations and self.lead.iteration not in seen:
            seen.add(self.lead.iteration)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Fleet, "advance", advance_and_signal)


@pytest.mark.parametrize("case", ["gsgd, momentum", "pathadam", "dropout", "momentum", "penalties"])
def test_interrupted_is_the_same_as_undisturbed(case, tmp_path, monkeypatch):
    trials = family(case)
    whole = train_together(trials, tmp_path / "whole")
    interrupt_at(monkeypatch, 2, 5, 11)
    count = 0
    while True:
        try:
            parts = train_together(trials, tmp_path / "parts")
            break
        except TrialInterrupted:
            count += 1
    assert count == 3
    for one, other in zip(whole, parts, strict=True):
        assert contents(one.folder) == contents(other.folder)


def test_killed_at_random_moments_is_the_same_as_undisturbed(tmp_path):
    trials = family("gsgd, momentum")
    whole = train_together(trials, tmp_path / "whole")
    store = TrialStore(tmp_path / "killed")
    moments = random.Random(0)

    def until(step):
        advance = Fleet.advance

        def advance_and_die(self):
            advance(self)
            if self.lead.iteration >= step:
                die()

        Fleet.advance = advance_and_die
        train_together(trials, store, checkpoint_every=0)

    for _ in range(10):
        if end_of(fork(lambda: until(moments.randrange(1, 16)))) == 0:
            break
    for one, other in zip(whole, train_together(trials, store), strict=True):
        assert contents(one.folder) == contents(other.folder)


def test_a_trial_goes_on_alone_or_in_other_company(tmp_path, monkeypatch):
    trials = [small(optimizer="gsgd", seed=seed, dtype="float64") for seed in range(3)]
    interrupt_at(monkeypatch, 7)
    with pytest.raises(TrialInterrupted):
        train_together(trials, tmp_path)
    monkeypatch.undo()
    alone = train(trials[0], tmp_path)
    rest = train_together(trials[1:], tmp_path)
    for found, trial in zip([alone, *rest], trials, strict=True):
        assert_same(found, train(trial), 1e-9)


def test_finished_trials_are_fetched(tmp_path):
    trials = [small(seed=seed) for seed in range(3)]
    train(trials[1], tmp_path)
    assert [outcome.was_there for outcome in train_together(trials, tmp_path)] == [0, 1, 0]
    assert all(outcome.was_there for outcome in train_together(trials, tmp_path))


# The stack itself --------------------------------------------------------------------------------


def networks(count=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    models = []
    for _ in range(count):
        layers = [nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 6, bias=False), nn.ReLU()]
        model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(6, 2)).to(dtype)
        for parameter in model.parameters():
            parameter.data.normal_(generator=generator)
        models.append(model)
    return models


def test_both_ways_to_compute_a_stack_agree():
    models = networks()
    stack = Stack(models)
    x = torch.randn(3, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([model(part) for model, part in zip(models, x, strict=True)])
    assert torch.allclose(stack.run(x), expected)
    grouped = stack(x.transpose(0, 1).reshape(7, 15, 1)).view(7, 3, 2).transpose(0, 1)
    assert torch.allclose(grouped, expected)


def test_gradients_in_closed_form_are_those_of_autograd():
    models = networks()
    stack = Stack(models)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 7, 5, dtype=torch.float64, generator=generator)
    targets = torch.randint(2, (3, 7), generator=generator)

    found = stack.gradients(x, lambda outputs: cross_entropies(outputs, targets))
    for number, model in enumerate(models):
        loss = F.cross_entropy(model(x[number]), targets[number])
        loss.backward()
        assert found[number].item() == pytest.approx(loss.item())
        for mine, theirs in zip(stack.parameters(), model.parameters(), strict=True):
            assert torch.allclose(mine.grad[number], theirs.grad)


@pytest.mark.parametrize("make", [ps.optim.GSGD, ps.optim.GAdam, ps.optim.PathSGD])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e308])
def test_a_network_whose_gradient_is_not_finite_rests_while_the_others_step(make, bad):
    def trained(numbers, bad=None):
        stack = Stack(networks())
        optimizer = make(stack.parameters(), lr=0.01, network=stack.network())
        for number in numbers:
            generator = torch.Generator().manual_seed(number)
            for parameter in stack.parameters():
                size, dtype = parameter.shape, parameter.dtype
                parameter.grad = torch.randn(size, dtype=dtype, generator=generator)
                if number == 2 and bad is not None:
                    parameter.grad[1] = bad
            before = [parameter[1].detach().clone() for parameter in stack.parameters()]
            optimizer.step()
            if number == 2 and bad is not None:
                assert all(map(torch.equal, before, (p[1] for p in stack.parameters())))
        return optimizer, [parameter.detach() for parameter in stack.parameters()]

    optimizer, found = trained(range(6), bad)
    assert optimizer.skipped.tolist() == [0, 1, 0]
    for mine, all_well, one_less in zip(
        found, trained(range(6))[1], trained([0, 1, 3, 4, 5])[1], strict=True
    ):
        torch.testing.assert_close(mine[::2], all_well[::2], rtol=1e-12, atol=1e-14)
        if make is not ps.optim.GAdam:  # which counts steps for all of them
            torch.testing.assert_close(mine[1], one_less[1], rtol=1e-12, atol=1e-14)


def test_roots_that_would_go_through_zero_are_counted_by_network():
    stack = Stack(networks())
    network = stack.network()
    optimizer = ps.optim.GSGD(
        stack.parameters(), lr=1.0, network=network, roots="additive", metric="paper"
    )
    generator = torch.Generator().manual_seed(2)
    for parameter in stack.parameters():
        parameter.grad = torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)
        parameter.grad[1:] *= 1e-9
    optimizer.step()
    limited = optimizer.space.limited
    assert limited.shape == (3,)
    assert limited[0] > 0
    assert limited[1:].tolist() == [0, 0]


def test_path_norms_of_a_stack_are_those_of_its_networks():
    models = networks()
    network = Stack(models).network()
    singles = [ps.trace(model, torch.ones(1, 5, dtype=torch.float64)) for model in models]
    total = sum(ps.path_norm(single, 2.0).item() ** 2 for single in singles)
    assert ps.path_norm(network, 2.0).item() ** 2 == pytest.approx(total)
    assert sum(single.H for single in singles) == network.H
    relation = Correspondence(network, singles[0])
    assert sorted(relation.scales[:, 1:].flatten().tolist()) == list(range(1, network.H + 1))
    assert torch.equal(
        network.copy_of[relation.scales[:, 1:]], torch.arange(3)[:, None].expand(3, 10)
    )


def test_numbers_of_weights_go_there_and_back():
    models = networks()
    network = Stack(models).network()
    single = ps.trace(models[0], torch.ones(1, 5, dtype=torch.float64))
    relation = Correspondence(network, single)
    numbers = torch.arange(-1, single.m).expand(3, -1)
    joined = relation.join_numbers(numbers)
    assert sorted(joined[:, 1:].flatten().tolist()) == list(range(network.m))
    assert torch.equal(relation.split_numbers(joined), numbers)


def test_other_layers_are_refused_by_name():
    with pytest.raises(TypeError, match="BatchNorm1d cannot be stacked"):
        Stack([nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))] * 2)


def test_one_trial_may_be_of_any_kind():
    trial = small(model="mlp-bn:64-12-10")
    assert_same(train_together([trial])[0], train(trial), 1e-6)


def test_models_by_import_run_alone():
    trials = [Trial("torch.nn:Identity", "digits", seed=seed) for seed in (0, 1)]
    assert [len(group) for group in groups(trials)] == [1, 1]


@pytest.mark.parametrize("make", [ps.optim.GSGD, ps.optim.PathSGD])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_networks_of_few_units_step_as_alone(make, width):
    generator = torch.Generator().manual_seed(0)
    models = []
    for _ in range(2):
        layers = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        models.append(nn.Sequential(nn.Flatten(), *layers, nn.Linear(width, width)).double())
        for parameter in models[-1].parameters():
            parameter.data.normal_(generator=generator)
    stack = Stack(models)
    together = make(stack.parameters(), lr=0.01, network=stack.network())
    x = torch.ones(1, width, dtype=torch.float64)
    alone = [make(m.parameters(), lr=0.01, network=ps.trace(m, x)) for m in models]
    for _ in range(3):
        for whole, *parts in zip(*(m.parameters() for m in (stack, *models)), strict=True):
            drawn = torch.randn(whole.shape, dtype=torch.float64, generator=generator)
            whole.grad = drawn
            for part, own in zip(parts, drawn, strict=True):
                part.grad = own.reshape(part.shape).clone()
        for optimizer in (together, *alone):
            optimizer.step()
    for whole, *parts in zip(*(m.parameters() for m in (stack, *models)), strict=True):
        for found, part in zip(whole.detach(), parts, strict=True):
            expected = part.detach().reshape(found.shape)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
