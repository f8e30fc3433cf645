"""Nothing that is measured leaves a trace: in the model, in the data, in torch, in memory."""

from __future__ import annotations

import copy
import gc
import inspect
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathspace as ps
from pathspace import bounds

Call = Callable[[ps.Network, Tensor, Tensor], Any]
CE = F.cross_entropy


# What can be seen ---------------------------------------------------------------------------------


def seen(thing: Any) -> Any:
    """An object by identity, a tensor also by value, version and gradient."""
    if isinstance(thing, Tensor):
        grad = thing.grad if thing.is_leaf else None
        about = (thing.requires_grad, thing._version, thing.dtype, thing.device, thing.data_ptr())
        held = None if grad is None else (id(grad), grad._version, grad.tolist())
        return id(thing), thing.tolist(), about, held
    if isinstance(thing, dict):
        return [(key, seen(value)) for key, value in thing.items()]
    if isinstance(thing, list | set | tuple):
        return [seen(value) for value in thing]
    return thing if isinstance(thing, bool | int | float | str) else id(thing)


def of_model(model: nn.Module) -> Any:
    """Modules and all they hold: parameters, buffers, gradients, mode, hooks, attributes."""
    return [(name, id(module), seen(vars(module))) for name, module in model.named_modules()]


def of_process() -> dict[str, Any]:
    """Random states, torch's settings and the process's own."""
    numpy = sys.modules.get("numpy")
    hooks = [name for name in vars(nn.modules.module) if name.startswith("_global_")]
    return {
        "random state of torch": torch.get_rng_state().tolist(),
        "random state of Python": random.getstate(),
        "random state of numpy": numpy and str(numpy.random.get_state()),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "anomalies": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ),
        "precision": torch.get_float32_matmul_precision(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "cudnn": tuple(
            getattr(torch.backends.cudnn, name)
            for name in ("enabled", "benchmark", "deterministic", "allow_tf32")
        ),
        "mkldnn": torch.backends.mkldnn.enabled,
        "subnormal numbers": float(torch.tensor(1e-310, dtype=torch.float64) * 1.0),
        "printing": str(vars(torch._tensor_str.PRINT_OPTS)),
        "training is an attribute": "training" not in vars(nn.Module),
        "hooks of all modules": {name: seen(vars(nn.modules.module)[name]) for name in hooks},
        "warnings": list(warnings.filters),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "recursion": sys.getrecursionlimit(),
    }


# Models that have something to lose ---------------------------------------------------------------


class Busy(nn.Module):
    """Batch norm, dropout, a residual sum, hooks, a frozen weight, gradients, both modes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.b, self.c, self.head = nn.Linear(4, 3), nn.Linear(3, 4), nn.Linear(4, 2)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.drop(self.norm(self.a(x)).relu())
        return self.head((h + self.c(self.b(h).relu())).relu())


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    """The first optimizer of a process makes torch import its compiler, which sets variables."""
    torch.optim.SGD([nn.Parameter(torch.ones(1))])


def make(build: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor, Tensor]:
    """A model in the middle of its training, and some data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build().double()
        x, y = torch.randn(6, 3, dtype=torch.float64), torch.arange(6) % 2
        CE(model(x), y).backward()
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    layers[1].weight.requires_grad_(False)
    layers[0].eval()  # one part in another mode than the rest
    layers[0].register_forward_pre_hook(lambda module, args: None)
    layers[-1].register_forward_hook(lambda module, args, output: None)
    layers[-1].weight.register_hook(lambda gradient: gradient)
    return model, x, y


MODELS = {"busy": Busy, "plain": plain}


def state_of(network: ps.Network) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state().items()}


def rescaled(network: ps.Network, **options: Any) -> ps.Rescaling:
    return ps.random_rescaling(network, generator=torch.Generator().manual_seed(0), **options)


def html(network: ps.Network, x: Tensor, y: Tensor) -> str:
    return ps.measure(network, (x, y), measures=["path space"]).to_html()


# All public functions that are given a model ------------------------------------------------------

