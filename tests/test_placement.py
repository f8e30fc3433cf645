"""Sharded parameters and parameters on several devices are refused by name, never half used."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import pathspace as ps
from pathspace.placement import PlacementError

X = torch.ones(1, 4)


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    """A mesh of this process alone: its DTensors are whole, but nothing may rely on that."""
    if not dist.is_available():
        pytest.skip("this torch has no distributed")
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def distributed(net: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.tensor import Shard, distribute_tensor

    for name, parameter in list(net.named_parameters()):
        owner, _, attribute = name.rpartition(".")
        shard = distribute_tensor(parameter.detach(), mesh, [Shard(0)])
        setattr(net.get_submodule(owner), attribute, nn.Parameter(shard))
    return net


def fully_sharded(net: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(net, mesh=mesh)
    return net


SHARDINGS = [distributed, fully_sharded]
USES: dict[str, Callable[[ps.Network, nn.Module], object]] = {
    "path norm": lambda network, net: ps.path_norm(network),
    "basis": lambda network, net: ps.BasisPaths(network).values(),
    "penalty": lambda network, net: ps.PathNormPenalty(network).add_to_gradients_(),
    "rescaling": lambda network, net: ps.rescale_(network, ps.random_rescaling(network)),
    "GSGD": lambda network, net: ps.optim.GSGD(net.parameters(), 0.1, network=network),
    "PathSGD": lambda network, net: ps.optim.PathSGD(net.parameters(), 0.1, network=network),
}


@pytest.mark.parametrize("shard", SHARDINGS)
def test_sharded_model_is_not_traced(mesh: Any, shard: Callable[..., nn.Module]) -> None:
    with pytest.raises(PlacementError, match=r"`0.weight` is a DTensor .* before it is sharded"):
        ps.trace(shard(model(), mesh), X)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("shard", SHARDINGS)
def test_model_sharded_after_its_trace_is_refused(
    mesh: Any, shard: Callable[..., nn.Module], use: str
) -> None:
    net = model()
    network = ps.trace(net, X)
    USES[use](network, net)  # while it is whole it is not refused
    shard(net, mesh)
    with pytest.raises(PlacementError, match=r"`0.weight` is a DTensor"):
        USES[use](network, net)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("original", [False, True])
def test_fsdp1_is_not_traced(mesh: Any, original: bool) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    settings = {"device_id": torch.device("cpu"), "use_orig_params": original}
    whole = FullyShardedDataParallel(model(), **settings)
    with pytest.raises(PlacementError, match="the model is wrapped by FullyShardedDataParallel"):
        ps.trace(whole, X)
    part = model()
    part[0] = FullyShardedDataParallel(part[0], **settings)
    with pytest.raises(PlacementError, match="`0` is wrapped by FullyShardedDataParallel"):
        ps.trace(part, X)


def test_flat_parameter_is_refused_by_name() -> None:
    net = model()
    network = ps.trace(net, X)
    net[2].weight._is_flat_param = True  # type: ignore[union-attr]
    with pytest.raises(PlacementError, match=r"`2.weight` is a FlatParameter"):
        network.parameters()


def test_several_devices_are_refused_before_and_after_the_trace() -> None:
    net = model()
    network = ps.trace(net, X)
    net[2].to("meta")
    for use in (lambda: ps.trace(net, X), lambda: ps.path_norm(network)):
        with pytest.raises(PlacementError, match=r"`0.weight` is on cpu but `2.weight` is on meta"):
            use()


def test_one_device_of_any_kind_and_other_parameter_classes_are_traced() -> None:
    class Named(nn.Parameter):
        pass

    net = model().to("meta")
    assert ps.trace(net, X.to("meta")).m == 58
    net = model()
    net[0].weight = Named(net[0].weight.detach())
    assert ps.trace(net, X).m == 58


def test_example_of_1e11_weights_is_traced_without_their_memory() -> None:
    width = 158_114
    with torch.device("meta"):
        layers = [nn.Linear(width, width) for _ in range(4)]
        net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2], layers[3])
        x = torch.zeros(1, width)
    network = ps.trace(net, x)
    assert network.m == 4 * width * (width + 1) > 10**11  # beyond 32 bits: none of it wraps
    assert all(edge.count > 2**31 for edge in network.edges if len(edge.shape) == 2)
