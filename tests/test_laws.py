"""What the theorems say for all networks and rescalings, on drawn ones."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pathspace as ps
from architectures import (
    Act,
    BatchNorm,
    Concat,
    Flatten,
    Layer,
    LayerNorm,
    Map,
    Pool,
    Residual,
    Shuffle,
    Spec,
    Split,
    build,
    example_input,
    layers_of,
    networks,
    shape_after,
)
from pathspace.network import Streams
from pathspace.units import PINNED, ZERO, Partition

STREAMS: tuple[Streams, ...] = ("pinned", "shared")

laws = settings(
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
seeds = st.integers(0, 2**16)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def outputs(
    model: nn.Module, state: Mapping[str, Tensor], x: Tensor, *, train: bool = False
) -> Tensor:
    """The model's output for a state; the same dropout masks each time, and no side effects."""
    copies = {name: tensor.detach().clone() for name, tensor in state.items()}
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model.train(train)
        y = torch.func.functional_call(model, copies, x)
        model.eval()
    return y


def assert_same_function(y: Tensor, reference: Tensor, tolerance: float = 1e-10) -> None:
    """Equal up to the tolerance, relative to the output; values of order 1 went into it."""
    size = reference.abs().max().clamp_min(1e-3)  # smaller ones are differences of larger ones
    assert (y - reference).abs().max() <= tolerance * size


def assert_same_weights(
    state: Mapping[str, Tensor], reference: Mapping[str, Tensor], tolerance: float = 1e-10
) -> None:
    torch.testing.assert_close(dict(state), dict(reference), rtol=tolerance, atol=tolerance)


# The function ------------------------------------------------------------------------------------


@laws
@given(networks(), seeds)
def test_a_rescaling_keeps_the_function_in_eval_and_in_train_mode(spec: Spec, seed: int) -> None:
    model, x = build(spec), example_input(spec)
    for streams in STREAMS:
        network = ps.trace(model, x, streams=streams)
        c = ps.random_rescaling(network, spread=1, generator=generator(seed))
        state = ps.rescale(network, c)
        moved = [name for name, tensor in network.state().items() if state[name] is not tensor]
        assert bool(moved) == bool(network.exact.any())
        for train in (False, True):
            y = outputs(model, network.state(), x, train=train)
            assert_same_function(outputs(model, state, x, train=train), y)


@laws
@given(networks(), seeds)
def test_no_more_than_the_free_scales_is_free(spec: Spec, seed: int) -> None:
    """Moving units one by one, without their ties and pins, is seen to change the function."""
    model, x = build(spec), example_input(spec)
    network = ps.trace(model, x, streams="shared")
    pinned = [e for e in network.edges if not e.moves() and "weight" in e.parameter]
    assume(pinned)
    state = dict(network.state())
    edge = pinned[seed % len(pinned)]
    state[edge.parameter] = state[edge.parameter] * 3.0
    y, changed = (outputs(model, s, x, train=True) for s in (network.state(), state))
    event("changed" if not torch.equal(y, changed) else "kept")


@laws
@given(networks(), seeds)
def test_scales_before_a_batch_norm_are_exact_in_eval_mode(spec: Spec, seed: int) -> None:
    model, x = build(_with_running_statistics(spec)), example_input(spec)
    for streams in STREAMS:
        network = ps.trace(model, x, streams=streams)
        c = ps.random_rescaling(network, normalized=True, generator=generator(seed))
        y = outputs(model, network.state(), x)
        assert_same_function(outputs(model, ps.rescale(network, c), x), y)


