"""Gradients and Hessians in every space against dense autograd through the map to the weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pathspace as ps
from cases import CASES
from pathspace.evaluation import Objective
from pathspace.flatnesses import PathCoordinates, WeightCoordinates
from pathspace.flatnesses.derivatives import (
    block_sizes,
    gradients,
    hessian_products,
    losses,
    quadratic_forms,
)

SPACES = {
    "weights": WeightCoordinates,
    "modulo": lambda network: PathCoordinates(network, "modulo"),
    "random": lambda network: PathCoordinates(network, "random"),
}
CHOSEN = [
    "mlp equal",
    "mlp hourglass, bias",
    "mlp width one, bias",
    "conv 1x1",
    "conv, batch norm",
    "grouped, depthwise, transposed",
    "residual",
    "conv residual, batch norm",
    "concatenation",
]
NAMED = {case.name: case for case in CASES if case.name in CHOSEN}


def problem(model, x):
    """A network away from its minimum, data in uneven batches, and the loss over all of them."""
    network = ps.trace(model, x)
    with torch.no_grad():
        y = torch.randn(model(x).shape, generator=torch.Generator().manual_seed(5)).to(x)
    batches = DataLoader(TensorDataset(x, y), batch_size=5)
    return network, Objective(network, F.mse_loss, batches), Objective(network, F.mse_loss, (x, y))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", CHOSEN)
def test_against_dense_derivatives(name, space):
    model, x = NAMED[name].make(seed=1)
    network, objective, reference = problem(model, x)
    coordinates = SPACES[space](network)
    point = coordinates.point

    def loss(p):
        return reference(coordinates.state(p))

    slope = torch.autograd.functional.jacobian(loss, point)
    hessian = torch.autograd.functional.hessian(loss, point)
    found = hessian_products(objective, coordinates, torch.eye(len(point)).double())
    scale = hessian.abs().max()
    torch.testing.assert_close(found / scale, hessian / scale, rtol=0, atol=1e-10)

    z = torch.randn(3, len(point), generator=torch.Generator().manual_seed(2)).double()
    value, forms = quadratic_forms(objective, coordinates, z)
    expected = ((z @ hessian) * z).sum(1)
    torch.testing.assert_close(forms, expected, rtol=1e-8, atol=1e-10 * float(scale))
    assert value == pytest.approx(float(loss(point)), rel=1e-12)

    moved = point * torch.tensor([[1.0], [1.1]]).double()
    values, slopes = gradients(objective, coordinates, moved)
    torch.testing.assert_close(slopes[0], slope, rtol=1e-8, atol=1e-10 * float(slope.abs().max()))
    there = torch.stack([loss(p) for p in moved])
    torch.testing.assert_close(values, there)
    torch.testing.assert_close(losses(objective, coordinates, moved), there)


@pytest.mark.parametrize("where", ["input", "hidden"])
def test_a_batch_norm_without_weights_stays_as_it_is(where):
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4, affine=False)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    layers = [nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)]
    layers.insert(0 if where == "input" else 1, norm)
    model = nn.Sequential(*layers).double().eval()
    network, objective, reference = problem(model, torch.randn(8, 4).double())
    for coordinates in (WeightCoordinates(network), PathCoordinates(network)):
        assert int(coordinates.fixed.sum()) == 4
        parameters = sum(p.numel() for p in model.parameters())
        assert len(coordinates) <= parameters
        hessian = torch.autograd.functional.hessian(
            lambda p, c=coordinates: reference(c.state(p)), coordinates.point
        )
        eye = torch.eye(len(coordinates)).double()
        torch.testing.assert_close(hessian_products(objective, coordinates, eye), hessian)
        _, forms = quadratic_forms(objective, coordinates, eye)
        torch.testing.assert_close(forms, hessian.diagonal())
        assert not bool(coordinates.tangent(eye[0] + 1)[coordinates.fixed].any())
        same = coordinates.state(coordinates.point)
        assert torch.equal(same[f"{layers.index(norm)}.running_var"], norm.running_var)


def test_many_directions_do_not_need_much_memory_at_once(monkeypatch):
    model, x = NAMED["mlp equal"].make()
    network, objective, _ = problem(model, x)
    coordinates = PathCoordinates(network)
    z = torch.randn(7, len(coordinates)).double()
    together = quadratic_forms(objective, coordinates, z)[1]
    monkeypatch.setattr("pathspace.flatnesses.derivatives.BLOCK", 2 * coordinates.graph.m)
    passes = []
    original = objective.batches
    monkeypatch.setattr(objective, "batches", lambda: passes.append(1) or original())
    torch.testing.assert_close(quadratic_forms(objective, coordinates, z)[1], together)
    assert len(passes) == 4  # two directions in each pass over the data
    assert list(block_sizes(7, coordinates)) == [2, 2, 2, 1]


def test_equations_20_and_21_are_the_map_from_values_to_weights():
    """For equal widths and skeleton weights of 1, as in the paper."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 3, bias=False), nn.ReLU(),
        nn.Linear(3, 3, bias=False),
    ).double()  # fmt: skip
    for layer in (model[2], model[4]):  # the diagonals behind the first layer are free
        layer.weight.data.fill_diagonal_(1.0)
    network = ps.trace(model, torch.ones(1, 3).double())
    coordinates = PathCoordinates(network, "modulo")
    basis = coordinates.basis
    step = 0.01 * torch.randn(len(coordinates)).double()
    changed = coordinates.state(coordinates.point + step)

    v, e = basis.values(), basis.unflat(step)
    first = model[0].weight.detach()
    new = first * (v["0.weight"] + e["0.weight"]) / v["0.weight"]  # Eq. 20
    torch.testing.assert_close(changed["0.weight"], new)
    ratio = new.diagonal() / first.diagonal()  # 1 + δ_i(j) / w_i(j)
    for name in ("2.weight", "4.weight"):
        w = network.state()[name].detach()
        moved = (w + e[name] * w / v[name]) / ratio  # Eq. 21, column j belongs to unit j
        off = ~torch.eye(3, dtype=torch.bool)
        torch.testing.assert_close(changed[name][off], moved[off])
        torch.testing.assert_close(changed[name].diagonal(), torch.ones(3).double())


def test_a_loss_without_a_gradient_is_refused_by_name():
    model, x = NAMED["mlp equal"].make()
    network = ps.trace(model, x)
    objective = Objective(network, lambda out, y: torch.ones(()), (x, x))
    with pytest.raises(ps.PathspaceError, match="expected"):
        gradients(objective, PathCoordinates(network), PathCoordinates(network).point[None])
