"""Bounds against counting, against the formulas written out, and against what they bound."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from torch import nn

import pathspace as ps
from cases import Case, conv, mlp
from pathspace import bounds


@pytest.mark.parametrize(("d", "H", "L"), [(3, 4, 4), (2, 3, 5), (5, 2, 3), (1, 3, 4), (4, 3, 2)])
def test_paths_are_counted_by_their_weights_off_the_skeleton(d, H, L):
    """The network f of Theorem 2: d → H → … → H with L − 1 matrices."""
    model, x = Case("", lambda: mlp(d, *[H] * (L - 1), 1), (d,)).make()
    hidden, _ = bounds.without_output_layer(ps.trace(model, x))
    skeleton = ps.choose_skeleton(hidden)
    chosen = {int(n) for n in [*skeleton.incoming[1:], *skeleton.outgoing[1:]]}
    # Roots of f end in its last layer, whose in-edges the papers' rule takes from the diagonal too.
    graph = skeleton.graph
    for unit in range(H):
        last = f"{2 * (L - 2)}.weight"
        chosen.add(graph.number(last, (unit, unit % (H if L > 2 else d))))
    off = Counter(sum(n not in chosen for n in path) for path in ps.paths(hidden))
    assert [off[b] for b in range(L)] == bounds.path_counts(d, H, L)
    assert sum(bounds.path_counts(d, H, L)) == d * H ** (L - 1)


def test_the_measure_is_its_formula_and_tends_to_H():
    for gamma, d, H, L in [(0.3, 5, 4, 3), (1.2, 10, 7, 5), (0.0, 3, 8, 2)]:
        plain = (H * math.exp(2 * gamma) + (d - 1) * H * gamma**2) * (
            1 + (H - 1) * gamma**2 * math.exp(2 * gamma)
        ) ** (L - 2)
        assert math.isclose(bounds.basis_path_measure(gamma, d, H, L), math.log10(plain))
    assert math.isclose(10 ** bounds.basis_path_measure(1e-9, 100, 50, 9), 50, rel_tol=1e-6)
    assert math.isfinite(bounds.basis_path_measure(1e5, 784, 8192, 1000))
    with pytest.raises(ValueError, match="gamma"):
        bounds.basis_path_measure(-1.0, 1, 1, 2)


def test_the_measure_bounds_the_path_norm_for_equal_widths():
    for seed in range(20):
        model, x = Case("", lambda: mlp(3, 4, 4, 4, 1), (3,)).make(seed)
        hidden, _ = bounds.without_output_layer(ps.trace(model, x))
        gamma = float(ps.basis_path_norm(hidden))
        squared = ps.path_values(hidden).square().sum()
        assert math.log10(float(squared)) <= bounds.basis_path_measure(gamma, 3, 4, 4)


def test_the_bound_is_its_formula():
    model, x = Case("", lambda: mlp(3, 4, 4, 1), (3,)).make()
    network = ps.trace(model, x)
    bound = bounds.basis_path_bound(network, 10**6, 2.0, delta=0.1)
    hidden, v = bounds.without_output_layer(network)
    assert math.isclose(v, float(model[4].weight.detach().norm()))
    gamma = float(ps.basis_path_norm(hidden))
    phi = 10 ** bounds.basis_path_measure(gamma, 3, 4, 3)
    plain = 4 * math.sqrt(2 * math.log(40) / 1e6)
    plain += 2 * math.sqrt(2 * phi * 16**2 * v**2 * 4 / 1e6)
    assert math.isclose(10**bound.log10, plain, rel_tol=1e-9)
    assert "equal widths" not in str(bound)


def test_the_bound_does_not_change_under_rescaling_of_the_inner_layers():
    model, x = Case("", lambda: mlp(3, 4, 4, 1), (3,)).make()
    network = ps.trace(model, x)
    before = bounds.basis_path_bound(network, 100, 1.0).log10
    ps.rescale_(network, {"0": torch.tensor([2.0, 0.1, 5.0, 7.0])})
    assert math.isclose(bounds.basis_path_bound(network, 100, 1.0).log10, before, rel_tol=1e-9)


def test_substitutions_are_stated_and_other_networks_refused():
    network = ps.trace(mlp(3, 4, 5, 2, bias=True), torch.ones(1, 3))
    text = str(bounds.basis_path_bound(network, 100, 1.0))
    assert "equal widths; has [3, 4, 5, 2]" in text
    assert "one output" in text
    assert "no biases" in text
    assert "vacuous" in text
    with pytest.raises(ps.PathspaceError, match=r"`0\.weight` is a convolution"):
        bounds.basis_path_bound(ps.trace(conv(3), torch.ones(1, 2, 4, 4)), 100, 1.0)
    with pytest.raises(ps.PathspaceError, match="no hidden layer"):
        bounds.basis_path_bound(ps.trace(nn.Linear(2, 1), torch.ones(1, 2)), 100, 1.0)
    with pytest.raises(ValueError, match="delta"):
        bounds.basis_path_bound(network, 100, 1.0, delta=2.0)


def test_what_stands_in_for_equal_widths_and_biases():
    model, x = Case("", lambda: mlp(3, 4, 6, 2, bias=True), (3,)).make()
    network = ps.trace(model, x)
    hidden, v = bounds.without_output_layer(network)
    assert math.isclose(v, float(model[4].weight.detach().norm()))  # without its bias
    bound = bounds.basis_path_bound(network, 100, 2.0, delta=0.1)
    assert bound.inputs["H"] == 6  # the largest width
    log_phi = bounds.basis_path_measure(float(ps.basis_path_norm(hidden)), 3, 6, 3)
    plain = 4 * math.sqrt(2 * math.log(40) / 100)
    plain += 2 * math.sqrt(2 * 10**log_phi * 24**2 * v**2 * 4 / 100)
    assert math.isclose(10**bound.log10, plain, rel_tol=1e-9)


def test_an_output_layer_that_reads_pinned_units_alone_is_refused():
    model = nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 1))
    with pytest.raises(ps.PathspaceError, match="no hidden layer"):
        bounds.without_output_layer(ps.trace(model, torch.ones(1, 2)))


# Margin bounds -----------------------------------------------------------------------------------


def gap(n: int, delta: float) -> float:
    return 3 * math.sqrt(math.log(2 / delta) / (2 * n))


@pytest.mark.parametrize(("p", "outputs"), [(1.0, 1), (1.0, 3), (2.0, 1), (4.0, 2)])
def test_the_path_norm_bound_is_its_formula(p, outputs):
    model, x = Case("", lambda: mlp(3, 5, 4, outputs), (3,)).make()
    network = ps.trace(model, x)
    values = ps.path_values(network).view(3, -1, outputs)  # by input, by hidden units, by output
    norm = (values.abs() ** p).sum((0, 1)).max() ** (1 / p)
    q = 1 - 1 / p
    factor = 4 * math.log(6) if p == 1 else min(1 / q, 4 * math.log(6))
    R = float(norm) * (2 * 5**q) ** 2 * math.sqrt(factor) * 0.7 / 10
    front = 2 if outputs == 1 else 4 * outputs
    bound = bounds.path_norm_bound(network, 100, 0.7, 0.5, p=p, delta=0.1)
    assert math.isclose(10**bound.log10, front * R / 0.5 + gap(100, 0.1), rel_tol=1e-9)
    assert f"{front} R / margin" in str(bound)


def test_for_p_1_the_width_does_not_count():
    model, x = Case("", lambda: mlp(3, 4, 2), (3,)).make()
    wide = mlp(3, 8, 2).double()
    with torch.no_grad():
        for layer in (0, 2):
            wide[layer].weight.zero_()
        wide[0].weight[:4] = model[0].weight
        wide[2].weight[:, :4] = model[2].weight
    pair = [ps.trace(m, x) for m in (model, wide)]
    one, other = (bounds.path_norm_bound(n, 100, 1.0).log10 for n in pair)
    assert math.isclose(one, other)
    one, other = (bounds.path_norm_bound(n, 100, 1.0, p=2).log10 for n in pair)
    assert one < other


def test_the_weight_norm_bound_is_its_formula():
    model, x = Case("", lambda: mlp(3, 5, 4, 2), (3,)).make()
    first, second, last = (model[k].weight.detach() for k in (0, 2, 4))
    norms = float(first.norm() * second.norm() * last.norm(dim=1).max())
    R = 2**2 * norms * math.sqrt(2) * 0.7 / 10
    bound = bounds.weight_norm_bound(ps.trace(model, x), 100, 0.7, 0.5, delta=0.1)
    assert math.isclose(10**bound.log10, 8 * R / 0.5 + gap(100, 0.1), rel_tol=1e-9)


@pytest.mark.parametrize("shifted", [False, True])
def test_the_spectral_bound_is_its_formula(shifted):
    model, x = Case("", lambda: mlp(3, 5, 2), (3,)).make()
    network = ps.trace(model, x)
    start = {n: 0.5 * w.detach().roll(1, 0) for n, w in network.state().items()}
    reference = start if shifted else None
    measure = float(ps.spectral_complexity(network, 0.5, reference=reference))
    plain = 8 / 100 + gap(100, 0.1)
    plain += 72 * math.log(100) * math.sqrt(math.log(2 * 5**2)) * 7.0 * measure / 100
    bound = bounds.spectral_bound(network, 100, 7.0, 0.5, reference=reference, delta=0.1)
    assert math.isclose(10**bound.log10, plain, rel_tol=1e-9)


@pytest.mark.parametrize("width", [1, 2])
def test_the_smallest_spectral_bound(width):
    model = nn.Linear(width, width, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.eye(width))
    bound = bounds.spectral_bound(ps.trace(model, torch.ones(1, width).double()), 100, 1.0)
    assert bound.inputs["W"] == 2  # one output counts as two
    plain = 0.08 + gap(100, 0.05) + 0.72 * math.log(100) * math.sqrt(math.log(8)) * width
    assert math.isclose(10**bound.log10, plain, rel_tol=1e-9)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_the_complexity_of_a_linear_map_is_not_underestimated(p):
    """R of {w·x : |w|_p ≤ 1} is the mean dual norm of Σ ±x_i / n, here over all signs."""
    x = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    dual = math.inf if p == 1 else 2.0
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=8)), dtype=torch.float64)
    exact = float(torch.linalg.vector_norm(signs @ x, ord=dual, dim=1).mean()) / 8
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0, 0.0]]))
    largest = float(torch.linalg.vector_norm(x, ord=dual, dim=1).max())
    network = ps.trace(model, x)
    found = 10 ** bounds.path_norm_bound(network, 8, largest, p=p).inputs["log10 R"]
    assert exact <= found <= 10 * exact
    if p == 2:
        frobenius = bounds.weight_norm_bound(network, 8, largest).inputs["log10 R"]
        assert math.isclose(10**frobenius, found)


def test_biases_are_weights_of_an_input_that_is_one():
    """The bound of a network with biases is that of the network without, on (x, 1)."""
    model, x = Case("", lambda: mlp(3, 4, 5, 2, bias=True), (3,)).make()
    plain = mlp(4, 5, 6, 2).double()
    with torch.no_grad():
        for k in (0, 2, 4):
            plain[k].weight.zero_()
            rows, columns = model[k].weight.shape
            plain[k].weight[:rows, :columns] = model[k].weight
            plain[k].weight[:rows, -1] = model[k].bias
            if k < 4:
                plain[k].weight[-1, -1] = 1.0
    extended = torch.cat([x, torch.ones(8, 1)], 1)
    torch.testing.assert_close(plain(extended), model(x))
    one, other = ps.trace(model, x), ps.trace(plain, extended)
    for p, dual in ((1, math.inf), (2, 2.0), (3, 1.5)):
        sizes = [float(torch.linalg.vector_norm(data, ord=dual, dim=1).max())
                 for data in (x, extended)]  # fmt: skip
        pair = [bounds.path_norm_bound(n, 50, size, p=p).log10
                for n, size in zip((one, other), sizes, strict=True)]  # fmt: skip
        assert math.isclose(*pair, rel_tol=1e-9)
    sizes = [float(data.norm(dim=1).max()) for data in (x, extended)]
    pair = [bounds.weight_norm_bound(n, 50, s).log10
            for n, s in zip((one, other), sizes, strict=True)]  # fmt: skip
    assert math.isclose(*pair, rel_tol=1e-9)
    pair = [bounds.spectral_bound(n, 8, float(data.norm())).log10
            for n, data in ((one, x), (other, extended))]  # fmt: skip
    assert math.isclose(*pair, rel_tol=1e-9)
    assert "no biases" in str(bounds.spectral_bound(one, 8, 1.0))


def test_which_margin_bounds_do_not_change_under_rescaling():
    model, x = Case("", lambda: mlp(3, 4, 4, 2, bias=True), (3,)).make()
    network = ps.trace(model, x)

    def measured() -> list[float]:
        kinds = (bounds.path_norm_bound, bounds.weight_norm_bound, bounds.spectral_bound)
        return [kind(network, 100, 1.0).log10 for kind in kinds]

    before = measured()
    ps.rescale_(network, ps.random_rescaling(network))
    after = measured()
    assert math.isclose(before[0], after[0], rel_tol=1e-9)
    assert not any(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(before[1:], after[1:]))  # noqa: B905


@pytest.mark.parametrize(
    "kind", [bounds.path_norm_bound, bounds.weight_norm_bound, bounds.spectral_bound]
)
def test_margin_bounds_move_the_right_way_and_refuse_what_they_are_not_for(kind):
    model, x = Case("", lambda: mlp(3, 4, 2), (3,)).make()
    network = ps.trace(model, x)
    middle = kind(network, 1000, 1.0, 1.0).log10
    assert kind(network, 10**6, 1.0, 1.0).log10 < middle < kind(network, 1000, 2.0, 1.0).log10
    assert kind(network, 1000, 1.0, 2.0).log10 < middle
    assert middle < kind(network, 1000, 1.0, 1.0, delta=1e-9).log10
    limit = math.log10(gap(1000, 0.05))
    slack = 8 / 1000 if kind is bounds.spectral_bound else 0.0
    far = kind(network, 1000, 1.0, 1e30).log10
    assert math.isclose(10**far, 10**limit + slack, rel_tol=1e-9)
    for bad in ({"margin": 0.0}, {"delta": 1.0}):
        with pytest.raises(ValueError, match=r"must be positive|delta"):
            kind(network, 1000, 1.0, **bad)
    with pytest.raises(ValueError, match="must not be negative"):
        kind(network, 1000, -1.0)
    with pytest.raises(ValueError, match="samples"):
        kind(network, 0, 1.0)
    others = {
        r"`1` \(gelu\) is neither": nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)),
        "ReLU follows": nn.Sequential(nn.Linear(3, 4), nn.ReLU()),
        "without sums or batch norms": nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
    }
    for message, other in others.items():
        with pytest.raises(ps.PathspaceError, match=message):
            kind(ps.trace(other, torch.ones(2, 3)), 1000, 1.0)
    with pytest.raises(ps.PathspaceError, match="parts of 6 inputs"):
        kind(ps.trace(mlp(3, 4, 2), torch.ones(1, 2, 3)), 1000, 1.0)
    with pytest.raises(ps.PathspaceError, match="alone"):
        kind(ps.trace(Skip(), torch.ones(1, 3)), 1000, 1.0)
    kind(ps.trace(nn.Sequential(nn.Flatten(), mlp(6, 2)), torch.ones(1, 2, 3)), 1000, 1.0)


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(6, 2)

    def forward(self, x):
        return self.b(torch.cat([x, self.a(x).relu()], 1))


def test_margin_bounds_of_deep_networks_stay_finite():
    torch.manual_seed(0)
    network = ps.trace(mlp(4, *[3] * 99, 2), torch.ones(1, 4))
    for parameter in network.parameters().values():
        parameter.data.mul_(1e8)
    for kind in (bounds.path_norm_bound, bounds.weight_norm_bound, bounds.spectral_bound):
        assert 600 < kind(network, 100, 1.0).log10 < 1100


# Flatness ----------------------------------------------------------------------------------------


def test_the_pac_bayes_bound_is_its_formula():
    plain = 0.2 + 4 * math.sqrt((3.0 / (2 * 0.5**2) + math.log(2 * 400 / 0.1)) / 400)
    assert math.isclose(
        10 ** bounds.pac_bayes_bound(0.2, 3.0, 0.5, 400, 0.1).log10, plain, rel_tol=1e-12
    )
    paid = 0.2 + 4 * math.sqrt((6.0 + math.log(2 * 400 * 10 / 0.1)) / 400)
    bound = bounds.pac_bayes_bound(0.2, 3.0, 0.5, 400, 0.1, grid=10)
    assert math.isclose(10**bound.log10, paid, rel_tol=1e-12)
    assert "one of 10 values" in str(bound)


def test_limits_of_the_pac_bayes_bound():
    only_confidence = math.log10(4 * math.sqrt(math.log(2 * 100 / 0.05) / 100))
    assert math.isclose(bounds.pac_bayes_bound(0.0, 0.0, 1.0, 100).log10, only_confidence)
    assert math.isclose(bounds.pac_bayes_bound(0.0, 1.0, 1e200, 100).log10, only_confidence)
    tiny = bounds.pac_bayes_bound(0.0, 1e300, 1e-200, 100).log10  # KL = 10^700 / 2
    assert math.isclose(tiny, math.log10(4 / 10 / math.sqrt(2)) + 350)
    logs = [bounds.pac_bayes_bound(0.1, 5.0, s, 100).log10 for s in (0.1, 1.0, 10.0)]
    assert logs == sorted(logs, reverse=True)
    for bad in ({"sigma": 0.0}, {"squared_norm": -1.0}, {"expected_flatness": -0.1}):
        given = {"expected_flatness": 0.1, "squared_norm": 1.0, "sigma": 1.0, "samples": 10} | bad
        with pytest.raises(ValueError, match="sigma > 0"):
            bounds.pac_bayes_bound(**given)
    with pytest.raises(ValueError, match="grid"):
        bounds.pac_bayes_bound(0.1, 1.0, 1.0, 10, grid=0)


@pytest.mark.parametrize("epsilon", [0.01, 3.0])  # s = 1 and s = L attain the maximum
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_flatness_bound_is_its_formula(epsilon, depth):
    top, low, d0, d1, dL, C, CL = 1.7, 0.6, 5, 4, 3, 2.5, 1.5
    L = depth
    psi = max(epsilon ** (s - 1) * top ** (2 * L + 1 - s) / low ** (2 * L) for s in range(1, L + 1))
    inner = 1 + 2 ** ((3 * L + 4) / 2) * (L - 1) * d1 * dL * psi
    plain = 2 * C * CL * d0 * d1 ** (L - 1) * dL * inner * epsilon
    bound = bounds.psi_flatness_bound(
        top, low, epsilon, inputs=d0, width=d1, outputs=dL, depth=L, layer_norm=C, lipschitz=CL
    )
    assert math.isclose(10**bound.log10, plain, rel_tol=1e-9)
    assert math.isclose(10 ** bound.inputs["log10 psi"], psi, rel_tol=1e-9)
    assert "loss increase in the ball ≤ 10^" in str(bound)
    assert not bound.vacuous  # an increase of the loss may be more than 1
    assert "read it as a measure" in str(bound)


def test_limits_of_the_flatness_bound():
    size = {"inputs": 784, "width": 512, "outputs": 10, "depth": 100}
    logs = [bounds.psi_flatness_bound(1.0, s, 1e-3, **size).log10 for s in (1.0, 0.1, 1e-6)]
    assert logs == sorted(logs)
    assert math.isclose(logs[2] - logs[0], 1200, rel_tol=1e-9)  # 2L · 6 decades
    assert bounds.psi_flatness_bound(1.0, 0.0, 1e-3, **size).log10 == math.inf
    for bad in ({"depth": 0}, {"width": 0}):
        with pytest.raises(ValueError, match="depth >= 1"):
            bounds.psi_flatness_bound(1.0, 1.0, 1e-3, **(size | bad))
    with pytest.raises(ValueError, match="smallest <= largest"):
        bounds.psi_flatness_bound(1.0, 2.0, 1e-3, **size)
