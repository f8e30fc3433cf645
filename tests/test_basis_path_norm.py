"""The basis-path norm and penalty against products along basis paths, autograd and differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import pathspace as ps
from cases import CASES, Case, conv, mlp

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
choices = pytest.mark.parametrize("choice", ["modulo", "largest"])


def setup(case, choice="modulo"):
    model, x = case.make()
    network = ps.trace(model, x, streams="shared")
    basis = ps.BasisPaths(network, choice)
    return network, basis, basis.flat(basis.values())


def reference(basis, values, lam1, lam2):
    roots, positive = values[basis.roots], values[basis.positive]
    return lam1 / 2 * positive.square().sum() + lam2 / 4 * roots.square().log().square().sum()


@cases
@choices
def test_the_norm_is_the_larger_of_its_two_parts(case, choice):
    network, basis, values = setup(case, choice)
    norm = ps.basis_path_norm(network, choice)
    assert math.isclose(norm.roots, float(values[basis.roots].abs().log().abs().max()))
    positive = values[basis.positive].abs()
    assert math.isclose(norm.positive, float(positive.max()) if len(positive) else 0.0)
    assert float(norm) == max(norm.roots, norm.positive)
    paths = [tuple(basis.path(k)) for k in range(len(basis))]
    attained = float(values[paths.index(norm.path)].abs())
    assert math.isclose(
        attained if norm.positive > norm.roots else abs(math.log(attained)), float(norm)
    )


@cases
def test_norm_and_penalty_do_not_change_under_rescaling(case):
    network, basis, _ = setup(case)
    state = ps.rescale(network, ps.random_rescaling(network, 0.5, normalized=True))
    before = ps.basis_path_norm(network, basis)
    after = ps.basis_path_norm(network, basis, state=state)
    assert math.isclose(float(after), float(before), rel_tol=1e-9)
    penalty = ps.BasisPathPenalty(network, 0.3, 0.7)
    torch.testing.assert_close(penalty(state), penalty(), rtol=1e-9, atol=0)


@cases
@choices
@pytest.mark.parametrize("exact", [True, False])
def test_the_penalty_is_its_definition(case, choice, exact):
    network, basis, values = setup(case, choice)
    penalty = ps.BasisPathPenalty(network, 0.3, 0.7, choice, exact=exact)
    torch.testing.assert_close(penalty().detach(), reference(basis, values, 0.3, 0.7))


@cases
@choices
def test_exact_gradients_are_those_of_the_definition(case, choice):
    network, basis, _ = setup(case, choice)
    state = {n: t.detach().clone().requires_grad_() for n, t in network.state().items()
             if t.is_floating_point()}  # fmt: skip
    whole = {**network.state(), **state}
    value = reference(basis, basis.flat(basis.values(whole)), 0.3, 0.7)
    expected = torch.autograd.grad(value, list(state.values()), allow_unused=True)
    found = ps.BasisPathPenalty(network, 0.3, 0.7, choice, exact=True).gradients()
    for name, gradient in zip(state, expected, strict=True):
        if name in found:
            torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-10)
    assert any(bool(gradient.any()) for gradient in found.values())


def test_gradients_against_finite_differences_where_a_weight_is_zero():
    model, x = Case("", lambda: mlp(3, 4, 4, 2), (3,)).make()
    with torch.no_grad():
        model[2].weight[0, 3] = 0.0
    network = ps.trace(model, x)
    penalty = ps.BasisPathPenalty(network, 0.3, 0.7, exact=True)
    names = list(dict(model.named_parameters()))

    def value(*tensors):
        return penalty(dict(zip(names, tensors, strict=True)))

    inputs = [p.detach().clone().requires_grad_() for p in model.parameters()]
    assert torch.autograd.gradcheck(value, inputs)


def test_the_cheap_form_leaves_skeleton_weights_alone():
    network, basis, _ = setup(CASES[0])
    cheap = ps.BasisPathPenalty(network, 0.3, 0.7).gradients()
    exact = ps.BasisPathPenalty(network, 0.3, 0.7, exact=True).gradients()
    numbers = torch.unique(torch.cat([basis.skeleton.incoming[1:], basis.skeleton.outgoing[1:]]))
    flat = {k: torch.cat([g[e.parameter].reshape(-1) for e in basis.graph.edges])
            for k, g in (("cheap", cheap), ("exact", exact))}  # fmt: skip
    off = torch.ones(basis.graph.m, dtype=torch.bool)
    off[numbers] = False
    assert not flat["cheap"][numbers].any()
    assert flat["exact"][numbers].all()
    torch.testing.assert_close(flat["cheap"][off], flat["exact"][off])


def test_the_root_term_has_twice_the_gradient_of_equation_11():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(2.0)
        model[2].weight.fill_(0.7)
    network = ps.trace(model, torch.ones(1, 1))
    gradient = ps.BasisPathPenalty(network, 0.0, 1.0, exact=True).gradients()["0.weight"]
    assert math.isclose(float(gradient), 2 * math.log(1.4) / 2.0, rel_tol=1e-6)


def test_it_trains_with_any_optimizer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    network = ps.trace(model, torch.ones(1, 4))
    penalty = ps.BasisPathPenalty(network, 1.0, 0.1, exact=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    before = float(penalty().detach())
    for _ in range(20):
        optimizer.zero_grad()
        penalty().backward()
        optimizer.step()
    assert float(penalty().detach()) < before


def test_negative_weights_of_the_penalty_are_refused():
    network, _, _ = setup(CASES[0])
    with pytest.raises(ValueError, match="lam2"):
        ps.BasisPathPenalty(network, 1.0, -1.0)


def test_without_free_units_and_weights_the_norm_is_zero():
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    norm = ps.basis_path_norm(ps.trace(model, torch.ones(1, 2)))
    assert float(norm) == 0.0
    assert norm.path == ()


def test_slopes_are_no_basis_paths():
    """Slopes that are much larger than any path count in neither norm nor penalty."""
    plain, x = Case("", lambda: mlp(2, 3, 1), (2,)).make()
    sloped = nn.Sequential(plain[0], nn.PReLU(3, init=1000.0).double(), plain[2])
    pair = [ps.trace(model, x) for model in (plain, sloped)]
    norms = [float(ps.basis_path_norm(network)) for network in pair]
    assert norms[0] == norms[1]
    penalties = [ps.BasisPathPenalty(network, 0.3, 0.7)().detach() for network in pair]
    torch.testing.assert_close(*penalties)


def test_gradients_are_those_of_parameters():
    model, x = Case("", lambda: conv(3, batch_norm=True), (2, 4, 4)).make()
    network = ps.trace(model, x)
    found = ps.BasisPathPenalty(network, exact=True).gradients()
    assert "1.weight" in found
    assert set(found) <= set(dict(model.named_parameters()))
