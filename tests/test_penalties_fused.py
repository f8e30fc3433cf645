"""The gradient of the basis-path penalty by a compiled pass: the same gradient."""

import pytest
import torch
from torch import nn

import pathspace as ps
from cases import CASES, Case, conv, mlp
from pathspace import basisgradients, wholepass
from pathspace.errors import PathspaceError
from test_optim_fused import without_compiler
from test_optimizer_integrations import fresh_compiler

__all__ = ["fresh_compiler"]
choices = pytest.mark.parametrize("choice", ["modulo", "largest"])
exactness = pytest.mark.parametrize("exact", [False, True])
by_the_compiler = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # torch's own compiler
]
TRANSPOSED = Case(
    "transposed",
    lambda: nn.Sequential(nn.ConvTranspose1d(3, 13, 2), nn.ReLU(), nn.ConvTranspose1d(13, 5, 2)),
    (3, 4),
)
WIDE = Case("wide", lambda: mlp(3, 11, 10, 17, 4, bias=True), (3,))  # 10 rows are twice 5


@pytest.fixture
def small(monkeypatch):
    """Small matrices are done by the pass too."""
    monkeypatch.setattr(wholepass, "LARGE", 0)


@pytest.fixture
def passes(monkeypatch, small):
    """How many matrices each pass has; it is not compiled, which takes long."""
    seen = []

    def counted(function):
        def count(wholes):
            seen.append(len(wholes))
            return function(wholes)

        return count

    monkeypatch.setattr(basisgradients, "compiled", counted)
    return seen


def both(network, choice, exact, state=None):
    """The gradients with and without a compiled pass."""
    settings = {"lam1": 0.3, "lam2": 0.7, "choice": choice, "exact": exact}
    return [
        ps.BasisPathPenalty(network, **settings, fused=fused).gradients(state)
        for fused in (True, False)
    ]


@choices
@exactness
@pytest.mark.parametrize("case", [*CASES, TRANSPOSED, WIDE], ids=lambda case: case.name)
def test_gradients_are_those_of_blocks(case, choice, exact, passes):
    model, x = case.make()
    fused, blocks = both(ps.trace(model, x, streams="shared"), choice, exact)
    torch.testing.assert_close(fused, blocks, rtol=1e-10, atol=1e-12)
    assert sum(passes) > 0, "no matrix went through the pass"


@exactness
@pytest.mark.parametrize("case", [WIDE, TRANSPOSED], ids=lambda case: case.name)
def test_a_skeleton_weight_of_any_size_adds_nothing_to_the_sums(case, exact, passes):
    """Not even what is lost when something large is added and taken away again."""
    model, x = case.make()
    network = ps.trace(model, x)
    skeleton = ps.choose_skeleton(network, "modulo")
    for places in (skeleton.graph.places(n[1:]) for n in (skeleton.incoming, skeleton.outgoing)):
        state = network.state()
        with torch.no_grad():
            places.put_(state, 1e3 * places.take(state).sign())
    fused, blocks = both(network, "modulo", exact)
    torch.testing.assert_close(fused, blocks, rtol=1e-10, atol=0)


@pytest.mark.parametrize("scale", [1e-25, 3e4])
def test_weights_beyond_the_range_of_products_in_float32(scale, passes):
    model = mlp(3, 8, 8, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    fused, blocks = both(ps.trace(model, torch.ones(1, 3)), "modulo", True)
    torch.testing.assert_close(fused, blocks)
    assert all(bool(gradient.isfinite().all()) for gradient in fused.values())


def test_memory_of_another_order_and_frozen_weights_are_done_in_blocks(passes):
    model, x = Case("", lambda: conv(3), (2, 4, 4)).make()
    expected = ps.BasisPathPenalty(ps.trace(model, x), exact=True).gradients()
    model.to(memory_format=torch.channels_last)
    frozen, *others = dict(model.named_parameters())
    model.get_parameter(frozen).requires_grad_(False)
    ps.BasisPathPenalty(ps.trace(model, x), exact=True, fused=True).add_to_gradients_()
    assert model.get_parameter(frozen).grad is None
    for name in others:
        torch.testing.assert_close(model.get_parameter(name).grad, expected[name])


class TestCompiled:
    """By torch's compiler indeed."""

    pytestmark = by_the_compiler

    @exactness
    def test_it_is_the_same(self, exact, small):
        for case in (WIDE, TRANSPOSED):
            model, x = case.make()
            fused, blocks = both(ps.trace(model, x), "largest", exact)
            torch.testing.assert_close(fused, blocks, rtol=1e-10, atol=1e-12)

    def test_it_is_compiled_once(self, small):
        model = mlp(3, 11, 10, 4)
        penalty = ps.BasisPathPenalty(ps.trace(model, torch.ones(1, 3)), exact=True, fused=True)
        for strength in (0.1, 0.2, 0.3):
            penalty.lam1 = strength
            penalty.add_to_gradients_()
            model.requires_grad_(True)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # the passes


def test_where_torch_cannot_compile_nothing_changes(small, monkeypatch):
    without_compiler(monkeypatch)
    model = mlp(3, 9, 7, 4, bias=True)
    penalty = ps.BasisPathPenalty(ps.trace(model, torch.ones(1, 3)), exact=True, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(PathspaceError, match="Leave fused out"):
        penalty.add_to_gradients_()
    assert all(bool((parameter.grad == 1).all()) for parameter in model.parameters())


@pytest.mark.parametrize("fused", [False, True])
def test_without_a_weight_of_positive_paths_all_parameters_have_gradients(fused, passes):
    """Those that are on no root have zeros, as a parameter that a loss does not depend on."""
    model = mlp(3, 9, 7, 4, bias=True)
    network = ps.trace(model, torch.ones(1, 3))
    penalty = ps.BasisPathPenalty(network, 0.0, 0.7, exact=True, fused=fused)
    penalty.add_to_gradients_()
    gradients = torch.autograd.grad(penalty(), list(model.parameters()), materialize_grads=True)
    for parameter, expected in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, expected)
