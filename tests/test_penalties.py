"""The penalties against their definitions, autograd and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathspace as ps
from cases import CASES, Case, conv, mlp
from pathspace.penalties import PathNormPenalty, Penalty

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
choices = pytest.mark.parametrize("choice", ["modulo", "largest"])

KINDS: dict[str, Callable[[ps.Network], Penalty]] = {
    "basis paths, cheap": lambda n: ps.BasisPathPenalty(n, 0.3, 0.7),
    "basis paths, exact": lambda n: ps.BasisPathPenalty(n, 0.3, 0.7, exact=True),
    "basis paths, largest": lambda n: ps.BasisPathPenalty(n, 0.3, 0.7, "largest", exact=True),
    "path norm": lambda n: PathNormPenalty(n, 0.3),
    "path norm, p = 1": lambda n: PathNormPenalty(n, 0.3, p=1),
    "path norm, p = 3.5": lambda n: PathNormPenalty(n, 0.3, p=3.5),
    "path norm, p = 1.3": lambda n: PathNormPenalty(n, 0.3, p=1.3, biases=False),
}
kinds = pytest.mark.parametrize("kind", KINDS)


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
@pytest.mark.parametrize("exact", [True, False])
def test_the_penalty_is_its_definition(case, choice, exact):
    network, basis, values = setup(case, choice)
    penalty = ps.BasisPathPenalty(network, 0.3, 0.7, choice, exact=exact)
    torch.testing.assert_close(penalty().detach(), reference(basis, values, 0.3, 0.7))


def transposed() -> nn.Sequential:
    """Layers whose weights have the source along their first axis."""
    return nn.Sequential(
        nn.ConvTranspose1d(3, 4, 2), nn.ReLU(), nn.ConvTranspose1d(4, 5, 2), nn.ReLU(),
        nn.ConvTranspose1d(5, 2, 1),
    )  # fmt: skip


@pytest.mark.parametrize(
    "case", [*CASES, Case("transposed", transposed, (3, 2))], ids=lambda case: case.name
)
@choices
@pytest.mark.parametrize("piece", [2**19, 64])  # bytes
def test_exact_gradients_are_those_of_the_definition(case, choice, piece, monkeypatch):
    monkeypatch.setattr("pathspace.flow.powers.PIECE", piece)
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


def test_slopes_are_no_basis_paths():
    """Slopes that are much larger than any path do not count."""
    plain, x = Case("", lambda: mlp(2, 3, 1), (2,)).make()
    sloped = nn.Sequential(plain[0], nn.PReLU(3, init=1000.0).double(), plain[2])
    pair = [ps.trace(model, x) for model in (plain, sloped)]
    penalties = [ps.BasisPathPenalty(network, 0.3, 0.7)().detach() for network in pair]
    torch.testing.assert_close(*penalties)


def test_gradients_are_those_of_parameters():
    model, x = Case("", lambda: conv(3, batch_norm=True), (2, 4, 4)).make()
    network = ps.trace(model, x)
    found = ps.BasisPathPenalty(network, exact=True).gradients()
    assert "1.weight" in found
    assert set(found) <= set(dict(model.named_parameters()))


# Both penalties ----------------------------------------------------------------------------------


def by_autograd(penalty: Penalty) -> dict[str, Tensor]:
    """The gradients of the call form, zeros where it does not depend on a parameter."""
    parameters = penalty.network.parameters()
    found = torch.autograd.grad(penalty(), list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g
        for (name, p), g in zip(parameters.items(), found, strict=True)
    }


def assert_gradients_agree(penalty: Penalty) -> None:
    expected = by_autograd(penalty)
    found = penalty.gradients()
    assert found.keys() <= expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found.get(name, torch.zeros_like(gradient)), gradient, rtol=1e-10, atol=1e-10
        )
    assert any(bool(gradient.any()) for gradient in found.values())


@cases
@kinds
def test_closed_gradients_are_those_of_autograd(case, kind):
    model, x = case.make()
    assert_gradients_agree(KINDS[kind](ps.trace(model, x, streams="shared")))


@kinds
def test_closed_gradients_where_weights_are_zero(kind):
    model, x = Case("", lambda: mlp(3, 4, 5, 2, bias=True), (3,)).make()
    network = ps.trace(model, x)
    penalty = KINDS[kind](network)
    skeleton = getattr(penalty, "basis", ps.BasisPaths(network)).skeleton
    on = torch.zeros(network.m, dtype=torch.bool)
    on[skeleton.incoming[1:]] = on[skeleton.outgoing[1:]] = True
    graph = skeleton.graph
    zeros = graph.places((~on).nonzero().squeeze(1)[::3].contiguous())
    with torch.no_grad():
        zeros.put_(network.state(), torch.zeros(len(zeros.numbers)))
    assert_gradients_agree(penalty)
    names = list(network.parameters())
    inputs = [p.detach().clone().requires_grad_() for p in model.parameters()]
    if "cheap" not in kind and "p = 1" not in kind:  # those are no derivatives, or there are none
        assert torch.autograd.gradcheck(
            lambda *tensors: penalty(dict(zip(names, tensors, strict=True))), inputs
        )


@kinds
def test_large_weights_are_read_in_pieces(kind):
    torch.manual_seed(0)
    model = mlp(700, 600, 500, 3, bias=True).double()
    assert_gradients_agree(KINDS[kind](ps.trace(model, torch.ones(1, 700).double())))


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adding_to_gradients(kind, dtype):
    """On top of what is there; fresh where there is nothing; not to frozen parameters."""
    model, x = Case("", lambda: conv(3, batch_norm=True), (2, 4, 4)).make()
    model.to(dtype)
    model[4].weight.requires_grad_(False)
    network = ps.trace(model, x.to(dtype))
    penalty = KINDS[kind](network)
    expected = penalty.gradients()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    versions = {name: tensor._version for name, tensor in network.state().items()}
    assert penalty.add_to_gradients_() is None
    assert versions == {name: tensor._version for name, tensor in network.state().items()}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert parameter.grad is None
        elif name in expected:
            assert not parameter.grad.requires_grad
            before = 1.0 if name == "0.weight" else 0.0
            torch.testing.assert_close(parameter.grad, expected[name] + before)
    assert expected["1.weight"].any()
    assert "p = 1.3" in kind or expected["1.bias"].any()  # biases do not count in that one


@kinds
def test_memory_of_another_order(kind):
    model, x = Case("", lambda: conv(3), (2, 4, 4)).make()
    network = ps.trace(model, x)
    expected = KINDS[kind](network).gradients()
    model.to(memory_format=torch.channels_last)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert not model[0].weight.grad.is_contiguous()
    KINDS[kind](ps.trace(model, x)).add_to_gradients_()
    for name, gradient in expected.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient)


@kinds
def test_penalties_do_not_change_under_rescaling(kind):
    for case in CASES[::3]:
        model, x = case.make()
        network = ps.trace(model, x, streams="shared")
        penalty = KINDS[kind](network)
        state = ps.rescale(network, ps.random_rescaling(network, 0.5, normalized=True))
        torch.testing.assert_close(penalty(state), penalty(), rtol=1e-8, atol=0)


@kinds
def test_gradients_scale_inversely(kind):
    """Under w ↦ c w the gradient of an invariant function is divided by c."""
    model, x = Case("", lambda: mlp(3, 4, 5, 2, bias=True), (3,)).make()
    network = ps.trace(model, x)
    penalty = KINDS[kind](network)
    state = ps.rescale(network, ps.random_rescaling(network, 0.5))
    after = penalty.gradients(state)
    for name, gradient in penalty.gradients().items():
        ratio = state[name] / network.state()[name].detach()
        torch.testing.assert_close(after[name] * ratio, gradient, rtol=1e-8, atol=1e-10)


def test_a_sparse_gradient_is_refused():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    network = ps.trace(model, torch.zeros(2, dtype=torch.long))
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ps.PathspaceError, match=r"`0\.weight` has a sparse gradient"):
        PathNormPenalty(network).add_to_gradients_()


# Batch norms -------------------------------------------------------------------------------------


class Normalized(nn.Module):
    """A layer, perhaps with a bias, an activation, a batch norm of some form, and a layer."""

    FORMS = ("affine", "plain", "weight alone", "bias alone", "constants", "twice", "shared bias")

    def __init__(self, form: str, *, bias: bool, relu: bool) -> None:
        super().__init__()
        self.form, self.relu = form, relu
        self.first, self.last = nn.Linear(2, 3, bias=bias), nn.Linear(3, 2)
        self.weight, self.bias = (nn.Parameter(torch.empty(3)) for _ in range(2))
        self.register_buffer("mean", torch.empty(3))
        self.register_buffer("variance", torch.empty(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x.relu() if self.relu else x
        mean, variance = self.mean, self.variance
        if self.form == "constants":
            mean, variance = (torch.full((3,), size, dtype=x.dtype) for size in (0.7, 2.0))
        weight = self.weight if self.form not in ("plain", "bias alone") else None
        bias = self.bias if self.form not in ("plain", "weight alone") else None
        for _ in range(2 if self.form == "twice" else 1):
            x = F.batch_norm(x, mean, variance, weight, bias)
        x = x + self.bias if self.form == "shared bias" else x
        return self.last(x.relu())


def normalized(form: str, *, bias: bool, relu: bool) -> ps.Network:
    model = Normalized(form, bias=bias, relu=relu).double().eval()
    generator = torch.Generator().manual_seed(len(form))
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
            if name == "variance":
                tensor.abs_().add_(0.5)
    return ps.trace(model, torch.ones(3, 2, dtype=torch.float64))


@kinds
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", Normalized.FORMS)
def test_gradients_of_batch_norms_in_every_form(form, bias, relu, kind):
    """The bias in front of a batch norm without one had no gradient, and so had statistics that
    are constants, and a weight without a bias."""
    network = normalized(form, bias=bias, relu=relu)
    if form == "weight alone" and "basis" in kind:
        with pytest.raises(ps.PathspaceError, match=r"a weight but no bias.*give it a bias"):
            KINDS[kind](network)
        return
    penalty = KINDS[kind](network)
    assert_gradients_agree(penalty)
    if "cheap" not in kind:  # that is no derivative
        names = list(network.parameters())
        inputs = [p.detach().clone().requires_grad_() for p in network.parameters().values()]
        buffers = {n: t for n, t in network.state().items() if n not in names}
        assert torch.autograd.gradcheck(
            lambda *tensors: penalty(buffers | dict(zip(names, tensors, strict=True))), inputs
        )


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("form", ["affine", "plain", "weight alone", "bias alone"])
def test_a_penalty_of_a_batch_norm_is_that_of_the_network_it_is_in_eval_mode(form, relu):
    """Weights and biases written down by hand."""
    network = normalized(form, bias=True, relu=relu)
    state = {name: tensor.detach() for name, tensor in network.state().items()}
    scale = (state["variance"] + 1e-5).rsqrt()
    scale = scale * state["weight"] if form in ("affine", "weight alone") else scale
    shift = -state["mean"] * scale
    shift = shift + state["bias"] if form in ("affine", "bias alone") else shift
    into, bias = state["first.weight"].square().sum(1), state["first.bias"]
    if relu:
        into = (into + bias**2) * scale**2 + shift**2
    else:
        into = into * scale**2 + (shift + bias * scale) ** 2
    outputs = state["last.weight"] ** 2 @ into + state["last.bias"] ** 2
    torch.testing.assert_close(PathNormPenalty(network)().detach(), outputs.sum() / 2)


# The path-norm penalty ---------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_the_path_norm_penalty_is_its_definition(p):
    model, x = Case("", lambda: mlp(3, 4, 2, bias=True), (3,)).make()
    network = ps.trace(model, x)
    expected = 0.35 * (ps.path_values(network).abs() ** p).sum() ** (2 / p)
    torch.testing.assert_close(PathNormPenalty(network, 0.7, p)().detach(), expected)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_where_no_path_carries_anything_its_gradient_is_zero(p):
    model, x = Case("", lambda: mlp(3, 4, 2), (3,)).make()
    with torch.no_grad():
        model[2].weight.zero_()
    network = ps.trace(model, x)
    assert not any(bool(g.any()) for g in PathNormPenalty(network, p=p).gradients().values())


@pytest.mark.parametrize(("given", "match"), [({"lam": -1.0}, "lam"), ({"p": 0.5}, "p must"),
                                              ({"p": math.inf}, "p must")])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(given, match):
    with pytest.raises(ValueError, match=match):
        PathNormPenalty(ps.trace(nn.Linear(2, 1), torch.ones(1, 2)), **given)


@pytest.mark.parametrize("exact", [False, True])
def test_products_whose_sizes_cancel_are_followed_in_float32(exact):
    """I² of 1e20 meets O² of 1e-20: neither may be written down alone with the wrong factor."""
    model, x = Case("", lambda: mlp(4, 5, 5, 2), (4,)).make()
    network = ps.trace(model.float(), x.float())
    penalty = ps.BasisPathPenalty(network, 0.3, 0.7, exact=exact)
    state = ps.rescale(network, {"0": 1e10, "2": 1e10})
    before, after = penalty.gradients(), penalty.gradients(state)
    for name, weight in network.state().items():  # gradients transform inversely to weights
        torch.testing.assert_close(
            after[name] * state[name], before[name] * weight.detach(), rtol=1e-4, atol=1e-5
        )
