"""The choice of a skeleton: forests, the papers' rule, and dead units."""

from __future__ import annotations

import matplotlib as mpl
import pytest
import torch
from torch import nn

import pathspace as ps
from cases import CASES, WIDTHS, Case, mlp

mpl.use("Agg")
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
choices = pytest.mark.parametrize("choice", ["modulo", "largest"])


@cases
@choices
@pytest.mark.parametrize("streams", ["pinned", "shared"])
def test_every_unit_has_one_in_edge_and_one_out_edge_that_form_forests(case, choice, streams):
    model, x = case.make()
    skeleton = ps.choose_skeleton(ps.trace(model, x, streams=streams), choice)
    graph = skeleton.graph
    scales = torch.arange(1, graph.H + 1)
    into = graph.places(skeleton.incoming[1:]).ends()
    out = graph.places(skeleton.outgoing[1:]).ends()
    assert torch.equal(into[1], scales)
    assert torch.equal(out[0], scales)
    for step in (skeleton.parent, skeleton.child):
        unit = torch.arange(graph.H + 1)
        for _ in range(graph.H):
            unit = step[unit]
        assert not unit.any()  # every walk ends at the pinned scale


@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS.keys())
def test_modulo_is_the_rule_of_the_papers(widths):
    network = ps.trace(mlp(*widths), torch.ones(1, widths[0]))
    skeleton = ps.choose_skeleton(network, "modulo")
    into, out = [], []
    for layer in range(len(widths) - 2):
        before, here, after = widths[layer : layer + 3]
        into += [f"{2 * layer}.weight[{j}, {j % before}]" for j in range(here)]
        out += [f"{2 * layer + 2}.weight[{j % after}, {j}]" for j in range(here)]
    assert [skeleton.graph.name(int(n)) for n in skeleton.incoming[1:]] == into
    assert [skeleton.graph.name(int(n)) for n in skeleton.outgoing[1:]] == out


def test_modulo_takes_the_centre_of_a_kernel_and_of_a_flattened_map():
    model = nn.Sequential(
        nn.Conv2d(2, 3, 5, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 9, 2)
    )
    skeleton = ps.choose_skeleton(ps.trace(model, torch.ones(1, 2, 3, 3)), "modulo")
    names = [skeleton.graph.name(int(n)) for n in skeleton.incoming[1:]]
    assert names == [f"0.weight[{j}, {j % 2}, 2, 2]" for j in range(3)]
    names = [skeleton.graph.name(int(n)) for n in skeleton.outgoing[1:]]
    assert names == [f"3.weight[{j % 2}, {9 * j + 4}]" for j in range(3)]


def test_largest_does_not_depend_on_the_scaling():
    for case in CASES[::3]:
        model, x = case.make()
        network = ps.trace(model, x, streams="shared")
        state = ps.rescale(network, ps.random_rescaling(network, 2.0))
        one, other = (ps.choose_skeleton(network, "largest", state=s) for s in (None, state))
        assert torch.equal(one.incoming, other.incoming)
        assert torch.equal(one.outgoing, other.outgoing)


def test_a_zero_on_the_papers_skeleton_is_replaced_by_the_largest_weight():
    model, x = Case("", lambda: mlp(3, 4, 4, 2), (3,)).make()
    with torch.no_grad():
        model[0].weight[2, 2] = 0.0
        model[2].weight[1, 1] = 0.0
    skeleton = ps.choose_skeleton(ps.trace(model, x), "modulo")
    chosen = {skeleton.graph.name(int(n)) for n in [*skeleton.incoming[1:], *skeleton.outgoing[1:]]}
    assert "0.weight[2, 2]" not in chosen
    assert "2.weight[1, 1]" not in chosen
    assert "0.weight[1, 1]" in chosen


@pytest.mark.parametrize(("side", "word"), [("in", "incoming"), ("out", "outgoing")])
@choices
def test_a_dead_unit_is_named(side, word, choice):
    model, x = Case("", lambda: mlp(3, 4, 4, 2), (3,)).make()
    with torch.no_grad():
        if side == "in":
            model[2].weight[1] = 0.0
        else:
            model[4].weight[:, 1] = 0.0
    with pytest.raises(ps.SkeletonError, match=rf"unit 2\[1\] is dead: all its {word} weights"):
        ps.choose_skeleton(ps.trace(model, x), choice)


def test_units_that_nothing_reads_are_named():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.unused = nn.Linear(2, 3), nn.Linear(3, 1), nn.Linear(3, 5)

        def forward(self, x):
            h = self.a(x).relu()
            self.unused(h)
            return self.b(h)

    with pytest.raises(ps.SkeletonError, match=r"unit unused\[0\] is never read"):
        ps.choose_skeleton(ps.trace(Unused(), torch.ones(1, 2)))


