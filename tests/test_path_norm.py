"""The path norm against enumeration and against products of dense matrices."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathspace as ps
from cases import CASES, Case, conv, mlp

EXPONENTS = [1.0, 1.5, 2.0, 4.0, math.inf]
exponents = pytest.mark.parametrize("p", EXPONENTS)
DENSE = [case for case in CASES if len(case.shape) == 1]


def norm_of(values: Tensor, p: float) -> Tensor:
    return values.abs().max() if math.isinf(p) else (values.abs() ** p).sum() ** (1 / p)


@pytest.mark.parametrize("case", DENSE, ids=lambda case: case.name)
@exponents
def test_it_is_the_norm_of_all_path_values(case, p):
    model, x = case.make()
    network = ps.trace(model, x, streams="shared")
    expected = norm_of(ps.path_values(network), p)
    torch.testing.assert_close(ps.path_norm(network, p), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        ps.path_norm(network, p, log=True), expected.log(), rtol=1e-12, atol=1e-12
    )


# Networks on images, unrolled: one dense matrix (and bias) per layer, columns are input entries.
UNROLLED = {
    "kernel 1": lambda: conv(1),
    "kernel 3": lambda: conv(3),
    "kernel 5": lambda: conv(5),
    "batch norm": lambda: conv(3, batch_norm=True, bias=False),
    "no bias": lambda: conv(3, bias=False),
    "batch norm with an eps of its own": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3, eps=0.5), nn.ReLU(), nn.Flatten(),
        nn.Linear(48, 2),
    ),
    "overlapping max-pool": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.Flatten(),
        nn.Linear(3 * 4, 2),
    ),
    "dilated max-pool": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 1), nn.ReLU(), nn.MaxPool2d(2, 1, dilation=2), nn.Flatten(),
        nn.Linear(3 * 4, 2),
    ),
    "dilated max-pool of more channels than places": lambda: nn.Sequential(
        nn.Conv2d(2, 5, 1), nn.ReLU(), nn.MaxPool2d(2, 1, dilation=2), nn.Flatten(),
        nn.Linear(5 * 4, 2),
    ),
    "axes padded differently": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=(0, 2)), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 2 * 6, 2),
    ),
    "average pool with padding": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 1), nn.ReLU(), nn.AvgPool2d(3, 2, 1, ceil_mode=True),
        nn.Flatten(), nn.Linear(3 * 9, 2),
    ),
    "average pool without padding counted": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 1), nn.ReLU(), nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        nn.Flatten(), nn.Linear(3 * 4, 2),
    ),
    "adaptive pools of unequal windows": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Conv2d(3, 2, 1), nn.ReLU(),
        nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(2 * 4, 2),
    ),
    "stride, groups, steep leak": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), nn.LeakyReLU(-1.5), nn.Flatten(),
        nn.Linear(4 * 4, 2),
    ),
    "bilinear upsampling": lambda: nn.Sequential(
        nn.Conv2d(2, 2, 1), nn.ReLU(), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(2, 1, 3), nn.Flatten(), nn.Linear(36, 1),
    ),
    "nearest upsampling": lambda: nn.Sequential(
        nn.Conv2d(2, 2, 1), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Flatten(),
        nn.Linear(128, 1),
    ),
    "transposed": lambda: nn.Sequential(
        nn.ConvTranspose2d(2, 2, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(162, 2)
    ),
}  # fmt: skip


def unrolled_norm(model: nn.Sequential, x: Tensor, p: float) -> Tensor:
    """Layer by layer: the dense matrix of each, |.|^p, times a vector (or its maximum)."""
    power = 1.0 if math.isinf(p) else p
    shape = x.shape[1:]
    flow = torch.ones(shape.numel(), dtype=torch.float64)
    for layer in model:
        if isinstance(layer, nn.LeakyReLU):
            flow = flow * max(1.0, abs(layer.negative_slope)) ** power
            continue
        basis = torch.eye(shape.numel(), dtype=torch.float64).view(-1, *shape)
        zero = torch.zeros(1, *shape, dtype=torch.float64)
        if isinstance(layer, nn.MaxPool2d | nn.AdaptiveMaxPool2d):  # every entry of the window
            matrix = layer(basis).flatten(1)
            bias = torch.zeros(matrix.shape[1], dtype=torch.float64)
        else:
            bias = layer(zero).flatten()
            matrix = layer(basis).flatten(1) - bias
        if isinstance(layer, nn.ReLU | nn.Identity):
            continue
        shape = layer(zero).shape[1:]
        products = matrix.abs() ** power * flow[:, None]
        bias = bias.abs() ** power
        flow = torch.maximum(products.amax(0), bias) if math.isinf(p) else products.sum(0) + bias
    return flow.max() if math.isinf(p) else flow.sum() ** (1 / p)


@pytest.mark.parametrize("name", UNROLLED)
@exponents
def test_networks_on_images_equal_their_unrolled_form(name, p):
    model, x = Case(name, UNROLLED[name], (2, 4, 4)).make()
    network = ps.trace(model, x)
    if name == "transposed" and math.isinf(p):
        with pytest.raises(ps.NoPathSum, match="transposed"):
            ps.path_norm(network, p)
        return
    with torch.no_grad():
        expected = unrolled_norm(model, x, p)
    torch.testing.assert_close(ps.path_norm(network, p), expected, rtol=1e-10, atol=0)


@exponents
def test_it_does_not_change_under_rescaling_but_weights_do(p):
    for case in CASES[::4]:
        model, x = case.make()
        network = ps.trace(model, x, streams="shared")
        if case.name.startswith("grouped") and math.isinf(p):
            continue
        state = ps.rescale(network, ps.random_rescaling(network, normalized=True))
        before, after = ps.path_norm(network, p), ps.path_norm(network, p, state=state)
        torch.testing.assert_close(after, before, rtol=1e-9, atol=0)


def test_a_network_and_its_fused_form_have_the_same_norm():
    model, x = Case("", lambda: conv(3, batch_norm=True), (2, 4, 4)).make()
    fused = copy.deepcopy(model)
    fused[0] = torch.nn.utils.fusion.fuse_conv_bn_eval(fused[0], fused[1])
    fused[1] = nn.Identity()
    for p in EXPONENTS:
        one, other = (ps.path_norm(ps.trace(m, x), p) for m in (model, fused))
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


def test_a_bias_added_in_front_of_a_batch_norm_is_part_of_it():
    class Apart(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(F.linear(x, self.linear.weight) + self.linear.bias)

    model, x = Case("", Apart, (3,)).make()
    expected = ps.path_norm(ps.trace(nn.Sequential(model.linear, model.norm), x))
    torch.testing.assert_close(ps.path_norm(ps.trace(model, x)), expected)


def test_it_does_not_depend_on_the_batch_that_was_traced():
    model, x = Case("", lambda: conv(3), (2, 4, 4)).make()
    one, eight = (ps.path_norm(ps.trace(model, x[:n])) for n in (1, 8))
    torch.testing.assert_close(one, eight)


def test_differences_count_as_sums_and_constants_by_their_size():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 3, bias=False), nn.Linear(2, 3, bias=False)
            self.register_buffer("mask", torch.tensor([1.0, -2.0, 0.0]))

        def forward(self, x):
            return (3 * self.a(x).relu() - self.b(x).relu() / 2) * self.mask

    model = Model().double()
    network = ps.trace(model, torch.ones(1, 2).double(), streams="shared")
    a, b = model.a.weight.abs(), model.b.weight.abs()
    expected = ((3 * a + b / 2).sum(1) * torch.tensor([1.0, 2.0, 0.0])).sum()
    torch.testing.assert_close(ps.path_norm(network, 1), expected.detach())


def test_biases_outputs_and_several_exponents():
    model, x = Case("", lambda: mlp(3, 4, 2, bias=True), (3,)).make()
    network = ps.trace(model, x)
    w, v = model[0].weight.detach().abs(), model[2].weight.detach().abs()
    per_output = (v @ w).sum(1)
    found = ps.path_norm(network, 1, biases=False, per_output=True)
    torch.testing.assert_close(found, per_output)
    with_bias = per_output + v @ model[0].bias.detach().abs() + model[2].bias.detach().abs()
    torch.testing.assert_close(ps.path_norm(network, 1, per_output=True), with_bias)
    several = ps.path_norm(network, EXPONENTS)
    for value, p in zip(several, EXPONENTS, strict=True):
        torch.testing.assert_close(value, ps.path_norm(network, p))
    with pytest.raises(ValueError, match="at least 1"):
        ps.path_norm(network, 0.5)


def test_it_is_differentiable():
    model, x = Case("", lambda: conv(3, batch_norm=True), (2, 4, 4)).make()
    network = ps.trace(model, x)
    state = {name: t.detach() for name, t in network.state().items()}

    def norm(kernel, gain, bias):
        given = {**state, "0.weight": kernel, "1.weight": gain, "8.bias": bias}
        return ps.path_norm(network, 1.5, state=given, log=True)

    inputs = [state[n].clone().requires_grad_() for n in ("0.weight", "1.weight", "8.bias")]
    assert torch.autograd.gradcheck(norm, inputs)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 2.5, 3.0, 4.0])
def test_gradients_are_finite_where_weights_are_zero(p):
    model, x = Case("", lambda: mlp(3, 4, 2), (3,)).make()
    with torch.no_grad():
        model[0].weight[0, 1] = model[2].weight[1, 2] = 0.0
    network = ps.trace(model, x)
    w, v = (model[k].weight for k in (0, 2))
    norm = ps.path_norm(network, p, state=network.state())
    found = torch.autograd.grad(norm, (w, v))
    gradients = torch.autograd.grad((v.abs() ** p @ w.abs() ** p).sum() ** (1 / p), (w, v))
    for one, other in zip(found, gradients, strict=True):
        torch.testing.assert_close(one, other)
    assert found[0][0, 1] == 0.0


# Convolutions of all kinds that are computed in different ways.
CONVOLUTIONS = {
    "pixels": lambda: nn.Conv2d(2, 3, 1),
    "every other pixel": lambda: nn.Conv2d(2, 3, 1, stride=2),
    "every other pixel of every row": lambda: nn.Conv2d(2, 3, 1, stride=(1, 2)),
    "pixels, padded": lambda: nn.Conv2d(2, 3, 1, padding=1),
    "fewer places than channels": lambda: nn.Conv2d(2, 20, 3, stride=2, padding=1),
    "more places than channels": lambda: nn.Conv2d(2, 3, (3, 2), padding=(1, 0), dilation=(1, 2)),
    "padded more on one side": lambda: nn.Conv2d(2, 30, (4, 3), padding="same"),
    "not padded": lambda: nn.Conv2d(2, 3, 2, padding="valid"),
    "grouped": lambda: nn.Conv2d(2, 4, 3, groups=2),
    "transposed": lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1),
    "transposed, grouped": lambda: nn.ConvTranspose2d(2, 4, 2, dilation=2, groups=2),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("large", [False, True])
def test_value_and_derivatives_of_convolutions(name, p, large, monkeypatch):
    """Against the layer itself with |w|^p, its first derivatives and its second ones."""
    if large:  # as if kernels were too large to be raised at once
        monkeypatch.setattr("pathspace.flow.layers.LARGE", 0)
    model, x = Case(name, CONVOLUTIONS[name], (2, 5, 5)).make()
    network = ps.trace(model, x)
    inputs = [t.detach().clone().requires_grad_() for t in (model.weight, model.bias)]

    def found(weight, bias):
        return ps.path_norm(network, p, state={"weight": weight, "bias": bias})

    def expected(weight, bias):
        powers = {"weight": weight.abs() ** p, "bias": bias.abs() ** p}
        ones = torch.ones(1, 2, 5, 5, dtype=torch.float64)
        return torch.func.functional_call(model, powers, ones).sum() ** (1 / p)

    torch.testing.assert_close(found(*inputs), expected(*inputs), rtol=1e-12, atol=0)
    direction = [torch.randn_like(t) for t in inputs]
    gradients, curvatures = [], []
    for norm in (found, expected):
        gradients.append(torch.autograd.grad(norm(*inputs), inputs))
        slope = torch.autograd.grad(norm(*inputs), inputs, create_graph=True)
        along = sum((g * d).sum() for g, d in zip(slope, direction, strict=True))
        curvatures.append(torch.autograd.grad(along, inputs))
    for pair in (gradients, curvatures):
        for one, other in zip(*pair, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("large", [False, True])
def test_value_and_gradient_of_a_convolution_along_one_axis(p, large, monkeypatch):
    if large:
        monkeypatch.setattr("pathspace.flow.layers.LARGE", 0)
    model, x = Case("", lambda: nn.Conv1d(2, 3, 3, padding=1, bias=False), (2, 5)).make()
    weight = model.weight.detach().clone().requires_grad_()
    found = ps.path_norm(ps.trace(model, x), p, state={"weight": weight})
    ones = torch.ones(1, 2, 5, dtype=torch.float64)
    expected = F.conv1d(ones, weight.abs() ** p, padding=1).sum() ** (1 / p)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        *(torch.autograd.grad(norm, weight) for norm in (found, expected)), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("padding", [(0, 2), (2, 0), (1, 2), 1])
def test_every_output_of_a_convolution_at_the_edges(padding):
    model, x = Case("", lambda: nn.Conv2d(2, 3, 3, padding=padding, bias=False), (2, 6, 5)).make()
    network, sizes = ps.trace(model, x), model.weight.detach().abs()
    ones = torch.ones(1, 2, 6, 5, dtype=torch.float64)
    expected = F.conv2d(ones, sizes**2, padding=padding).sqrt().flatten()
    torch.testing.assert_close(ps.path_norm(network, 2.0, per_output=True), expected)
    windows = F.unfold(ones, 3, padding=padding)[0]  # (18, places)
    expected = (sizes.view(3, -1, 1) * windows).amax(1).flatten()
    torch.testing.assert_close(ps.path_norm(network, math.inf, per_output=True), expected)


@exponents
def test_a_convolution_without_options(p):
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3, bias=False)

        def forward(self, x):
            return F.conv2d(x, self.conv.weight)

    model, x = Case("", Plain, (2, 5, 5)).make()
    expected = ps.path_norm(ps.trace(model.conv, x), p)
    torch.testing.assert_close(ps.path_norm(ps.trace(model, x), p), expected)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_a_transposed_convolution_with_options_by_name(p):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.ConvTranspose1d(2, 4, 3, stride=2, padding=1, output_padding=1)

        def forward(self, x):
            options = {"stride": 2, "padding": 1, "output_padding": 1}
            return F.conv_transpose1d(x, self.conv.weight, self.conv.bias, **options)

    model, x = Case("", Named, (2, 5)).make()
    expected = ps.path_norm(ps.trace(model.conv, x), p)
    torch.testing.assert_close(ps.path_norm(ps.trace(model, x), p), expected)


@exponents
@pytest.mark.parametrize(
    ("flat", "upright"),
    [
        (nn.MaxPool1d(2), nn.MaxPool2d((1, 2))),
        (nn.MaxPool1d(3, 1, 1), nn.MaxPool2d((1, 3), 1, (0, 1))),
        (nn.AvgPool1d(2), nn.AvgPool2d((1, 2))),
    ],
    ids=["maximum", "overlapping maximum", "average"],
)
def test_pools_along_one_axis_are_those_of_an_image_of_one_row(flat, upright, p):
    places = 3 * flat(torch.zeros(1, 1, 6)).shape[-1]

    def net(conv, pool):
        return nn.Sequential(conv, nn.ReLU(), pool, nn.Flatten(), nn.Linear(places, 2))

    model, x = Case("", lambda: net(nn.Conv1d(2, 3, 2), flat), (2, 7)).make()
    image = net(nn.Conv2d(2, 3, (1, 2)), upright).double()
    with torch.no_grad():
        for parameter, other in zip(image.parameters(), model.parameters(), strict=True):
            parameter.copy_(other.view(parameter.shape))
    expected = ps.path_norm(ps.trace(image, x[:, :, None]), p)
    torch.testing.assert_close(ps.path_norm(ps.trace(model, x), p), expected)


@exponents
def test_places_of_maxima_are_no_values(p):
    class Pooled(nn.Module):
        def __init__(self, places):
            super().__init__()
            self.conv, self.linear, self.places = nn.Conv2d(2, 3, 1), nn.Linear(12, 2), places

        def forward(self, x):
            h = F.max_pool2d(self.conv(x), 2, return_indices=self.places)
            return self.linear((h[0] if self.places else h).flatten(1))

    model, x = Case("", lambda: Pooled(True), (2, 4, 4)).make()
    other = Pooled(False).double()
    other.load_state_dict(model.state_dict())
    found, expected = (ps.path_norm(ps.trace(net, x), p) for net in (model, other))
    torch.testing.assert_close(found, expected)


def test_a_sample_without_a_batch():
    class Unbatched(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3)

        def forward(self, x):
            return self.conv(x[0])

    model, x = Case("", Unbatched, (2, 5, 5)).make()
    batched = ps.path_norm(ps.trace(model.conv, x[:1]))
    torch.testing.assert_close(ps.path_norm(ps.trace(model, x[:1])), batched)


@pytest.mark.parametrize("layer", [nn.Linear(700, 600), nn.Conv2d(700, 600, 1)])
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_gradients_of_large_weights_in_another_dtype(layer, p):
    shape = (1, 700) if isinstance(layer, nn.Linear) else (1, 700, 2, 2)
    network = ps.trace(layer, torch.ones(shape))
    w, b = layer.weight, layer.bias
    norm = ps.path_norm(network, p, state=network.state())
    total = w.double().abs().pow(p).sum() + b.double().abs().pow(p).sum()
    expected = (total * math.prod(shape[2:])) ** (1 / p)
    torch.testing.assert_close(norm, expected)
    pairs = zip(torch.autograd.grad(norm, (w, b)), torch.autograd.grad(expected, (w, b)),
                strict=True)  # fmt: skip
    for one, other in pairs:
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other)


def test_functional_gradients():
    model, x = Case("", lambda: conv(3, batch_norm=True), (2, 4, 4)).make()
    network = ps.trace(model, x[:1])
    state = {n: t.detach() for n, t in network.state().items() if t.is_floating_point()}
    found = torch.func.grad(lambda s: ps.path_norm(network, 1.5, state=s, log=True))(state)
    leaves = {n: t.clone().requires_grad_() for n, t in state.items()}
    norm = ps.path_norm(network, 1.5, state=leaves, log=True)
    expected = torch.autograd.grad(norm, list(leaves.values()), allow_unused=True)
    for name, gradient in zip(leaves, expected, strict=True):
        gradient = torch.zeros_like(state[name]) if gradient is None else gradient
        torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logarithms_of_deep_networks_are_finite(size, dtype):
    torch.manual_seed(0)
    layers = [layer for _ in range(1000) for layer in (nn.Linear(4, 4, bias=False), nn.ReLU())]
    model = nn.Sequential(*layers)
    logs, flow, log = [], torch.ones(4, dtype=torch.float64), 0.0
    with torch.no_grad():
        for layer in layers[::2]:
            layer.weight.mul_(size)
            flow = layer.weight.double().square() @ flow
            log += float(flow.sum().log())
            flow = flow / flow.sum()
            logs.append(log)
    network = ps.trace(model, torch.ones(1, 4))
    found = ps.path_norm(network, 2, log=True, dtype=dtype)
    assert math.isclose(float(found), log / 2, rel_tol=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("factor", [1e30, 1e-30])
def test_weights_of_extreme_size(factor):
    model, x = Case("", lambda: mlp(3, 4, 4, 4, 2), (3,)).make()
    network = ps.trace(model, x)
    before = ps.path_norm(network, 4, log=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    torch.testing.assert_close(
        ps.path_norm(network, 4, log=True), before + 4 * math.log(factor), rtol=1e-12, atol=0
    )


def test_a_network_whose_paths_are_all_zero_has_norm_zero():
    model, x = Case("", lambda: mlp(3, 4, 2), (3,)).make()
    with torch.no_grad():
        model[2].weight.zero_()
    network = ps.trace(model, x)
    assert float(ps.path_norm(network)) == 0.0
    assert float(ps.path_norm(network, log=True)) == -math.inf


@pytest.mark.parametrize(
    ("layer", "name"),
    [(nn.ReLU6(), "ReLU6, hardtanh"), (nn.GELU(), "gelu"), (nn.Sigmoid(), "sigmoid"),
     (nn.Softmax(1), "softmax"), (nn.LayerNorm(3), "layer_norm"), (nn.Hardtanh(), "hardtanh")],
)  # fmt: skip
def test_operations_that_are_not_homogeneous_are_refused_by_name(layer, name):
    model = nn.Sequential(nn.Linear(2, 3), layer, nn.Linear(3, 1))
    with pytest.raises(ps.NoPathSum, match=rf"`1` \({name}\)"):
        ps.path_norm(ps.trace(model, torch.ones(1, 2)))


def test_products_of_activations_are_refused():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(2, 3)

        def forward(self, x):
            h = F.relu(self.a(x))
            return h * h

    with pytest.raises(ps.NoPathSum, match="mul"):
        ps.path_norm(ps.trace(Gated(), torch.ones(1, 2)))


def test_nothing_of_the_model_is_touched():
    model, x = Case("", lambda: conv(3, batch_norm=True), (2, 4, 4)).make()
    model.train()
    network = ps.trace(model, x)
    before = {n: (t._version, t.clone()) for n, t in network.state().items()}
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    ps.path_norm(network, EXPONENTS)
    assert model.training
    assert all(
        t._version == before[n][0] and torch.equal(t, before[n][1])
        for n, t in network.state().items()
    )
    assert len(calls) <= 1  # at most a trace for one sample; the norm runs the recorded program


# Single operations, by hand ----------------------------------------------------------------------


class After(nn.Module):
    """A linear map to three units and an operation on them."""

    def __init__(self, function):
        super().__init__()
        self.a, self.function = nn.Linear(2, 3, bias=False), function
        self.register_buffer("constant", torch.tensor([[2.0, -5.0]]))
        self.register_buffer("places", torch.tensor([2, 0]))
        self.register_buffer("matrix", torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, -4.0]]))
        self.register_buffer("vector", torch.tensor([2.0, -2.0, 2.0]))

    def forward(self, x):
        return self.function(self.a(x), self)


def written(h, _):
    wide = h.new_zeros(len(h), 4)
    wide[:, 1:] = h
    return wide


SLOPES = torch.tensor([0.25, 2.0, -3.0], dtype=torch.float64)

# What the operation makes of the sums s over paths into the three units, with and without biases.
OPERATIONS = {
    "prelu": (lambda h, _: F.prelu(h, SLOPES), lambda s, p, b: s * SLOPES.abs().clamp_min(1) ** p),
    "rrelu, steep above": (lambda h, _: F.rrelu(h, 0.5, 2.0), lambda s, p, b: s * 2**p),
    "rrelu, steep below": (lambda h, _: F.rrelu(h, -3.0, 0.5), lambda s, p, b: s * 3**p),
    "rrelu, flat": (lambda h, _: F.rrelu(h, 0.1, 0.3), lambda s, p, b: s),
    "multiple added": (lambda h, _: torch.add(h, h.relu(), alpha=-2), lambda s, p, b: s + 2**p * s),
    "mean": (lambda h, _: h.mean(1), lambda s, p, b: s.sum() / 3**p),
    "mean without nan": (lambda h, _: h.nanmean(1), lambda s, p, b: s.sum() / 3**p),
    "sum over no named axis": (lambda h, _: h.sum([]), lambda s, p, b: s.sum()),
    "transposed": (lambda h, _: h.T.relu().T, lambda s, p, b: s),
    "transposed as matrices": (lambda h, _: h.mT.relu().mT, lambda s, p, b: s),
    "split": (lambda h, _: torch.cat(h.split([1, 2], 1)[::-1], 1), lambda s, p, b: s[[1, 2, 0]]),
    "in chunks": (lambda h, _: torch.cat(h.chunk(3, 1)[::-1], 1), lambda s, p, b: s.flip(0)),
    "one by one": (lambda h, _: torch.stack(h.unbind(1)[::-1], 1), lambda s, p, b: s.flip(0)),
    "einsum": (
        lambda h, _: torch.einsum("bi,i->bi", h, SLOPES),
        lambda s, p, b: s * SLOPES.abs() ** p,
    ),
    "widened by zeros": (
        lambda h, _: torch.cat([h, h.new_zeros(len(h), 2)], 1),
        lambda s, p, b: torch.cat([s, s.new_zeros(2)]),
    ),
    "widened by zeros of a size": (
        lambda h, _: torch.cat([h, h.new_zeros(size=(len(h), 2))], 1),
        lambda s, p, b: torch.cat([s, s.new_zeros(2)]),
    ),
    "widened by zeros of its own size": (
        lambda h, _: torch.cat([h, torch.zeros_like(h)], 1),
        lambda s, p, b: torch.cat([s, s.new_zeros(3)]),
    ),
    "subtracted from a number": (lambda h, _: 2 - h, lambda s, p, b: s + b * 2**p),
    "number subtracted": (lambda h, _: h - 3, lambda s, p, b: s + b * 3**p),
    "padded": (
        lambda h, _: F.pad(h, (1, 0), value=-3.0),
        lambda s, p, b: torch.cat([s.new_tensor([b * 3.0**p]), s]),
    ),
    "concatenated with constants": (
        lambda h, m: torch.cat([h, m.constant.expand(len(h), 2)], 1),
        lambda s, p, b: torch.cat([s, b * s.new_tensor([2.0, 5.0]) ** p]),
    ),
    "half of it, in place": (
        lambda h, _: (1 * h)[:, None].tril_(), lambda s, p, b: s * s.new_tensor([1, 0, 0]),
    ),
    "chosen": (
        lambda h, m: h.index_select(1, m.places), lambda s, p, b: s[[2, 0]],
    ),
    "chosen by an index": (lambda h, m: h[:, m.places], lambda s, p, b: s[[2, 0]]),
    "written into zeros": (written, lambda s, p, b: torch.cat([s.new_zeros(1), s])),
    "largest and its place": (lambda h, _: h.max(1)[0], lambda s, p, b: s.sum()),
    "matrix from the left": (
        lambda h, m: (m.matrix @ h.T).T, lambda s, p, b: m_power(p) @ s,
    ),
    "matrix from the right": (lambda h, m: h @ m.matrix.T, lambda s, p, b: m_power(p) @ s),
    "vector from the right": (lambda h, m: h @ m.matrix[0], lambda s, p, b: m_power(p)[0] @ s),
    "matrix from the right and a constant": (
        lambda h, m: torch.addmm(m.matrix[:, 0], h, m.matrix.T),
        lambda s, p, b: m_power(p) @ s + b * m_power(p)[:, 0],
    ),
    "maxima in windows that are named": (
        lambda h, _: F.max_pool1d(h[:, None], kernel_size=2, stride=1),
        lambda s, p, b: s[:2] + s[1:],
    ),
    "means in windows that are named": (
        lambda h, _: F.avg_pool1d(h[:, None], kernel_size=2, stride=1),
        lambda s, p, b: (s[:2] + s[1:]) / 2**p,
    ),
    "means in space": (
        lambda h, _: F.adaptive_avg_pool3d(h.view(-1, 1, 1, 3, 1), 1),
        lambda s, p, b: s.sum() / 3**p,
    ),
    "maxima in space": (
        lambda h, _: F.adaptive_max_pool3d(h.view(-1, 1, 3, 1, 1), 1), lambda s, p, b: s.sum(),
    ),
    "padded with zeros": (
        lambda h, _: F.pad(h, (1, 1)), lambda s, p, b: F.pad(s, (1, 1)),
    ),
    "matrix of a vector": (
        lambda h, m: F.linear(h, m.vector), lambda s, p, b: s.sum() * 2.0**p,
    ),
}  # fmt: skip


def m_power(p):
    return After(None).matrix.double().abs() ** p


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_single_operations(name, biases, p):
    function, expected = OPERATIONS[name]
    model, x = Case(name, lambda: After(function), (2,)).make()
    sums = (model.a.weight.detach().abs() ** p).sum(1)
    found = ps.path_norm(ps.trace(model, x), p, biases=biases, per_output=True)
    wanted = torch.atleast_1d(expected(sums, p, float(biases))) ** (1 / p)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)


REFUSED = {
    "a product of matrices": lambda h, m: h @ h.T,
    "a product in einsum": lambda h, m: torch.einsum("bi,bi->b", h, h.relu()),
    "a linear map by activations": lambda h, m: F.linear(h, h[:2]),
    "a convolution with activations": lambda h, m: F.conv1d(h[:, None], h[:1, None, :2]),
    "places that depend on the data": lambda h, m: h.index_select(1, h[0, :2].argsort()),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("p", [2.0, math.inf])
def test_what_is_no_sum_over_paths_is_refused(name, p):
    model, x = Case(name, lambda: After(REFUSED[name]), (2,)).make()
    with pytest.raises(ps.PathspaceError, match=r"`[^`]+` \("):
        ps.path_norm(ps.trace(model, x, on_unknown="pin"), p)


@pytest.mark.parametrize("name", [n for n in OPERATIONS if "from the" in n])
def test_largest_paths_of_products(name):
    model, x = Case(name, lambda: After(OPERATIONS[name][0]), (2,)).make()
    paths = model.matrix.abs()[:, :, None] * model.a.weight.detach().abs()
    paths = paths[:1] if "vector" in name else paths
    found = ps.path_norm(ps.trace(model, x), math.inf, per_output=True)
    torch.testing.assert_close(found, paths.flatten(1).amax(1))


def test_einsum_has_no_maxima():
    model, x = Case("", lambda: After(OPERATIONS["einsum"][0]), (2,)).make()
    with pytest.raises(ps.NoPathSum, match="einsum; use a linear layer"):
        ps.path_norm(ps.trace(model, x), math.inf)


SLOPES_OF = ("pixels", "every other pixel", "every other pixel of every row")


@pytest.mark.parametrize("name", [*SLOPES_OF, "fewer places than channels"])
@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("large", [False, True])
def test_slopes_in_front_of_a_convolution(name, p, large, monkeypatch):
    """What comes back through a convolution: the transpose of its windows."""
    if large:
        monkeypatch.setattr("pathspace.flow.layers.LARGE", 0)
    first, second = nn.Conv2d(2, 2, 3, padding=1), CONVOLUTIONS[name]()
    model, x = Case(name, lambda: nn.Sequential(first, nn.ReLU(), second), (2, 5, 5)).make()
    slopes = ps.path_slopes(ps.trace(model, x), p=p)
    powers = {n: (w.detach().abs() ** p).requires_grad_() for n, w in model.named_parameters()}
    ones = torch.ones(1, 2, 5, 5, dtype=torch.float64)
    torch.func.functional_call(model, powers, ones).sum().backward()
    for key, power in powers.items():
        torch.testing.assert_close(slopes[key].dense(), power.grad)


@pytest.mark.parametrize(("mode", "factor"), [("sum", 1.0), ("mean", 1 / 4)])
def test_bags_of_embeddings(mode, factor):
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(5, 3, mode=mode)

        def forward(self, x):
            return self.bag(x)

    model = Bag().double()
    network = ps.trace(model, torch.zeros(2, 4, dtype=torch.long))
    rows = model.bag.weight.detach().square().sum(0)  # four places, each with rows of its own
    found = ps.path_norm(network, 2, per_output=True)
    torch.testing.assert_close(found, (4 * rows).sqrt() * factor, rtol=1e-12, atol=0)


@pytest.mark.parametrize("factor", [1e60, 1e-60])
def test_padding_keeps_up_with_values_of_extreme_size(factor):
    def build(value):
        return nn.Sequential(
            nn.Linear(3, 3), nn.ReLU(), nn.ConstantPad1d(1, value), nn.Linear(5, 2, bias=False)
        )

    logs = []
    for size in (1.0, factor):
        model, x = Case("", lambda size=size: build(0.7 * size), (3,)).make()
        with torch.no_grad():
            for parameter in model[0].parameters():
                parameter.mul_(size)
        logs.append(float(ps.path_norm(ps.trace(model, x), 2, log=True)))
    assert math.isclose(logs[1], logs[0] + math.log(factor), rel_tol=1e-12)


@pytest.mark.parametrize("factor", [1e60, 1e-60])
def test_batch_norm_keeps_up_with_values_of_extreme_size(factor):
    def build():
        return nn.Sequential(
            nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4, eps=0.0), nn.ReLU(), nn.Linear(4, 2)
        )

    model, x = Case("", build, (3,)).make()
    network = ps.trace(model, x)
    before = ps.path_norm(network)
    with torch.no_grad():  # the same function
        model[0].weight.mul_(factor)
        model[1].running_mean.mul_(factor)
        model[1].running_var.mul_(factor**2)
    torch.testing.assert_close(ps.path_norm(network), before, rtol=1e-12, atol=0)


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_a_sum_of_values_of_very_different_size(p):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 3, bias=False), nn.Linear(2, 3, bias=False)

        def forward(self, x):
            return self.a(x).relu() + self.b(x).relu()

    model, x = Case("", Branches, (2,)).make()
    with torch.no_grad():
        model.a.weight.mul_(1e100)
        model.b.weight.mul_(1e-100)
    found = ps.path_norm(ps.trace(model, x), p, log=True)
    largest = norm_of(model.a.weight.detach() / 1e100, p).log() + 100 * math.log(10)
    torch.testing.assert_close(found, largest, rtol=1e-12, atol=0)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
def test_functional_jacobians(p):
    model, x = Case("", lambda: mlp(3, 4, 2), (3,)).make()
    network = ps.trace(model, x[:1])
    state = {name: tensor.detach() for name, tensor in network.state().items()}
    found = torch.func.jacrev(lambda s: ps.path_norm(network, p, state=s, per_output=True))(state)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in state.items()}
    norms = ps.path_norm(network, p, state=leaves, per_output=True)
    for number, norm in enumerate(norms):
        expected = torch.autograd.grad(norm, list(leaves.values()), retain_graph=True)
        for name, gradient in zip(leaves, expected, strict=True):
            torch.testing.assert_close(found[name][number], gradient)


@pytest.mark.parametrize("way", ["view", "view_as", "reshape"])
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_shuffled_channels(way, p):
    """What the model makes contiguous need not be so where sums over paths flow."""

    class Shuffled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv1d(2, 4, 1, bias=False), nn.Linear(12, 2, bias=False)

        def forward(self, x):
            h = self.a(x)
            mixed = h.view(len(x), 2, 2, 3).transpose(1, 2).contiguous()
            mixed = mixed.view_as(h) if way == "view_as" else getattr(mixed, way)(len(x), 4, 3)
            return self.b(mixed.relu().flatten(1))

    model, x = Case("", Shuffled, (2, 3)).make()
    channels = (model.a.weight.detach().abs() ** p).sum((1, 2))[[0, 2, 1, 3]]
    total = ((model.b.weight.detach().abs() ** p).view(2, 4, 3).sum(2) * channels).sum(1)
    found = ps.path_norm(ps.trace(model, x), p, per_output=True)
    torch.testing.assert_close(found, total ** (1 / p), rtol=1e-12, atol=0)
