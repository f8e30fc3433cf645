"""G-SGD and its family against torch's optimizers on explicit coordinates, in float64."""

import math
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

import pathspace as ps
from architectures import Act, BatchNorm, Flatten, Map, Residual, Spec, build, example_input
from cases import CASES
from optimizers import apart
from pathspace.optim.representative import he_scales
from pathspace.optim.skeleton import training_skeleton

PLAIN = [case for case in CASES if "batch norm" not in case.name]  # those are in another test


class Explicit:
    """The coordinates of a network as one vector x, and its state as a function of x.

    Where free weights move, they are coordinates too: the last ones, as they are in He's
    representative. All others are the values of basis paths with the free weights of the start.
    """

    def __init__(self, network, skeleton, metric, roots):
        self.basis = ps.BasisPaths(network, skeleton)
        self.state = {k: v.detach().clone() for k, v in network.state().items()}
        values = self.basis.flat(self.basis.values(self.state))
        kappa = torch.ones_like(values)
        self.free, self.length = torch.zeros(0, dtype=torch.long), values.new_zeros(0)
        if metric != "paper":
            c = he_scales(network.edges, self.state, network.H + 1)
            ratio = {e.parameter: (-e.ratio(c)).exp().expand(e.shape) for e in network.edges}
            ones = {k: torch.ones_like(v) for k, v in self.basis.values(self.state).items()}
            weights = self.basis.graph.weights(self.state)
            products = {k: v / weights[k] for k, v in self.basis.values(self.state).items()}
            kappa = self.basis.flat({k: products[k] * ratio[k] * ones[k] for k in ones})
        if metric == "normalized":
            outgoing = self.basis.skeleton.outgoing
            self.free = outgoing[outgoing >= 0]
            self.length = self._all(ratio)[self.free]
        self.kappa, self.sign = kappa, values.sign()
        is_root = torch.zeros(len(values), dtype=torch.bool)
        is_root[self.basis.roots] = True
        self.is_log = is_root & (roots == "multiplicative")
        logs = math.sqrt(2) * values.abs().log()
        free = self._all(self.state)[self.free] / self.length
        x = torch.where(self.is_log, logs, values / kappa)
        self.x = torch.cat([x, free]).requires_grad_()
        self.roots = torch.cat([is_root, torch.zeros(len(free), dtype=torch.bool)])

    def _all(self, tensors):
        """All numbers of the weights of the graph, one after the other."""
        return torch.cat([
            tensors[edge.parameter].expand(edge.shape).reshape(-1)
            for edge in self.basis.graph.edges
        ])  # fmt: skip

    def values(self):
        x = self.x[: len(self.kappa)]
        logs = self.sign * (x / math.sqrt(2)).exp()
        return torch.where(self.is_log, logs, self.kappa * x)

    def __call__(self):
        state = self.basis.weights(self.values(), state=self.state)
        free = self.length * self.x[len(self.kappa) :]
        flat = self._all(state).index_put((self.free,), free)
        parts = flat.split([math.prod(edge.shape) for edge in self.basis.graph.edges])
        new = {e.parameter: p for e, p in zip(self.basis.graph.edges, parts, strict=True)}
        return {name: new[name].view_as(v) if name in new else v for name, v in state.items()}


class InTrainMode:
    """The same where batch norms divide by what their batch gives: one weight after the other.

    Nothing goes through a batch norm then: a weight in front of it has a coordinate of its own,
    relative to the norm of all that enters the same unit, and its weight and bias start new paths.
    """

    def __init__(self, network, choice, metric, roots):
        self.state = {k: v.detach().clone() for k, v in network.state().items()}
        found = training_skeleton(network, self.state, torch.arange(network.H + 1), choice)
        edges = found.graph.edges
        self.shapes = {edge.parameter: edge.shape for edge in edges}
        self.before = w = torch.cat([self.state[name].reshape(-1) for name in self.shapes])
        source, target = (
            torch.cat([e.scale(side).expand(e.shape).reshape(-1) for e in edges]).tolist()
            for side in ("source", "target")
        )
        into, out = found.incoming.tolist(), found.outgoing.tolist()
        free = set(out) - {-1}

        @cache
        def inner(u):  # I
            return inner(source[into[u]]) * w[into[u]] if out[u] >= 0 else torch.ones_like(w[0])

        @cache
        def outer(v):  # O
            return w[out[v]] * outer(target[out[v]]) if out[v] >= 0 else torch.ones_like(w[0])

        @cache
        def root(u):  # a
            if out[u] < 0:
                return None
            return root(source[into[u]]) if into[u] in free else into[u]

        self.numbers = [number for number in range(len(w)) if number not in free]
        place = {number: k for k, number in enumerate(self.numbers)}
        owners = [root(source[number]) for number in self.numbers]
        self.owner = torch.tensor([-1 if a is None else place[a] for a in owners])
        self.factor = torch.stack([
            (1.0 if a is None else outer(source[n])) / outer(target[n])
            for n, a in zip(self.numbers, owners, strict=True)
        ])  # fmt: skip
        products = torch.stack([inner(source[n]) * outer(target[n]) for n in self.numbers])
        logs = he_scales(network.edges, self.state, network.H + 1)
        ratios = {e.parameter: e.ratio(logs).exp().expand(e.shape) for e in network.edges}
        ratio = torch.cat([ratios[name].reshape(-1) for name in self.shapes])
        self.free = torch.tensor(sorted(free) if metric == "normalized" else [], dtype=torch.long)
        self.length = 1 / ratio[self.free]
        values, self.kappa = products * w[self.numbers], products / ratio[self.numbers]
        of_units = {root(u) for u in range(len(out))}
        is_root = torch.tensor([number in of_units for number in self.numbers], dtype=torch.bool)
        self.roots = torch.cat([is_root, torch.zeros(len(self.free), dtype=torch.bool)])
        self.is_log = is_root & (roots == "multiplicative")
        self.sign = values.sign()
        x = torch.where(self.is_log, math.sqrt(2) * values.abs().log(), values / self.kappa)
        self.x = torch.cat([x, w[self.free] / self.length]).requires_grad_()

    def __call__(self):
        x, free = self.x.split([len(self.kappa), len(self.free)])
        logs = self.sign * (x / math.sqrt(2)).exp()
        values = torch.where(self.is_log, logs, self.kappa * x)
        through = torch.where(self.owner >= 0, values[self.owner.clamp_min(0)], 1.0)
        numbers = torch.tensor(self.numbers)
        flat = self.before.index_put((numbers,), values * self.factor / through)
        flat = flat.index_put((self.free,), self.length * free)
        parts = flat.split([math.prod(shape) for shape in self.shapes.values()])
        new = {n: part.view(s) for (n, s), part in zip(self.shapes.items(), parts, strict=True)}
        return {name: tensor.clone() for name, tensor in self.state.items()} | new