CALLS: dict[str, Call] = {
    "trace": lambda n, x, y: ps.trace(n.model, x),
    "trace, streams shared": lambda n, x, y: ps.trace(n.model, x, streams="shared"),
    "are_equivalent": lambda n, x, y: ps.are_equivalent(
        n, n.state(), ps.rescale(n, rescaled(n), n.state())
    ),
    "balance": lambda n, x, y: ps.balance(n),
    "ball_bound": lambda n, x, y: ps.ball_bound(n, (x, y)),
    "basis_path_norm": lambda n, x, y: ps.basis_path_norm(n, "largest"),
    "carry_gradients": lambda n, x, y: ps.carry_gradients(
        n, rescaled(n), {k: p.grad for k, p in n.model.named_parameters() if p.grad is not None}
    ),
    "choose_skeleton": lambda n, x, y: str(ps.choose_skeleton(n)),
    "choose_skeleton, random": lambda n, x, y: ps.choose_skeleton(n, "random"),
    "count_paths": lambda n, x, y: ps.count_paths(n),
    "flatness, ball": lambda n, x, y: ps.flatness(n, CE, (x, y), steps=2, restarts=1),
    "flatness, trace": lambda n, x, y: ps.flatness(n, CE, (x, y), kind="trace", skeletons=1),
    "flatness, expected": lambda n, x, y: ps.flatness(
        n, CE, (x, y), kind="expected", space="weights", max_pairs=2
    ),
    "flatness, adaptive": lambda n, x, y: ps.flatness(
        n, CE, (x, y), kind="adaptive", steps=2, restarts=1
    ),
    "group_norm": lambda n, x, y: ps.group_norm(n, 1, 3),
    "identity": lambda n, x, y: ps.identity(n),
    "landscape": lambda n, x, y: ps.landscape(n, CE, (x, y), grid=3),
    "landscape, weights": lambda n, x, y: ps.landscape(n, CE, (x, y), grid=3, space="weights"),
    "landscapes": lambda n, x, y: ps.landscapes(
        n, {"a": state_of(n), "b": ps.rescale(n, rescaled(n))}, CE, (x, y), grid=3
    ),
    "max_norm": lambda n, x, y: ps.max_norm(n),
    "measure": lambda n, x, y: str(ps.measure(n.model, (x, y), self_check=True, progress=False)),
    "measure, page": html,
    "norm_21": lambda n, x, y: ps.norm_21(n, reference=state_of(n)),
    "output_from_paths": lambda n, x, y: ps.output_from_paths(n, x),
    "pac_bayes": lambda n, x, y: ps.pac_bayes(n, ps.error_rate, (x, y), sigmas=(0.1,), max_pairs=2),
    "path_activations": lambda n, x, y: ps.path_activations(n, x),
    "path_balance": lambda n, x, y: ps.path_balance(n),
    "path_contributions": lambda n, x, y: ps.path_contributions(n),
    "path_norm": lambda n, x, y: ps.path_norm(n, [1, 2, float("inf")]),
    "path_norm, differentiated": lambda n, x, y: torch.autograd.grad(
        ps.path_norm(n, state=n.state()), [p for p in n.model.parameters() if p.requires_grad]
    ),
    "path_slopes": lambda n, x, y: ps.path_slopes(n),
    "path_values": lambda n, x, y: ps.path_values(n),
    "paths": lambda n, x, y: ps.paths(n),
    "random_rescaling": lambda n, x, y: rescaled(n, normalized=True),
    "rescale": lambda n, x, y: ps.rescale(n, rescaled(n)),
    "rescaling": lambda n, x, y: ps.rescaling(n, [1.0] * n.H),
    "self_check": lambda n, x, y: ps.self_check(n, [(x, y)], progress=False),
    "spectral_complexity": lambda n, x, y: ps.spectral_complexity(n),
    "spectral_norm": lambda n, x, y: ps.spectral_norm(n, exact=False),
    "spectral_norms": lambda n, x, y: ps.spectral_norms(n),
    "structure_matrix": lambda n, x, y: ps.structure_matrix(n),
    "structure_rank": lambda n, x, y: ps.structure_rank(n),
    "unbalanced_rescaling": lambda n, x, y: ps.unbalanced_rescaling(
        n, generator=torch.Generator().manual_seed(0)
    ),
    "weight_norm": lambda n, x, y: ps.weight_norm(n),
    "BasisPaths": lambda n, x, y: ps.BasisPaths(n).weights(ps.BasisPaths(n).values()),
    "BasisPathPenalty": lambda n, x, y: ps.BasisPathPenalty(n, exact=True).gradients(),
    "PathNormPenalty": lambda n, x, y: ps.PathNormPenalty(n).gradients(),
    "Network, printed": lambda n, x, y: (str(n), n.state(), n.names(), n.invariant_ratio),
    "basis_path_bound": lambda n, x, y: bounds.basis_path_bound(n, 100, 1.0),
    "path_norm_bound": lambda n, x, y: bounds.path_norm_bound(n, 100, 1.0),
    "spectral_bound": lambda n, x, y: bounds.spectral_bound(n, 100, 1.0),
    "weight_norm_bound": lambda n, x, y: bounds.weight_norm_bound(n, 100, 1.0),
    "without_output_layer": lambda n, x, y: bounds.without_output_layer(n),
}
# Actions, named so by their last letter: they write into the parameters, as they say.
ACTIONS: dict[str, Call] = {
    "balance_": lambda n, x, y: ps.balance_(n),
    "gauge_": lambda n, x, y: ps.gauge_(n),
    "rescale_": lambda n, x, y: ps.rescale_(n, rescaled(n)),
    "skeleton_init_": lambda n, x, y: ps.skeleton_init_(n),
}


