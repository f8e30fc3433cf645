"""The basis-path norm against products along basis paths."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import pathspace as ps
from cases import CASES, Case, mlp

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
choices = pytest.mark.parametrize("choice", ["modulo", "largest"])


def setup(case, choice="modulo"):
    model, x = case.make()
    network = ps.trace(model, x, streams="shared")
    basis = ps.BasisPaths(network, choice)
    return network, basis, basis.flat(basis.values())


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
def test_the_norm_does_not_change_under_rescaling(case):
    network, basis, _ = setup(case)
    state = ps.rescale(network, ps.random_rescaling(network, 0.5, normalized=True))
    before = ps.basis_path_norm(network, basis)
    after = ps.basis_path_norm(network, basis, state=state)
    assert math.isclose(float(after), float(before), rel_tol=1e-9)


def test_without_free_units_and_weights_the_norm_is_zero():
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    norm = ps.basis_path_norm(ps.trace(model, torch.ones(1, 2)))
    assert float(norm) == 0.0
    assert norm.path == ()


def test_slopes_are_no_basis_paths():
    """Slopes that are much larger than any path do not count."""
    plain, x = Case("", lambda: mlp(2, 3, 1), (2,)).make()
    sloped = nn.Sequential(plain[0], nn.PReLU(3, init=1000.0).double(), plain[2])
    norms = [float(ps.basis_path_norm(ps.trace(model, x))) for model in (plain, sloped)]
    assert norms[0] == norms[1]
