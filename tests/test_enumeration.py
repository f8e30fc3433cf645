"""Enumeration against independent counting, and the claims of the papers about it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

import pathspace as ps
from cases import CASES, WIDTHS, Case, mlp

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
streams = pytest.mark.parametrize("streams", ["pinned", "shared"])


@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS.keys())
def test_paths_of_an_mlp_are_products_of_matrix_entries(widths):
    model, x = Case("", lambda: mlp(*widths), widths[:1]).make()
    network = ps.trace(model, x)
    matrices = [layer.weight.detach() for layer in model if isinstance(layer, nn.Linear)]
    by_hand = sorted(
        math.prod(float(w[after, before]) for w, before, after in zip(matrices, p, p[1:]))  # noqa: B905
        for p in itertools.product(*(range(h) for h in widths))
    )
    values = ps.path_values(network).sort().values
    torch.testing.assert_close(values, torch.tensor(by_hand, dtype=torch.float64))
    assert ps.count_paths(network) == math.prod(widths)


@cases
@streams
def test_rank_of_the_structure_matrix_is_m_minus_H(case, streams):
    model, x = case.make()
    network = ps.trace(model, x, streams=streams)
    matrix = ps.structure_matrix(network)
    absorbed = sum(n.input.numel() for n in network.normalizations)  # biases before batch norm
    assert matrix.shape == (network.m - absorbed, ps.count_paths(network))
    assert ps.structure_rank(network) == network.m - absorbed - network.H


@cases
def test_the_output_is_the_sum_over_paths(case):
    model, x = case.make()
    network = ps.trace(model, x, streams="shared")
    torch.testing.assert_close(ps.output_from_paths(network, x), model(x))


def test_activation_status_is_the_product_over_active_units():
    model, x = Case("", lambda: mlp(3, 4, 4, 2), (3,)).make()
    network = ps.trace(model, x)
    graph = ps.BasisPaths(network).graph
    first = model[0](x)
    second = model[2](first.relu())
    active = {"0": first > 0, "2": second > 0}
    status = ps.path_activations(network, x)
    for row, path in zip(status, ps.paths(network), strict=True):
        names = [graph.name(number) for number in path]
        hidden = [
            int(name.split("[")[1].split(",")[0]) for name in names[:2]
        ]  # weight[after, before]
        expected = active["0"][:, hidden[0]] & active["2"][:, hidden[1]]
        torch.testing.assert_close(row, expected.double())
    assert 0 < float(status.mean()) < 1  # both kinds occur


def test_path_values_are_invariant_and_weights_are_not():
    model, x = CASES[-4].make()
    network = ps.trace(model, x, streams="shared")
    state = ps.rescale(network, ps.random_rescaling(network))
    torch.testing.assert_close(ps.path_values(network, state), ps.path_values(network))
    assert any(not torch.equal(state[name], tensor) for name, tensor in network.state().items())


def test_too_many_paths_are_refused_with_their_number():
    network = ps.trace(mlp(50, 50, 50, 50), torch.ones(1, 50))
    with pytest.raises(ps.PathspaceError, match=r"6\.25e\+06 paths"):
        ps.paths(network)
    assert ps.count_paths(network) == 50**4


def test_units_that_are_not_followed_one_by_one_are_refused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(4, 1)

        def forward(self, x):
            return self.b(torch.cat([self.a(x).relu(), self.a(-x).relu()], 1))

    with pytest.raises(ps.PathspaceError, match="used more than once"):
        ps.paths(ps.trace(Twice(), torch.ones(1, 2)))


def test_output_from_paths_says_what_stands_in_the_way():
    model, x = CASES[-4].make()
    assert isinstance(model, nn.Module)
    with pytest.raises(ps.PathspaceError, match='streams="shared"'):
        ps.output_from_paths(ps.trace(model, x, streams="pinned"), x)
    gelu = nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 1))
    with pytest.raises(ps.PathspaceError, match="gelu"):
        ps.output_from_paths(ps.trace(gelu, torch.ones(1, 2)), torch.ones(1, 2))


def test_enumeration_leaves_the_mode_of_the_model_alone():
    model, x = CASES[0].make()
    model.train()
    ps.output_from_paths(ps.trace(model, x, streams="shared"), x)
    assert model.training


def test_slopes_are_no_paths():
    model, x = Case(
        "", lambda: nn.Sequential(nn.Linear(2, 3), nn.PReLU(3), nn.Linear(3, 1)), (2,)
    ).make()
    network = ps.trace(model, x)
    assert ps.count_paths(network) == len(ps.paths(network)) == 2 * 3 + 3 + 1
    graph = ps.BasisPaths(network).graph
    slopes = {graph.number("1.weight", k) for k in range(3)}
    assert not slopes & {number for path in ps.paths(network) for number in path}
    matrix = ps.structure_matrix(network)
    assert matrix.shape == (network.m, 10)
    assert not matrix[sorted(slopes)].any()
    assert ps.structure_rank(network) == network.m - 3 - network.H
    torch.testing.assert_close(ps.output_from_paths(network, x), model(x))
    first, last = model[0], model[2]
    inner = last.weight.abs() @ (first.weight.abs().sum(1) + first.bias.abs())
    expected = (inner + last.bias.abs()).sum()
    torch.testing.assert_close(ps.path_values(network).abs().sum(), expected.detach())


def test_values_are_those_of_the_state_that_is_given():
    model, x = Case("", lambda: mlp(3, 4, 2), (3,)).make()
    network = ps.trace(model, x)
    state = {**network.state(), "0.weight": 3 * model[0].weight}
    torch.testing.assert_close(ps.path_values(network, state), 3 * ps.path_values(network))


@pytest.mark.parametrize(
    "pool",
    [
        lambda h: nn.functional.adaptive_max_pool2d(h, 2),
        lambda h: torch.max_pool2d(input=h, kernel_size=2),
        lambda h: nn.functional.max_pool2d(h, 2, return_indices=True)[0],
        lambda h: nn.functional.max_pool2d(h, 2, 2, 0, 1, False, True)[0],
        lambda h: nn.functional.adaptive_max_pool2d(h, 2, True)[0],
    ],
    ids=["adaptive", "by keywords", "with places", "without keywords", "adaptive, with places"],
)
def test_paths_through_maxima_of_all_kinds(pool):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.linear = nn.Conv2d(1, 2, 1), nn.Linear(8, 2)

        def forward(self, x):
            return self.linear(pool(self.conv(x).relu()).flatten(1))

    model, x = Case("", Pooled, (1, 4, 4)).make()
    with torch.no_grad():  # the place of a maximum depends on the sign of a weight
        model.conv.weight.copy_(torch.tensor([0.7, -0.9]).view(2, 1, 1, 1))
        model.conv.bias.fill_(5.0)
    network = ps.trace(model, x)
    torch.testing.assert_close(ps.output_from_paths(network, x), model(x))


NOT_FROZEN = {
    "amax": lambda h: h.amax((2, 3)),
    "amin": lambda h: h.amin((2, 3)),
    "max": lambda h: h.flatten(2).max(2).values,
    "min": lambda h: h.flatten(2).min(2).values,
    "maximum": lambda h: torch.maximum(h, 2 * h).sum((2, 3)),
    "minimum": lambda h: torch.minimum(h, 2 * h).sum((2, 3)),
    "abs": lambda h: h.abs().sum((2, 3)),
}


@pytest.mark.parametrize("name", NOT_FROZEN)
def test_what_is_not_frozen_is_refused_by_name(name):
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.linear = nn.Conv2d(1, 2, 1), nn.Linear(2, 2)

        def forward(self, x):
            return self.linear(NOT_FROZEN[name](self.conv(x)))

    model, x = Case("", Other, (1, 3, 3)).make()
    network = ps.trace(model, x, streams="shared")
    with pytest.raises(ps.PathspaceError, match=f"`{name}` is not frozen"):
        ps.output_from_paths(network, x)


class Both(nn.Module):
    """Returns a hidden layer and what is read from it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 2)

    def forward(self, x):
        h = self.a(x).relu()
        return torch.cat([h, self.b(h)], 1)


