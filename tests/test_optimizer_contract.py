"""What a torch user expects of an optimizer, for every optimizer here."""

import copy
import inspect
import math
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

import pathspace as ps
from optimizers import (
    KINDS,
    Kind,
    Net,
    apart,
    assert_identical,
    backward,
    batch,
    fill,
    loss_of,
    setting,
    snapshot,
    stored,
    train,
)
from pathspace.errors import PathspaceError
from pathspace.optim import GSGD, BalancedSGD, GAdam, PathSGD

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@every_kind
def test_is_a_torch_optimizer_that_learns(kind):
    model, optimizer = setting(kind)
    assert isinstance(optimizer, torch.optim.Optimizer)
    before = torch.stack([loss_of(model, k).detach() for k in range(20)]).mean()
    train(model, optimizer, range(20))
    after = torch.stack([loss_of(model, k).detach() for k in range(20)]).mean()
    assert after < before
    assert optimizer.skipped == 0


# Parameters and groups ----------------------------------------------------------------------------


@every_kind
def test_parameters_outside_the_graph_get_the_plain_rule_and_are_listed(kind):
    model, optimizer = setting(kind, weight_decay=0.01)
    assert optimizer.plain == kind.unscaled
    assert f"plain rule for: {', '.join(kind.unscaled)}" in repr(optimizer)
    twin = nn.Parameter(model.temperature.detach().clone())
    reference = kind.torchs([twin], weight_decay=0.01)
    for number in range(4):
        backward(model, number)
        twin.grad = model.temperature.grad.clone()
        optimizer.step()
        reference.step()
        torch.testing.assert_close(model.temperature, twin, rtol=1e-12, atol=1e-15)


@every_kind
@pytest.mark.parametrize("split", ["layers", "weights and biases"])
def test_groups_equal_one_group(kind, split):
    model, optimizer = setting(kind)
    other, _ = setting(kind)
    named = dict(other.named_parameters())
    is_first = (lambda n: "bias" in n) if split != "layers" else (lambda n: n.startswith("b"))
    groups = [
        {"params": [p for n, p in named.items() if is_first(n)]},
        {"params": []},
        {"params": [p for n, p in named.items() if not is_first(n)]},
    ]
    in_groups = kind(groups, ps.trace(other, batch(0)[0]))
    train(model, optimizer, range(4))
    train(other, in_groups, range(4))
    torch.testing.assert_close(snapshot(model), snapshot(other), rtol=1e-9, atol=1e-12)


@every_kind
def test_a_group_has_its_own_rate(kind):
    model, _ = setting(kind)
    groups = [
        {"params": [model.a.bias, model.b.bias, model.c.bias], "lr": 0.0},
        {"params": [model.a.weight, model.b.weight, model.c.weight, model.temperature]},
    ]
    optimizer = kind(groups, ps.trace(model, batch(0)[0]))
    before = snapshot(model)
    train(model, optimizer, range(1))
    # An output's bias leaves the constant and enters a pinned unit: nothing else moves it.
    assert torch.equal(model.c.bias, before["c.bias"])
    assert not torch.equal(model.c.weight, before["c.weight"])


@every_kind
def test_a_frozen_parameter_does_not_move(kind):
    model, _ = setting(kind)
    model.b.weight.requires_grad_(False)
    optimizer = kind(model.parameters(), ps.trace(model, batch(0)[0]))
    before = snapshot(model)
    train(model, optimizer, range(3))
    assert torch.equal(model.b.weight, before["b.weight"])
    assert not torch.equal(model.a.weight, before["a.weight"])
    assert not torch.equal(model.c.weight, before["c.weight"])


@every_kind
def test_freezing_and_unfreezing_during_training(kind):
    model, optimizer = setting(kind)
    train(model, optimizer, range(2))
    model.b.weight.requires_grad_(False)
    before = snapshot(model)
    train(model, optimizer, range(2, 4))
    assert torch.equal(model.b.weight, before["b.weight"])
    assert not torch.equal(model.b.bias, before["b.bias"])
    model.b.weight.requires_grad_(True)
    train(model, optimizer, range(4, 6))
    assert not torch.equal(model.b.weight, before["b.weight"])


@every_kind
def test_all_frozen_then_some_unfrozen(kind):
    model, _ = setting(kind)
    model.requires_grad_(False)
    optimizer = kind(model.parameters(), ps.trace(model, batch(0)[0]))
    before = snapshot(model)
    optimizer.step()
    assert_identical(snapshot(model), before)
    stored(optimizer.state_dict())
    model.c.requires_grad_(True)
    train(model, optimizer, range(2))
    assert torch.equal(model.a.weight, before["a.weight"])
    assert not torch.equal(model.c.weight, before["c.weight"])


