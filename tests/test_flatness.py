"""Flatness: problems solved in closed form, laws, and what the result says about itself."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pathspace as ps
from cases import CASES, mlp
from pathspace.evaluation import Objective
from pathspace.flatnesses import PathCoordinates, WeightCoordinates, flatness
from pathspace.flatnesses.ball import project
from pathspace.flatnesses.derivatives import losses
from pathspace.flatnesses.expected import log_kept, perturbations

KINDS = {
    "ball": {"steps": 10, "restarts": 2},
    "trace": {"method": "hutchinson", "max_probes": 20},
    "expected": {"max_pairs": 16},
    "adaptive": {"steps": 10, "restarts": 2},
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def quadratic(n=6, at_minimum=True):
    """Least squares without hidden units: l = mean (Xw − t)², Hessian 2 XᵀX / N."""
    x = torch.randn(20, n, generator=generator(1), dtype=torch.float64)
    t = torch.randn(20, 1, generator=generator(2), dtype=torch.float64)
    model = nn.Linear(n, 1, bias=False).double()
    if at_minimum:
        model.weight.data = torch.linalg.lstsq(x, t).solution.T.contiguous()
    return ps.trace(model, x), (x, t), 2 * x.T @ x / len(x)


def classifier(*widths, seed=0, samples=40):
    """A ReLU network away from its minimum, in float64."""
    torch.manual_seed(seed)
    model = mlp(*widths, bias=True).double()
    x = torch.randn(samples, widths[0]).double()
    y = torch.randint(widths[-1], (samples,))
    return ps.trace(model, x), (x, y)


# Closed forms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", ["weights", "paths"])  # without hidden units they are the same
def test_trace_of_a_quadratic(space):
    network, data, hessian = quadratic()
    trace = float(hessian.trace())
    exact = flatness(network, F.mse_loss, data, space=space, kind="trace")
    assert exact.value == pytest.approx(trace, rel=1e-12)
    assert exact.standard_error == 0
    some = flatness(
        network, F.mse_loss, data, space=space, kind="trace", method="hutchinson", rtol=0.02,
        max_probes=2000,
    )  # fmt: skip
    assert some.details["converged"]
    assert some.standard_error <= 0.02 * some.value
    assert abs(some.value - trace) < 4 * some.standard_error
    # the error that is stated is that of the theory, 2 Σ_{i≠j} H_ij² for one probe
    variance = 2 * float(hessian.square().sum() - hessian.diagonal().square().sum())
    expected = math.sqrt(variance / some.details["probes"])
    assert some.standard_error == pytest.approx(expected, rel=0.4)


def test_hutchpp_is_exact_for_a_hessian_of_low_rank():
    x = torch.randn(3, 30, generator=generator(), dtype=torch.float64)  # three samples: rank 3
    network = ps.trace(nn.Linear(30, 1, bias=False).double(), x)
    options = {"space": "weights", "kind": "trace", "max_probes": 30, "rtol": 0.0}
    data = (x, torch.zeros(3, 1).double())
    found = flatness(network, F.mse_loss, data, method="hutch++", rank=5, **options)
    assert found.value == pytest.approx(2 * float(x.square().sum()) / 3, rel=1e-10)
    assert found.standard_error < 1e-10
    assert found.details["probes"] == 30
    plain = flatness(network, F.mse_loss, data, method="hutchinson", **options)
    assert plain.standard_error > 1e-3 * plain.value


def test_the_method_follows_the_size(monkeypatch):
    network, data = classifier(10, 30, 10, samples=5)  # 610 paths
    options = {"kind": "trace", "max_probes": 40}
    assert flatness(network, F.cross_entropy, data, **options).details["method"] == "hutch++"
    monkeypatch.setattr("pathspace.flatnesses.trace.BLOCK", 6000)
    assert flatness(network, F.cross_entropy, data, **options).details["method"] == "hutchinson"
    monkeypatch.setattr("pathspace.flatnesses.trace.SMALL", 610)
    assert flatness(network, F.cross_entropy, data, **options).details["method"] == "exact"


def test_probes_stop_at_their_number_and_say_so():
    network, data, _ = quadratic()
    found = flatness(
        network, F.mse_loss, data, kind="trace", method="hutchinson", rtol=1e-9, max_probes=25
    )
    assert found.details["probes"] == 25
    assert not found.details["converged"]


@pytest.mark.parametrize("space", ["weights", "paths"])
@pytest.mark.parametrize("at_minimum", [True, False])
def test_ball_of_a_quadratic(space, at_minimum):
    network, data, hessian = quadratic(at_minimum=at_minimum)
    epsilon = 0.3
    found = flatness(network, F.mse_loss, data, space=space, epsilon=epsilon, steps=80)
    x, t = data
    w = network.model.weight.detach().T
    g = (2 * x.T @ (x @ w - t) / len(x)).squeeze(1)
    rise = trust_region(hessian, g, epsilon)
    loss = float((x @ w - t).square().mean())
    assert found.value == pytest.approx(rise / (1 + loss), rel=1e-6)
    assert found.loss == pytest.approx(loss)


def trust_region(hessian, g, radius):
    """max gᵀδ + δᵀHδ/2 in the ball, by the eigenvalues and the secular equation."""
    values, vectors = torch.linalg.eigh(hessian)
    c = vectors.T @ g
    if c.abs().max() < 1e-10:
        return float(values[-1]) * radius**2 / 2
    low, high = float(values[-1]), float(values[-1] + c.norm() / radius)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (c / (middle - values)).norm() > radius else (low, middle)
    d = c / (high - values)
    return float(c @ d + (values * d * d).sum() / 2)


@pytest.mark.parametrize("space", ["weights", "paths"])
def test_expectation_of_a_quadratic(space):
    network, data, hessian = quadratic(at_minimum=False)
    found = flatness(
        network, F.mse_loss, data, space=space, kind="expected", sigma=0.2, rtol=0.0, max_pairs=400
    )
    value = 0.2**2 * float(hessian.trace()) / 2
    assert abs(found.value - value) < 4 * found.standard_error
    # antithetic pairs leave the quadratic part alone: variance σ⁴ ‖H‖² / 2
    expected = 0.2**2 * float(hessian.norm()) / math.sqrt(2 * 400)
    assert found.standard_error == pytest.approx(expected, rel=0.25)


def test_a_linear_loss():
    x = torch.randn(5, 4, generator=generator(), dtype=torch.float64)
    network = ps.trace(nn.Linear(4, 1, bias=False).double(), x)
    g = x.mean(0)

    def measure(kind, **options):
        return flatness(
            network, lambda out, y: 7 + out.mean(), (x, x), space="weights", kind=kind, **options
        )

    ball = measure("ball", epsilon=0.1)
    assert ball.value == pytest.approx(0.1 * float(g.norm()) / (1 + ball.loss), rel=1e-9)
    assert measure("trace").value == 0
    assert measure("expected").value < 1e-14
    w = network.model.weight.detach().squeeze()
    adaptive = measure("adaptive", rho=0.5)  # max gᵀδ for ‖δ/|w|‖ ≤ ρ
    assert adaptive.value == pytest.approx(0.5 * float((g * w).norm()), rel=1e-9)
    torch.testing.assert_close((adaptive.perturbation / w).norm().item(), 0.5)


# Search against dense search ---------------------------------------------------------------------


@pytest.mark.parametrize(("widths", "space"), [((1, 1, 1), "weights"), ((2, 1, 1), "paths")])
@pytest.mark.parametrize("epsilon", [0.1, 0.4])
def test_ball_against_dense_search_in_two_coordinates(widths, space, epsilon):
    torch.manual_seed(3)
    model = mlp(*widths).double()
    for layer in (model[0], model[2]):
        layer.weight.data.abs_().add_(0.5)
    x = torch.randn(12, widths[0]).double()
    data = (x, torch.randn(12, 1).double())
    network = ps.trace(model, x)
    found = flatness(network, F.mse_loss, data, space=space, epsilon=epsilon, steps=40)
    place, objective = found.coordinates, Objective(network, F.mse_loss, data)
    assert len(place) == 2

    def rise(deltas):
        return (losses(objective, place, place.point + deltas) - found.loss) / (1 + found.loss)

    angles = torch.arange(360).double() * math.pi / 180
    circle = torch.stack([angles.cos(), angles.sin()], 1)
    grid = torch.cat([r * epsilon * circle for r in (0.25, 0.5, 0.75, 1.0)])
    grid = grid[(place.point.sign() * grid >= -place.room).all(1)]
    dense = float(rise(grid).max())
    assert found.value == pytest.approx(float(rise(found.perturbation[None])), rel=1e-12)
    assert found.perturbation.norm() <= epsilon * (1 + 1e-12)
    assert found.value >= dense * (1 - 1e-9)  # as good as the grid
    assert found.value <= dense * 1.001  # and the grid, within its step, as good as the search


def test_the_attained_perturbation_can_be_checked():
    network, data = classifier(4, 6, 3)
    for kind, space in itertools.product(("ball", "adaptive"), ("paths", "weights")):
        found = flatness(network, F.cross_entropy, data, kind=kind, space=space, **KINDS[kind])
        loss = float(Objective(network, F.cross_entropy, data)(found.perturbed_state()))
        scale = 1 + found.loss if kind == "ball" else 1
        assert found.value == pytest.approx((loss - found.loss) / scale, rel=1e-10)
        assert found.value > 0
    with pytest.raises(AttributeError, match="no perturbation"):
        flatness(network, F.cross_entropy, data, kind="trace").perturbed_state()


# Where the theory orders them --------------------------------------------------------------------


@pytest.mark.parametrize("space", ["paths", "weights"])
def test_ball_is_at_least_expected_within_its_radius(space):
    network, data = classifier(4, 6, 5, 3)
    mean = flatness(network, F.cross_entropy, data, space=space, kind="expected", sigma=0.02)
    ball = flatness(network, F.cross_entropy, data, space=space, epsilon=mean.details["radius"])
    assert ball.value * (1 + ball.loss) >= mean.value


def test_ball_and_trace_at_a_minimum():
    """ε² tr(H) / (2d) is a lower bound; the paper's ε² tr(H) / d is not (its section 5)."""
    x = torch.eye(3).double()
    model = nn.Linear(3, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    network = ps.trace(model, x)
    data = (x, torch.zeros(3, 1).double())
    ball = flatness(network, F.mse_loss, data, epsilon=0.1).value
    trace = flatness(network, F.mse_loss, data, kind="trace").value
    assert ball == pytest.approx(0.1**2 * trace / 6, rel=1e-9)
    assert ball < 0.1**2 * trace / 3


# Invariance --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_rescaling_moves_weight_space_only(kind):
    network, data = classifier(5, 12, 12, 12, 3)

    def measure(space):
        return flatness(network, F.cross_entropy, data, space=space, kind=kind, **KINDS[kind]).value

    before = {space: measure(space) for space in ("paths", "weights")}
    ps.rescale_(network, ps.random_rescaling(network, 1.0, generator=generator(4)))
    assert measure("paths") == pytest.approx(before["paths"], rel=1e-6)
    factor = measure("weights") / before["weights"]
    if kind == "adaptive":  # the invariant rival
        assert factor == pytest.approx(1, rel=1e-6)
    else:
        assert abs(math.log(factor)) > math.log(1.5)


@pytest.mark.parametrize("name", ["conv, batch norm", "conv residual, batch norm", "residual"])
def test_invariance_with_batch_norm_and_sums(name):
    model, x = next(case for case in CASES if case.name == name).make()
    network = ps.trace(model, x)
    data = (x, torch.randint(2, (8,), generator=generator()))
    before = {k: float(flatness(network, F.cross_entropy, data, kind=k, **KINDS[k])) for k in KINDS}
    ps.rescale_(network, ps.random_rescaling(network, 1.0, generator=generator(1)))
    for kind, value in before.items():
        after = float(flatness(network, F.cross_entropy, data, kind=kind, **KINDS[kind]))
        assert after == pytest.approx(value, rel=1e-6)


def test_spread_over_skeletons():
    network, data = classifier(5, 8, 7, 3)
    found = flatness(network, F.cross_entropy, data, kind="trace", skeletons=4)
    assert found.value == flatness(network, F.cross_entropy, data, kind="trace").value
    assert len(set(found.spread.values)) == 4  # the skeleton does matter
    assert found.spread.deviation > 0
    assert "4 random skeletons" in str(found)
    again = flatness(network, F.cross_entropy, data, kind="trace", skeletons=4)
    assert again.spread == found.spread
    ps.rescale_(network, ps.random_rescaling(network, 1.0, generator=generator()))
    rescaled = flatness(network, F.cross_entropy, data, kind="trace", skeletons=4).spread.values
    assert rescaled == pytest.approx(found.spread.values, rel=1e-6)
    with pytest.raises(ValueError, match="paths"):
        flatness(network, F.cross_entropy, data, space="weights", skeletons=2)


def test_skeletons_are_compared_with_the_same_draws():
    network, data = classifier(4, 6, 3)
    options = {"kind": "expected", "max_pairs": 8, "seed": 3}
    found = flatness(network, F.cross_entropy, data, skeletons=2, **options)
    draw = generator(3)
    for value in found.spread.values:
        skeleton = ps.choose_skeleton(network, "random", generator=draw)
        assert value == flatness(network, F.cross_entropy, data, choice=skeleton, **options).value


def test_random_skeletons_are_drawn_among_large_weights():
    network, _ = classifier(6, 9, 8, 3)
    ps.balance_(network)  # sizes are compared in the balanced representative
    draw = generator(3)
    seen = set()
    for _ in range(30):
        skeleton = ps.choose_skeleton(network, "random", generator=draw)
        graph = skeleton.graph
        weights = graph.weights()
        sizes = {name: w.detach().abs() for name, w in weights.items()}
        for side, numbers in (("target", skeleton.incoming), ("source", skeleton.outgoing)):
            chosen = graph.places(numbers).take(sizes)[1:]
            largest = torch.zeros(graph.H + 1).double()
            for edge in graph.edges:
                if not edge.from_constant:
                    own = edge.scale(side).expand(edge.shape).reshape(-1)
                    largest.scatter_reduce_(0, own, sizes[edge.parameter].reshape(-1), "amax")
            assert bool((chosen >= largest[1:] / 2 * (1 - 1e-9)).all())
        seen.add(tuple(skeleton.incoming.tolist()))
    assert len(seen) > 20
    one, other = (ps.choose_skeleton(network, "random").incoming for _ in range(2))
    assert torch.equal(one, other)  # seeded


# The end of the space ----------------------------------------------------------------------------


def test_projection_on_ball_and_half_spaces():
    draw = generator(7)
    point = torch.randn(9, generator=draw).double()
    lowest = torch.where(torch.rand(9, generator=draw) < 0.6, 0.3 * point.abs(), torch.inf)
    x = 3 * torch.randn(50, 9, generator=draw).double()
    x[0] *= 0.01
    p = project(x, lowest, point.sign(), 1.0)

    def is_inside(q, room=1e-9):
        in_ball = q.norm(dim=1) <= 1 + room
        return in_ball & (point.sign() * q >= -lowest - room).all(1)

    assert bool(is_inside(p).all())
    assert bool((p.norm(dim=1) > 0.999).any())
    assert bool((point.sign() * p == -lowest).any())
    # p is nearest if and only if no feasible q lies on the far side of it
    q = torch.randn(4000, 9, generator=draw).double()
    q = q / q.norm(dim=1, keepdim=True) * torch.rand(4000, 1, generator=draw) ** 0.2
    q = q[is_inside(q)]
    assert len(q) > 100
    far = ((x - p)[:, None] * (q[None] - p[:, None])).sum(2)
    assert float(far.max()) < 1e-9


def test_a_ball_beyond_the_end_keeps_half_of_every_root():
    network, data = classifier(3, 4, 2)
    place = PathCoordinates(network)
    roots = torch.isfinite(place.room)
    assert int(roots.sum()) == 4
    near = flatness(network, F.cross_entropy, data, epsilon=0.1 * float(place.room.min()))
    assert not near.details["reaches_end"]
    found = flatness(network, F.cross_entropy, data, epsilon=5.0)
    assert found.details["reaches_end"]
    left = (place.point + found.perturbation)[roots] / place.point[roots]
    assert float(left.min()) >= 0.5 - 1e-12
    assert float(left.min()) < 0.5 + 1e-6  # the search went as far as it may
    assert math.isfinite(found.value)


def test_perturbations_of_roots_are_cut_off():
    network, _ = classifier(3, 4, 2)
    place = PathCoordinates(network)
    roots = torch.isfinite(place.room)
    sigma = float(place.room[roots].median())
    drawn = perturbations(place, sigma, 20_000, generator())
    assert bool((drawn.abs() <= place.room).all())
    # standard deviations: σ, and that of the cut normal distribution
    a = place.room[roots] / sigma
    density = torch.exp(-(a**2) / 2) / math.sqrt(2 * math.pi)
    kept = torch.erf(a / math.sqrt(2))
    expected = sigma * torch.sqrt(1 - 2 * a * density / kept)
    torch.testing.assert_close(drawn[:, roots].std(0), expected, rtol=0.03, atol=0)
    torch.testing.assert_close(
        drawn[:, ~roots].std(0), torch.full_like(drawn[0, ~roots], sigma), rtol=0.03, atol=0
    )
    assert log_kept(place, sigma) == pytest.approx(float(kept.log().sum()))
    assert log_kept(WeightCoordinates(network), sigma) == 0


def test_without_the_cut_the_expectation_does_not_exist():
    """At a root the loss has a pole 1/|v|, whose integral diverges."""
    torch.manual_seed(0)
    model = mlp(2, 1, 2).double()
    model[0].weight.data = torch.tensor([[1.0, 0.5]]).double()
    model[2].weight.data = torch.tensor([[1.0], [0.8]]).double()
    x = torch.tensor([[0.0, 1.0]]).double()
    network = ps.trace(model, x)
    place = PathCoordinates(network)
    objective = Objective(network, F.l1_loss, (x, torch.zeros(1, 2).double()))
    root = torch.isfinite(place.room)
    assert int(root.sum()) == 1
    for left in (1e-2, 1e-4, 1e-6):
        near = torch.where(root, left * place.point, place.point)
        outputs = torch.tensor([0.5, 0.5 * 0.8 / left])  # the second weight is divided by the root
        assert float(objective(place.state(near))) == pytest.approx(float(outputs.mean()))


def test_a_root_that_divides_nothing_is_no_end():
    network, _ = classifier(3, 4, 1)  # of each hidden unit only the free weight leaves
    assert not bool(torch.isfinite(PathCoordinates(network).room).any())
    network, _ = classifier(3, 4, 4, 1)  # those of the first hidden layer have others
    place = PathCoordinates(network)
    assert 1 <= int(torch.isfinite(place.room).sum()) <= 4
    root = int(torch.isfinite(place.room).nonzero()[0])
    others = torch.isinf(place.room)
    others[[k for k in range(len(place)) if k not in place.basis.roots.tolist()]] = False
    harmless = place.point.clone()
    harmless[others] = 1e-12  # such a root may all but vanish
    weights = place.state(harmless)
    assert max(float(w.abs().max()) for w in weights.values()) < 10
    harmful = place.point.clone()
    harmful[root] = 1e-12
    assert max(float(w.abs().max()) for w in place.state(harmful).values()) > 1e6


# The result, and everything around it ------------------------------------------------------------


def test_the_model_is_not_touched():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 3)
    )
    model[1].running_mean.normal_()
    x, y = torch.randn(10, 4), torch.randint(3, (10,))
    network = ps.trace(model, x)
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    model[0].weight.requires_grad_(False)
    model[4].bias.grad = torch.ones(3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rng = torch.get_rng_state()
    for (kind, options), space in itertools.product(KINDS.items(), ("paths", "weights")):
        with torch.no_grad():  # measuring needs no mode of its own from the caller
            one = flatness(network, F.cross_entropy, loader, kind=kind, space=space, **options)
        two = flatness(network, F.cross_entropy, (x, y), kind=kind, space=space, **options)
        assert one.value == pytest.approx(two.value, rel=1e-2)  # float32, another order of sums
        assert torch.isfinite(torch.tensor(one.value))
    assert torch.equal(torch.get_rng_state(), rng)
    assert model.training
    assert model[3].training
    assert not model[0].weight.requires_grad
    assert model[0].weight.grad is None
    assert torch.equal(model[4].bias.grad, torch.ones(3))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("kind", KINDS)
def test_double_precision_on_request(kind):
    network, (x, y) = classifier(4, 6, 3)
    network.model.float()
    single = ps.trace(network.model, x.float())
    data = [(x.float()[:30], y[:30]), (x.float()[30:], y[30:])]
    found = flatness(single, F.cross_entropy, data, kind=kind, dtype=torch.float64, **KINDS[kind])
    assert found.coordinates.point.dtype == torch.float64
    assert next(single.model.parameters()).dtype == torch.float32
    network.model.double()
    double = flatness(network, F.cross_entropy, (x.float().double(), y), kind=kind, **KINDS[kind])
    assert found.value == pytest.approx(double.value, rel=1e-9)


def test_another_state_than_the_models():
    network, data = classifier(4, 6, 3)
    other = {name: 1.5 * tensor.detach() for name, tensor in network.state().items()}
    found = flatness(network, F.cross_entropy, data, kind="trace", state=other)
    assert found.value != flatness(network, F.cross_entropy, data, kind="trace").value
    network.model.load_state_dict(other)
    assert found.value == flatness(network, F.cross_entropy, data, kind="trace").value


def test_seeds_are_local_and_matter():
    network, data = classifier(4, 6, 3)
    options = {"kind": "expected", "max_pairs": 8}
    torch.manual_seed(1)
    one = flatness(network, F.cross_entropy, data, seed=5, **options).value
    torch.manual_seed(2)
    assert flatness(network, F.cross_entropy, data, seed=5, **options).value == one
    assert flatness(network, F.cross_entropy, data, seed=6, **options).value != one


def test_printing():
    network, data = classifier(4, 6, 3)
    found = flatness(network, F.cross_entropy, data, kind="expected")
    assert float(found) == found.value
    assert "expected flatness of 45 paths" in str(found)
    assert "±" in str(found)
    assert "perturbation" not in repr(found)


def test_a_network_without_a_finite_loss_is_refused():
    network, data = classifier(3, 4, 2)
    network.model[0].weight.data[0, 0] = math.nan
    with pytest.raises(ps.PathspaceError, match="loss of the network itself is nan"):
        flatness(network, F.cross_entropy, data, space="weights", kind="ball", steps=1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kind": "ball", "sigma": 1}, TypeError, "kind='ball' has no option 'sigma'.*epsilon"),
        ({"kind": "volume"}, ValueError, "kind must be one of"),
        ({"space": "functions"}, ValueError, "space must be"),
        ({"epsilon": 0.0}, ValueError, "radius"),
        ({"kind": "expected", "sigma": 0.0}, ValueError, "sigma"),
        ({"kind": "expected", "max_pairs": 1}, ValueError, "samples"),
        ({"kind": "trace", "method": "guess"}, ValueError, "method"),
        ({"kind": "trace", "method": "hutchinson", "probes": "ones"}, ValueError, "probes"),
        ({"kind": "trace", "method": "hutchinson", "rtol": -1.0}, ValueError, "rtol"),
        ({"choice": "middle"}, ValueError, "skeleton must be"),
    ],
)
def test_refusals(options, error, message):
    network, data = classifier(3, 4, 2)
    with pytest.raises(error, match=message):
        flatness(network, F.cross_entropy, data, **options)