def test_a_layer_that_is_returned_and_read_on_ends_paths_and_begins_others():
    """Listed paths are those of the group; the norm's run from inputs to outputs."""
    torch.manual_seed(0)
    model, x = Both().double(), torch.randn(4, 2, dtype=torch.float64)
    network = ps.trace(model, x)
    into = torch.cat([model.a.weight, model.a.bias[:, None]], 1).detach().abs()
    out, bias = model.b.weight.detach().abs(), model.b.bias.detach().abs()
    assert network.H == 0
    assert ps.count_paths(network) == into.numel() + out.numel() + bias.numel()
    assert ps.structure_rank(network) == network.m - network.H
    torch.testing.assert_close(
        ps.path_values(network).abs().sum(), into.sum() + out.sum() + bias.sum()
    )
    through = out @ into.sum(1) + bias
    torch.testing.assert_close(ps.path_norm(network, 1), into.sum() + through.sum())


def test_output_from_paths_refuses_a_layer_that_is_returned_and_read_on():
    """It left out what goes through that layer, and said nothing."""
    x = torch.randn(4, 2)
    network = ps.trace(Both(), x)
    for function in (ps.output_from_paths, ps.path_activations):
        with pytest.raises(ps.PathspaceError, match=r"`a` are returned and read on"):
            function(network, x)
