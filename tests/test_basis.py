"""Basis paths against products along paths, autograd and explicit inversion."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

import pathspace as ps
from cases import CASES, Case, mlp

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
choices = pytest.mark.parametrize("choice", ["modulo", "largest"])
streams = pytest.mark.parametrize("streams", ["pinned", "shared"])


def make(case, choice="modulo", streams="shared"):
    model, x = case.make()
    network = ps.trace(model, x, streams=streams)
    return network, ps.BasisPaths(network, choice), x


def detached(network):
    return {name: tensor.detach() for name, tensor in network.state().items()}


def numbers_of(basis, coordinate):
    names = {basis.graph.name(number): number for number in range(basis.graph.m)}
    return [names[name] for name in basis.path(coordinate)]


@cases
@choices
@streams
def test_values_are_products_along_independent_paths(case, choice, streams):
    network, basis, _ = make(case, choice, streams)
    weights = basis.graph.weights(detached(network))
    flat = torch.cat([weights[edge.parameter].reshape(-1) for edge in basis.graph.edges])
    known = {tuple(sorted(path)) for path in ps.paths(network)}
    columns = torch.zeros(basis.graph.m, len(basis), dtype=torch.float64)
    by_hand = []
    for coordinate in range(len(basis)):
        numbers = numbers_of(basis, coordinate)
        assert tuple(sorted(numbers)) in known
        columns[numbers, coordinate] = 1.0
        by_hand.append(flat[numbers].prod())
    torch.testing.assert_close(basis.flat(basis.values()), torch.stack(by_hand))
    assert len(basis) == basis.graph.m - network.H == int(torch.linalg.matrix_rank(columns))
    assert len({tuple(column.tolist()) for column in columns.T}) == len(basis)


@cases
@choices
@streams
def test_every_path_is_reproduced_from_its_exponents(case, choice, streams):
    network, basis, _ = make(case, choice, streams)
    logs = basis.flat(basis.values()).abs().log()
    signs = basis.flat(basis.values()).sign()
    matrix, rows = [], []
    for path in ps.paths(network):
        powers = basis.exponents(path)
        row = torch.zeros(len(basis), dtype=torch.float64)
        row[list(powers)] = torch.tensor(list(powers.values()), dtype=torch.float64)
        matrix.append(row)
        rows.append(sum(powers.values()))
    exponents = torch.stack(matrix)
    size = (exponents @ logs).exp()
    sign = torch.where(exponents % 2 == 0, 1.0, signs).prod(1)
    torch.testing.assert_close(size * sign, ps.path_values(network))
    assert set(rows) == {1}  # L values above, L - 1 below


def test_exponents_have_the_signs_of_proposition_1_for_equal_widths_only():
    def signs_of_roots(widths):
        model, x = Case("", lambda: mlp(*widths), widths[:1]).make()
        network = ps.trace(model, x)
        basis = ps.BasisPaths(network)
        roots = set(basis.roots.tolist())
        basic = {tuple(sorted(numbers_of(basis, k))) for k in range(len(basis))}
        found = set()
        for path in ps.paths(network):
            if tuple(sorted(path)) not in basic:
                for coordinate, power in basis.exponents(path).items():
                    found.add((coordinate in roots, power > 0))
        return found

    assert signs_of_roots((3, 4, 4, 2)) == {(True, False), (False, True)}
    assert (True, True) in signs_of_roots((3, 2, 6, 3, 2))  # fails for unequal widths


@cases
@choices
@streams
def test_values_do_not_change_under_rescaling(case, choice, streams):
    network, basis, _ = make(case, choice, streams)
    rescaled = ps.rescale(network, ps.random_rescaling(network, 0.5, normalized=True))
    before, after = (basis.flat(basis.values(s)) for s in (None, rescaled))
    torch.testing.assert_close(after, before, rtol=1e-10, atol=0)


@cases
@choices
@streams
def test_weights_and_values_are_inverse_to_each_other(case, choice, streams):
    network, basis, _ = make(case, choice, streams)
    state = detached(network)
    again = basis.weights(basis.values())
    for name, tensor in state.items():
        torch.testing.assert_close(again[name], tensor, rtol=1e-12, atol=1e-12)
    generator = torch.Generator().manual_seed(1)
    values = basis.flat(basis.values())
    values = values * torch.exp(0.3 * torch.randn(values.shape, generator=generator).double())
    back = basis.flat(basis.values(basis.weights(values)))
    torch.testing.assert_close(back, values, rtol=1e-12, atol=0)
    torch.testing.assert_close(basis.free(basis.weights(values)), basis.free(), rtol=1e-12, atol=0)


@cases
@choices
@streams
def test_pull_is_the_gradient_through_weights_of_values(case, choice, streams):
    """Arbitrary skeleton weights: the cases draw all weights at random."""
    network, basis, x = make(case, choice, streams)
    state = detached(network)

    def loss(weights):
        outputs = functional_call(network.model, basis.graph.state(weights, state), (x,))
        return (outputs.sin() ** 2).sum()

    values = basis.flat(basis.values()).requires_grad_()
    through = functional_call(network.model, basis.weights(values), (x,))
    (expected,) = torch.autograd.grad((through.sin() ** 2).sum(), values)
    weights = {k: w.clone().requires_grad_() for k, w in basis.graph.weights(state).items()}
    gradients = torch.autograd.grad(loss(weights), list(weights.values()), materialize_grads=True)
    pulled = basis.pull(dict(zip(weights, gradients, strict=True)))
    torch.testing.assert_close(basis.flat(pulled), expected, rtol=1e-10, atol=1e-12)
    assert float(expected.abs().max()) > 0


@cases
@choices
def test_jvp_is_the_derivative_of_weights(case, choice):
    network, basis, _ = make(case, choice)
    values = basis.flat(basis.values())
    generator = torch.Generator().manual_seed(2)
    tangent = values * torch.randn(values.shape, generator=generator).double()

    def weights(v):
        return tuple(basis.graph.weights(basis.weights(v)).values())

    _, expected = torch.autograd.functional.jvp(weights, values, tangent)
    found = basis.jvp(tangent)
    for name, derivative in zip(basis.graph.weights(detached(network)), expected, strict=True):
        torch.testing.assert_close(found[name], derivative, rtol=1e-10, atol=1e-10)


@cases
@choices
def test_jvp_and_vjp_are_adjoint(case, choice):
    network, basis, _ = make(case, choice)
    generator = torch.Generator().manual_seed(3)
    values = basis.flat(basis.values())
    tangent = values * torch.randn(values.shape, generator=generator).double()
    cotangent = {
        name: torch.randn(w.shape, generator=generator).double()
        for name, w in basis.graph.weights(detached(network)).items()
    }
    forward = basis.jvp(tangent)
    left = sum(float((cotangent[name] * forward[name]).sum()) for name in forward)
    right = float(basis.flat(basis.vjp(cotangent)) @ tangent)
    assert math.isclose(left, right, rel_tol=1e-9)


@cases
@choices
def test_push_moves_the_values_by_the_update(case, choice):
    _, basis, _ = make(case, choice)
    generator = torch.Generator().manual_seed(4)
    values = basis.flat(basis.values())
    update = 0.2 * values * torch.rand(values.shape, generator=generator).double()
    torch.testing.assert_close(
        basis.flat(basis.values(basis.push(update))), values + update, rtol=1e-11, atol=0
    )


def test_push_is_right_where_a_weight_is_zero():
    model, x = Case("", lambda: mlp(3, 4, 4, 2), (3,)).make()
    with torch.no_grad():
        model[0].weight[1, 0] = 0.0  # not on the skeleton
        model[2].weight[0, 3] = 0.0
    basis = ps.BasisPaths(ps.trace(model, x))
    values = basis.flat(basis.values())
    assert int((values == 0).sum()) == 2
    update = torch.full_like(values, 0.01)
    update[basis.roots] = 0.0
    after = basis.flat(basis.values(basis.push(update)))
    torch.testing.assert_close(after, values + update)


def test_push_starts_from_the_state_that_is_given():
    case = next(case for case in CASES if case.name == "conv residual, batch norm")
    network, basis, _ = make(case)
    state = {n: 1.5 * t if t.is_floating_point() else t for n, t in detached(network).items()}
    values = basis.flat(basis.values(state))
    after = basis.push(0.1 * values, state)
    torch.testing.assert_close(basis.flat(basis.values(after)), 1.1 * values)
    kept = [name for name in state if "running" in name]
    assert kept
    for name in kept:
        assert torch.equal(after[name], state[name])


def test_the_skeleton_is_chosen_for_the_state_that_is_given():
    network, _, _ = make(CASES[0])
    state = {name: tensor.flip(0) for name, tensor in detached(network).items()}
    chosen = ps.BasisPaths(network, "largest", state=state).skeleton
    assert torch.equal(
        chosen.incoming, ps.choose_skeleton(network, "largest", state=state).incoming
    )
    assert not torch.equal(chosen.incoming, ps.choose_skeleton(network, "largest").incoming)


def test_a_weight_with_two_names_gets_its_new_value_under_both():
    model, x = Case("", lambda: mlp(3, 4, 2), (3,)).make()
    model.register_module("again", model[0])
    model.forward = lambda x: model[2](model[0](x).relu())
    basis = ps.BasisPaths(ps.trace(model, x))
    after = basis.push(0.1 * basis.flat(basis.values()))
    assert torch.equal(after["0.weight"], after["again.weight"])
    assert not torch.equal(after["0.weight"], model[0].weight)


@pytest.mark.parametrize("place", [1, 4])
def test_a_gain_that_follows_from_statistics_cannot_be_set(place):
    def net():
        norms = (nn.BatchNorm1d(3, affine=False) for _ in range(2))
        return nn.Sequential(
            nn.Linear(2, 3), next(norms), nn.ReLU(), nn.Linear(3, 3), next(norms), nn.ReLU(),
            nn.Linear(3, 1),
        )  # fmt: skip

    model, x = Case("", net, (2,)).make()
    graph = ps.BasisPaths(ps.trace(model, x)).graph
    weights = graph.weights()
    graph.state(weights)
    with pytest.raises(ps.PathspaceError, match=f"`{place}` is a batch norm without weight"):
        graph.state({**weights, f"{place}.running_var": 2 * weights[f"{place}.running_var"]})


def test_push_refuses_to_take_a_root_through_zero():
    _, basis, _ = make(CASES[0])
    update = torch.zeros(len(basis), dtype=torch.float64)
    root = int(basis.roots[0])
    update[root] = -1.5 * basis.flat(basis.values())[root]
    with pytest.raises(ps.PathspaceError, match="through zero"):
        basis.push(update)


def test_roots_and_positive_paths_share_out_all_coordinates():
    _, basis, _ = make(CASES[0])
    assert torch.equal(
        torch.cat([basis.roots, basis.positive]).sort().values, torch.arange(len(basis))
    )
    assert len(basis.roots) == 4  # equal widths: one per unit of the first layer
    coordinates = torch.arange(len(basis))
    assert torch.equal(basis.coordinate(basis.number(coordinates)), coordinates)


@cases
def test_gauge_makes_free_weights_plus_or_minus_one_and_keeps_the_function(case):
    model, x = case.make()
    network = ps.trace(model, x, streams="shared")
    before = {mode: copy.deepcopy(model).train(mode)(x) for mode in (True, False)}
    basis = ps.gauge_(network)
    names = [basis.graph.name(int(n)).split("[")[0] for n in basis.skeleton.outgoing[1:]]
    own = torch.tensor([name not in basis.graph.norms for name in names])
    torch.testing.assert_close(basis.free()[own].abs(), torch.ones(int(own.sum())).double())
    for mode, expected in before.items():
        torch.testing.assert_close(
            copy.deepcopy(model).train(mode)(x), expected, rtol=1e-10, atol=1e-10
        )


def test_skeleton_init_sets_the_skeleton_to_one_and_changes_the_function():
    model, x = Case("", lambda: mlp(3, 4, 4, 2), (3,)).make()
    before, others = model(x), model[2].weight.detach().clone()
    basis = ps.skeleton_init_(ps.trace(model, x))
    assert torch.equal(model[2].weight.diagonal(), torch.ones(4).double())
    off = ~torch.eye(4, dtype=torch.bool)
    assert torch.equal(model[2].weight[off], others[off])
    assert torch.equal(basis.free(), torch.ones(8).double())
    assert not torch.allclose(model(x), before)


def test_activations_follow_from_values_and_signs_alone():
    """Lemma 10.1 of Meng et al.: the sizes of the free weights do not matter."""
    for case in (CASES[0], CASES[13], CASES[-4]):
        model, x = case.make()
        network = ps.trace(model, x, streams="shared")
        basis = ps.BasisPaths(network)
        state = basis.weights(basis.values(), free=basis.free().sign())
        assert torch.equal(ps.path_activations(network, x, state), ps.path_activations(network, x))
        torch.testing.assert_close(functional_call(model, state, (x,)), model(x))


def test_values_are_differentiable():
    network, basis, _ = make(CASES[0])
    state = {k: t.detach().clone().requires_grad_() for k, t in network.state().items()}
    total = basis.flat(basis.values(state)).sum()
    gradients = torch.autograd.grad(total, list(state.values()))

    def value(weight):
        return basis.flat(basis.values({**detached(network), "2.weight": weight})).sum()

    weight = network.state()["2.weight"].detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(value, (weight,))
    assert all(bool(gradient.any()) for gradient in gradients)


def test_deep_float32_networks_do_not_overflow_inside():
    """I and O alone span 1e-43 to 1e43 here, beyond float32; their products are moderate."""
    torch.manual_seed(0)
    layers = [layer for _ in range(100) for layer in (nn.Linear(4, 4), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(4, 1))
    network = ps.trace(model, torch.ones(1, 4))
    with torch.no_grad():
        for layer in layers[::2]:
            layer.weight.copy_(torch.eye(4) * (10.0 if layer is layers[0] else 1.0))
            layer.weight.add_(0.01 * torch.randn(4, 4))
    middle = torch.full((network.H,), 1.0, dtype=torch.float64)
    middle[: network.H // 2] = 1e30
    ps.rescale_(network, middle)
    basis = ps.BasisPaths(network)
    back = basis.weights(basis.values())
    for name, tensor in network.state().items():
        torch.testing.assert_close(back[name], tensor.detach(), rtol=1e-4, atol=0)


def test_values_that_vanish_are_no_coordinates():
    torch.manual_seed(0)
    layers = [layer for _ in range(300) for layer in (nn.Linear(4, 4), nn.ReLU())]
    network = ps.trace(nn.Sequential(*layers, nn.Linear(4, 1)), torch.ones(1, 4))
    basis = ps.BasisPaths(network)
    with pytest.raises(ps.PathspaceError, match=r"root `0\.weight\[.*is 0"):
        basis.weights(basis.values())


def test_one_value_that_vanishes_is_named():
    network = ps.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.ones(1, 2))
    basis = ps.BasisPaths(network)
    for unit in range(3):
        values = basis.flat(basis.values())
        values[basis.roots[unit]] = 0.0
        with pytest.raises(ps.PathspaceError, match=rf"root `0\.weight\[{unit}, .*of unit .*is 0"):
            basis.weights(values)


def test_tangents_by_name_are_those_in_a_row():
    network = ps.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.ones(1, 2))
    basis = ps.BasisPaths(network)
    flat = torch.randn_like(basis.flat(basis.values()))
    torch.testing.assert_close(basis.jvp(basis.unflat(flat)), basis.jvp(flat))


def test_the_model_is_not_touched():
    network, basis, _ = make(CASES[-3])
    before = {name: (tensor._version, tensor.clone()) for name, tensor in network.state().items()}
    values = basis.flat(basis.values())
    basis.push(0.01 * values)
    basis.weights(values)
    basis.jvp(values)
    basis.pull(basis.graph.weights(detached(network)))
    for name, (version, tensor) in before.items():
        assert network.state()[name]._version == version
        assert torch.equal(network.state()[name], tensor)


def test_a_batch_norm_without_statistics_is_refused_by_name():
    model = nn.Sequential(
        nn.Linear(2, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.ReLU(), nn.Linear(3, 1)
    )
    with pytest.raises(ps.PathspaceError, match="`1` is a batch norm without running statistics"):
        ps.BasisPaths(ps.trace(model, torch.randn(4, 2)))


def test_wrong_vectors_and_paths_are_refused():
    network, basis, _ = make(CASES[0])
    with pytest.raises(ps.PathspaceError, match="length 28"):
        basis.weights(torch.ones(5))
    with pytest.raises(ps.PathspaceError, match="do not form a path"):
        basis.exponents([("0.weight", (0, 0)), ("4.weight", (0, 1))])
    other = ps.trace(network.model, torch.ones(1, 3).double())
    with pytest.raises(ps.PathspaceError, match="another network"):
        ps.BasisPaths(other, basis.skeleton)
