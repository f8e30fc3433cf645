"""The engine: what it computes is what one would write by hand, and nothing else changes."""

import dataclasses
import signal
import sys
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pathspace as ps
from pathspace.experiments import data, models
from pathspace.experiments.training import (
    OPTIMIZERS,
    Quiet,
    Training,
    Trial,
    TrialError,
    engine,
    isolated,
    loading,
    train,
)
from pathspace.experiments.training.preparation import derived_generator
from pathspace.experiments.training.tensorboard import TensorBoard
from pathspace.penalties import BasisPathPenalty, PathNormPenalty
from trials import few_pairs, small


def by_hand(trial, *, rates=lambda iteration, epoch: {}, penalty=None):
    """The training loop as one would write it for one trial, with its metrics at the end."""
    steps = data.parse_steps(trial.preprocess)
    dataset = data.load("digits").apply(*steps)
    model = models.build(trial.model, torch.Generator().manual_seed(trial.seed))
    entry = OPTIMIZERS[trial.optimizer]
    network = ps.trace(model, dataset.train.inputs[:1])
    extra = {"network": network} if entry.needs_network else {}
    optimizer = entry.constructor(
        model.parameters(), lr=trial.lr, weight_decay=trial.weight_decay, **trial.options, **extra
    )
    term = None if penalty is None else penalty(network)
    generator = derived_generator(trial.seed, "order")
    iteration = 0
    for epoch in range(trial.epochs):
        order = torch.randperm(len(dataset.train), generator=generator)
        for index in order.split(trial.batch):
            for group in optimizer.param_groups:
                group.update(rates(iteration, epoch))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(dataset.train.inputs[index]), dataset.train.targets[index])
            loss.backward()
            if term is not None:
                term.add_to_gradients_()
            optimizer.step()
            iteration += 1
    with torch.no_grad():
        outputs = model.eval()(dataset.test.inputs)
    error = (outputs.argmax(1) != dataset.test.targets).double().mean().item()
    loss = F.cross_entropy(outputs.double(), dataset.test.targets).item()
    return model.state_dict(), loss, error


