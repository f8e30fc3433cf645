"""What once was wrong: networks found by drawing many of them at random, made as small as can be.

Each is put to all laws of `fuzz.laws`; those that a law does not show alone have a test of their
own below.
"""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathspace as ps
from architectures import (
    Act,
    BatchNorm,
    Flatten,
    Layer,
    Map,
    Residual,
    Shape,
    Spec,
    build,
)
from fuzz.drawing import batch_of, draw
from fuzz.laws import check
from fuzz.layers import Conv, FromTable, Join, Op, Raw, Tokens
from test_balance import Groups

R = Act()
BLOCK = Residual((Map(3), R, Map(4)))

FOUND: dict[str, tuple[Shape, tuple[Layer, ...]]] = {
    # Path-SGD let slopes smaller than 1 rest for ever: their γ was taken to be 0.
    "slopes of PReLU": ((3,), (Map(4), Act("prelu"), Map(2))),
    # The path norm left out alpha.
    "rsub with alpha": ((3,), (Join(((Map(2),), (Map(2),)), "rsub"), R, Map(2))),
    "a number added with alpha": ((3,), (Map(2), Op("plus_alpha"), R, Map(2))),
    # Choosing the largest weights raised a TypeError for a parameter without axes.
    "a gain without axes": ((2, 3), (Raw("gain of a number"), Map(2), R, Map(2))),
    "a bias without axes": ((2, 3), (Map(2), Raw("bias of a number"), R, Map(2))),
    # The bias in front was taken for a part of the batch norm's own, whatever lay between them.
    "a factor between bias and batch norm": ((3,), (Map(3), Op("double"), BatchNorm(), R, Map(2))),
    "ReLU between bias and batch norm": ((3,), (Map(3), R, BatchNorm(), R, Map(2))),
    # A weight that reads pinned values was taken for the bias in front of a batch norm.
    "batch norm behind a layer behind GELU": (
        (3,), (Map(2), Act("gelu"), Map(3, False), BatchNorm(), R, Map(2)),
    ),
    "thin batch norm behind a layer behind GELU": (
        (2, 3), (Map(2), Act("gelu"), Map(1), BatchNorm(), R, Map(2)),
    ),
    # The path norm of a network that returns its input as it is was an error of torch.
    "nothing at all": ((2, 3), ()),
    # The path norm resampled by the ratio of the lengths, in place of the factor asked for.
    "resampling by a factor": ((2, 3, 2), (Map(2), R, Op("bilinear_factors"), Flatten(), Map(2))),
    "resampling a row by a factor": ((2, 3), (Map(2), R, Op("linear_factor"), Flatten(), Map(2))),
    # Which of several equal weights is the largest was decided by rounding, so by the scaling.
    "equal weights": ((4,), (BatchNorm(), Op("as_row"), Map(4, False), Map(2))),
    # Units that are never read were seen in the scaling they happened to have.
    "units that are not read": ((3,), (FromTable("parameter: gain of one unit"),)),
    # Coordinates of a stream that begins at a batch norm were not measured relative to its scale.
    "a stream behind a batch norm": ((3, 4), (Map(4), BatchNorm(), R, BLOCK, R, BLOCK, R, Map(2))),
    "tied channels behind a batch norm": (
        (2, 2), (Conv(4, (2,), groups=2), BatchNorm(), Residual((Map(4),)), Tokens(5)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_all_laws_hold(name: str) -> None:
    shape, layers = FOUND[name]
    for seed in range(2):  # of the weights, and of what is drawn for the laws
        check(Spec(shape, layers, seed), seed, Counter())


def test_slopes_of_prelu_get_the_plain_rule_of_path_sgd() -> None:
    model, x = _network(Map(4), Act("prelu"), Map(2))
    network = ps.trace(model, x)
    optimizer = ps.optim.PathSGD(model.parameters(), lr=0.1, network=network)
    assert optimizer.plain == ["1.weight"]
    before = model[1].weight.detach().clone()
    model(x).square().sum().backward()
    optimizer.step()
    torch.testing.assert_close(model[1].weight.detach(), before - 0.1 * model[1].weight.grad)
    assert not torch.equal(model[1].weight.detach(), before)


class OneNorm(nn.Module):
    """Two layers with a bias each, and one batch norm behind both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.norm(self.a(x))) + F.relu(self.norm(self.b(x))))


def test_a_batch_norm_behind_two_biases_is_not_one_of_them() -> None:
    """One of the two was folded into both uses of the batch norm."""
    model = OneNorm().double().eval()
    x = torch.ones(2, 3, dtype=torch.float64)
    network = ps.trace(model, x)

    def norm_with(bias: Tensor, shift: float) -> Tensor:
        with torch.no_grad():
            bias.add_(shift)
            value = ps.path_norm(network, 1)
            bias.sub_(shift)
        return value

    with torch.no_grad():
        for bias in (model.a.bias, model.b.bias):
            bias.copy_(torch.tensor([1.0, 2.0]))
    grows = [norm_with(bias, 1.0) - norm_with(bias, 0.0) for bias in (model.a.bias, model.b.bias)]
    scale = model.norm.weight / (model.norm.running_var + model.norm.eps).sqrt()
    expected = float((scale.abs() * model.c.weight.abs().sum(0)).sum().detach())
    assert [round(float(grow), 9) for grow in grows] == [round(expected, 9)] * 2


def test_an_input_that_is_returned_is_the_end_of_paths() -> None:
    """It was left out, unlike one that something of no effect is done to."""

    class Both(nn.Module):
        def __init__(self, same: bool) -> None:
            super().__init__()
            self.a, self.same = nn.Linear(3, 2), same
            nn.init.ones_(self.a.weight)
            nn.init.zeros_(self.a.bias)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), x if self.same else 1 * x

    norms = [ps.path_norm(ps.trace(Both(same), torch.ones(1, 3)), 1) for same in (True, False)]
    assert [float(norm) for norm in norms] == pytest.approx([2 * 3 + 3] * 2)


def test_two_networks_with_one_folded_bias_behind_a_relu_differ() -> None:
    """They had the same basis values and the same path norm, but not the same function."""
    model, x = _network(Map(3), R, BatchNorm(), R, Map(2))
    network = ps.trace(model, x)
    basis = ps.BasisPaths(network)
    before, norm, y = basis.flat(basis.values()), ps.path_norm(network), model(x)
    with torch.no_grad():
        model[0].bias += 0.5
        model[2].running_mean += 0.5
    assert not torch.allclose(model(x), y)
    assert not torch.allclose(basis.flat(basis.values()), before)
    assert not torch.allclose(ps.path_norm(network), norm)


def test_values_that_no_weights_have_are_refused() -> None:
    """The gain of a batch norm without weight was left as it is, whatever value was asked for."""
    model, x = _network(BatchNorm(affine=False), Map(3), R, Map(2))
    basis = ps.BasisPaths(ps.trace(model, x))
    values = basis.flat(basis.values())
    basis.weights(values)
    with pytest.raises(ps.PathspaceError, match="`0` is a batch norm without weight"):
        basis.weights(2 * values)


def test_g_sgd_steps_a_residual_network_with_batch_norms_the_same_from_any_scaling() -> None:
    """With shared streams, the first step depended on the scale of the batch norm in the stem."""
    outputs = []
    for spread in (0.0, 1.0):
        model, x = _network(Map(4), BatchNorm(), R, BLOCK, R, BLOCK, R, Map(2), shape=(3, 4))
        network = ps.trace(model, x, streams="shared")
        generator = torch.Generator().manual_seed(0)
        ps.rescale_(network, ps.random_rescaling(network, spread, generator=generator))
        optimizer = ps.optim.GSGD(model.parameters(), lr=0.05, network=network)
        for _ in range(3):
            optimizer.zero_grad()
            model.train()(x).square().mean().backward()
            optimizer.step()
        outputs.append(model(x).detach())
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-9, atol=1e-9)


def test_windows_of_padding_alone_are_refused_by_name() -> None:
    """Their largest value is −∞; tracing ended with an index far out of bounds."""
    model = nn.Sequential(nn.MaxPool2d((2, 3), 2, 1, dilation=2), nn.Conv2d(5, 2, 1), nn.ReLU())
    x = torch.ones(2, 5, 1, 3)
    assert model[0](x).isinf().any()
    with pytest.raises(ps.UnsupportedOperation, match=r"`0` .*nothing but padding.*less padding"):
        ps.trace(model, x)


def test_a_network_with_loops_drawn_at_random_is_balanced_in_few_steps() -> None:
    """The power method took 301 passes here, and more than 1,000 elsewhere."""
    spec = draw(689)
    network = ps.trace(build(spec), batch_of(spec), streams="shared")
    one = ps.identity(network).log
    groups = Groups(ps.balance_(network))
    norms = groups.norms(one, 2.0)
    torch.testing.assert_close(norms, groups.largest(one, 2.0)[groups.part], rtol=1e-9, atol=0)


@pytest.mark.parametrize("skeleton", ["modulo", "largest"])
def test_g_sgd_steps_the_same_from_any_scaling_where_a_weight_is_frozen(skeleton: str) -> None:
    """The largest weights were those at the scaling that units of the frozen weight had."""
    outputs = []
    for spread in (0.0, 2.0):
        model, x = _network(Map(4), R, Map(5), R, Map(4), R, Map(2))
        model[2].weight.requires_grad_(False)
        network = ps.trace(model, x)
        generator = torch.Generator().manual_seed(1)
        ps.rescale_(network, ps.random_rescaling(network, spread, generator=generator))
        settings = {"lr": 0.05, "network": network, "skeleton": skeleton}
        optimizer = ps.optim.GSGD(model.parameters(), **settings)
        for _ in range(3):
            optimizer.zero_grad()
            (model(x) - 1).square().mean().backward()
            optimizer.step()
        outputs.append(model(x).detach())
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{"antialias": True}, {"align_corners": True}, {}])
@pytest.mark.parametrize("factor", [0.7, 1.5, 2.0])
def test_the_path_norm_of_a_resampled_image_is_that_of_its_matrix(
    factor: float, options: dict[str, bool]
) -> None:
    """It took the ratio of the lengths for the factor, and never smoothed."""

    class Resample(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.interpolate(x, scale_factor=factor, mode="bilinear", **options)

    model, x = nn.Sequential(Resample()), torch.ones(1, 1, 3, 5, dtype=torch.float64)
    matrix = model(torch.eye(15, dtype=torch.float64).view(15, 1, 3, 5))
    torch.testing.assert_close(
        ps.path_norm(ps.trace(model, x), 3.0), matrix.abs().pow(3).sum() ** (1 / 3)
    )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("options", [{"antialias": True}, {"align_corners": True}, {}])
@pytest.mark.parametrize("size", [(2, 3), (3, 4), (5, 2), (1, 7)])
def test_the_path_norm_of_an_image_resampled_to_a_size_is_that_of_its_matrix(
    size: tuple[int, int], options: dict[str, bool], mode: str
) -> None:
    """Torch smooths axes of length 1 otherwise: they say nothing about those of other lengths."""

    class Resample(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.interpolate(x, size, mode=mode, **options)

    model, x = nn.Sequential(Resample()), torch.ones(1, 1, 4, 5, dtype=torch.float64)
    matrix = model(torch.eye(20, dtype=torch.float64).view(20, 1, 4, 5))
    torch.testing.assert_close(
        ps.path_norm(ps.trace(model, x), 3.0), matrix.abs().pow(3).sum() ** (1 / 3)
    )


def test_path_sgd_divides_the_slopes_of_two_shifts_once() -> None:
    """They are one tensor on the way back, which was raised to its power in place, twice."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Linear(3, 4, bias=False), nn.Linear(4, 2)
            self.first, self.second = (nn.Parameter(torch.ones(1, 4)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            shifted: Tensor = self.into(x) + self.first + self.second
            return self.out(torch.relu(shifted))

    torch.manual_seed(0)
    model, x = Shifted().double(), torch.ones(1, 3, dtype=torch.float64)
    network = ps.trace(model, x)
    slope = model.out.weight.detach().square().sum(0, keepdim=True)
    before, weight = (p.detach().clone() for p in (model.first, model.into.weight))
    model(x).square().sum().backward()
    ps.optim.PathSGD(model.parameters(), 0.1, network=network).step()
    for shift in (model.first, model.second):
        assert shift.grad is not None
        torch.testing.assert_close(shift.detach(), before - 0.1 * shift.grad / slope)
    assert model.into.weight.grad is not None  # whose slopes are that tensor too, times a row
    expected = weight - 0.1 * model.into.weight.grad / slope.T
    torch.testing.assert_close(model.into.weight.detach(), expected)


def _network(*layers: Layer, shape: Shape = (3,), seed: int = 0) -> tuple[nn.Sequential, Tensor]:
    spec = Spec(shape, layers, seed)
    model = build(spec)
    assert isinstance(model, nn.Sequential)
    return model, batch_of(spec)
