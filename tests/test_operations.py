"""One law for every operation: a random rescaling keeps the function, in eval and in train mode.

The models are in `operations`. Each is traced with both kinds of streams; the law, H, and the
independence of the scales are checked for both, and H of the full group is compared with the
dimension of the invariance that the Jacobian of the outputs shows.
"""

import copy
import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pathspace as ps
from operations import CASES, REFUSED
from pathspace.network import StateRef, Streams
from pathspace.tracing.values import leaves
from reference import call, invariance_dimension, tensors_in

STREAMS: tuple[Streams, ...] = ("pinned", "shared")


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@functools.cache
def made(name: str) -> tuple[nn.Module, Any]:
    """The model, with statistics that are not those of a new one, and an example."""
    torch.manual_seed(0)
    model, example = CASES[name].build(), CASES[name].draw(3)
    with torch.no_grad():
        call(model.eval(), example)  # lazy layers
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                for key, tensor in [*module.named_parameters(), *module.named_buffers()]:
                    if tensor.is_floating_point():
                        tensor.uniform_(0.5, 1.5) if key[-1] in "tr" else tensor.normal_(0, 0.3)
    return model.train(), example


@functools.cache
def traced(name: str, streams: Streams) -> ps.Network:
    model, example = made(name)
    return ps.trace(model, example, streams=streams, on_unknown=CASES[name].on_unknown)


@torch.no_grad()
def output(model: nn.Module, state: dict[str, Tensor], example: Any) -> list[Tensor]:
    """All outputs; state and example are copied, because a model may write into them."""
    state, example = copy.deepcopy((state, example))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return tensors_in(call(model, example, state))


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("name", CASES)
def test_a_rescaling_keeps_the_function(name: str, streams: Streams) -> None:
    model, example = made(name)
    network = traced(name, streams)
    generator = torch.Generator().manual_seed(2)
    statistics = all(norm.mean is not None for norm in network.normalizations)
    for training in (False, True):
        # A scale that a batch norm divides out is exact with running statistics only.
        every = statistics and not training
        c = ps.random_rescaling(network, generator=generator, normalized=every)
        state = ps.rescale(network, c)
        model.train(training)
        new, old = output(model, state, example), output(model, network.state(), example)
        assert len(new) == len(old) > 0
        for a, b in zip(new, old, strict=True):
            assert a.shape == b.shape
            assert float((a - b).abs().max()) <= 1e-10 * (1 + float(b.abs().max()))
        moved = [n for n, p in network.parameters().items() if not torch.equal(state[n], p)]
        assert bool(moved) == bool(c.log.any())


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("name", CASES)
def test_the_free_scales_are_those_one_counts(name: str, streams: Streams) -> None:
    network = traced(name, streams)
    assert CASES[name].H[streams] == network.H, str(network)
    if network.H:  # every scale moves weights, and no two move them alike
        unit = torch.eye(network.H + 1)[:, 1:]
        maps = [edge.ratio(unit).expand(*edge.shape, network.H) for edge in network.edges]
        rows = torch.cat([row.reshape(-1, network.H) for row in maps])
        rank = int(torch.linalg.matrix_rank(rows))
        assert rank == network.H
    parameters = network.parameters()
    edges = {id(parameters[edge.parameter]) for edge in network.edges}
    for ref in leaves([(node.args, node.kwargs) for node in network.program]):
        if isinstance(ref, StateRef) and ref.name in parameters:  # what is read has an edge
            assert id(parameters[ref.name]) in edges, ref
    for space in network.spaces:
        assert bool(space.reasons) == bool((network.scale[space.units] == 0).any()), space
    reasons = [reason for space in network.spaces for reason in space.reasons]
    assert any(CASES[name].reason in reason for reason in reasons), reasons


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].apart])
def test_the_full_group_is_all_that_the_jacobian_shows(name: str) -> None:
    case = CASES[name]
    model = copy.deepcopy(made(name)[0]).eval()
    free = case.H["shared"]
    weights = sum(parameter.numel() for parameter in model.parameters())
    dimensions = []
    for seed in range(2 if case.beyond else 10):  # a unit may by chance be always on, or always off
        torch.manual_seed(seed)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter.normal_(0, 0.2 if key.split(".")[-1] in ("b", "bias") else 0.7)
        examples: list[Any] = []
        rows = 0
        while rows < 2 * weights + 40:
            examples.append(case.draw(64))
            rows += sum(tensor.numel() for tensor in tensors_in(call(model, examples[-1])))
        dimensions.append(invariance_dimension(model, examples))
        if dimensions[-1] <= free:
            break
    assert min(dimensions) > free if case.beyond else min(dimensions) == free


@pytest.mark.filterwarnings("ignore:`torch.*` is deprecated")
@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_followed_is_refused_by_name(name: str, streams: Streams) -> None:
    build, draw, message = REFUSED[name]
    with pytest.raises(ps.TraceError, match=message):
        ps.trace(build(), draw(3), streams=streams)


def test_a_refusal_carries_the_operation_and_the_module() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(x).real

    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), Spectrum()), nn.Linear(4, 2))
    with pytest.raises(ps.UnsupportedOperation, match=r"`1\.1` \(fft_fft\)") as caught:
        ps.trace(model, torch.randn(2, 3))
    assert caught.value.operation == "fft_fft"
    assert caught.value.module == "1.1"
    network = ps.trace(model, torch.randn(2, 3), on_unknown="pin")
    assert network.space("0").reasons == (
        "meets `1.1` (fft_fft), which is not positively homogeneous",
    )