@every_kind
def test_a_group_added_later_is_as_if_it_had_been_there(kind):
    model, _ = setting(kind)
    head = [model.c.weight, model.c.bias]
    optimizer = kind(head, ps.trace(model, batch(0)[0]))
    before = snapshot(model)
    train(model, optimizer, range(1))
    assert torch.equal(model.a.weight, before["a.weight"])
    rest = [model.a.weight, model.a.bias, model.b.weight, model.b.bias]
    optimizer.add_param_group({"params": rest, "lr": 0.01})
    train(model, optimizer, range(1, 3))
    assert not torch.equal(model.a.weight, before["a.weight"])
    assert optimizer.param_groups[1]["weight_decay"] == 0
    stored(optimizer.state_dict())


@every_kind
def test_steps_do_not_notice_a_rescaling_whatever_moves(kind):
    """Groups with rates of their own, and parameters that have no gradient at times."""
    results = []
    for is_rescaled in (False, True):
        model, optimizer = setting(kind)
        network = optimizer.network
        if is_rescaled:
            generator = torch.Generator().manual_seed(3)
            ps.rescale_(network, ps.random_rescaling(network, generator=generator))
        biases = [p for n, p in model.named_parameters() if "bias" in n]
        weights = [p for n, p in model.named_parameters() if "bias" not in n]
        groups = [{"params": biases, "lr": kind.rule["lr"] / 3}, {"params": weights}]
        optimizer = kind(groups, network)
        for number, missing in enumerate([None, model.b.bias, model.c.weight, model.a.weight]):
            backward(model, number)
            if missing is not None:
                missing.grad = None
            optimizer.step()
        results.append(model(batch(9)[0]).detach())
    tolerance = 1e-8 if kind.plain is torch.optim.SGD else 1e-5  # eps of a rule sees rounding
    torch.testing.assert_close(results[0], results[1], rtol=tolerance, atol=tolerance)


def test_momentum_may_come_and_go_in_one_of_several_groups():
    model, _ = setting(KINDS[0])
    biases = [p for n, p in model.named_parameters() if "bias" in n]
    weights = [p for n, p in model.named_parameters() if "bias" not in n]
    groups = [{"params": biases, "momentum": 0.9}, {"params": weights}]
    optimizer = GSGD(groups, 0.05, network=ps.trace(model, batch(0)[0]))
    train(model, optimizer, range(1))
    assert "momentum_buffer" not in optimizer.state[model.b.weight]
    optimizer.param_groups[1]["momentum"] = 0.5
    train(model, optimizer, range(1, 3))
    assert optimizer.state[model.b.weight]["momentum_buffer"].any()
    for group in optimizer.param_groups:
        group["momentum"] = 0.0
    kept = optimizer.state[model.b.weight]["momentum_buffer"].clone()
    train(model, optimizer, range(3, 4))
    assert torch.equal(optimizer.state[model.b.weight]["momentum_buffer"], kept)


