"""The slopes of the path norm against enumeration, autograd and products of dense matrices."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import pathspace as ps
from cases import CASES, Case, conv, mlp
from pathspace.absorption import Absorption
from pathspace.flow import Slope, path_slopes
from pathspace.flow.layers import Ahead
from pathspace.flow.program import Program
from pathspace.weightgraph import WeightGraph
from test_path_norm import UNROLLED, unrolled_norm

exponents = pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 4.0])
DENSE = [case for case in CASES if len(case.shape) == 1]


def enumerated(network: ps.Network, p: float) -> dict[str, Tensor]:
    """By weight: the sum over the paths through it of the other weights' powers."""
    graph = WeightGraph(network)
    weights = graph.weights({n: t.detach() for n, t in network.state().items()})
    powers = torch.cat([weights[e.parameter].reshape(-1) for e in graph.edges]).abs() ** p
    slopes = torch.zeros_like(powers)
    for path in ps.paths(network):
        for place, number in enumerate(path):
            others = [*path[:place], *path[place + 1 :]]
            slopes[number] += powers[others].prod()
    parts = slopes.split([edge.count for edge in graph.edges])
    return {e.parameter: s.view(e.shape) for e, s in zip(graph.edges, parts, strict=True)}


@pytest.mark.parametrize("case", DENSE, ids=lambda case: case.name)
@exponents
def test_they_are_sums_over_the_paths_through_each_weight(case, p):
    model, x = case.make()
    with torch.no_grad():  # slopes of weights that are zero, and of those beside them
        for parameter in model.parameters():
            parameter.view(-1)[0] = 0.0
    network = ps.trace(model, x, streams="shared")
    expected = enumerated(network, p)
    found = path_slopes(network, p=p)
    assert found.keys() == expected.keys()
    for name, slope in found.items():
        assert not any(factor.requires_grad for factor in slope.factors)
        torch.testing.assert_close(slope.dense(), expected[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", UNROLLED)
@exponents
def test_networks_on_images_against_their_unrolled_form(name, p):
    """With respect to w, the slope is multiplied by the derivative of |w|^p."""
    model, x = Case(name, UNROLLED[name], (2, 4, 4)).make()
    network = ps.trace(model, x)
    parameters = dict(model.named_parameters())
    total = unrolled_norm(model, x, p) ** p
    expected = dict(zip(parameters, torch.autograd.grad(total, parameters.values()), strict=True))
    found = path_slopes(network, p=p)
    assert found.keys() == expected.keys()
    for key, w in parameters.items():
        if name.startswith("batch norm") and key == "1.weight":
            continue  # its gain is in the folded bias too
        derivative = found[key].dense() * p * w.detach().abs() ** (p - 1) * w.detach().sign()
        if name.startswith("batch norm") and key == "1.bias":
            norm = model[1]
            folded = w - norm.running_mean * norm.weight * (norm.running_var + norm.eps).rsqrt()
            folded = folded.detach()
            derivative = found[key].dense() * p * folded.abs() ** (p - 1) * folded.sign()
        torch.testing.assert_close(derivative, expected[key], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("biases", [True, False])
def test_they_are_the_derivatives_by_powers(case, biases):
    """Raise |w|^p of one tensor at a time by numbers: φ^p is a polynomial in them."""
    model, x = case.make()
    network = ps.trace(model, x)
    p = 1.5
    state = {n: t.detach() for n, t in network.state().items()}
    absorbed = Absorption.of(network).norms
    means = [norm.mean for norm in network.normalizations if norm.place in absorbed]
    for name in [*means, *absorbed.values()]:
        state[name] = torch.zeros_like(state[name])  # so that the bias of a batch norm is folded

    def total(changed: dict[str, Tensor]) -> float:
        return float(ps.path_norm(network, p, state={**state, **changed}, biases=biases)) ** p

    found = path_slopes(network, state, p, biases=biases)
    for name, slope in found.items():
        w = state[name]
        step = 1e-6 * torch.rand(w.shape, dtype=w.dtype, generator=torch.Generator().manual_seed(0))
        higher, lower = ((w.abs() ** p + sign * step).abs() ** (1 / p) for sign in (1, -1))
        change = total({name: higher}) - total({name: lower})
        expected = float(2 * (slope.dense() * step).sum())
        assert math.isclose(change, expected, rel_tol=1e-5, abs_tol=1e-12), name
    if not biases:
        assert not any(name.endswith("bias") for name in found)


def test_linear_maps_of_one_sample_come_in_two_factors():
    model, x = Case("", lambda: mlp(3, 4, 2, bias=True), (3,)).make()
    slopes = path_slopes(ps.trace(model, x))
    assert [tuple(f.shape) for f in slopes["0.weight"].factors] == [(4, 1), (1, 3)]
    assert [tuple(f.shape) for f in slopes["0.bias"].factors] == [(4,)]
    assert slopes["0.weight"].dense().shape == model[0].weight.shape


class Gated(nn.Module):
    """Several outputs behind the largest layer, and a sum around a smaller one."""

    def __init__(self):
        super().__init__()
        self.first, self.wide = nn.Linear(3, 40), nn.Linear(40, 30)
        self.around = nn.Sequential(nn.Linear(30, 2, bias=False), nn.ReLU(), nn.Linear(2, 30))
        self.heads = nn.ModuleList([nn.Linear(30, 1), nn.Linear(30, 2, bias=False)])

    def forward(self, x):
        x = self.wide(self.first(x).relu()).relu()
        x = x - self.around(x).relu()
        return [head(x) for head in self.heads]


@pytest.mark.parametrize("make", [lambda: mlp(3, 50, 40, 2, bias=True), Gated])
@pytest.mark.parametrize("factor", [1.0, 1e-40, 1e40])
@pytest.mark.parametrize("biases", [True, False])
def test_a_large_layer_is_read_once_with_the_same_result(make, factor, biases, monkeypatch):
    monkeypatch.setattr("pathspace.flow.powers.PIECE", 256)  # some rows at a time
    model, x = Case("", make, (3,)).make()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    twice = path_slopes(ps.trace(model, x), p=1.5, biases=biases)
    monkeypatch.setattr("pathspace.flow.program.WORTH", 0)
    network = ps.trace(model, x)
    used = []
    scaled = Ahead.scaled
    monkeypatch.setattr(Ahead, "scaled", lambda self, g: used.append(self) or scaled(self, g))
    once = path_slopes(network, p=1.5, biases=biases)
    assert len(used) == 1
    assert used[0].to_x is not None
    assert once.keys() == twice.keys()
    for name, slope in once.items():
        assert math.isclose(slope.log, twice[name].log, abs_tol=1e-9)
        for one, other in zip(slope.factors, twice[name].factors, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


def test_a_large_layer_that_paths_go_around_is_read_twice(monkeypatch):
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.wide = nn.Linear(3, 40), nn.Linear(40, 40)
            self.head = nn.Linear(40, 2)

        def forward(self, x):
            x = self.first(x).relu()
            return self.head(x + self.wide(x).relu())

    monkeypatch.setattr("pathspace.flow.program.WORTH", 0)
    model, x = Case("", Around, (3,)).make()
    program = Program.of(ps.trace(model, x))
    assert program.nodes[program.waist].args[1].name == "head.weight"


def test_a_linear_map_of_several_places_has_the_sum_over_them():
    model, x = Case("", lambda: nn.Linear(3, 2), (5, 3)).make()
    slopes = path_slopes(ps.trace(model, x))
    torch.testing.assert_close(slopes["weight"].dense(), torch.full((2, 3), 5.0).double())
    torch.testing.assert_close(slopes["bias"].dense(), torch.full((2,), 5.0).double())


def test_a_weight_that_is_used_twice_has_the_sum_over_its_uses():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.head = nn.Linear(3, 3), nn.Linear(3, 2)
            self.b = self.a  # one more name

        def forward(self, x):
            return self.head(self.b(self.a(x).relu()).relu())

    model, x = Case("", Twice, (3,)).make()
    network = ps.trace(model, x)
    found = path_slopes(network, p=2)
    a, c, v = (t.detach().square() for t in (model.a.weight, model.a.bias, model.head.weight))
    first = a.sum(1) + c
    back = v.sum(0)
    expected = back[:, None] * first + (back @ a)[:, None] * torch.ones(3).double()
    torch.testing.assert_close(found["a.weight"].dense(), expected)
    torch.testing.assert_close(found["a.bias"].dense(), back + back @ a)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("widths", [(700, 600, 500, 3), (3, 4, 600, 700)])
def test_large_weights_are_read_in_pieces(widths, p):
    torch.manual_seed(0)
    model = mlp(*widths, bias=True).double()
    for x in (torch.ones(1, widths[0]), torch.ones(1, 2, widths[0])):
        network = ps.trace(model, x.double())
        state = {n: t.detach().requires_grad_() for n, t in network.state().items()}
        total = x.double()
        for name in ("0", "2", "4"):
            total = total @ state[f"{name}.weight"].abs().pow(p).T
            total = total + state[f"{name}.bias"].abs().pow(p)
        expected = torch.autograd.grad(total.sum(), list(state.values()))
        for (name, w), gradient in zip(state.items(), expected, strict=True):
            slope = path_slopes(network, p=p)[name].dense()
            w = w.detach()
            torch.testing.assert_close(slope * p * w.abs() ** (p - 1) * w.sign(), gradient)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slopes_of_deep_networks_are_finite(size, dtype):
    """All paths run through every layer, so the shares of each layer's weights sum to 1."""
    torch.manual_seed(0)
    layers = [layer for _ in range(1000) for layer in (nn.Linear(4, 4, bias=False), nn.ReLU())]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(size)
    network = ps.trace(model, torch.ones(1, 4))
    log_total = 2 * float(ps.path_norm(network, 2, log=True))
    state = {name: w.detach() for name, w in network.state().items()}
    for name, slope in path_slopes(network, dtype=dtype).items():
        part = (Slope(slope.factors).dense() * state[name].square()).sum()
        tolerance = 1e-3 if dtype == torch.float32 else 1e-9
        assert math.isclose(float(part.log()) + slope.log, log_total, abs_tol=tolerance)


def test_statistics_are_those_of_the_caller():
    model, x = Case("", lambda: conv(3, batch_norm=True), (2, 4, 4)).make()
    network = ps.trace(model, x)
    state = {n: t.detach() for n, t in network.state().items()}
    wide = {**state, "1.running_var": 4 * state["1.running_var"] + 3 * model[1].eps}
    one, other = (path_slopes(network, s, 2.0)["0.weight"].dense() for s in (state, wide))
    torch.testing.assert_close(other, one / 4)


def test_the_default_dtype_is_that_of_the_parameters():
    for dtype, expected in [(torch.bfloat16, torch.float32), (torch.float32, torch.float32),
                            (torch.float64, torch.float64)]:  # fmt: skip
        model = nn.Linear(2, 2).to(dtype)
        network = ps.trace(model, torch.ones(1, 2, dtype=dtype))
        assert path_slopes(network)["weight"].dense().dtype == expected


@pytest.mark.parametrize("p", [0.5, math.inf, math.nan])
def test_exponents_without_a_slope_are_refused(p):
    network = ps.trace(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(ValueError, match="finite and at least 1"):
        path_slopes(network, p=p)


def test_slopes_that_are_not_finite_are_refused():
    model = mlp(2, 3, 2)
    with torch.no_grad():
        model[0].weight.fill_(1e30)
    network = ps.trace(model, torch.ones(1, 2))
    with pytest.raises(ps.PathspaceError, match=r"range of torch\.float32"):
        path_slopes(network)
    assert path_slopes(network, dtype=torch.float64)["0.weight"].dense().isfinite().all()


def test_nothing_of_the_model_is_touched():
    model, x = Case("", lambda: conv(3, batch_norm=True), (2, 4, 4)).make()
    network = ps.trace(model, x)
    before = {n: (t._version, t.clone()) for n, t in network.state().items()}
    with torch.no_grad():
        path_slopes(network)
    assert all(
        t._version == before[n][0] and torch.equal(t, before[n][1]) and t.grad is None
        for n, t in network.state().items()
    )


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_slopes_are_written_into_memory_that_is_given(p, monkeypatch):
    monkeypatch.setattr("pathspace.flow.layers.WRITTEN", 0)
    kernels = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
    model = nn.Sequential(kernels[0], nn.ReLU(), kernels[1], nn.ReLU(), kernels[1]).double()
    network = ps.trace(model, torch.ones(1, 2, 5, 5).double())
    expected = {name: slope.dense() for name, slope in path_slopes(network, p=p).items()}
    rooms = {name: torch.full_like(slope, math.nan) for name, slope in expected.items()}
    found = path_slopes(network, p=p, rooms=rooms)
    for name, slope in found.items():
        torch.testing.assert_close(slope.dense(), expected[name])
    assert found["0.weight"].factors[0].data_ptr() == rooms["0.weight"].data_ptr()
    for wrong in (rooms["0.weight"].float(), rooms["0.weight"][:, :1], rooms["0.weight"].mT):
        found = path_slopes(network, p=p, rooms={"0.weight": wrong})
        torch.testing.assert_close(found["0.weight"].dense(), expected["0.weight"])
