"""`are_equivalent`: rescalings are recognised, everything else is told apart and named."""

from __future__ import annotations

import pytest
import torch

import pathspace as ps
from cases import CASES

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def setup(case):
    model, x = case.make()
    network = ps.trace(model, x, streams="shared")
    return network, {name: tensor.clone() for name, tensor in model.state_dict().items()}


@cases
def test_a_rescaled_network_is_recognised_with_its_scales(case):
    network, state = setup(case)
    c = ps.random_rescaling(network, generator=torch.Generator().manual_seed(0), normalized=True)
    verdict = ps.are_equivalent(network, state, ps.rescale(network, c))
    assert verdict
    assert "equivalent up to rescaling" in str(verdict)
    torch.testing.assert_close(verdict.rescaling.log, c.log, rtol=1e-8, atol=1e-8)


@cases
def test_a_changed_weight_is_found_and_named(case):
    network, state = setup(case)
    other = ps.rescale(network, ps.random_rescaling(network))
    name = network.edges[-2].parameter if len(network.edges) > 2 else network.edges[-1].parameter
    other[name] = other[name].detach().clone()
    other[name].view(-1)[0] *= 1.001
    verdict = ps.are_equivalent(network, state, other)
    assert not verdict
    assert verdict.rescaling is None
    assert "basis path of" in verdict.difference
    assert verdict.error > 1e-4


def test_a_flipped_sign_of_a_free_weight_is_named():
    network, state = setup(CASES[0])
    basis = ps.BasisPaths(network, "largest")
    name, _, index = basis.graph.name(int(basis.skeleton.outgoing[3])).partition("[")
    place = tuple(int(i) for i in index.rstrip("]").split(","))
    other = {key: tensor.clone() for key, tensor in state.items()}
    other[name][place] *= -1
    verdict = ps.are_equivalent(network, state, other)
    assert not verdict
    assert f"the sign of `{name}[" in str(verdict)


def test_precision_follows_the_dtype_and_can_be_given():
    model, x = CASES[0].make()
    network = ps.trace(model.float(), x.float())
    state = model.state_dict()
    other = ps.rescale(network, ps.random_rescaling(network))
    assert ps.are_equivalent(network, state, other)
    assert not ps.are_equivalent(network, state, other, rtol=1e-12)


def test_nan_is_never_equivalent():
    network, state = setup(CASES[0])
    other = {key: tensor.clone() for key, tensor in state.items()}
    other["0.weight"][1, 0] = float("nan")
    assert not ps.are_equivalent(network, state, other)