def test_a_refused_group_is_not_added():
    model, optimizer = setting(KINDS[3])
    with pytest.raises(ValueError, match="lr must not be negative, not -1"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": -1})
    assert len(optimizer.param_groups) == 1
    train(model, optimizer, range(1))


# Gradients ----------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("name", ["a.weight", "b.weight", "b.bias", "c.weight", "temperature"])
def test_a_parameter_without_gradient_does_not_move(kind, name):
    model, optimizer = setting(kind, weight_decay=0.1)
    parameter = model.get_parameter(name)
    for number, given in enumerate([True, False, False, True]):
        before = snapshot(model)
        state = copy.deepcopy(optimizer.state.get(parameter))
        backward(model, number)
        if not given:
            parameter.grad = None
        optimizer.step()
        moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
        assert moved == set(before) - (set() if given else {name})
        if not given:
            assert_identical(optimizer.state.get(parameter), state)


@every_kind
def test_a_step_without_any_gradient_does_nothing(kind):
    model, optimizer = setting(kind, weight_decay=0.1)
    before, state = snapshot(model), copy.deepcopy(optimizer.state_dict())
    assert optimizer.step() is None
    assert_identical(snapshot(model), before)
    assert_identical(optimizer.state_dict(), state)


@every_kind
def test_zero_gradients_move_nothing(kind):
    if kind.name == "GSGD-decay":
        pytest.skip("its regularizer has a gradient of its own")
    model, optimizer = setting(kind)
    before = snapshot(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert_identical(snapshot(model), before)


@every_kind
@pytest.mark.parametrize("maximize", [False, True])
def test_gradients_are_left_alone(kind, maximize):
    model, optimizer = setting(kind, weight_decay=0.1, maximize=maximize)
    for number in range(2):
        backward(model, number)
        kept = {n: p.grad for n, p in model.named_parameters()}
        copies = {n: g.clone() for n, g in kept.items()}
        optimizer.step()
        assert all(p.grad is kept[n] for n, p in model.named_parameters())
        assert_identical(kept, copies)


@every_kind
def test_maximize_is_minimizing_the_negative(kind):
    model, optimizer = setting(kind, maximize=True, weight_decay=0.01)
    twin, reference = setting(kind, weight_decay=0.01)
    for number in range(3):
        backward(model, number)
        optimizer.step()
        twin.zero_grad()
        (-loss_of(twin, number)).backward()
        reference.step()
    assert_identical(snapshot(model), snapshot(twin))


@every_kind
def test_maximize_is_minimizing_the_negative_for_large_parameters_too(kind, monkeypatch):
    apart(monkeypatch)
    test_maximize_is_minimizing_the_negative(kind)


@pytest.mark.parametrize(
    "kind",
    [kind for kind in KINDS if kind.make in (GSGD, GAdam) and kind.name != "GSGD-paper"],
    ids=lambda kind: kind.name,
)
def test_roots_behind_a_parameter_without_gradient_move(kind):
    model, optimizer = setting(kind)
    space = optimizer.space
    backward(model, 0)
    model.a.weight.grad = None
    optimizer.step()
    graph, incoming = space.skeleton.graph, space.skeleton.incoming
    roots = graph.places(torch.where(space.is_root.cpu(), incoming, -1))
    names = [graph.name(int(n)).partition("[")[0] if n >= 0 else "" for n in roots.numbers]
    assert {"a.weight", "b.weight"} <= set(names)
    before = roots.take(snapshot(model))
    backward(model, 1)
    model.a.weight.grad = None
    optimizer.step()
    moved = (roots.take(snapshot(model)) != before).tolist()
    assert moved == [name == "b.weight" for name in names]


@every_kind
def test_weight_decay_is_a_term_of_the_loss(kind):
    model, optimizer = setting(kind, weight_decay=0.05)
    twin, reference = setting(kind)
    for number in range(3):
        backward(model, number)
        optimizer.step()
        twin.zero_grad()
        squares = torch.stack([p.square().sum() for p in twin.parameters()]).sum()
        (loss_of(twin, number) + 0.05 / 2 * squares).backward()
        reference.step()
    torch.testing.assert_close(snapshot(model), snapshot(twin), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("decay", [(0.05, 0.0), (0.0, 0.05), (0.02, 0.03)], ids=str)
@pytest.mark.parametrize("metric", ["normalized", "diagonal", "paper"])
def test_the_decay_of_basis_paths_is_a_term_of_the_loss_but_for_free_weights(decay, metric):
    kind = Kind("", GSGD, torch.optim.SGD, {"lr": 1e-3, "momentum": 0.5}, {"metric": metric})
    model, optimizer = setting(kind, bp_decay=decay)
    twin, reference = setting(kind)
    penalty = ps.BasisPathPenalty(reference.network, *decay, exact=True)
    skeleton = reference.space.skeleton
    free = torch.isin(torch.arange(int(skeleton.graph.start[-1])), skeleton.outgoing)
    edges = zip(skeleton.graph.edges, skeleton.graph.start[:-1].tolist(), strict=True)
    free = {e.parameter: free[k : k + math.prod(e.shape)].view(e.shape) for e, k in edges}
    assert sum(int(mask.sum()) for mask in free.values()) == reference.network.H
    for number in range(3):
        backward(model, number)
        optimizer.step()
        twin.zero_grad()
        penalty().backward()
        for name, mask in free.items():
            twin.get_parameter(name).grad.masked_fill_(mask, 0.0)
        loss_of(twin, number).backward()
        reference.step()
    torch.testing.assert_close(snapshot(model), snapshot(twin), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("metric", ["normalized", "diagonal"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_decay_of_basis_paths_is_the_same_for_large_layers(metric, momentum, monkeypatch):
    rule = {"lr": 1e-2, "momentum": momentum}
    kind = Kind("", GSGD, torch.optim.SGD, rule, {"metric": metric, "bp_decay": (0.2, 0.3)})
    outputs = []
    for is_apart in (False, True):
        if is_apart:
            apart(monkeypatch)
        model, optimizer = setting(kind)
        train(model, optimizer, range(4))
        outputs.append(model(batch(0)[0]).detach())
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-9, atol=1e-11)


@every_kind
def test_a_step_with_a_gradient_that_is_not_finite_is_skipped(kind):
    model, optimizer = setting(kind)
    for number, name in enumerate(snapshot(model)):
        backward(model, number)
        bad = (float("nan"), float("inf"), -float("inf"))[number % 3]
        model.get_parameter(name).grad.view(-1)[-1] = bad
        before, state = snapshot(model), copy.deepcopy(optimizer.state_dict())
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            optimizer.step()
        assert optimizer.skipped == number + 1
        assert len(found) == (number == 0)
        if found:
            assert found[0].category is RuntimeWarning
            assert f"`{name}` is not finite" in str(found[0].message)
            assert found[0].filename == __file__
        assert_identical(snapshot(model), before)
        state["skipped"] += 1
        assert_identical(optimizer.state_dict(), state)
        train(model, optimizer, [number])
    twin, reference = setting(kind)
    train(twin, reference, range(len(before)))
    assert_identical(snapshot(model), snapshot(twin))


@every_kind
def test_gradients_that_are_not_finite_can_be_refused(kind):
    model, optimizer = setting(kind, nonfinite="raise")
    backward(model, 0)
    model.b.weight.grad[0, 0] = float("nan")
    before = snapshot(model)
    with pytest.raises(FloatingPointError, match=r"`b\.weight` is not finite"):
        optimizer.step()
    assert_identical(snapshot(model), before)


@pytest.mark.parametrize("make", [GSGD, PathSGD, BalancedSGD])
def test_gradients_too_large_to_be_summed_are_skipped_too(make):
    model = Net()
    optimizer = make(model.parameters(), network=ps.trace(model, batch(0)[0].float()))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3e38)
    before = snapshot(model)
    with pytest.warns(RuntimeWarning, match="the sum of all gradients is not finite"):
        optimizer.step()
    assert_identical(snapshot(model), before)


def test_sparse_gradients_are_refused_by_name():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    x = torch.tensor([0, 3])
    optimizer = GSGD(model.parameters(), network=ps.trace(model, x))
    model(x).sum().backward()
    with pytest.raises(PathspaceError, match=r"`0\.weight` has a sparse gradient"):
        optimizer.step()


# Closures, schedules, hooks -----------------------------------------------------------------------


@every_kind
def test_a_closure_evaluates_with_gradients(kind):
    model, optimizer = setting(kind)
    twin, reference = setting(kind)
    for number in range(3):

        def closure(number=number):
            assert torch.is_grad_enabled()
            return backward(model, number)

        loss = optimizer.step(closure)
        assert torch.equal(loss, backward(twin, number))
        reference.step()
    assert_identical(snapshot(model), snapshot(twin))


SCHEDULES = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda k: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 2),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=3),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 3),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 4),
    "SWALR": lambda o: SWALR(o, swa_lr=0.001, anneal_epochs=3),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(
        o, 1e-4, 1e-3, 2, cycle_momentum=_has_momentum(o)
    ),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(
        o, 1e-3, total_steps=6, cycle_momentum=_has_momentum(o)
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
}  # fmt: skip


