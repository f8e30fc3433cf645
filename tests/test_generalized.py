"""The laws of the generalized linear space, and the one that fails for negative numbers."""

from __future__ import annotations

import math

import torch

from pathspace import generalized as g

w = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)
z = torch.tensor([4.0, 0.1, 7.0], dtype=torch.float64)
one = torch.ones(3, dtype=torch.float64)


def test_the_laws_of_a_vector_space_hold_for_positive_numbers():
    torch.testing.assert_close(g.add(w, one), w)
    torch.testing.assert_close(g.add(w, z), g.add(z, w))
    torch.testing.assert_close(g.add(w, g.power(-1.0, w)), one)
    torch.testing.assert_close(g.scale(math.e, w), w)
    torch.testing.assert_close(g.scale(3.0, g.scale(5.0, w)), g.power(math.log(3) * math.log(5), w))
    torch.testing.assert_close(g.scale(2.0, g.add(w, z)), g.add(g.scale(2.0, w), g.scale(2.0, z)))
    torch.testing.assert_close(g.scale(2.0 * 3.0, w), g.add(g.scale(2.0, w), g.scale(3.0, w)))
    torch.testing.assert_close(g.norm(g.power(-2.5, w)), 2.5 * g.norm(w))
    assert g.norm(g.add(w, z)) <= g.norm(w) + g.norm(z)
    assert g.norm(one) == 0


def test_one_law_fails_for_negative_numbers():
    left, right = g.scale(6.0, -w), g.add(g.scale(2.0, -w), g.scale(3.0, -w))
    torch.testing.assert_close(left, -right)


def test_a_path_value_is_an_inner_product():
    path = torch.tensor([math.e, 1.0, math.e], dtype=torch.float64)
    torch.testing.assert_close(
        g.inner(torch.tensor([-0.5, 2.0, 3.0]).double(), path), torch.tensor(-1.5).double()
    )
    zero = torch.tensor([0.0, 2.0, 3.0], dtype=torch.float64)
    assert g.inner(zero, torch.tensor([1.0, math.e, math.e]).double()) == 6.0
    assert g.inner(zero, path) == 0.0
