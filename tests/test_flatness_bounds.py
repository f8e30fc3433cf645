"""Path balance, Theorem 5.1 on data, and the PAC-Bayes bound around expected flatness."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pathspace as ps
from cases import conv, mlp
from pathspace.flatnesses import (
    PathCoordinates,
    ball_bound,
    error_rate,
    flatness,
    pac_bayes,
    path_balance,
)


def network_and_data(*widths, bias=False, seed=0, samples=12):
    torch.manual_seed(seed)
    model = mlp(*widths, bias=bias).double()
    x = torch.randn(samples, widths[0]).double()
    return ps.trace(model, x), x, torch.randint(widths[-1], (samples,))


def patterns(network, x, state):
    """Which hidden units are active, for every sample."""
    found = []
    y = x
    layers = list(network.model)
    for k, layer in enumerate(layers):
        if isinstance(layer, nn.Linear):
            y = F.linear(y, state[f"{k}.weight"], state.get(f"{k}.bias"))
        else:
            found.append(y > 0)
            y = y.relu()
    return torch.cat(found, 1)


def test_path_balance_against_products_along_paths():
    network, _, _ = network_and_data(3, 4, 4, 2, bias=True)
    basis = ps.BasisPaths(network, "modulo")
    weights = {
        f"{name}{list(index)}": float(w[index].detach())
        for name, w in network.state().items()
        for index in torch.cartesian_prod(*(torch.arange(n) for n in w.shape))
        .view(-1, w.dim())
        .unbind()
        for index in [tuple(index.tolist())]
    }
    values = [abs(math.prod(weights[name] for name in basis.path(k))) for k in range(len(basis))]
    found = path_balance(network)
    assert found.ratio == pytest.approx(max(values) / min(values))
    assert float(found) == found.ratio
    ps.rescale_(network, ps.random_rescaling(network, 2.0))
    assert path_balance(network).ratio == pytest.approx(found.ratio, rel=1e-9)
    nn.init.zeros_(network.model[0].bias)
    assert path_balance(network).ratio == math.inf
    assert path_balance(network).zeros == 4


@pytest.mark.parametrize("bias", [False, True])
def test_the_condition_of_the_first_layer_is_sharp(bias):
    network, x, y = network_and_data(3, 4, 2, bias=bias)
    place = PathCoordinates(network, "modulo")
    found = ball_bound(network, (x, y))
    assert len(found.radii) == 1
    # The nearest switch: move the values of one unit against its input for one sample.
    weight, b = network.model[0].weight.detach(), network.model[0].bias
    whole = torch.cat([x, torch.ones(len(x), 1).double()], 1) if bias else x
    z = x @ weight.T + (b.detach() if bias else 0)
    free = place.basis.free().abs()  # in the gauge, values are weights times the free weight
    distance = z.abs() * free / whole.norm(dim=1, keepdim=True)
    assert found.radius == pytest.approx(float(distance.min()))
    sample, unit = divmod(int(distance.argmin()), 4)
    step = {k: torch.zeros_like(w) for k, w in place.basis.graph.weights().items()}
    v = place.basis.values()
    side = -torch.sign(z[sample, unit])
    out = torch.sign(v["0.weight"][unit, 0] / weight[unit, 0])
    toward = side * out * whole[sample] / whole[sample].norm()
    step["0.weight"][unit] = toward[:3]
    if bias:
        step["0.bias"][unit] = toward[3]
    before = patterns(network, x, network.state())
    for factor, same in ((0.999, True), (1.001, False)):
        delta = factor * found.radius * place.basis.flat(step)
        assert delta.norm() == pytest.approx(factor * found.radius)
        after = patterns(network, x, place.state(place.point + delta))
        assert torch.equal(after, before) is same


def test_activations_stay_within_the_condition():
    network, x, y = network_and_data(4, 5, 5, 5, 3, seed=2)
    found = ball_bound(network, [(x[:5], y[:5]), (x[5:], y[5:])])
    assert len(found.radii) == 3
    assert found.radii == pytest.approx(ball_bound(network, (x, y)).radii)
    assert found.condition_holds
    assert found.epsilon == found.radius / 2
    place = PathCoordinates(network, "modulo")
    before = patterns(network, x, network.state())
    draw = torch.Generator().manual_seed(0)
    switched = {0.5: 0, 1000.0: 0}
    for factor in switched:
        for _ in range(30):
            u = torch.randn(len(place), generator=draw).double()
            u = u / u.norm() * factor * found.radius
            after = patterns(network, x, place.state(place.point + u))
            switched[factor] += int((after != before).sum())
    assert switched[0.5] == 0
    assert switched[1000.0] > 0


def test_equation_32_by_hand():
    """For equal widths and free weights of 1: unit i has y_i through its free weight."""
    network, x, y = network_and_data(3, 3, 3, 2, seed=4)
    first, second, last = (network.model[k].weight.data for k in (0, 2, 4))
    second.fill_diagonal_(1.0)
    last[0, 0] = last[1, 1] = last[0, 2] = 1.0  # output j mod 2
    root = first.diagonal()
    smallest = math.inf
    for sample in x:
        out = (first @ sample).relu()
        for i in range(3):
            others = [j for j in range(3) if j != i]
            z = out[i] + sum(second[i, j] * out[j] for j in others)
            reach = math.sqrt(2 * sum(float(out[j] / root[j]) ** 2 for j in others))
            if reach:
                smallest = min(smallest, abs(float(z)) / reach)
    radii = ball_bound(network, (x, y), epsilon=0.1).radii
    assert radii[1] == pytest.approx(smallest)
    assert radii[0] == pytest.approx(float(((x @ first.T).abs().amin(1) / x.norm(dim=1)).min()))


def test_the_bound_is_above_the_ball_and_invariant():
    network, x, y = network_and_data(4, 5, 5, 3)
    found = ball_bound(network, (x, y))
    ball = flatness(network, F.cross_entropy, (x, y), choice="modulo", epsilon=found.epsilon)
    assert math.log10(ball.value * (1 + ball.loss)) <= found.bound.log10
    ps.rescale_(network, ps.random_rescaling(network, 1.0))
    again = ball_bound(network, (x, y))
    assert again.bound.log10 == pytest.approx(found.bound.log10, rel=1e-9)
    assert again.radii == pytest.approx(found.radii, rel=1e-9)
    assert "holds on these data" in str(found)
    assert not any("not checked" in line for line in found.bound.assumptions)
    far = ball_bound(network, (x, y), epsilon=1.0)
    assert not far.condition_holds
    assert "does not hold" in str(far)


def test_theorem_5_1_refuses():
    model = conv(3).double()
    x = torch.randn(2, 2, 4, 4).double()
    with pytest.raises(ps.PathspaceError, match="convolution"):
        ball_bound(ps.trace(model, x), (x, torch.zeros(2).long()))
    network, x, y = network_and_data(3, 4, 2)
    model = nn.Linear(3, 2).double()
    with pytest.raises(ps.PathspaceError, match="hidden"):
        ball_bound(ps.trace(model, x), (x, y))
    network.model[0].weight.data[0] = torch.tensor([1.0, -1.0, 0.5])
    x[0] = torch.tensor([1.0, 1.0, 0.0])  # exactly on a kink
    with pytest.raises(ps.PathspaceError, match="input 0"):
        ball_bound(network, (x, y))


def test_pac_bayes_by_hand():
    network, x, y = network_and_data(3, 4, 2, bias=True, samples=200)
    sigmas = (0.03, 0.3, 3.0)
    found = pac_bayes(network, error_rate, (x, y), sigmas=sigmas, max_pairs=16)
    place = PathCoordinates(network, "modulo")
    for sigma in sigmas:
        flat = flatness(
            network, error_rate, (x, y), kind="expected", choice="modulo", sigma=sigma, rtol=0.0,
            max_pairs=16,
        ).value  # fmt: skip
        kl = divergence(place, sigma) + network.H * math.log(2)
        bound = flat + 4 * math.sqrt((kl + math.log(2 * 200 * 3 / 0.05)) / 200)
        assert 10 ** found.bounds[sigma].log10 == pytest.approx(bound, rel=1e-4)
    assert found.bound.log10 == min(b.log10 for b in found.bounds.values())
    assert found.bounds[found.sigma] is found.bound
    assert found.flatness.details["sigma"] == found.sigma
    cheaper = pac_bayes(
        network, error_rate, (x, y), sigmas=sigmas, max_pairs=16, fixed_signs=True,
        prior=place.point,
    )  # fmt: skip
    assert cheaper.bound.log10 < found.bound.log10
    assert "σ = 0.3" in str(found)


def divergence(place, sigma):
    """KL of the cut normal distribution around v from the prior N(0, σ²), by quadrature."""
    total = 0.0
    for v, room in zip(place.point.tolist(), place.room.tolist(), strict=True):
        ends = min(room, 10 * sigma)
        u = torch.linspace(-ends, ends, 20_001, dtype=torch.float64)
        q = torch.exp(-(u**2) / (2 * sigma**2))
        q = q / torch.trapezoid(q, u)
        p = -((v + u) ** 2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))
        total += float(torch.trapezoid(q * (q.log() - p), u))
    return total


def test_pac_bayes_refuses_unbounded_losses_and_empty_grids():
    network, x, y = network_and_data(3, 4, 2)
    for layer in (network.model[0], network.model[2]):
        layer.weight.data *= 10
    with pytest.raises(ps.PathspaceError, match="error_rate"):
        pac_bayes(network, F.cross_entropy, (x, y), max_pairs=2)
    with pytest.raises(ValueError, match="sigmas"):
        pac_bayes(network, error_rate, (x, y), sigmas=())


def test_pac_bayes_says_when_the_skeleton_depends_on_the_weights():
    network, x, y = network_and_data(3, 4, 2)
    for choice, noted in (("modulo", False), ("largest", True)):
        found = pac_bayes(network, error_rate, (x, y), choice=choice, sigmas=(1.0,), max_pairs=2)
        said = any("before training" in line for line in found.bound.assumptions)
        assert said is noted