def _has_momentum(optimizer):
    return bool({"momentum", "betas"} & set(optimizer.defaults))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["GSGD-momentum", "GAdagrad", "GAdam", "PathSGD", "BalancedSGD"])
def test_every_schedule_does_what_setting_the_rates_by_hand_does(name, schedule):
    kind = next(kind for kind in KINDS if kind.name == name)
    model, optimizer = setting(kind)
    scheduler = SCHEDULES[schedule](optimizer)
    used = []
    for number in range(5):
        used.append(dict(optimizer.param_groups[0]))
        train(model, optimizer, [number])
        scheduler.step(1.0) if schedule == "ReduceLROnPlateau" else scheduler.step()
    twin, reference = setting(kind)
    for number, group in enumerate(used):
        by_hand = {k: group[k] for k in ("lr", "momentum", "betas") if k in group}
        reference.param_groups[0].update(by_hand)
        train(twin, reference, [number])
    assert_identical(snapshot(model), snapshot(twin))
    assert len({float(group["lr"]) for group in used}) > 1
    if schedule == "OneCycleLR" and _has_momentum(optimizer):
        key = "momentum" if "momentum" in optimizer.defaults else "betas"
        assert len({str(group[key]) for group in used}) > 1


@every_kind
def test_the_rate_may_be_a_tensor(kind):
    model, optimizer = setting(kind)
    twin, reference = setting(kind, lr=torch.tensor(kind.rule["lr"], dtype=torch.float64))
    schedules = [lr_scheduler.ExponentialLR(o, 0.5) for o in (optimizer, reference)]
    train(model, optimizer, range(3), schedules[0].step)
    train(twin, reference, range(3), schedules[1].step)
    assert_identical(snapshot(model), snapshot(twin))