# eps is large because a slope that is 0 up to rounding must not become a step of size 1.
RULES = {
    "sgd": (ps.optim.GSGD, torch.optim.SGD, {"lr": 0.01}),
    "momentum": (ps.optim.GSGD, torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "dampening": 0.2}),
    "nesterov": (ps.optim.GSGD, torch.optim.SGD, {"lr": 0.01, "momentum": 0.8, "nesterov": True}),
    "adagrad": (ps.optim.GAdagrad, torch.optim.Adagrad, {"lr": 0.01, "lr_decay": 0.1, "eps": 1e-3}),
    "adam": (ps.optim.GAdam, torch.optim.Adam, {"lr": 0.003, "amsgrad": True, "eps": 1e-3}),
}
WAYS = [
    ("modulo", "normalized", "multiplicative"),
    ("largest", "normalized", "multiplicative"),
    ("modulo", "normalized", "additive"),
    ("largest", "diagonal", "multiplicative"),
    ("largest", "paper", "additive"),
]


def smaller(model):
    """Weights at which a few steps stay far from the end of the coordinates."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.sign() * (0.5 + 0.5 * parameter.abs().clamp_max(1)))
    return model


TOGETHER = [(rule, way, "together") for rule in RULES for way in WAYS]
APART = [(rule, way, "apart") for rule in ("sgd", "adam") for way in WAYS if way[1] != "paper"]


def step_both(count, fit, optimizer, explicit, reference):
    """Take steps in the model's weights, and torch's in explicit coordinates."""
    model, x, target = fit
    for _ in range(count):
        optimizer.zero_grad()
        F.mse_loss(model(x), target).backward()
        optimizer.step()
        reference.zero_grad()
        F.mse_loss(functional_call(model, explicit(), (x,)), target).backward()
        reference.step()


@pytest.mark.parametrize(("rule", "way", "layout"), [*TOGETHER, *APART])
@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_steps_are_those_of_torch_on_explicit_coordinates(case, rule, way, layout, monkeypatch):
    if layout == "apart":
        apart(monkeypatch)
    ours, torchs, settings = RULES[rule]
    skeleton, metric, roots = way
    if roots == "additive":
        settings = settings | {"lr": settings["lr"] / 100}  # stay away from R = 0
    model, x = case.make()
    network = ps.trace(smaller(model), x)
    with torch.no_grad():
        target = model(x) + 0.1
    explicit = Explicit(network, skeleton, metric, roots)
    reference = torchs([explicit.x], **settings)
    optimizer = ours(
        model.parameters(), **settings, network=network, skeleton=skeleton, metric=metric,
        roots=roots,
    )  # fmt: skip
    step_both(4, (model, x, target), optimizer, explicit, reference)
    found, expected = network.state(), explicit()
    if layout == "apart":  # what enters a unit may have moved in place of what leaves it
        found, expected = explicit.basis.values(found), explicit.basis.values(expected)
    for name in found:
        one, other = found[name].detach(), expected[name].detach()
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert any(not torch.equal(explicit.state[n], p) for n, p in model.named_parameters())
    assert optimizer.space.rechosen == 0  # else this test would compare other coordinates


@pytest.mark.parametrize("layout", ["together", "apart"])
@pytest.mark.parametrize("metric", ["normalized", "diagonal"])
def test_every_coordinate_has_the_rate_of_its_group(metric, layout, monkeypatch):
    if layout == "apart":
        apart(monkeypatch)
    case = next(case for case in CASES if case.name == "mlp bottleneck, bias")
    model, x = case.make()
    network = ps.trace(smaller(model), x)
    names = dict(model.named_parameters())
    rates = {name: 0.01 * (1 + k) for k, name in enumerate(names)}
    groups = [{"params": [p], "lr": rates[name]} for name, p in names.items()]
    explicit = Explicit(network, "modulo", metric, "multiplicative")
    by_weight = {name: torch.full_like(p, rates[name]) for name, p in names.items()}
    by_coordinate = torch.cat(
        [explicit.basis.flat(by_weight), explicit._all(by_weight)[explicit.free]]
    )
    optimizer = ps.optim.GSGD(groups, network=network, metric=metric)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        loss = functional_call(model, explicit(), (x,)).square().mean()
        (slope,) = torch.autograd.grad(loss, explicit.x)
        with torch.no_grad():
            explicit.x -= by_coordinate * slope
    found = explicit.basis.values(network.state())
    for name, expected in explicit.basis.values(explicit()).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-11)


R, BLOCK = Act(), Residual((Map(3), BatchNorm(), Act(), Map(4)))
NORMALIZED = {
    "batch norm": Spec((3,), (Map(4), BatchNorm(), R, Map(5), BatchNorm(), R, Map(2))),
    "no bias": Spec((3,), (Map(4, False), BatchNorm(), R, Map(5, False), R, Map(2))),
    "no gain": Spec((3,), (Map(4), R, Map(3), BatchNorm(affine=False), R, Map(3), R, Map(2))),
    "no statistics": Spec((3,), (Map(4), BatchNorm(running=False), R, Map(5), R, Map(2))),
    "behind a ReLU": Spec((3,), (Map(4), R, BatchNorm(), Map(5), R, Map(2))),
    "of the input": Spec((3,), (BatchNorm(), Map(4), R, Map(2))),
    "of images": Spec((2, 3, 3), (Map(3, kernel=3), BatchNorm(), R, Map(2), Flatten(), Map(2))),
    "in a stream": Spec((3,), (Map(4), BatchNorm(), R, BLOCK, R, BLOCK, R, Map(2))),
}


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize(("choice", "metric", "roots"), WAYS[:4])
@pytest.mark.parametrize(
    ("name", "streams"), [("in a stream", "shared"), *((name, "pinned") for name in NORMALIZED)]
)
def test_steps_of_batch_norms_are_those_of_torch_on_explicit_coordinates(
    name, choice, metric, roots, rule, streams
):
    ours, torchs, settings = RULES[rule]
    if roots == "additive":
        settings = settings | {"lr": settings["lr"] / 100}
    spec = NORMALIZED[name]
    model, x = smaller(build(spec)).train(), example_input(spec, 7)
    network = ps.trace(model, x, streams=streams)
    explicit = InTrainMode(network, choice, metric, roots)
    assert set(explicit.shapes) == {edge.parameter for edge in network.edges}
    for key, tensor in explicit().items():
        torch.testing.assert_close(tensor.detach(), explicit.state[key])
    target = torch.linspace(-1, 1, 7 * 2, dtype=x.dtype).view(7, 2)
    reference = torchs([explicit.x], **settings)
    optimizer = ours(
        model.parameters(), **settings, network=network, skeleton=choice, metric=metric, roots=roots
    )
    step_both(3, (model, x, target), optimizer, explicit, reference)
    expected = explicit()
    for key, parameter in network.parameters().items():
        found = parameter.detach()
        torch.testing.assert_close(found, expected[key].detach(), rtol=1e-9, atol=1e-11)
    assert any(not torch.equal(explicit.state[n], p) for n, p in model.named_parameters())
    assert optimizer.space.rechosen == 0


def test_what_enters_a_unit_has_he_s_norm_and_a_constant_alone_has_norm_one():
    class WithConstants(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(7, 5, bias=False)
            self.c, self.constant = torch.nn.Linear(5, 1), torch.nn.Parameter(torch.ones(4))

        def forward(self, x):
            constants = (self.constant + torch.zeros(len(x), 4).to(x)).relu()
            return self.c(self.b(torch.cat([self.a(x).relu(), constants], 1)).relu())

    model = WithConstants().double()
    with torch.no_grad():
        model.constant.copy_(torch.tensor([0.1, 2.0, -3.0, 7.0]))
    network = ps.trace(model, torch.ones(1, 2).double())
    assert network.H == 3 + 4 + 5
    state = {name: tensor.detach() for name, tensor in network.state().items()}
    logs = he_scales(network.edges, state, network.H + 1)
    scaled = ps.rescale(network, logs[1:].exp())
    for name in ("a.weight", "b.weight"):
        norms = scaled[name].norm(dim=1)
        torch.testing.assert_close(norms, torch.full_like(norms, math.sqrt(2)))
    torch.testing.assert_close(scaled["constant"].abs(), torch.ones(4).double())
