"""What the theorems say for all networks and rescalings, on drawn ones."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
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
from reference import invariance_dimension

STREAMS: tuple[Streams, ...] = ("pinned", "shared")

laws = settings(
    derandomize=True,
    deadline=None,
    max_examples=120,
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
    model, x = build(_with_running_statistics(spec)), example_input(spec)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    assume(norms)
    for norm in norms:
        norm.eps = 0.0
    for streams in STREAMS:
        assert ps.trace(model, x, streams=streams).exact.all()
    for norm in norms:
        norm.eps = 1e-300  # torch refuses 0 in train mode
    traced = [ps.trace(model, x, streams=streams) for streams in STREAMS]
    variances: list[Tensor] = []
    for norm in norms:
        norm.register_forward_pre_hook(lambda _, args: variances.append(_variance(args[0])))
    for network in traced:
        c = ps.random_rescaling(network, normalized=True, generator=generator(seed))
        y = outputs(model, network.state(), x, train=True)
        assume(torch.cat(variances).min() > 1e-6)  # a channel without variance is 0/0
        assert_same_function(outputs(model, ps.rescale(network, c), x, train=True), y, 1e-8)


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


def invariant_dimension(spec: Spec) -> int:
    """How many directions of weights and statistics leave the outputs of eval mode unchanged."""
    model = build(spec)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.track_running_stats:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, _Affine(module))
    count = sum(parameter.numel() for parameter in model.parameters())
    if not count:
        return 0
    samples = 150 + 2 * count // math.prod(shape_after(spec.layers, spec.shape))
    x = torch.randn(samples, *spec.shape, dtype=torch.float64, generator=generator(spec.seed))
    sizes = torch.randn(samples, dtype=torch.float64, generator=generator(spec.seed + 1)).exp()
    with torch.random.fork_rng():
        torch.manual_seed(spec.seed)
        return invariance_dimension(model, [x * sizes.view(-1, *[1] * len(spec.shape))])


@settings(laws, max_examples=100)
@given(networks(), st.sampled_from(STREAMS))
def test_there_are_no_more_free_scales_than_invariant_directions(
    spec: Spec, streams: Streams
) -> None:
    model = build(spec)
    assume(sum(parameter.numel() for parameter in model.parameters()) <= 120)
    network = ps.trace(model, example_input(spec), streams=streams)
    running = all(layer.running for layer in layers_of(spec.layers) if isinstance(layer, BatchNorm))
    free = network.H if running else int(network.exact.sum())
    assert free <= invariant_dimension(spec)


R, LEAKY, PRELU = Act(), Act("leaky"), Act("prelu")

# For some weights, nothing but the free scales leaves the function unchanged.
COMPLETE = {
    "mlp": Spec((3,), (Map(4), R, Map(3), R, Map(2))),
    "mlp without bias": Spec((3,), (Map(4, False), R, Map(3, False), R, Map(2, False))),
    "leaky": Spec((2,), (Map(3), LEAKY, Map(3), LEAKY, Map(1))),
    "prelu": Spec((2,), (Map(3), PRELU, Map(2), PRELU, Map(2))),
    "conv1d": Spec((2, 6), (Map(3, kernel=3), R, Map(2, kernel=3), R, Map(1))),
    "conv2d": Spec((1, 4, 4), (Map(2, kernel=3), R, Map(2, kernel=3), R, Map(1))),
    "grouped": Spec((2, 6), (Map(4, kernel=3, groups=2), R, Map(4, kernel=3, groups=4), R, Map(2))),
    "strided": Spec((2, 6), (Map(3, kernel=3, stride=2), R, Map(2, kernel=3), R, Map(1))),
    "dilated": Spec((2, 6), (Map(3, kernel=3, dilation=2), R, Map(2))),
    "transposed": Spec(
        (2, 3), (Map(3, kernel=3, stride=2, transposed=True), R, Map(2, kernel=3))
    ),
    "flatten": Spec((2, 4), (Map(2, kernel=3), R, Flatten(), Map(3), R, Map(1))),
    "max pool": Spec((1, 4, 4), (Map(2, kernel=3), R, Pool("max"), Flatten(), Map(2))),
    "avg pool": Spec((1, 4, 4), (Map(2, kernel=3), R, Pool("avg"), Map(2, kernel=3), R, Map(1))),
    "adaptive pool": Spec(
        (2, 6), (Map(2, kernel=3), R, Pool("adaptive_avg", 1), Flatten(), Map(2))
    ),
    "residual": Spec((2,), (Map(3), R, Residual((Map(2), R, Map(3, False))), R, Map(2))),
    "preactivated": Spec((2,), (Map(3), Residual((R, Map(2), R, Map(3, False))), R, Map(2))),
    "projected": Spec((3,), (Residual((Map(3), R, Map(2)), (Map(2, False),)), R, Map(2))),
    "two blocks": Spec(
        (2,), (Map(2), *[Residual((Map(3), R, Map(2, False)))] * 2, R, Map(1))
    ),
    "concat": Spec((2,), (Concat(((Map(2), R), (Map(3), R), ())), Map(3), R, Map(1))),
    "split and shuffle": Spec(
        (2,), (Map(4), LEAKY, Split(((Map(2), LEAKY), ())), Shuffle(2), Map(2))
    ),
    "pinned by a sigmoid": Spec((2,), (Map(3), R, Map(2), Act("sigmoid"), Map(2))),
    "pinned by GELU": Spec((2,), (Map(3), R, Map(2), Act("gelu"), Map(3), R, Map(2))),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPLETE)
def test_no_free_scale_is_missed(name: str) -> None:
    """A scale leaves the function unchanged at all weights; so one draw is enough to exclude it."""
    spec = COMPLETE[name]
    network = ps.trace(build(spec), example_input(spec), streams="shared")
    assert network.H > 0
    draws = (invariant_dimension(replace(spec, seed=seed)) for seed in range(20))
    assert any(dimension == network.H for dimension in draws)


# Directions that no rescaling moves along. They are the same for (almost) all weights.
BEYOND = {
    # y = B A x: any invertible matrix of the 2 units between, not only a diagonal one
    "linear maps in a row": (Spec((3,), (Map(2, False), Map(3, False))), 2, 2 * 2),
    # all kinks lie at 0: the function has two slopes, the weights are six
    "one input, no bias": (Spec((1,), (Map(3, False), R, Map(1, False))), 3, 6 - 2),
    # behind a single ReLU unit, each unit is linear or dead: of 3 + 2 * 3 weights 2 count
    "bottleneck": (
        Spec((3,), (Map(1), R, Map(3, False), R, Map(2, False)), seed=4),
        4,
        1 + 3 + 2 * 3 - 2,
    ),
    # a constant may move from one bias of the sum to the other, in both channels
    "two biases in a sum": (
        Spec((3,), (Residual((Map(3), R, Map(2)), (Map(2),)), R, Map(2)), seed=2),
        5,
        5 + 2,
    ),
    # two of five entries of each of 2 * 2 kernels never meet anything but padding
    "kernel beyond the input": (Spec((2, 2), (Map(2, kernel=5), R, Map(1))), 2, 2 + 2 * 2 * 2),
    # adding one affine function of the 3 inputs to all channels
    "layer norm": (Spec((3,), (Map(4), LayerNorm(affine=False))), 0, 3 + 1),
    # in each of 2 channels: the bias, the mean and the batch norm's bias make one constant;
    # the layer, the deviation, the batch norm's weight and the next layer make one slope
    "batch norm": (Spec((3,), (Map(2), BatchNorm(), R, Map(2))), 2 * 2, 2 * (2 + 3)),
    "plain batch norm": (Spec((3,), (Map(2), BatchNorm(False))), 2, 2 * 2),
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
def test_where_more_than_scales_is_redundant(name: str) -> None:
    spec, free, dimension = BEYOND[name]
    network = ps.trace(build(spec), example_input(spec), streams="shared")
    assert (network.H, invariant_dimension(spec)) == (free, dimension)


@pytest.mark.parametrize("name", ["residual", "preactivated", "projected", "two blocks"])
def test_pinned_streams_miss_one_scale_per_channel_of_a_stream(name: str) -> None:
    spec = COMPLETE[name]
    pinned, shared = (ps.trace(build(spec), example_input(spec), streams=s).H for s in STREAMS)
    channels = {"residual": 3, "preactivated": 3, "projected": 2, "two blocks": 2}
    assert shared - pinned == channels[name]


# Balance -----------------------------------------------------------------------------------------


@laws
@given(networks(), seeds, st.sampled_from(STREAMS), st.sampled_from([1.0, 1.5, 2.0, 4.0]))
def test_balance_chooses_one_network_of_each_class(
    spec: Spec, seed: int, streams: Streams, p: float
) -> None:
    model, x = build(spec), example_input(spec)
    network = ps.trace(model, x, streams=streams)
    y = {train: outputs(model, network.state(), x, train=train) for train in (False, True)}
    c = ps.random_rescaling(network, generator=generator(seed))
    balanced = ps.rescale(network, ps.balance(network, p))
    ps.rescale_(network, c)
    assert_same_weights(ps.rescale(network, ps.balance(network, p)), balanced, 1e-9)
    ps.balance_(network, p)
    assert ps.balance(network, p).log.abs().max(0).values < 1e-9 if network.H else True
    for train in (False, True):
        assert_same_function(outputs(model, network.state(), x, train=train), y[train])


# The relation behind it --------------------------------------------------------------------------


@st.composite
def ties(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Two tensors of units 0 (zero), 1 (pinned) and 2..7 whose shapes broadcast."""
    shape = draw(st.lists(st.integers(1, 3), max_size=3))
    ends = []
    for _ in range(2):
        own = [draw(st.sampled_from([1, size])) for size in shape]
        own = own[draw(st.integers(0, len(own))) :] if draw(st.booleans()) else own
        units = st.lists(st.integers(0, 7), min_size=math.prod(own), max_size=math.prod(own))
        ends.append(torch.tensor(draw(units), dtype=torch.long).view(own))
    return ends[0], ends[1]


@settings(laws, max_examples=200)
@given(st.lists(ties(), max_size=3))
def test_tying_is_tying_pair_by_pair(pairs: list[tuple[Tensor, Tensor]]) -> None:
    partition = Partition()
    partition.fresh(6)
    classes = {unit: {unit} for unit in range(PINNED + 7)}
    for a, b in pairs:
        partition.tie(a, b)
        met = torch.stack(torch.broadcast_tensors(a, b)).reshape(2, -1)
        for u, v in met.T.tolist():
            if ZERO not in (u, v):
                classes[u] |= classes[v]
                for member in classes[u]:
                    classes[member] = classes[u]
    roots = partition.find(torch.arange(PINNED + 7)).tolist()
    assert roots == [min(classes[unit]) for unit in range(PINNED + 7)]