@every_kind
def test_hooks_and_zero_grad_work_as_in_torch(kind):
    model, optimizer = setting(kind)
    calls = []
    optimizer.register_step_pre_hook(lambda o, a, k: calls.append(("before", o)))
    optimizer.register_step_post_hook(lambda o, a, k: calls.append(("after", o)))
    train(model, optimizer, range(1))
    assert calls == [("before", optimizer), ("after", optimizer)]
    with torch.profiler.profile() as profile:
        optimizer.step()
    assert any(e.key == f"Optimizer.step#{kind.make.__name__}.step" for e in profile.key_averages())
    optimizer.zero_grad(set_to_none=False)
    assert all(not p.grad.any() for p in model.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


# Memory -------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("order", ["weights first", "optimizer first"])
def test_a_resumed_run_equals_an_uninterrupted_one(kind, order):
    model, optimizer = setting(kind)
    train(model, optimizer, range(3))
    checkpoint = stored({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    untouched = copy.deepcopy(checkpoint)
    train(model, optimizer, range(3, 7))
    for _ in range(2):  # the checkpoint may be used again
        resumed = Net(seed=1).double()
        if order == "weights first":
            resumed.load_state_dict(checkpoint["model"])
        new = kind(resumed.parameters(), ps.trace(resumed, batch(0)[0]))
        if order != "weights first":
            resumed.load_state_dict(checkpoint["model"])
        new.load_state_dict(checkpoint["optimizer"])
        train(resumed, new, range(3, 7))
        assert_identical(snapshot(resumed), snapshot(model))
        assert_identical(new.state_dict(), optimizer.state_dict())
        assert_identical(checkpoint, untouched)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_kind
def test_coarse_weights_resume_as_well(kind, dtype):
    model, optimizer = setting(kind, dtype=dtype)
    train(model, optimizer, range(3))
    checkpoint = stored({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    train(model, optimizer, range(3, 6))
    resumed, new = setting(kind, seed=1, dtype=dtype)
    resumed.load_state_dict(checkpoint["model"])
    new.load_state_dict(checkpoint["optimizer"])
    train(resumed, new, range(3, 6))
    assert_identical(snapshot(resumed), snapshot(model))


@every_kind
@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_go_their_own_way(kind, way):
    model, optimizer = setting(kind, nonfinite="raise")
    train(model, optimizer, range(2))
    pair = (model, optimizer)
    twin, other = copy.deepcopy(pair) if way == "deepcopy" else pickle.loads(pickle.dumps(pair))
    before = snapshot(twin)
    train(model, optimizer, range(2, 5))
    assert_identical(snapshot(twin), before)
    train(twin, other, range(2, 5))
    assert_identical(snapshot(twin), snapshot(model))
    assert_identical(other.state_dict(), optimizer.state_dict())
    assert other.nonfinite == "raise"
    assert other.plain == optimizer.plain


@pytest.mark.parametrize("make", [PathSGD, GSGD, BalancedSGD])
def test_the_state_of_another_kind_of_optimizer_is_refused(make):
    model, _ = setting(KINDS[0])
    network = ps.trace(model, batch(0)[0])
    optimizer = make(model.parameters(), network=network)
    before = copy.deepcopy(optimizer.state_dict())
    foreign = [torch.optim.SGD(model.parameters(), 0.1)]
    foreign += [other(model.parameters(), 0.1, network=network) for other in (PathSGD, GSGD, GAdam)]
    for other in foreign:
        if isinstance(other, make):
            continue
        with pytest.raises(PathspaceError, match="it is of another kind of optimizer"):
            optimizer.load_state_dict(other.state_dict())
        assert_identical(optimizer.state_dict(), before)


@pytest.mark.parametrize("order", ["weights first", "optimizer first"])
def test_a_run_from_the_papers_start_resumes(order):
    kind = Kind("", GSGD, torch.optim.SGD, {"lr": 0.05}, {"start": "skeleton_init"})
    model, optimizer = setting(kind)
    train(model, optimizer, range(3))
    checkpoint = stored({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    resumed = Net(seed=1).double()
    if order == "weights first":
        resumed.load_state_dict(checkpoint["model"])
    new = kind(resumed.parameters(), ps.trace(resumed, batch(0)[0]))
    if order != "weights first":
        resumed.load_state_dict(checkpoint["model"])
    new.load_state_dict(checkpoint["optimizer"])
    train(model, optimizer, range(3, 5))
    train(resumed, new, range(3, 5))
    assert_identical(snapshot(resumed), snapshot(model))


@every_kind
@pytest.mark.parametrize("order", ["weights first", "optimizer first"])
def test_a_network_that_began_with_zeros_resumes(kind, order):
    def zeros(seed):
        model = Net(seed).double()
        nn.init.zeros_(model.c.weight)
        nn.init.zeros_(model.b.weight[:2].detach())
        return model, kind(model.parameters(), ps.trace(model, batch(0)[0]))

    model, optimizer = zeros(0)
    train(model, optimizer, range(4))
    checkpoint = stored({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    train(model, optimizer, range(4, 8))
    if order == "optimizer first":
        resumed, new = zeros(1)
        resumed.load_state_dict(checkpoint["model"])
    else:
        resumed = Net(1).double()
        resumed.load_state_dict(checkpoint["model"])
        new = kind(resumed.parameters(), ps.trace(resumed, batch(0)[0]))
    new.load_state_dict(checkpoint["optimizer"])
    train(resumed, new, range(4, 8))
    assert_identical(snapshot(resumed), snapshot(model))
    assert_identical(new.state_dict(), optimizer.state_dict())


ADDITIVE = {"roots": "additive"}
REVISING = [  # with the number of steps between which in-edges are chosen anew
    (Kind("momentum", GSGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.95}), 5, 15),
    (Kind("additive", GSGD, torch.optim.SGD, {"lr": 0.3, "momentum": 0.95}, ADDITIVE), 5, 15),
    (Kind("adam", GAdam, torch.optim.Adam, {"lr": 0.1}), 5, 15),
]


@pytest.fixture
def revising(monkeypatch):
    """All units are measured anew at every look, and take the largest in-edge that there is."""
    monkeypatch.setattr("pathspace.optim.basis._DRIFT", -math.inf)


@pytest.mark.usefixtures("revising")
@pytest.mark.parametrize(("kind", "middle", "end"), REVISING, ids=["momentum", "additive", "adam"])
def test_a_run_resumes_after_another_skeleton_was_chosen(kind, middle, end):
    model, optimizer = setting(kind)
    train(model, optimizer, range(middle))
    before = optimizer.space.rechosen
    checkpoint = stored({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    train(model, optimizer, range(middle, end))
    assert 0 < before < optimizer.space.rechosen
    resumed, new = setting(kind, seed=1)
    resumed.load_state_dict(checkpoint["model"])
    new.load_state_dict(checkpoint["optimizer"])
    train(resumed, new, range(middle, end))
    assert_identical(snapshot(resumed), snapshot(model))
    assert_identical(new.state_dict(), optimizer.state_dict())


@pytest.mark.usefixtures("revising")
@pytest.mark.parametrize(("momenta", "rate"), [((0.0, 0.8), 0.1), ((0.8, 0.0), 0.2)])
def test_the_order_of_groups_does_not_matter_when_another_skeleton_is_chosen(momenta, rate):
    results = []
    for is_turned in (False, True):
        model, _ = setting(KINDS[0])
        biases = [p for n, p in model.named_parameters() if "bias" in n]
        weights = [p for n, p in model.named_parameters() if "bias" not in n]
        groups = [
            {"params": params, "momentum": momentum}
            for params, momentum in zip((biases, weights), momenta, strict=True)
        ]
        groups = groups[::-1] if is_turned else groups
        network = ps.trace(model, batch(0)[0])
        optimizer = GSGD(groups, rate, network=network, roots="additive")
        train(model, optimizer, range(20))
        assert optimizer.space.rechosen > 0
        results.append(snapshot(model))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-8)


@every_kind
def test_the_state_follows_weights_that_move_in_memory(kind):
    if kind.space.get("every"):
        pytest.skip("weights that have moved are measured anew")
    model, optimizer = setting(kind)
    twin, reference = setting(kind)
    for number in range(4):
        train(twin, reference, [number])
        train(model, optimizer, [number])
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
    assert_identical(snapshot(model), snapshot(twin))


# Dtypes and memory formats ------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_coarse_weights_are_stepped_in_float32(kind, dtype):
    model, optimizer = setting(kind, dtype=dtype)
    twin, reference = setting(kind, dtype=torch.float32)
    twin.load_state_dict(model.state_dict())
    reference = kind(twin.parameters(), ps.trace(twin, batch(0)[0].float()))
    for number in range(3):
        backward(model, number)
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            b.grad = a.grad.float()
        optimizer.step()
        reference.step()
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.copy_(parameter.to(dtype))
    assert all(p.dtype == dtype for p in model.parameters())
    found = {name: p.detach().float() for name, p in model.named_parameters()}
    torch.testing.assert_close(found, snapshot(twin), rtol=1e-5, atol=1e-7)
    for state in optimizer.state.values():
        assert all(value.dtype == torch.float32 for value in state.values())


def conv_net(seed=0):
    layers = (nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten())
    return fill(nn.Sequential(*layers, nn.Linear(16, 2)), seed).double()


@every_kind
def test_memory_formats_do_not_matter(kind):
    x = torch.randn(3, 2, 5, 5, generator=torch.Generator().manual_seed(0)).double()
    results = []
    for change in ("contiguous", "channels_last", "transposed", "strided"):
        model = conv_net()
        if change == "channels_last":
            model.to(memory_format=torch.channels_last)
        elif change == "transposed":
            model[5].weight = nn.Parameter(model[5].weight.detach().t().contiguous().t())
        elif change == "strided":
            for layer in (model[2], model[5]):
                *outer, inner = layer.weight.shape
                wide = torch.zeros(*outer, inner + 1, dtype=torch.float64)[..., 1:]
                wide.copy_(layer.weight.detach())
                layer.weight = nn.Parameter(wide)
        optimizer = kind(model.parameters(), ps.trace(model, x))
        strides = [p.stride() for p in model.parameters()]
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        assert [p.stride() for p in model.parameters()] == strides
        results.append(snapshot(model))
        stored(optimizer.state_dict())
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-9, atol=1e-12)


@every_kind
def test_parameters_of_every_dimension(kind):
    model, _ = setting(kind)
    shapes = [(), (1,), (3,), (0,), (2, 0), (2, 3, 4)]
    others = [nn.Parameter(torch.ones(shape, dtype=torch.float64)) for shape in shapes]
    twins = [nn.Parameter(other.detach().clone()) for other in others]
    parameters = [*others, *model.parameters()]
    optimizer = kind(parameters, ps.trace(model, batch(0)[0]))
    reference = kind.torchs(twins)
    for number in range(2):
        backward(model, number)
        for pair in zip(others, twins, strict=True):
            for parameter in pair:
                parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.step()
        reference.step()
    outside = [f"parameter {k} of group 0" for k in range(6)]
    assert optimizer.plain == [*outside, *kind.unscaled]
    for other, twin in zip(others, twins, strict=True):
        torch.testing.assert_close(other, twin, rtol=1e-12, atol=0)


class Stream(nn.Module):
    """A pinned stream: weights before and behind the block meet no scale, but paths run there."""

    def __init__(self):
        super().__init__()
        self.stem, self.down, self.up = nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(6, 5)
        self.head = nn.Linear(5, 3)
        self.temperature = nn.Parameter(torch.zeros(()))
        fill(self)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.up(self.down(x).relu()))


@every_kind
def test_parameters_listed_as_plain_are_stepped_by_the_plain_rule(kind):
    if kind.space.get("bp_decay"):
        pytest.skip("the values of these paths are decayed")
    model = Stream().double()
    optimizer = kind(model.parameters(), ps.trace(model, batch(0)[0]))
    plain = optimizer.plain
    assert ("stem.weight" in plain) == (not kind.is_path)
    twins = {n: nn.Parameter(model.get_parameter(n).detach().clone()) for n in plain}
    reference = kind.torchs(twins.values())
    for number in range(2):
        backward(model, number)
        for name, twin in twins.items():
            twin.grad = model.get_parameter(name).grad.clone()
        optimizer.step()
        reference.step()
    for name, twin in twins.items():
        torch.testing.assert_close(model.get_parameter(name), twin, rtol=1e-12, atol=1e-15)


@every_kind
def test_large_parameters_are_stepped_in_blocks(kind, monkeypatch):
    model, optimizer = setting(kind, weight_decay=0.01)
    train(model, optimizer, range(3))
    apart(monkeypatch)
    twin, reference = setting(kind, weight_decay=0.01)
    assert len(reference._batches) > 10
    train(twin, reference, range(3))
    torch.testing.assert_close(snapshot(model), snapshot(twin), rtol=1e-9, atol=1e-12)


# Refusals and words -------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [PathSGD, GSGD, BalancedSGD])
def test_the_network_must_be_of_the_same_model(make):
    model = Net()
    network = ps.trace(model, batch(0, dtype=torch.float32)[0])
    with pytest.raises(PathspaceError, match=r"none of these parameters belongs to network\.model"):
        make(copy.deepcopy(model).parameters(), network=network)
    with pytest.raises(TypeError, match=r"network must be what pathspace\.trace returns, not Net"):
        make(model.parameters(), network=model)
    with pytest.raises(TypeError, match="missing a required argument: 'network'"):
        make(model.parameters())


REFUSED = [
    (GSGD, {"lr": -1.0}, "lr must not be negative, not -1.0"),
    (GSGD, {"lr": float("nan")}, "lr must not be negative, not nan"),
    (PathSGD, {"momentum": -0.5}, "momentum must not be negative"),
    (BalancedSGD, {"weight_decay": -0.5}, "weight_decay must not be negative"),
    (GSGD, {"nesterov": True}, "nesterov needs a momentum above 0 and no dampening"),
    (GAdam, {"betas": (0.9, 1.0)}, r"betas\[1\] must be at least 0 and below 1, not 1.0"),
    (GAdam, {"eps": -1e-8}, "eps must not be negative"),
    (GSGD, {"nonfinite": "ignore"}, 'nonfinite must be "skip" or "raise", not \'ignore\''),
    (
        GSGD,
        {"metric": "other"},
        'metric must be "normalized" or "diagonal" or "paper", not \'other\'',
    ),
    (GSGD, {"bp_decay": -1.0}, "bp_decay must be a number"),
    (PathSGD, {"p": 0.5}, "p must be at least 1 and finite, not 0.5"),
    (BalancedSGD, {"every": 0}, "every must be at least 1, not 0"),
]


@pytest.mark.parametrize(("make", "options", "message"), REFUSED, ids=lambda value: str(value))
def test_settings_that_make_no_sense_are_refused(make, options, message):
    model = Net()
    network = ps.trace(model, batch(0, dtype=torch.float32)[0])
    with pytest.raises(ValueError, match=message):
        make(model.parameters(), network=network, **options)


def test_nothing_to_optimize_is_refused_as_in_torch():
    network = ps.trace(Net(), batch(0, dtype=torch.float32)[0])
    with pytest.raises(ValueError, match="optimizer got an empty parameter list"):
        GSGD([], network=network)
    with pytest.raises(TypeError, match="params argument given to the optimizer"):
        GSGD(torch.ones(2), network=network)


def test_complex_parameters_are_refused_by_name():
    model = Net()
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    network = ps.trace(model, batch(0, dtype=torch.float32)[0])
    with pytest.raises(PathspaceError, match=r"`phase` .*complex64"):
        GSGD(model.parameters(), network=network)


@every_kind
def test_arguments_have_the_names_the_order_and_the_defaults_of_torch(kind):
    ours = inspect.signature(kind.make).parameters
    theirs = inspect.signature(kind.plain).parameters
    rule = list(kind.make.rule.settings)
    assert [*ours][: len(rule) + 1] == ["params", *rule] == [*theirs][: len(rule) + 1]
    assert {"network", "maximize", "nonfinite"} <= set(ours)
    for name in (*rule, "maximize"):
        assert ours[name].default == theirs[name].default, name


@every_kind
def test_named_parameters_are_accepted(kind):
    model, optimizer = setting(kind)
    twin, _ = setting(kind)
    named = kind(twin.named_parameters(), ps.trace(twin, batch(0)[0]))
    train(model, optimizer, range(2))
    train(twin, named, range(2))
    assert_identical(snapshot(model), snapshot(twin))
    stored(named.state_dict())


class Tied(nn.Module):
    """Two layers that share their weight."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.b.weight = self.a.weight
        self.temperature = nn.Parameter(torch.zeros(()))
        fill(self)

    def forward(self, x):
        return self.c(self.b(self.a(x).relu()).relu())


@every_kind
def test_shared_weights_train(kind):
    model = Tied().double()
    optimizer = kind(model.parameters(), ps.trace(model, batch(0)[0]))
    before = loss_of(model, 0).detach()
    train(model, optimizer, [0] * 10)
    assert loss_of(model, 0).detach() < before
    assert model.a.weight is model.b.weight


@pytest.mark.parametrize("layout", ["together", "apart"])
@pytest.mark.parametrize("make", [GSGD, PathSGD, BalancedSGD])
def test_momentum_lies_in_memory_as_its_weight_does(make, layout, monkeypatch):
    """As with torch's optimizers, so that the two are read side by side."""
    if layout == "apart":
        apart(monkeypatch)
    x = torch.randn(3, 2, 5, 5, generator=torch.Generator().manual_seed(0)).double()
    model = conv_net().to(memory_format=torch.channels_last)
    optimizer = make(model.parameters(), 0.01, momentum=0.9, network=ps.trace(model, x))
    twin = copy.deepcopy(model)
    torchs = torch.optim.SGD(twin.parameters(), 0.01, momentum=0.9)
    for one, chosen in ((model, optimizer), (twin, torchs)):
        one(x).square().mean().backward()
        chosen.step()
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        found = optimizer.state[parameter]["momentum_buffer"]
        assert found.stride() == torchs.state[other]["momentum_buffer"].stride()
    assert not model[2].weight.is_contiguous()


@pytest.mark.parametrize("name", ["PathAdam", "GAdam"])
def test_parameters_that_came_later_have_counts_of_their_own(name):
    """Adam corrects its averages by the steps that a parameter has had, not by all steps."""
    kind = next(kind for kind in KINDS if kind.name == name)
    model = Net().double()
    others = [torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    twins = [other.detach().clone().requires_grad_() for other in others]
    network = ps.trace(model, batch(0)[0])
    optimizer, reference = kind([*model.parameters(), *others], network), kind.torchs(twins)
    for number in range(4):
        backward(model, number)
        for tensors in (others, twins):
            for place, tensor in enumerate(tensors):
                tensor.grad = None if number < 2 * place else (number + 1) * torch.ones_like(tensor)
        optimizer.step()
        reference.step()
    torch.testing.assert_close(others, twins, rtol=1e-12, atol=0)


def test_weight_decay_that_is_turned_on_later_has_units_moved_by_what_leaves_them(monkeypatch):
    """It depends on the weights that stand for a function, so on how units are moved."""
    apart(monkeypatch)
    kind = next(kind for kind in KINDS if kind.name == "GSGD")
    model, optimizer = setting(kind)
    train(model, optimizer, [0])
    assert optimizer.space._is_any_entered
    optimizer.param_groups[0]["weight_decay"] = 0.1
    train(model, optimizer, [1])
    assert not optimizer.space._is_any_entered


@pytest.mark.parametrize("make", [GSGD, PathSGD, BalancedSGD])
def test_layers_of_several_dtypes_step_together(make):
    class Mixed(nn.Module):
        def __init__(self, dtype):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 5).to(dtype), nn.Linear(5, 5), nn.Linear(5, 2)
            fill(self)
            self.dtype = dtype

        def forward(self, x):
            return self.c(self.b(self.a(x.to(self.dtype)).relu().double()).relu())

    results = []
    for dtype in (torch.float32, torch.float64):
        model = Mixed(dtype)
        model.b.double(), model.c.double()
        x = torch.linspace(-1, 1, 32, dtype=torch.float64).view(8, 4)
        optimizer = make(model.parameters(), 0.05, network=ps.trace(model, x))
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        results.append({name: p.detach().double() for name, p in model.named_parameters()})
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)
