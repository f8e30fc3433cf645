"""The gradient of the basis-path penalty by a pass in C: that of torch's operations in blocks."""

import pytest
import torch
from torch import nn

import pathspace as ps
from cases import CASES, Case, conv, mlp
from natives import needs_compiler, torch_only
from pathspace import native

pytestmark = needs_compiler
choices = pytest.mark.parametrize("choice", ["modulo", "largest"])
exactness = pytest.mark.parametrize("exact", [False, True])
TRANSPOSED = Case(
    "transposed",
    lambda: nn.Sequential(nn.ConvTranspose1d(3, 13, 2), nn.ReLU(), nn.ConvTranspose1d(13, 5, 2)),
    (3, 4),
)
WIDE = Case("wide", lambda: mlp(3, 11, 10, 17, 4, bias=True), (3,))


@pytest.fixture
def passes(monkeypatch):
    """How many matrices each pass has."""
    seen, sums = [], native.sums

    def counted(jobs):
        seen.append(len(jobs))
        return sums(jobs)

    monkeypatch.setattr(native, "sums", counted)
    return seen


def both(network, choice, exact, state=None):
    """The gradients by a pass in C and in blocks."""
    penalty = ps.BasisPathPenalty(network, 0.3, 0.7, choice, exact=exact)
    found = penalty.gradients(state)
    with torch_only():
        return found, penalty.gradients(state)


@choices
@exactness
@pytest.mark.parametrize("case", [*CASES, TRANSPOSED, WIDE], ids=lambda case: case.name)
def test_gradients_are_those_of_blocks(case, choice, exact, passes):
    model, x = case.make()
    found, blocks = both(ps.trace(model, x, streams="shared"), choice, exact)
    torch.testing.assert_close(found, blocks, rtol=1e-10, atol=1e-12)
    assert sum(passes) > 0, "no matrix went through the pass"


@exactness
@pytest.mark.parametrize("case", [WIDE, TRANSPOSED], ids=lambda case: case.name)
def test_a_skeleton_weight_of_any_size_adds_nothing_to_the_sums(case, exact):
    """Not even what is lost when something large is added and taken away again."""
    model, x = case.make()
    network = ps.trace(model, x)
    skeleton = ps.choose_skeleton(network, "modulo")
    for places in (skeleton.graph.places(n[1:]) for n in (skeleton.incoming, skeleton.outgoing)):
        state = network.state()
        with torch.no_grad():
            places.put_(state, 1e3 * places.take(state).sign())
    found, blocks = both(network, "modulo", exact)
    torch.testing.assert_close(found, blocks, rtol=1e-10, atol=0)


@exactness
def test_many_skeleton_weights_are_gathered_in_c(exact, monkeypatch):
    gathered, gather = [], native.gather

    def counted(source, places, *others):
        gathered.append(len(places))
        gather(source, places, *others)

    monkeypatch.setattr(native, "gather", counted)
    torch.manual_seed(0)
    model = mlp(5, 1500, 3, bias=True).double()
    found, blocks = both(ps.trace(model, torch.ones(1, 5).double()), "modulo", exact)
    torch.testing.assert_close(found, blocks, rtol=1e-10, atol=1e-12)
    assert set(gathered) == {1500}


@pytest.mark.parametrize("scale", [1e-25, 3e4])
def test_weights_beyond_the_range_of_products_in_float32(scale):
    model = mlp(3, 8, 8, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    found, blocks = both(ps.trace(model, torch.ones(1, 3)), "modulo", True)
    torch.testing.assert_close(found, blocks)
    assert all(bool(gradient.isfinite().all()) for gradient in found.values())


def test_networks_of_two_dtypes():
    model = mlp(3, 8, 8, 2, bias=True)
    model[2].double()
    found, blocks = both(ps.trace(Mixed(model), torch.ones(1, 3)), "modulo", True)
    torch.testing.assert_close(found, blocks)


class Mixed(nn.Module):
    """A perceptron whose second layer is in double precision."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        x = self.layers[1](self.layers[0](x)).double()
        return self.layers[4](self.layers[3](self.layers[2](x)).float())


def test_memory_of_another_order_and_frozen_weights_are_done_in_blocks():
    model, x = Case("", lambda: conv(3), (2, 4, 4)).make()
    expected = ps.BasisPathPenalty(ps.trace(model, x), exact=True).gradients()
    model.to(memory_format=torch.channels_last)
    frozen, *others = dict(model.named_parameters())
    model.get_parameter(frozen).requires_grad_(False)
    ps.BasisPathPenalty(ps.trace(model, x), exact=True).add_to_gradients_()
    assert model.get_parameter(frozen).grad is None
    for name in others:
        torch.testing.assert_close(model.get_parameter(name).grad, expected[name])


@pytest.mark.parametrize("is_native", [False, True])
def test_without_a_weight_of_positive_paths_all_parameters_have_gradients(is_native):
    """Those that are on no root have zeros, as a parameter that a loss does not depend on."""
    model = mlp(3, 9, 7, 4, bias=True)
    network = ps.trace(model, torch.ones(1, 3))
    penalty = ps.BasisPathPenalty(network, 0.0, 0.7, exact=True)
    with torch_only(not is_native):
        penalty.add_to_gradients_()
    gradients = torch.autograd.grad(penalty(), list(model.parameters()), materialize_grads=True)
    for parameter, expected in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, expected)
