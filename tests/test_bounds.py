"""The basis-path measure and bound against counting and against the formulas written out."""

from __future__ import annotations

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
