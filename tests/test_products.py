"""Convolutions in C: what torch's are, for every geometry and every kind of processor."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pathspace as ps
from natives import needs_compiler, said, torch_only
from pathspace.flow import path_slopes
from pathspace.flow.powers import Scratch
from pathspace.flow.products import WINDOWS, Products
from pathspace.flow.raising import Raising
from pathspace.flow.unfolding import Windows

GEOMETRIES = [  # out, in, kernel, height, width, stride, padding, dilation
    (1, 1, (1, 1), 1, 1, (1, 1), (0, 0), (1, 1)),
    (5, 3, (3, 3), 7, 6, (1, 1), (1, 1), (1, 1)),
    (13, 4, (3, 2), 9, 8, (2, 1), (1, 0), (1, 2)),
    (31, 17, (1, 1), 5, 5, (2, 2), (0, 0), (1, 1)),
    (50, 33, (3, 3), 8, 8, (1, 1), (1, 1), (1, 1)),
    (3, 2, (7, 7), 14, 13, (2, 3), (3, 5), (1, 1)),
    (4, 3, (3, 3), 2, 2, (3, 3), (4, 4), (2, 2)),  # windows that meet nothing but padding
    (70, 40, (3, 3), 4, 4, (1, 1), (1, 1), (1, 1)),
    (24, 110, (2, 2), 5, 9, (1, 2), (1, 1), (2, 1)),
]
geometries = pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)


def compare(geometry, dtype, p, threads):
    out, channels, kernel, height, width, *options = geometry
    generator = torch.Generator().manual_seed(0)
    w, x = (
        torch.randn(*shape, generator=generator, dtype=dtype)
        for shape in ((out, channels, *kernel), (1, channels, height, width))
    )
    power = w.abs().pow(p).requires_grad_()
    image = x.clone().requires_grad_()
    expected = F.conv2d(image, power, None, *options)
    gradient = torch.randn(expected.shape, generator=generator, dtype=dtype)
    expected.backward(gradient)
    windows = Windows(tuple(x.shape), kernel, *options)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            products = Products.of(windows, x, w, p, Scratch(dtype))
            result = products.forward()
            to_x, slope = products.backward(gradient, (True, True))
            room = torch.full_like(w, torch.nan)
            nowhere, written = products.backward(gradient, (False, True), room)
            only_x, nothing = products.backward(gradient, (True, False))
            raised = products.backward(gradient, (False, True), raising=Raising(-0.5, 3.0))[1]
    finally:
        torch.set_num_threads(before)
    assert nowhere is None
    assert not nothing.factors
    assert len(written.factors) == 1
    assert written.factors[0] is room
    (to_power,), (root,) = slope.factors, raised.factors
    assert slope.power == 1
    assert raised.power == -0.5
    torch.testing.assert_close(root, torch.where(to_power > 0, 3 * to_power.pow(-0.5), 0.0))
    total, size = to_power.double().sum().item(), to_power.double().abs().sum().item()
    assert abs(raised.total - total) <= 1e-5 * size
    assert raised.largest == root.amax().item()
    tolerance = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {}
    pairs = [(result, expected.detach()), (to_x, image.grad), (only_x, image.grad)]
    for found, known in [*pairs, (to_power, power.grad), (room, power.grad)]:
        torch.testing.assert_close(found, known, **tolerance)


@needs_compiler
@geometries
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [1.0, 2.0, 4.0])
def test_products_are_torchs_convolutions(geometry, dtype, p):
    compare(geometry, dtype, p, threads=2)


@needs_compiler
@geometries
@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads_will_do(geometry, threads):
    compare(geometry, torch.float64, 2.0, threads)


SCRIPT = """
    import torch
    from test_products import GEOMETRIES, compare
    for geometry in GEOMETRIES:
        for dtype in (torch.float32, torch.float64):
            compare(geometry, dtype, 2.0, 2)
    print("equal")
"""


@needs_compiler
@pytest.mark.parametrize("flags", ["", "-mavx2 -mfma"])
def test_shorter_vectors_give_the_same(tmp_path, flags):
    """Other processors have shorter ones and fewer of them."""
    if flags and not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("the processor has no AVX2; run this on one that has")
    compiler = tmp_path / "cc"
    compiler.write_text(
        '#!/bin/sh\nfor a in "$@"; do [ "$a" = -march=native ] && exit 1; done\n'
        f'exec cc {flags} "$@"\n'
    )
    compiler.chmod(0o755)
    assert said(SCRIPT, CC=str(compiler)) == "equal"


@needs_compiler
class TestWhere:
    def of(self, x, weight, p=2.0, dtype=torch.float32):
        windows = Windows(tuple(x.shape), tuple(weight.shape[2:]), (1, 1), (0, 0), (1, 1))
        return Products.of(windows, x, weight, p, Scratch(dtype))

    def test_products_are_for_small_images_and_simple_powers(self):
        x, weight = torch.ones(1, 4, 8, 8), torch.ones(5, 4, 3, 3)
        with torch.no_grad():
            assert self.of(x, weight) is not None
            assert self.of(x, weight, p=1.5) is None
            assert self.of(x, weight, dtype=torch.float64) is None
            assert self.of(x.double(), weight) is None
            assert self.of(x, weight.mT) is None
            side = int((WINDOWS / 36) ** 0.5) + 4
            assert self.of(torch.ones(1, 4, side, side), weight) is None
            with torch_only():
                assert self.of(x, weight) is None
        assert self.of(x, weight) is None  # a second derivative may be wanted

    def test_an_image_need_not_be_contiguous(self):
        x, weight = torch.randn(1, 4, 8, 6).mT, torch.randn(5, 4, 3, 3)
        with torch.no_grad():
            found = self.of(x, weight).forward()
        torch.testing.assert_close(found, F.conv2d(x, weight.square()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("p", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("power", [-1.0, -0.5])
def test_slopes_to_a_power_are_those_of_dense_ones(p, power, monkeypatch):
    """In place and in C for large ones, with the logarithm of what all have in common."""
    monkeypatch.setattr("pathspace.flow.layers.WRITTEN", 0)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(75, 4)
    ).double()
    model.eval()
    with torch.no_grad():
        model[0].weight[1] = 0.0  # its batch norm's gain has slope 0
        model[4].weight[:, 50:] = 0.0  # and nothing leaves another channel
    network = ps.trace(model, torch.ones(1, 2, 5, 5).double())
    expected = {name: slope.dense() for name, slope in path_slopes(network, p=p).items()}
    for context in (torch_only(), torch.no_grad()):
        with context:
            found = path_slopes(network, p=p, power=power)
        for name, slope in expected.items():
            known = torch.where(slope > 0, slope.pow(power), 0.0)
            torch.testing.assert_close(found[name].dense(), known)
            assert found[name].largest in (None, float(known.max()))
    assert float(expected["0.weight"].min()) == 0