@laws
@given(networks(), seeds)
def test_without_eps_they_are_exact_in_train_mode_too(spec: Spec, seed: int) -> None:
    spec = _with_running_statistics(spec)
    model, x = build(spec), example_input(spec)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    assume(norms)
    variances: list[float] = []
    for norm in norms:
        norm.eps = 0.0
        norm.register_forward_pre_hook(
            lambda _, args: variances.append(float(_variance(args[0]).min()))
        )
    for streams in STREAMS:
        network = ps.trace(model, x, streams=streams)
        variances.clear()
        assert network.exact.all()
        c = ps.random_rescaling(network, generator=generator(seed))
        for train in (False, True):
            y = outputs(model, network.state(), x, train=train)
            assume(min(variances) > 1e-6)  # a channel without variance is 0/0
            assert_same_function(outputs(model, ps.rescale(network, c), x, train=train), y, 1e-8)


@pytest.mark.parametrize("eps", [1e-5, 1e-2])
@pytest.mark.parametrize("shape", [(3,), (3, 5), (3, 4, 4)])
def test_with_eps_the_change_in_train_mode_is_about_eps_over_variance(
    shape: tuple[int, ...], eps: float
) -> None:
    spec = Spec(shape, (Map(4, kernel=3), BatchNorm(affine=False, eps=eps)), seed=1)
    model, x = build(spec), example_input(spec, batch=20)
    network = ps.trace(model, x)
    assert network.H == 4
    assert not network.exact.any()
    c = ps.random_rescaling(network, normalized=True, generator=generator(0))
    variance = _variance(model.get_submodule("0")(x)).detach()
    bound = eps / variance * c.of("0").pow(-2).clamp_min(1) / 2  # (4,) by channel
    y = outputs(model, network.state(), x, train=True)
    change = (outputs(model, ps.rescale(network, c), x, train=True) - y).abs()
    by_channel = [0, *range(2, y.dim())]
    relative = change.amax(by_channel) / y.abs().amax(by_channel)
    assert (relative <= 1.01 * bound).all()
    assert (relative >= 0.1 * eps * (c.of("0").pow(-2) - 1).abs()).any()  # and it is there


def _variance(x: Tensor) -> Tensor:
    return x.transpose(0, 1).flatten(1).var(1, correction=0)


def _with_running_statistics(spec: Spec) -> Spec:
    return replace(spec, layers=tuple(_tracked(layer) for layer in spec.layers))