def test_the_table_has_every_public_function_that_is_given_a_model() -> None:
    public = {name: getattr(ps, name) for name in ps.__all__}
    public |= {name: getattr(bounds, name) for name in bounds.__all__}
    given = {
        name
        for name, function in public.items()
        if inspect.isfunction(function)
        and {"network", "model"} & set(inspect.signature(function).parameters)
    }
    assert given <= {name.partition(",")[0] for name in (*CALLS, *ACTIONS)}
    assert {name for name in given if name.endswith("_")} == set(ACTIONS)


REFUSED_FOR_BUSY = {  # these are for chains of layers, or sums over paths without dropout, ...
    "ball_bound",
    "basis_path_bound",
    "output_from_paths",
    "path_activations",
    "path_norm_bound",
    "spectral_bound",
    "weight_norm_bound",
    "without_output_layer",
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", CALLS)
def test_measuring_changes_nothing(name: str, model: str) -> None:
    built, x, y = make(MODELS[model])
    network = ps.trace(built, x)
    call = CALLS[name]
    before, around, data = of_model(built), of_process(), seen([x, y])
    if model == "busy" and name in REFUSED_FOR_BUSY:
        with pytest.raises(ps.PathspaceError):
            call(network, x, y)
    else:
        call(network, x, y)
    after = of_process()
    for what in around:
        assert after[what] == around[what], what
    assert of_model(built) == before
    assert seen([x, y]) == data


@pytest.mark.parametrize("name", ["measure", "landscape", "flatness, ball", "pac_bayes"])
def test_nor_does_a_loss_that_fails(name: str) -> None:
    built, x, y = make(Busy)
    network = ps.trace(built, x)
    calls = iter([False, True])

    def failing(outputs: Tensor, target: Tensor) -> Tensor:
        if next(calls, True):
            raise KeyError("out of the middle")
        return F.cross_entropy(outputs, target)

    data = [(x[:3], y[:3]), (x[3:], y[3:])]
    run: dict[str, Callable[[], Any]] = {
        "measure": lambda: ps.measure(network, data, failing, progress=False),
        "landscape": lambda: ps.landscape(network, failing, data, grid=3),
        "flatness, ball": lambda: ps.flatness(network, failing, data),
        "pac_bayes": lambda: ps.pac_bayes(network, failing, data),
    }
    before, around = of_model(built), of_process()
    with pytest.raises(KeyError, match="out of the middle"):
        run[name]()
    assert of_model(built) == before
    assert of_process() == around


def identities(model: nn.Module) -> Any:
    """All there is to see of a model except the values of its parameters and buffers."""
    tensors = [*model.parameters(), *model.buffers()]
    about = [(id(t), t.data_ptr(), t.dtype, t.requires_grad, id(t.grad)) for t in tensors]
    hooks = [(m._forward_hooks.copy(), m._forward_pre_hooks.copy()) for m in model.modules()]
    return about, [m.training for m in model.modules()], hooks, getattr(model, "calls", None)


@pytest.mark.parametrize("name", ACTIONS)
def test_actions_change_values_only(name: str) -> None:
    built, x, y = make(plain)
    network = ps.trace(built, x)
    around, before, values = of_process(), identities(built), copy.deepcopy(built.state_dict())
    grads = [None if p.grad is None else p.grad.clone() for p in built.parameters()]
    ACTIONS[name](network, x, y)
    assert of_process() == around
    assert identities(built) == before
    assert any(not torch.equal(t, values[k]) for k, t in built.state_dict().items())
    for parameter, grad in zip(built.parameters(), grads, strict=True):
        assert grad is None or torch.equal(parameter.grad, grad)


@pytest.mark.parametrize("kind", ["GSGD", "PathSGD", "BalancedSGD", "GAdam", "PathAdagrad"])
def test_optimizers_change_parameters_only(kind: str) -> None:
    built, x, _ = make(Busy)
    network = ps.trace(built, x)
    parameters = [p for p in built.parameters() if p.requires_grad]
    frozen = [p for p in built.parameters() if not p.requires_grad]
    around, before = of_process(), identities(built)
    held = seen([*built.buffers(), *frozen])
    grads = [p.grad.clone() for p in parameters]
    values = [p.detach().clone() for p in parameters]
    optimizer = getattr(ps.optim, kind)(parameters, lr=0.01, network=network)
    optimizer.step()
    assert of_process() == around
    assert identities(built) == before
    assert seen([*built.buffers(), *frozen]) == held
    assert all(torch.equal(p.grad, g) for p, g in zip(parameters, grads, strict=True))
    assert any(not torch.equal(p, v) for p, v in zip(parameters, values, strict=True))


def test_training_leaves_the_process_as_it_was() -> None:
    pytest.importorskip("sklearn")
    from pathspace.experiments.training import Trial, train

    trial = Trial("mlp:64-4-10", "digits", optimizer="gsgd", iterations=2, dropout=0.5)
    train(trial, report="quiet")  # imports what it needs
    around = of_process()
    train(trial, report="quiet")
    after = of_process()
    for what in around:
        assert after[what] == around[what], what


def test_what_is_seen_of_a_model_is_enough() -> None:
    """A forward pass, a step, a hook, a mode: each would be noticed."""
    changes: list[Callable[[nn.Module, Tensor], Any]] = [
        lambda model, x: model(x),
        lambda model, x: model.eval(),
        lambda model, x: model.train(),
        lambda model, x: model.zero_grad(),
        lambda model, x: model.requires_grad_(True),
        lambda model, x: model.register_forward_hook(lambda *_: None),
        lambda model, x: model.head.bias.data.add_(1e-12),
        lambda model, x: model.load_state_dict(copy.deepcopy(model.state_dict())),
        lambda model, x: model.half(),
    ]
    for change in changes:
        with torch.random.fork_rng(devices=[]):
            built, x, _ = make(Busy)
            before = of_model(built)
            assert of_model(built) == before
            change(built, x)
            assert of_model(built) != before


# Memory -------------------------------------------------------------------------------------------

CHEAP = [
    "trace",
    "path_norm",
    "path_slopes",
    "weight_norm",
    "spectral_norms",
    "rescale",
    "choose_skeleton",
    "basis_path_norm",
    "PathNormPenalty",
    "landscape, weights",
]
ROUNDS = 1000 // len(CHEAP) + 1


def living() -> tuple[int, int, int]:
    """Tensors, modules and objects of any kind that are alive."""
    gc.collect()
    objects = gc.get_objects()
    tensors = sum(issubclass(type(thing), Tensor) for thing in objects)
    return tensors, sum(issubclass(type(thing), nn.Module) for thing in objects), len(objects)


def test_nothing_is_left_of_a_thousand_calls() -> None:
    built, x, y = make(plain)
    network = ps.trace(built, x)
    optimizer = ps.optim.GSGD([p for p in built.parameters() if p.requires_grad], network=network)

    def rounds(count: int) -> None:
        for _ in range(count):
            for name in CHEAP:
                CALLS[name](network, x, y)
            optimizer.step()

    rounds(3)  # caches fill
    before = living()
    rounds(ROUNDS)
    after = living()
    assert after[0] == before[0]
    assert after[1] == before[1]
    assert after[2] - before[2] < ROUNDS  # less than one object in every tenth call


def test_networks_are_freed_with_their_models() -> None:
    def once() -> None:
        built, x, y = make(Busy)
        network = ps.trace(built, x)
        CALLS["measure"](network, x, y)
        optimizer = ps.optim.PathSGD(built.parameters(), network=network)
        optimizer.step()

    once()
    before = living()
    for _ in range(8):
        once()
    after = living()
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 8


def test_a_leak_would_be_seen() -> None:
    before = living()
    kept = [(torch.ones(1), nn.ReLU()) for _ in range(3)]
    after = living()
    assert after[0] - before[0] == 3
    assert after[1] - before[1] == 3
    del kept