def test_explicit_skeletons_are_checked():
    network = ps.trace(mlp(2, 2, 1), torch.ones(1, 2))
    good = {
        "incoming": [("0.weight", (0, 1)), ("0.weight", (1, 0))],
        "outgoing": [("2.weight", (0, 0)), ("2.weight", (0, 1))],
    }
    skeleton = ps.choose_skeleton(network, good)
    assert [skeleton.graph.name(int(n)) for n in skeleton.incoming[1:]] == [
        "0.weight[0, 1]",
        "0.weight[1, 0]",
    ]
    twice = good | {"incoming": [("0.weight", (0, 1)), ("0.weight", (0, 0))]}
    with pytest.raises(ps.SkeletonError, match=r"no weight for unit 0\[1\]"):
        ps.choose_skeleton(network, twice)
    with pytest.raises(ps.SkeletonError, match="one per free scale is 2"):
        ps.choose_skeleton(network, good | {"outgoing": good["outgoing"][:1]})
    with pytest.raises(ps.SkeletonError, match="incoming"):
        ps.choose_skeleton(network, {"outgoing": good["outgoing"]})
    with pytest.raises(KeyError, match=r"0\.weight"):
        ps.choose_skeleton(network, good | {"incoming": [("nowhere", (0,)), ("0.weight", (1, 0))]})
    with pytest.raises(IndexError, match=r"shape \(2, 2\)"):
        ps.choose_skeleton(network, good | {"incoming": [("0.weight", (9, 0))] * 2})
    with torch.no_grad():
        network.model[2].weight[0, 1] = 0.0
    with pytest.raises(ps.SkeletonError, match=r"`2\.weight\[0, 1\]` of unit 0\[1\] is zero"):
        ps.choose_skeleton(network, good)
    with pytest.raises(ValueError, match="largest"):
        ps.choose_skeleton(network, "smallest")


def test_explicit_cycles_are_refused():
    model, x = next(case for case in CASES if case.name == "residual").make()
    network = ps.trace(model, x, streams="shared")
    good = ps.choose_skeleton(network)
    graph = good.graph

    def weights(numbers):
        for number in numbers.tolist():
            name, _, index = graph.name(number).partition("[")
            yield name, tuple(int(i) for i in index.rstrip("]").split(","))

    incoming = list(weights(good.incoming[1:]))
    incoming[0] = ("up.weight", (0, 0))  # stream 0 written by down 0, which reads stream 0
    choice = {"incoming": incoming, "outgoing": list(weights(good.outgoing[1:]))}
    with pytest.raises(ps.SkeletonError, match="form a cycle"):
        ps.choose_skeleton(network, choice)


@pytest.mark.parametrize("choice", ["modulo", "largest", "random"])
def test_a_network_of_one_unit_has_a_skeleton(choice):
    network = ps.trace(mlp(2, 1, 2), torch.ones(1, 2))
    skeleton = ps.choose_skeleton(network, choice)
    assert 0 <= int(skeleton.incoming[1]) < 2 <= int(skeleton.outgoing[1]) < 4


def test_printing_and_drawing():
    model, x = Case("", lambda: mlp(3, 4, 4, 2), (3,)).make()
    skeleton = ps.choose_skeleton(ps.trace(model, x))
    lines = str(skeleton).splitlines()
    assert lines[0] == "skeleton with 8 free weights among 36"
    assert lines[1] == "  0.weight[0, 0] → 0[0] → 2.weight[0, 0]"
    assert lines[4] == "  0.weight[3, 0] → 0[3] → 2.weight[3, 3]"
    assert len(lines) == 9
    ax = skeleton.draw()
    red = [line for line in ax.lines if line.get_color() in ("#c0392b", "#7b241c")]
    assert len(red) == 4 + 4 + 4  # in-edges of layer 1, shared edges, out-edges of layer 2
    mpl.pyplot.close(ax.figure)
    big = ps.trace(mlp(100, 100, 10), torch.ones(1, 100))
    with pytest.raises(ps.PathspaceError, match="not readable"):
        ps.choose_skeleton(big).draw()


@choices
@pytest.mark.parametrize(("layers", "width"), [(2, 1), (4, 1), (5, 1), (3, 2), (5, 3)])
def test_layers_stored_in_one_tensor_have_a_skeleton(choice, layers, width):
    """No order of tensors tells which unit comes first: the distance from the input does."""

    class Stored(nn.Module):
        def __init__(self):
            super().__init__()
            drawn = torch.randn(layers, width, width, generator=torch.Generator().manual_seed(0))
            self.weight = nn.Parameter(drawn)

        def forward(self, x):
            *hidden, last = self.weight
            for matrix in hidden:
                x = nn.functional.linear(x, matrix).relu()
            return nn.functional.linear(x, last)

    network = ps.trace(Stored(), torch.ones(2, width))
    skeleton = ps.choose_skeleton(network, choice)
    assert (layers - 1) * width == network.H
    for edges, first in ((skeleton.incoming, 0), (skeleton.outgoing, 1)):
        found = [int(number) // width**2 for number in edges[1:]]  # in which layer
        assert found == [first + unit // width for unit in range(network.H)]