def assert_same_weights(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_engine_is_the_loop_by_hand(optimizer):
    trial = small(optimizer=optimizer, weight_decay=1e-3, epochs=2)
    outcome = train(trial)
    weights, loss, error = by_hand(trial)
    assert_same_weights(outcome.weights, weights)
    assert outcome.final["test_loss"] == pytest.approx(loss, rel=1e-6)
    assert outcome.final["test_error"] == pytest.approx(error)
    assert (outcome.status, outcome.reason) == ("finished", "")
    assert [row["epoch"] for row in outcome.curves] == [0, 1, 2]
    assert [row["iteration"] for row in outcome.curves] == [0, 5, 10]


def test_schedule_with_momentum_by_hand():
    trial = small(schedule="diminishing:decay=0.5:increase=0.2", options={"momentum": 0.1})

    def rates(iteration, epoch):
        return {"lr": 0.05 * 0.5**epoch, "momentum": min(0.9, 0.5 + 0.2 * epoch)}

    outcome = train(trial)
    assert_same_weights(outcome.weights, by_hand(trial, rates=rates)[0])
    assert [row["lr"] for row in outcome.curves] == pytest.approx([0.05, 0.05, 0.025, 0.0125])


def test_schedule_by_iterations_by_hand():
    trial = small(schedule="steps:4:11")
    outcome = train(trial)
    weights, _, _ = by_hand(trial, rates=lambda i, _: {"lr": 0.05 * 0.1 ** ((i >= 4) + (i >= 11))})
    assert_same_weights(outcome.weights, weights)


PENALTIES = {
    "basis-path:0.01:exact=true": lambda n: BasisPathPenalty(n, 0.01, 0.01, exact=True),
    "path-norm:1e-3": lambda n: PathNormPenalty(n, 1e-3),
}


@pytest.mark.parametrize("text", PENALTIES)
def test_penalty_by_hand(text):
    trial = small(penalties=[text])
    weights, _, _ = by_hand(trial, penalty=PENALTIES[text])
    outcome = train(trial)
    assert_same_weights(outcome.weights, weights)
    assert not torch.equal(outcome.weights["1.weight"], train(small()).weights["1.weight"])


def test_running_loss_is_the_mean_over_the_epoch():
    outcome = train(small(lr=0.0, epochs=1))
    assert outcome.curves[0]["loss"] is None
    assert outcome.final["loss"] == pytest.approx(outcome.final["train_loss"], rel=1e-5)


def test_budget_in_iterations():
    whole, part = train(small(epochs=2)), train(small(epochs=None, iterations=10))
    assert_same_weights(part.weights, whole.weights)
    cut = train(small(epochs=None, iterations=7))
    assert [row["iteration"] for row in cut.curves] == [0, 5, 7]
    assert [row["epoch"] for row in cut.curves] == [0, 1, 1]
    nothing = train(small(epochs=0))
    assert nothing.status == "finished"
    assert len(nothing.curves) == 1


def test_evaluations_do_not_change_the_training():
    often, seldom = train(small(epochs=3)), train(small(epochs=3, evaluate_every=2))
    assert [row["epoch"] for row in seldom.curves] == [0, 2, 3]
    assert_same_weights(seldom.weights, often.weights)


# What a training comes to ------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "pathsgd", "gsgd", "adam"])
def test_divergence_is_a_result(optimizer, tmp_path):
    trial = small(optimizer=optimizer, lr=1e20, epochs=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome = train(trial, tmp_path)
    if outcome.status == "finished":  # a guarded optimizer may survive even that
        assert optimizer == "gsgd"
        return
    assert outcome.status == "diverged"
    assert "finite" in outcome.reason
    assert outcome.final["loss"] is None
    again = train(trial, tmp_path)
    assert again.was_there
    assert again.status == "diverged"


def test_a_step_out_of_range_is_a_divergence():
    """Such as those of the published G-SGD at a large rate."""
    options = {"metric": "paper", "roots": "additive", "skeleton": "modulo"}
    outcome = train(small(optimizer="gsgd", options=options, lr=1e4, epochs=4))
    assert outcome.status == "diverged"
    assert "a step would leave the range of torch.float32" in outcome.reason


def test_divergence_is_seen_within_a_long_epoch(monkeypatch):
    monkeypatch.setattr(engine, "LOOK", 2)
    outcome = train(small(lr=1e30, batch=4, epochs=1))
    assert outcome.status == "diverged"
    assert outcome.final["iteration"] < 10 < 160 // 4


def test_rules_stop(monkeypatch):
    outcome = train(small(optimizer="adam", lr=0.02, epochs=40, stop="training-error:0.05"))
    assert outcome.status == "stopped"
    assert "at most 0.05" in outcome.reason
    assert outcome.final["train_error"] <= 0.05 < outcome.curves[-2]["train_error"]


def test_early_stopping_finds_the_best_epoch():
    steps = ("unit_interval", "subset:train=200:test=50", "flatten", "validation_split:50")
    trial = small(
        preprocess=steps, optimizer="adam", lr=0.1, epochs=40, stop="overfitting:4", dropout=0.3
    )
    outcome = train(trial)
    errors = [row["validation_error"] for row in outcome.curves]
    assert outcome.status == "stopped"
    assert outcome.best["validation_error"] == min(errors)
    assert len(errors) - 1 - errors.index(min(errors)) == 4


def test_zero_loss_is_reached_with_the_truncated_softmax():
    steps = ("unit_interval", "subset:train=20:test=20", "flatten")
    trial = small(
        preprocess=steps, model="mlp:64-10", loss="truncated-softmax", optimizer="adam", lr=5.0,
        epochs=500, stop="converged", batch=20, evaluate_on=("train",),
    )  # fmt: skip
    outcome = train(trial)
    assert outcome.status == "stopped"
    assert outcome.final["train_loss"] == 0


# Ways to train -----------------------------------------------------------------------------------


def test_float64_starts_from_the_same_weights():
    single, double = train(small(epochs=0)), train(small(epochs=0, dtype="float64"))
    for name, weight in single.weights.items():
        assert torch.equal(double.weights[name], weight.double())
    trained = train(small(dtype="float64"))
    assert trained.weights["1.weight"].dtype == torch.float64


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision_is_close_but_not_the_same(dtype):
    settings = {"lr": 0.01, "penalties": ["path-norm:1e-3"]}
    full, mixed = train(small(**settings)), train(small(mixed=dtype, **settings))
    assert mixed.weights["1.weight"].dtype == torch.float32
    assert not torch.equal(full.weights["1.weight"], mixed.weights["1.weight"])
    torch.testing.assert_close(
        full.weights["1.weight"], mixed.weights["1.weight"], atol=0.01, rtol=0
    )


def test_augmented_images_and_batch_norm():
    trial = Trial(
        "vgg-small", "digits", preprocess=("unit_interval",), augment="crop_and_flip:1", epochs=1
    )
    with pytest.raises(ps.PathspaceError, match="1×8×8"):
        train(trial)
    assert train(small(model="mlp-bn:64-8-10")).weights["2.running_mean"].any()


def test_initialisations_begin_differently():
    names = ["he", "glorot", "torch", "balanced", "unbalanced:50", "skeleton"]
    first = {name: train(small(epochs=0, init=name)) for name in names}
    losses = {name: outcome.final["test_loss"] for name, outcome in first.items()}
    assert losses["unbalanced:50"] == pytest.approx(losses["balanced"], rel=1e-4)
    assert len({round(loss, 3) for loss in losses.values()}) == len(names) - 1


def test_ranking(monkeypatch):
    pairs = few_pairs()
    monkeypatch.setattr(loading, "_interactions", lambda *_: pairs)
    trial = Trial("ncf:4", "ml-1m", optimizer="adam", lr=0.01, epochs=30, batch=64)
    outcome = train(trial)
    assert trial.loss == "binary-cross-entropy"
    assert outcome.notes == ("few pairs",)
    assert outcome.curves[-1]["loss"] < outcome.curves[1]["loss"]
    assert 0 <= outcome.final["test_ndcg@10"] <= outcome.final["test_hr@10"] <= 1
    assert outcome.weights["user.weight"].shape == (30, 8)
    invariant = train(dataclasses.replace(trial, optimizer="gadam", epochs=2))
    assert invariant.status == "finished"
    with pytest.raises(TrialError, match="ncf:4 takes 2 inputs"):
        train(Trial("ncf:4", "digits"))
    with pytest.raises(TrialError, match="does not take the inputs"):
        train(Trial("mlp:4-2", "ml-1m"))


def test_a_model_of_ones_own(monkeypatch):
    zoo = types.ModuleType("zoo_of_a_test")
    zoo.net = lambda: nn.Sequential(nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))
    zoo.wrong = lambda: nn.Linear(64, 3)
    zoo.other = lambda: nn.Linear(5, 10)
    monkeypatch.setitem(sys.modules, "zoo_of_a_test", zoo)
    trial = small(model="zoo_of_a_test:net", optimizer="pathsgd")
    outcome = train(trial)
    assert outcome.trial.init == "as-built"
    assert outcome.status == "finished"
    assert_same_weights(
        train(small(model="zoo_of_a_test:net", optimizer="pathsgd")).weights, outcome.weights
    )
    with pytest.raises(TrialError, match="digits has 10 classes"):
        train(small(model="zoo_of_a_test:wrong"))
    with pytest.raises(TrialError, match="does not take the inputs of digits"):
        train(small(model="zoo_of_a_test:other"))


def test_more_classes_than_the_models_default(monkeypatch):
    images = torch.zeros(4, 3, 32, 32)
    split = data.Split(images, torch.tensor([0, 9, 50, 99]))
    fake = data.Dataset("cifar100", train=split, test=split, classes=100, maximum=1)
    monkeypatch.setattr(loading, "_dataset", lambda *_: fake)
    outcome = train(Trial("vgg-small", "cifar100", epochs=1, augment="crop_and_flip:4"))
    assert list(outcome.weights.values())[-1].shape == (100,)


def test_devices_that_are_not_here():
    for device in ("cuda:77", "mps"):
        if device == "mps" and torch.backends.mps.is_available():
            continue
        with pytest.raises(TrialError, match=f"there is no {device}"):
            train(small(device=device))


# What stays as it was ----------------------------------------------------------------------------


def test_random_state_and_settings_of_torch_stay():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = train(small(dropout=0.5))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.manual_seed(6)  # what others draw does not matter
    assert_same_weights(train(small(dropout=0.5)).weights, first.weights)
    assert not torch.equal(
        train(small(dropout=0.5, seed=1)).weights["1.bias"], first.weights["1.bias"]
    )


def test_signal_handlers_stay(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train(small(), tmp_path)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_no_transfer_from_the_device_in_a_step(monkeypatch):
    """``item`` and its like wait for the device; a step of a torch optimizer must not."""
    training = Training(small(dropout=0.2, schedule="steps:3"))
    batches = training.batches()
    training.advance(next(batches))

    def refuse(*_):
        raise AssertionError("waits for the device")

    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    training.advance(next(batches))
    monkeypatch.undo()
    assert training.iteration == 2


# Reports -----------------------------------------------------------------------------------------


class Listener(Quiet):
    def __init__(self):
        self.rows, self.notes, self.begun = [], [], []

    def start(self, trial, done, total):
        self.begun.append((done, total))

    def row(self, row):
        self.rows.append(row)

    def note(self, text):
        self.notes.append(text)


def test_reports(capsys):
    listener = Listener()
    outcome = train(small(), report=listener)
    assert listener.rows == outcome.curves
    assert listener.begun == [(0, 15)]
    train(small(), report="auto")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "mlp:64-12-10 on digits, sgd, lr 0.05, seed 0: 15 steps"
    assert len(lines) == 6
    train(small(), report="quiet")
    assert capsys.readouterr().err == ""
    with pytest.raises(TrialError, match="did you mean 'lines'"):
        train(small(), report="line")


def test_the_bar_says_what_the_lines_say(capsys):
    train(small(), report="bar")
    bar = [line.rstrip() for line in capsys.readouterr().err.splitlines()]
    train(small(), report="lines")
    lines = capsys.readouterr().err.splitlines()
    assert bar[0] == lines[0].removesuffix(": 15 steps")
    assert [line for line in bar if line in lines[1:]] == lines[1:]


def test_operations_that_are_not_deterministic_are_named():
    with (
        pytest.raises(TrialError, match="--no-deterministic"),
        isolated(small()),
    ):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1), accumulate=False)


def test_tensorboard_gets_what_the_metrics_say(monkeypatch, tmp_path):
    written = []

    class Writer:
        def __init__(self, folder, purge_step):
            written.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def close(self):
            written.append("closed")

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    outcome = train(small(epochs=1), report=TensorBoard(Quiet(), tmp_path))
    assert written[0] == (str(tmp_path), None)
    assert ("test_error", outcome.final["test_error"], 5) in written
    assert written[-1] == "closed"


def test_tensorboard_that_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(TrialError, match="pip install tensorboard"):
        TensorBoard(Quiet(), tmp_path)


@pytest.mark.parametrize("settings", [{}, {"mixed": "bfloat16"}, {"options": {"momentum": 0.9}}])
def test_a_step_of_the_engine_asks_nothing_of_the_device(settings, monkeypatch):
    """On a GPU every number that Python reads is a wait; with torch's SGD the step reads none."""
    training = Training(small(**settings))
    batches = training.batches()
    training.advance(next(batches))

    def refused(*_):
        raise AssertionError("the step waits for the device")

    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, refused)
    training.advance(next(batches))
    with pytest.raises(AssertionError, match="waits for the device"):
        training.is_finite()