def _tracked(layer: Layer) -> Layer:
    def each(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        return tuple(_tracked(inner) for inner in layers)

    match layer:
        case BatchNorm():
            return replace(layer, running=True)
        case Residual(body=body, projection=projection):
            return Residual(each(body), each(projection))
        case Concat(branches=branches) | Split(branches=branches):
            return type(layer)(tuple(each(branch) for branch in branches))
    return layer


# The group ---------------------------------------------------------------------------------------


@laws
@given(networks(), seeds, st.sampled_from(STREAMS))
def test_the_group_acts_on_weights(spec: Spec, seed: int, streams: Streams) -> None:
    network = ps.trace(build(spec), example_input(spec), streams=streams)
    a, b = (
        ps.random_rescaling(network, normalized=True, generator=generator(seed + i))
        for i in range(2)
    )
    once = ps.rescale(network, b)
    assert_same_weights(ps.rescale(network, a, once), ps.rescale(network, a * b))
    assert_same_weights(ps.rescale(network, b * a), ps.rescale(network, ps.compose(a, b)))
    assert_same_weights(ps.rescale(network, b.inverse(), once), network.state())
    assert_same_weights(ps.rescale(network, ps.inverse(b), once), network.state())
    assert_same_weights(ps.rescale(network, ps.identity(network)), network.state(), 0)
    assert torch.equal((b * b.inverse()).log, ps.identity(network).log)


@laws
@given(networks(), st.sampled_from(STREAMS))
def test_every_free_scale_moves_weights_of_its_own(spec: Spec, streams: Streams) -> None:
    network = ps.trace(build(spec), example_input(spec), streams=streams)
    columns = []
    for scale in range(network.H):
        log = torch.zeros(network.H, dtype=torch.float64)
        log[scale] = 0.5
        moved = _logarithms(network, ps.rescale(network, ps.Rescaling(network, log)))
        columns.append((moved - _logarithms(network, network.state())) / 0.5)
        assert columns[-1].abs().max() > 0.99
    if columns:
        matrix = torch.stack(columns, 1)
        torch.testing.assert_close(matrix, matrix.round())  # entries are -1, 0 and 1
        assert torch.linalg.matrix_rank(matrix) == network.H


def _logarithms(network: ps.Network, state: Mapping[str, Tensor]) -> Tensor:
    """Log of every weight and of every standard deviation of a batch norm."""
    logs = [state[edge.parameter].abs().log() for edge in network.edges]
    for norm in network.normalizations:
        if norm.variance is not None:
            logs.append((state[norm.variance] + norm.eps).log() / 2)
    return torch.cat([log.detach().reshape(-1) for log in logs])


# Nothing is missed -------------------------------------------------------------------------------


class _Affine(nn.Module):
    """A batch norm in eval mode, with statistics that gradients can be taken of."""

    def __init__(self, norm: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm = norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        self.mean, self.variance = nn.Parameter(norm.running_mean), nn.Parameter(norm.running_var)

    def forward(self, x: Tensor) -> Tensor:
        def along(v: Tensor) -> Tensor:
            return v.view(-1, *[1] * (x.dim() - 2))

        y = (x - along(self.mean)) * along((self.variance + self.norm.eps).rsqrt())
        return y * along(self.norm.weight) + along(self.norm.bias) if self.norm.affine else y


def invariant_dimension(spec: Spec) -> tuple[int, bool]:
    """How many directions of weights and statistics leave all outputs unchanged, to first order.

    Returns:
        the nullity of the Jacobian over many inputs of many sizes; and whether every ReLU saw
        values of both signs in every channel (else some units are linear, or dead).
    """
    model = build(spec)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.track_running_stats:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, _Affine(module))
    both: list[bool] = []
    for module in model.modules():
        if isinstance(module, nn.ReLU | nn.LeakyReLU | nn.PReLU):
            module.register_forward_pre_hook(lambda _, args: both.append(_both_signs(args[0])))
    tensors = list(model.parameters())
    count = sum(tensor.numel() for tensor in tensors)
    width = math.prod(shape_after(spec.layers, spec.shape))
    samples = max(60, 4 * count // width)
    x = torch.randn(samples, *spec.shape, dtype=torch.float64, generator=generator(spec.seed))
    sizes = torch.randn(samples, dtype=torch.float64, generator=generator(spec.seed + 1))
    y = model(x * (1.5 * sizes).exp().view(-1, *[1] * len(spec.shape))).reshape(-1)
    if not tensors:
        return 0, True
    rows = torch.autograd.grad(
        y, tensors, torch.eye(len(y)).double(), is_grads_batched=True, materialize_grads=True
    )
    jacobian = torch.cat([row.reshape(len(y), -1) for row in rows], 1)
    jacobian = jacobian * torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    jacobian = jacobian / jacobian.norm(dim=1, keepdim=True).clamp_min(1e-300)
    values = torch.linalg.svdvals(jacobian)
    return count - int((values > 1e-11 * values[0]).sum()), all(both)


def _both_signs(x: Tensor) -> bool:
    by_channel = x.transpose(0, 1).flatten(1)
    return bool(((by_channel > 0).any(1) & (by_channel < 0).any(1)).all())


@settings(laws, max_examples=80)
@given(networks(), st.sampled_from(STREAMS))
def test_there_are_no_more_free_scales_than_invariant_directions(
    spec: Spec, streams: Streams
) -> None:
    model = build(spec)
    assume(sum(parameter.numel() for parameter in model.parameters()) <= 120)
    network = ps.trace(model, example_input(spec), streams=streams)
    running = all(layer.running for layer in layers_of(spec.layers) if isinstance(layer, BatchNorm))
    free = network.H if running else int(network.exact.sum())
    assert free <= invariant_dimension(spec)[0]
