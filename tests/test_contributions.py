"""Shares of the path norm against enumeration, and against removing units one by one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import pathspace as ps
from cases import CASES, Case, conv, mlp
from pathspace.contributions import path_contributions
from pathspace.weightgraph import WeightGraph

exponents = pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
DENSE = [case for case in CASES if len(case.shape) == 1]
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def units_along(network: ps.Network, path: tuple[int, ...]) -> set[int]:
    """The units that a listed path visits: the ends of its weights, and the sums between them."""
    graph = WeightGraph(network)
    ends = []
    for number in path:
        k = int(torch.searchsorted(graph.start, number, right=True)) - 1
        edge, place = graph.edges[k], number - int(graph.start[k])
        ends.append([int(end.expand(edge.shape).reshape(-1)[place])
                     for end in (edge.source, edge.target)])  # fmt: skip
    visited = {unit for pair in ends for unit in pair}
    starts = {source for source, _ in ends}
    for totals, parts in network.joins:  # a sum is visited if the path goes on from it
        for total, part in zip(totals.tolist(), parts.tolist(), strict=True):
            if part in visited and total in starts:
                visited.add(total)
    return visited


@pytest.mark.parametrize("case", DENSE, ids=lambda case: case.name)
@exponents
def test_shares_are_sums_over_listed_paths(case, p):
    model, x = case.make()
    network = ps.trace(model, x, streams="shared")
    values = ps.path_values(network).abs() ** p
    expected = torch.zeros(len(network.scale), dtype=torch.float64)
    graph = WeightGraph(network)
    weights = torch.zeros(graph.m, dtype=torch.float64)
    for path, value in zip(ps.paths(network), values / values.sum(), strict=True):
        expected[list(units_along(network, path))] += value
        weights[list(path)] += value
    found = path_contributions(network, p)
    assert list(found.units) == [s.name for s in network.spaces if s.name != "input"]
    for space in network.spaces[1:]:
        torch.testing.assert_close(found.units[space.name], expected[space.units], **EXACT)
    for edge, part in zip(graph.edges, weights.split([e.count for e in graph.edges]), strict=True):
        assert math.isclose(found.parameters[edge.parameter], float(part.sum()), abs_tol=1e-10)
    starting = [e.parameter for e in graph.edges if e.from_constant]
    assert math.isclose(found.biases, sum(found.parameters[n] for n in starting), abs_tol=1e-10)
    torch.testing.assert_close(found.outputs, expected[network.spaces[-1].units], **EXACT)
    assert math.isclose(found.log_norm, float(ps.path_norm(network, p, log=True)))


@pytest.mark.parametrize("case", CASES[18:], ids=lambda case: case.name)
@exponents
def test_the_share_of_a_unit_is_what_is_lost_without_it(case, p):
    """Without its incoming weights no path runs through a unit; without its outgoing ones too."""
    model, x = case.make()
    network = ps.trace(model, x, streams="shared")
    graph = WeightGraph(network)
    state = {name: tensor.detach() for name, tensor in network.state().items()}
    weights = graph.weights(state)
    whole = ps.path_norm(network, p) ** p
    found = path_contributions(network, p)
    assert not found.undetermined
    for space in network.spaces[1:]:
        sums = space.operation == "add"
        for unit, share in enumerate(found.units[space.name].tolist()):
            cut = {}
            for edge in graph.edges:
                end = edge.source if sums else edge.target
                here = (end == space.start + unit).expand(edge.shape)
                cut[edge.parameter] = weights[edge.parameter].masked_fill(here, 0.0)
            rest = ps.path_norm(network, p, state=graph.state(cut, state)) ** p
            assert math.isclose(share, 1 - float(rest / whole), abs_tol=1e-10)


@exponents
def test_a_layer_that_cuts_the_network_has_share_1(p):
    model, x = Case("", lambda: conv(3, batch_norm=True, bias=False), (2, 4, 4)).make()
    found = path_contributions(ps.trace(model, x), p)
    assert math.isclose(found.layers["1"], 1.0)  # behind the batch norm, whose bias comes in
    assert math.isclose(found.layers["0"], 1 - found.biases)
    assert found.biases > 0
    assert math.isclose(float(found.outputs.sum()), 1.0)
    without = path_contributions(ps.trace(model, x), p, biases=False)
    assert without.biases == 0
    assert math.isclose(without.layers["0"], 1.0)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_shares_do_not_change_under_rescaling(p):
    for case in CASES[::5]:
        model, x = case.make()
        network = ps.trace(model, x, streams="shared")
        before = path_contributions(network, p)
        state = ps.rescale(network, ps.random_rescaling(network, normalized=True))
        after = path_contributions(network, p, state=state)
        for name, shares in before.units.items():
            torch.testing.assert_close(after.units[name], shares, rtol=1e-8, atol=1e-10)
        assert before.path == after.path


def test_for_p_infinity_the_largest_path_is_found():
    for case in DENSE:
        model, x = case.make()
        network = ps.trace(model, x, streams="shared")
        best = ps.paths(network)[int(ps.path_values(network).abs().argmax())]
        found = path_contributions(network, math.inf)
        graph = WeightGraph(network)
        assert sorted(found.path) == sorted(graph.name(number) for number in best)
        visited = units_along(network, best)
        for space in network.spaces[1:]:
            expected = [float(u in visited) for u in range(space.start, space.start + space.size)]
            torch.testing.assert_close(
                found.units[space.name], torch.tensor(expected, dtype=torch.float64), **EXACT
            )
        assert "attained by" in str(found)


def test_equal_paths_divide_the_maximum():
    model = mlp(1, 2, 1).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(2.0)
    found = path_contributions(ps.trace(model, torch.ones(1, 1).double()), math.inf)
    assert found.units["0"].tolist() == [0.5, 0.5]
    assert len(found.path) == 4


@exponents
def test_weights_that_are_zero_have_no_share(p):
    model, x = Case("", lambda: conv(3, batch_norm=True), (2, 4, 4)).make()
    with torch.no_grad():
        model[0].weight[0].zero_()
        model[1].bias.copy_(model[1].running_mean * model[1].weight
                            / (model[1].running_var + model[1].eps).sqrt())  # fmt: skip
        model[1].bias[1] = 0.0
        model[0].bias.zero_()
    found = path_contributions(ps.trace(model, x), p)
    assert found.units["0"][0] == 0
    assert all(bool(shares.isfinite().all()) for shares in found.units.values())
    assert 0 < float(found.units["0"][1]) < 1


def test_an_added_constant_is_not_counted_as_a_unit():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 1)

        def forward(self, x):
            return self.b(self.a(x).relu() + 1.0)

    found = path_contributions(ps.trace(Shifted(), torch.ones(1, 2), streams="shared"))
    assert "paths start or end here" in found.undetermined["a"]
    assert "a" not in found.units
    assert "a: paths start" in str(found)


def test_sums_that_divide_a_stream_are_left_out_by_name():
    class Diamond(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(2, 2) for _ in range(3))

        def forward(self, x):
            h = self.a(x).relu()
            return torch.cat([h + self.b(h).relu(), h + self.c(h).relu()], 1)

    found = path_contributions(ps.trace(Diamond(), torch.ones(1, 2), streams="shared"))
    assert "a" in found.units  # what enters is known
    assert set(found.undetermined) == {"sum", "sum#2"}


def test_a_sum_behind_units_that_are_an_output_too():
    class Early(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(2, 2, bias=False) for _ in range(3))

        def forward(self, x):
            h = self.a(x).relu()
            return h, self.c(h + self.b(h).relu())

    model, x = Case("", Early, (2,)).make()
    found = path_contributions(ps.trace(model, x, streams="shared"), 1)
    a, b, c = (layer.weight.detach().abs() for layer in (model.a, model.b, model.c))
    into = a.sum(1)
    through = into + b @ into
    total = into.sum() + (c @ through).sum()
    torch.testing.assert_close(found.units["sum"], c.sum(0) * through / total, **EXACT)
    assert not found.undetermined


def test_weights_used_twice_leave_layers_and_outputs():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)

        def forward(self, x):
            return self.b(self.a(self.a(x).relu()).relu())

    found = path_contributions(ps.trace(Twice(), torch.ones(1, 2)))
    assert not found.units
    assert math.isclose(found.parameters["a.weight"], 2.0)  # every path runs along it twice
    assert math.isclose(found.parameters["b.weight"], 1.0)
    assert "used more than once" in str(found)


def test_what_is_refused():
    model, x = Case("", lambda: mlp(3, 4, 2), (3,)).make()
    with torch.no_grad():
        model[2].weight.zero_()
    with pytest.raises(ps.PathspaceError, match="the path norm is 0"):
        path_contributions(ps.trace(model, x))
    plain = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, affine=False), nn.ReLU()).eval()
    with pytest.raises(ps.PathspaceError, match=r"`1` is a batch norm without weight"):
        path_contributions(ps.trace(plain, torch.ones(2, 2)))
    with pytest.raises(ps.NoPathSum, match="gelu"):
        path_contributions(ps.trace(nn.Sequential(nn.Linear(2, 2), nn.GELU()), torch.ones(1, 2)))


def test_slopes_of_prelu_are_no_weights_of_a_path():
    model = nn.Sequential(nn.Linear(2, 3), nn.PReLU(3, init=2.0), nn.Linear(3, 1))
    found = path_contributions(ps.trace(model, torch.ones(1, 2)))
    assert list(found.parameters) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert math.isclose(found.layers["0"], 1 - found.parameters["2.bias"])


def test_the_model_is_left_alone():
    model, x = Case("", lambda: conv(3, batch_norm=True), (2, 4, 4)).make()
    model.train()
    network = ps.trace(model, x)
    before = {name: (t._version, t.clone()) for name, t in network.state().items()}
    with torch.no_grad():
        path_contributions(network)
    assert model.training
    for name, tensor in network.state().items():
        assert tensor._version == before[name][0]
        assert torch.equal(tensor, before[name][1])
        assert tensor.grad is None


def test_a_unit_and_its_batch_norm_are_ranked_once():
    model, x = Case("", lambda: conv(3, batch_norm=True), (2, 4, 4)).make()
    found = path_contributions(ps.trace(model, x))
    assert {name for name, _, _ in found.top(100)} == {"1", "4"}  # not 0, not the outputs 8


def test_it_is_shown_as_table_frame_and_bars():
    matplotlib = pytest.importorskip("matplotlib")
    pandas = pytest.importorskip("pandas")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    model, x = Case("", lambda: mlp(3, 4, 5, 2, bias=True), (3,)).make()
    found = path_contributions(ps.trace(model, x))
    name, unit, share = found.top(1)[0]
    hidden = torch.cat([found.units["0"], found.units["2"]])
    assert share == float(hidden.max())
    text = str(found)
    assert f"{name}[{unit}]" in text
    assert f"{100 * share:.2f} %" in text
    assert "start at a bias" in text
    assert "output 0" in text
    frame = found.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["layer", "unit", "share"]
    assert len(frame) == 4 + 5 + 2
    assert math.isclose(frame[frame.layer == "4"].share.sum(), 1.0)
    ax = found.plot(top=6)
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == [100 * row[2] for row in found.top(6)]
    assert ax.get_yticklabels()[0].get_text() == f"{name}[{unit}]"
    assert found.plot(3, ax) is ax
    with pytest.raises(ValueError, match="top"):
        found.plot(0)
    plt.close("all")
