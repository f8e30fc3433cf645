"""Landscapes against a loop over single states, their laws, and what survives an interruption."""

import copy
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib as mpl
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

import pathspace as ps
from cases import CASES, Case, mlp
from pathspace.durable.errors import Busy
from pathspace.evaluation import Objective
from pathspace.losslandscape import (
    Landscape,
    Towards,
    Trajectory,
    computing,
    landscape,
    landscapes,
    strategies,
)
from pathspace.losslandscape.chart import Coordinates
from pathspace.losslandscape.directions import filter_normalized, random_directions
from pathspace.losslandscape.program import GridProgram
from pathspace.plot.landscape import side_by_side
from pathspace.plot.pages import write_html
from pathspace.plot.surfaces import surface
from pathspace.weightgraph import WeightGraph

BY_NAME = {case.name: case for case in CASES}
SMALL = 0.002


def setting(case: Case) -> tuple[ps.Network, tuple[Tensor, Tensor]]:
    """A network of the table, and 8 samples with targets like its outputs."""
    model, x = case.make()
    target = torch.randn(model(x).shape, generator=torch.Generator().manual_seed(1)).double()
    return ps.trace(model, x[:1]), (x, target)


def trained(seed: int = 0, *, widths: tuple[int, ...] = (4, 8, 8, 3)) -> tuple[Any, Any]:
    """A small classifier in float64 and its data, batches of unequal size."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = mlp(*widths, bias=True).double()
        x = torch.randn(20, widths[0]).double()
        data = [(x[:12], torch.randint(widths[-1], (12,))), (x[12:], torch.arange(8) % widths[-1])]
    return ps.trace(model, x[:1]), data


def reference(
    network: ps.Network, loss: Any, data: tuple[Any, Any], found: Landscape, vectors: list[Tensor]
) -> Tensor:
    """Every point by itself: coordinates, weights, forward pass."""
    model = copy.deepcopy(network.model).eval()
    state = {name: tensor.detach() for name, tensor in network.state().items()}
    basis = ps.BasisPaths(network, "largest")
    graph = WeightGraph(network)
    losses = []
    for point in torch.cartesian_prod(*found.axes).view(-1, found.dims):
        step = sum(t * v for t, v in zip(point, vectors, strict=True))
        if found.space == "paths":
            # The gain of a batch norm without weight stays, whatever value a point asks for.
            with mock.patch("pathspace.weightgraph._check_gain"):
                there = basis.weights(basis.flat(basis.values()) + step)
        else:
            coordinates = Coordinates(graph, state)
            moved = coordinates.unflat(step)
            there = graph.state({n: w + moved[n] for n, w in graph.weights(state).items()})
        with torch.no_grad():
            losses.append(loss(functional_call(model, there, (data[0],)), data[1]))
    return torch.stack(losses).view(found.losses.shape)


def drawn(network: ps.Network, space: str, scale: float, seed: int = 0) -> list[Tensor]:
    """The random directions of a landscape, drawn here once more."""
    size = network_size(network, space)
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(size, dtype=torch.float64, generator=generator) for _ in range(2)]


def network_size(network: ps.Network, space: str) -> int:
    return len(ps.BasisPaths(network)) if space == "paths" else WeightGraph(network).m


# Losses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", ["paths", "weights"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_a_loop_over_single_states(case: Case, space: Any) -> None:
    network, data = setting(case)
    found = landscape(network, F.mse_loss, data, space=space, grid=(3, 4))
    assert found.losses.shape == (3, 4)
    assert not found.outside.any()
    vectors = drawn(network, space, found.about["scale"])
    if space == "paths":  # where the published scale does not fit, less is taken
        assert 0 < found.about["scale"] <= 0.05
    expected = reference(network, F.mse_loss, data, found, vectors)
    torch.testing.assert_close(found.losses, expected, rtol=1e-10, atol=1e-12)
    assert found.losses.std() > 1e-6 * found.losses.mean()


@pytest.mark.parametrize("space", ["paths", "weights"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_many_points_at_once_equal_one_after_the_other(case: Case, space: Any) -> None:
    network, data = setting(case)
    loop = landscape(network, F.mse_loss, data, space=space, grid=5, chunk=1)
    many = landscape(network, F.mse_loss, data, space=space, grid=5, chunk=7)
    torch.testing.assert_close(many.losses, loop.losses, rtol=1e-10, atol=1e-12)
    convolutions = any(len(edge.shape) > 2 for edge in network.edges)
    assert many.about["key"]["chunk"] == (1 if convolutions else 7)


CROSS_ENTROPIES = {
    "function": (F.cross_entropy, torch.arange(12) % 3),
    "module": (nn.CrossEntropyLoss(), torch.arange(12) % 3),
    "some ignored": (F.cross_entropy, torch.tensor([0, 1, 2, -100] * 3)),
    "others ignored": (nn.CrossEntropyLoss(ignore_index=2), torch.tensor([0, 1, 2, 0] * 3)),
    "weighted": (nn.CrossEntropyLoss(torch.arange(1.0, 4).double()), torch.arange(12) % 3),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), torch.arange(12) % 3),
    "probabilities": (F.cross_entropy, torch.eye(3).double().repeat(4, 1) / 2),
}


@pytest.mark.parametrize("name", CROSS_ENTROPIES)
def test_cross_entropy_of_many_points(name: str) -> None:
    loss, target = CROSS_ENTROPIES[name]
    network, data = trained()
    batch = (data[0][0], target)
    many, loop = (
        landscape(network, loss, batch, grid=4, space="weights", chunk=chunk) for chunk in (5, 1)
    )
    assert many.about["key"]["chunk"] == 5
    torch.testing.assert_close(many.losses, loop.losses, rtol=1e-12, atol=0)


def test_first_layer_meets_the_data_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    network, data = trained()
    products = []
    linear = F.linear

    def counted(x: Tensor, *weights: Any) -> Tensor:
        products.append(tuple(x.shape))
        return linear(x, *weights)

    chart = _chart(network, "paths")
    program = GridProgram(ps.trace(network.model, data[0][0]), chart)
    assert program.is_worthwhile
    assert len(program.affine) == 1
    nodes = tuple(
        dataclasses.replace(node, function=counted) if node.operation == "linear" else node
        for node in program.program
    )
    program.program = nodes
    program.prepare([data[0][0]])
    assert products == [(12, 4)] * 3
    assert "0.weight" not in program.entries  # so it is not built at every point either


def _chart(network: ps.Network, space: str) -> Any:
    state = {name: tensor.detach() for name, tensor in network.state().items()}
    basis = ps.BasisPaths(network) if space == "paths" else None
    coordinates = Coordinates(WeightGraph(network) if basis is None else basis.graph, state, basis)
    return coordinates.chart([v * 1e-3 for v in random_directions(coordinates, "random", 2, 0)])


class Shapes(nn.Module):
    """Its program holds the size of the batch as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.shape[0], 6)
        return self.b(torch.relu_(self.a(x)) + torch.ones(x.shape[0], 1).to(x))


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x).relu()).relu())


class Viewing(nn.Module):
    """Keeps a view of what its activation could overwrite."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        view = h[:, :2]
        return self.b(F.relu(h)) + view


class Ending(nn.Module):
    """Returns two tensors, of which the loss takes one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.a(x).relu()
        return self.b(h), h


class Overwriting(nn.Module):
    """Overwrites its input, as some preprocessing does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x.clone().mul_(2)).relu())


ONE_BY_ONE = {"two outputs", "overwriting"}
ODD = {
    "tied": (Tied, (3,), F.mse_loss),
    "view": (Viewing, (3,), F.mse_loss),
    "shapes": (Shapes, (6, 1), F.mse_loss),
    "two outputs": (Ending, (3,), lambda outputs, y: F.mse_loss(outputs[0], y)),
    "overwriting": (Overwriting, (3,), F.mse_loss),
    "input normalized": (
        lambda: nn.Sequential(nn.BatchNorm1d(3, affine=False), mlp(3, 4, 2, bias=True)),
        (3,),
        F.mse_loss,
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)),
        (3,),
        F.mse_loss,
    ),
    "batch norm without weight": (
        lambda: nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False), nn.ReLU(), nn.Linear(4, 2)
        ),
        (3,),
        F.mse_loss,
    ),
    "loss that vmap cannot follow": (
        lambda: mlp(3, 4, 2),
        (3,),
        lambda output, y: F.mse_loss(output, y) * (2 if output.sum().item() > 0 else 1),
    ),
}


@pytest.mark.parametrize("space", ["paths", "weights"])
@pytest.mark.parametrize("name", ODD)
def test_odd_models(name: str, space: Any) -> None:
    build, shape, loss = ODD[name]
    model, x = Case(name, build, shape).make()
    y = torch.randn(8, 2, generator=torch.Generator().manual_seed(1)).double()
    network = ps.trace(model, x[:1])
    batches = [(x[:5], y[:5]), (x[5:], y[5:])]
    before = x.clone()
    found = landscape(network, loss, batches, space=space, grid=3)
    assert torch.equal(x, before)
    # A wrong result of many points at once would be seen and the loop used instead.
    assert (found.about["key"]["chunk"] > 1) == (name not in ONE_BY_ONE)
    parts = [
        reference(network, loss, batch, found, drawn(network, space, found.about["scale"]))
        for batch in batches
    ]
    expected = (5 * parts[0] + 3 * parts[1]) / 8
    torch.testing.assert_close(found.losses, expected, rtol=1e-10, atol=1e-12)


def test_gain_of_statistics_stays() -> None:
    model, x = Case("", ODD["input normalized"][0], (3,)).make()
    network = ps.trace(model, x)
    state = {name: tensor.detach() for name, tensor in network.state().items()}
    for basis in (None, ps.BasisPaths(network)):
        graph = WeightGraph(network) if basis is None else basis.graph
        coordinates = Coordinates(graph, state, basis)
        parts = coordinates.unflat(torch.ones(coordinates.size).double())
        assert not parts["0.running_var"].any()


# Laws --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("directions", ["random", "filter-normalized"])
@pytest.mark.parametrize(
    "name", ["mlp bottleneck, bias", "mlp deep", "conv, batch norm", "conv 3x3", "residual"]
)
def test_rescaling_moves_weight_space_only(name: str, directions: Any) -> None:
    model, data = setting(BY_NAME[name])[0].model, setting(BY_NAME[name])[1]
    network = ps.trace(model, data[0][:1], streams="shared")
    twin = ps.trace(copy.deepcopy(model), data[0][:1], streams="shared")
    ps.rescale_(
        twin, ps.random_rescaling(twin, spread=1.0, generator=torch.Generator().manual_seed(3))
    )
    for skeleton in ("modulo", "largest"):
        a, b = (
            landscape(n, F.mse_loss, data, grid=4, skeleton=skeleton, directions=directions)
            for n in (network, twin)
        )
        torch.testing.assert_close(b.losses, a.losses, rtol=1e-6, atol=0)
        assert a.about["scale"] == pytest.approx(b.about["scale"], rel=1e-6)
    a, b = (landscape(n, F.mse_loss, data, grid=4, space="weights") for n in (network, twin))
    assert (b.losses - a.losses).abs().max() > 0.05 * (a.losses - a.center).abs().max()


def test_rescaling_lifts_weight_space_by_a_large_factor() -> None:
    network, data = trained(widths=(4, 32, 32, 3))
    twin = ps.trace(copy.deepcopy(network.model), data[0][0])
    ps.rescale_(twin, ps.random_rescaling(twin, generator=torch.Generator().manual_seed(0)))
    rise = {}
    for space in ("paths", "weights"):
        a, b = (landscape(n, F.cross_entropy, data, space=space, grid=5) for n in (network, twin))
        rise[space] = (b.range[1] - b.center) / (a.range[1] - a.center)
    assert rise["paths"] == pytest.approx(1, abs=1e-6)
    assert rise["weights"] > 5


def test_model_is_at_the_center() -> None:
    network, data = trained()
    expected = float(Objective(network, F.cross_entropy, data)())
    for space in ("paths", "weights"):
        found = landscape(network, F.cross_entropy, data, space=space, grid=3)
        assert found.center == expected
        assert float(found.losses[1, 1]) == pytest.approx(expected, rel=1e-12)


def test_nothing_is_touched() -> None:
    network, data = setting(BY_NAME["conv, batch norm"])
    model = network.model.train()
    model(data[0]).sum().backward()
    handle = model[0].register_forward_hook(lambda *_: None)
    before = copy.deepcopy(model.state_dict())
    gradients = [p.grad.clone() for p in model.parameters()]
    rng = torch.get_rng_state()
    loader = DataLoader(TensorDataset(*data), batch_size=4, shuffle=True)
    for space in ("paths", "weights"):
        landscape(network, F.mse_loss, loader, space=space, grid=3)
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), rng)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)
        assert parameter.requires_grad
    assert len(model[0]._forward_hooks) == 1
    handle.remove()


def test_float32_model_stays_in_float32() -> None:
    network, data = trained()
    exact = landscape(network, F.cross_entropy, data, grid=5, scale=SMALL)
    single = copy.deepcopy(network.model).float()
    seen = set()
    single[0].register_forward_hook(lambda _m, _i, output: seen.add(output.dtype))
    data32 = [(x.float(), y) for x, y in data]
    found = landscape(
        ps.trace(single, data32[0][0]), F.cross_entropy, data32, grid=5, scale=SMALL, chunk=1
    )
    assert torch.float32 in seen
    assert torch.float64 not in seen
    torch.testing.assert_close(found.losses, exact.losses, rtol=1e-4, atol=1e-5)


# Directions --------------------------------------------------------------------------------------


def test_filter_normalized_directions_have_the_norms_of_the_filters() -> None:
    network, _ = setting(BY_NAME["conv, batch norm"])
    state = {name: tensor.detach() for name, tensor in network.state().items()}
    coordinates = Coordinates(WeightGraph(network), state)
    vector = random_directions(coordinates, "random", 1, 0)[0]
    parts = coordinates.unflat(filter_normalized(coordinates, vector))
    raw = coordinates.unflat(vector)
    for name in ("0.weight", "4.weight", "8.weight"):
        norms = state[name].flatten(1).norm(dim=1)
        torch.testing.assert_close(parts[name].flatten(1).norm(dim=1), norms)
        cosine = F.cosine_similarity(parts[name].flatten(1), raw[name].flatten(1))
        torch.testing.assert_close(cosine, torch.ones_like(cosine))
    for name in ("0.bias", "1.weight", "1.bias", "4.bias", "8.bias"):
        assert name not in parts or not parts[name].any()


def test_filters_of_a_transposed_convolution_are_its_outputs() -> None:
    network, _ = setting(BY_NAME["grouped, depthwise, transposed"])
    state = {name: tensor.detach() for name, tensor in network.state().items()}
    coordinates = Coordinates(WeightGraph(network), state)
    vector = random_directions(coordinates, "filter-normalized", 1, 0)[0]
    weight = "4.weight"  # (4, 1, 2) in 2 groups: inputs 0, 1 lead to output 0
    squares = coordinates.unflat(vector)[weight].square().sum((1, 2)).view(2, 2).sum(1)
    expected = state[weight].square().sum((1, 2)).view(2, 2).sum(1)
    torch.testing.assert_close(squares, expected)


def test_seed_is_local_and_matters() -> None:
    network, data = trained()
    torch.manual_seed(1)
    a = landscape(network, F.cross_entropy, data, grid=3, scale=SMALL)
    torch.manual_seed(2)
    b = landscape(network, F.cross_entropy, data, grid=3, scale=SMALL)
    c = landscape(network, F.cross_entropy, data, grid=3, scale=SMALL, seed=1)
    assert torch.equal(a.losses, b.losses)
    assert not torch.allclose(a.losses, c.losses)


def moved(network: ps.Network, size: float, seed: int) -> dict[str, Tensor]:
    """Another state with the same signs."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: w.detach() * (1 + size * torch.rand(w.shape, generator=generator, dtype=w.dtype))
        for name, w in network.state().items()
    }


@pytest.mark.parametrize("space", ["paths", "weights"])
def test_line_to_another_model_ends_there(space: Any) -> None:
    network, data = trained()
    other = moved(network, 0.5, 0)
    rescaled = {**other}
    if space == "paths":  # another representative of the same function will do
        twin = copy.deepcopy(network.model)
        twin.load_state_dict(other)
        traced = ps.trace(twin, data[0][0])
        ps.rescale_(traced, ps.random_rescaling(traced))
        rescaled = {name: tensor.detach() for name, tensor in traced.state().items()}
    line = landscape(
        network,
        F.cross_entropy,
        data,
        space=space,
        directions=Towards(rescaled, "end"),
        grid=torch.tensor([0.0, 1.0]),
    )
    end = float(Objective(network, F.cross_entropy, data)(other))
    assert line.losses.tolist() == pytest.approx([line.center, end], rel=1e-10)
    assert line.marks == {"end": (1.0,)}
    wide = landscape(network, F.cross_entropy, data, space=space, directions=Towards(rescaled))
    assert wide.axes[0][[0, -1]].tolist() == [-0.5, 1.5]


def test_plane_through_three_models() -> None:
    network, data = trained()
    a, b = moved(network, 0.4, 1), moved(network, 0.4, 2)
    axis = torch.tensor([0.0, 1.0])
    plane = landscape(
        network,
        F.cross_entropy,
        data,
        directions=[Towards(a, "a"), Towards(b, "b")],
        grid=(axis, axis),
        space="weights",
    )
    objective = Objective(network, F.cross_entropy, data)
    assert float(plane.losses[1, 0]) == pytest.approx(float(objective(a)), rel=1e-12)
    assert float(plane.losses[0, 1]) == pytest.approx(float(objective(b)), rel=1e-12)
    assert plane.marks == {"a": (1.0, 0.0), "b": (0.0, 1.0)}


def test_no_line_joins_models_whose_free_weights_differ_in_sign() -> None:
    network, data = trained()
    other = {name: -w.detach() for name, w in network.state().items()}
    with pytest.raises(ps.PathspaceError, match=r"another sign in other model .* no rescaling"):
        landscape(network, F.cross_entropy, data, directions=Towards(other))


@pytest.mark.parametrize("space", ["paths", "weights"])
def test_trajectory_in_a_plane_is_found(space: Any) -> None:
    network, data = trained()
    state = {name: tensor.detach() for name, tensor in network.state().items()}
    basis = ps.BasisPaths(network, "largest")
    coordinates = Coordinates(basis.graph, state, basis if space == "paths" else None)
    generator = torch.Generator().manual_seed(4)
    # Checkpoints in a plane of the coordinates: 3 : 1 along two directions at right angles.
    plane = torch.randn(coordinates.size, 2, generator=generator, dtype=torch.float64)
    plane = torch.linalg.qr(plane).Q * 1e-3
    places = torch.tensor([[3.0, 0.5], [2.0, -1.0], [1.0, 0.4]]).double()
    states = [coordinates.chart([plane[:, 0], plane[:, 1]]).at(place) for place in places]
    found = landscape(
        network, F.cross_entropy, data, space=space, directions=Trajectory(states), grid=3
    )
    assert len(found.trail) == 3
    assert max(abs(t) for place in found.trail for t in place) == pytest.approx(1 / 1.1)
    assert "principal direction" in found.labels[0]
    # The loss where the landscape says that a checkpoint lies is that of the checkpoint.
    axes = tuple(torch.tensor([t]) for t in found.trail[1])
    there = landscape(
        network, F.cross_entropy, data, space=space, directions=Trajectory(states), grid=axes
    )
    expected = float(Objective(network, F.cross_entropy, data)(states[1]))
    assert float(there.losses) == pytest.approx(expected, rel=1e-8)


def test_directions_as_dicts_and_vectors() -> None:
    network, data = trained()
    basis = ps.BasisPaths(network, "largest")
    vector = SMALL * torch.randn(len(basis), dtype=torch.float64)
    a = landscape(network, F.cross_entropy, data, directions=vector, grid=3)
    b = landscape(network, F.cross_entropy, data, directions=[basis.unflat(vector)], grid=3)
    assert a.dims == 1
    assert torch.equal(a.losses, b.losses)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directions": torch.ones(3)}, r"has length 123, not shape \(3,\)"),
        ({"directions": {"0.weight": torch.ones(3)}}, "has no entry `0.bias`"),
        ({"directions": [torch.ones(123)] * 3}, "1 or 2 directions"),
        ({"directions": "gaussian"}, "random, filter-normalized"),
        ({"directions": torch.ones(123), "scale": 2.0}, "for random directions"),
        ({"space": "functions"}, "paths"),
        ({"dims": 3}, "dims"),
        ({"grid": 1}, "2 points"),
        ({"grid": (3, 3, 3)}, "3 axes"),
        ({"state": {"0.wait": torch.ones(1)}}, "no parameter or buffer `0.wait`"),
        ({"state": {"0.weight": torch.ones(1)}}, r"`0.weight` has shape \(1,\)"),
        ({"directions": Trajectory([])}, "no checkpoint"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    network, data = trained()
    with pytest.raises((ps.PathspaceError, ValueError), match=message):
        landscape(network, F.cross_entropy, data, **options)


def test_checkpoints_on_a_line_span_one_direction() -> None:
    network, data = trained()
    state = {name: tensor.detach() for name, tensor in network.state().items()}
    states = [{name: w * factor for name, w in state.items()} for factor in (0.9, 0.8)]
    options: dict[str, Any] = {"space": "weights", "directions": Trajectory(states), "grid": 3}
    with pytest.raises(ps.PathspaceError, match="do not span 2 directions"):
        landscape(network, F.cross_entropy, data, **options)
    assert landscape(network, F.cross_entropy, data, dims=1, **options).dims == 1


# Where the chart ends ----------------------------------------------------------------------------


def test_points_beyond_a_zero_root_are_gaps() -> None:
    network, data = trained()
    basis = ps.BasisPaths(network, "largest")
    values = basis.flat(basis.values())
    direction = torch.zeros_like(values)
    root = int(basis.roots[0])
    direction[root] = -values[root] / 0.45  # reaches zero at t = 0.45
    axis = torch.tensor([0.0, 0.44, 0.46, 0.5, 1.0])
    line = landscape(network, F.cross_entropy, data, directions=direction, grid=axis)
    assert line.outside.tolist() == [False, False, True, True, True]
    assert line.losses.isnan().tolist() == line.outside.tolist()
    assert "3 of 5 points are left out" in line.notes[0]
    assert "0.45 times as long" in line.notes[0]
    assert "3 gaps" in repr(line)
    plane = landscape(
        network, F.cross_entropy, data, directions=[direction, direction], grid=(axis, axis)
    )
    for picture in (line.plot(), plane.plot(), plane.contour(), plane.contour(log=True)):
        picture.figure.canvas.draw()
    assert landscape(network, F.cross_entropy, data, directions=3 * direction, grid=axis[3:])


def test_default_scale_keeps_the_grid_in_the_chart() -> None:
    network, data = trained()  # its roots are far below 1
    found = landscape(network, F.cross_entropy, data, grid=5, skeleton="modulo")
    assert 0 < found.about["scale"] < 0.05
    assert not found.outside.any()
    assert found.about["reach"] == pytest.approx(1 / 0.9)
    published = landscape(network, F.cross_entropy, data, grid=5, skeleton="modulo", scale=0.05)
    assert published.outside.any()
    assert "at the published 0.05 roots of the skeleton would go" in found.notes[0]
    assert not landscape(network, F.cross_entropy, data, grid=3, space="weights").notes
    ps.skeleton_init_(network)  # the papers' setting, where 0.05 is small
    papers = landscape(network, F.cross_entropy, data, grid=5, skeleton="modulo")
    assert papers.about["scale"] == 0.05
    assert not papers.notes


# Several models ----------------------------------------------------------------------------------


def test_several_models_share_directions_and_skeleton() -> None:
    network, data = trained()
    states = {"a": dict(network.state()), "b": moved(network, 0.3, 0)}
    found = landscapes(network, states, F.cross_entropy, iter(data), grid=3)
    assert list(found) == ["a", "b"]
    skeleton = ps.choose_skeleton(network, "largest", state=states["a"])
    assert found["a"].about["scale"] == found["b"].about["scale"]
    for name, state in states.items():
        alone = landscape(
            network,
            F.cross_entropy,
            data,
            state=state,
            skeleton=skeleton,
            scale=found["a"].about["scale"],
            grid=3,
        )
        assert torch.equal(found[name].losses, alone.losses)
    keys = [found[name].about["key"] for name in states]
    assert keys[0]["directions"] == keys[1]["directions"]
    assert keys[0]["weights"] != keys[1]["weights"]


# Files and interruptions -------------------------------------------------------------------------


def test_saved_and_loaded(tmp_path: Path) -> None:
    network, data = trained()
    found = landscape(
        network,
        F.cross_entropy,
        data,
        directions=[Towards(moved(network, 0.2, 0), "b"), SMALL * torch.ones(123)],
        grid=(3, 4),
        name="ä / b",
    )
    again = Landscape.load(found.save(tmp_path / "new" / "folder"))
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == [
        "landscape.json",
        "landscape.npz",
    ]
    for field in dataclasses.fields(Landscape):
        a, b = getattr(found, field.name), getattr(again, field.name)
        if field.name in ("axes", "losses", "outside"):
            torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True)
        else:
            assert json.dumps(a) == json.dumps(b), field.name
    with pytest.raises(ps.PathspaceError, match="no landscape in"):
        Landscape.load(tmp_path)


class Stop(BaseException):
    """What Ctrl-C raises, in effect."""


@pytest.mark.parametrize("chunk", [1, 4])
def test_interrupted_landscape_goes_on_and_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    network, data = trained()
    options: dict[str, Any] = {"grid": 5, "chunk": chunk}
    whole = landscape(network, F.cross_entropy, data, **options)
    seen: list[int] = []

    def progress(done: int, total: int) -> None:
        assert total == 25
        seen.append(done)
        if len(seen) == 4:
            raise Stop

    with pytest.raises(Stop):
        landscape(network, F.cross_entropy, data, folder=tmp_path, progress=progress, **options)
    assert seen == [0, chunk, 2 * chunk, 3 * chunk]
    (partial,) = tmp_path.iterdir()
    assert len(json.loads(partial.read_text())["losses"]) == 3 * chunk

    def with_another(**changes: Any) -> None:
        landscape(network, F.cross_entropy, data, folder=tmp_path, **(options | changes))

    with pytest.raises(ps.PathspaceError, match=r"differs in directions; take another folder"):
        with_another(seed=1)
    with pytest.raises(ps.PathspaceError, match=r"differs in grid"):
        with_another(grid=(5, 6), scale=float(whole.about["scale"]))
    with pytest.raises(ps.PathspaceError, match=r"differs in data"):
        landscape(network, F.cross_entropy, data[:1], folder=tmp_path, **options)
    with pytest.raises(ps.PathspaceError, match=r"differs in loss"):
        landscape(network, F.nll_loss, data, folder=tmp_path, **options)
    state = {"4.bias": network.state()["4.bias"].detach() + 1}
    with pytest.raises(ps.PathspaceError, match=r"differs in weights"):
        with_another(state=state, scale=float(whole.about["scale"]))

    resumed = landscape(
        network,
        F.cross_entropy,
        data,
        folder=tmp_path,
        progress=lambda done, _: seen.append(done),
        **options,
    )
    assert seen[4] == 3 * chunk
    assert seen[-1] == 25
    assert torch.equal(resumed.losses, whole.losses)
    assert resumed.center == whole.center
    assert sorted(path.name for path in tmp_path.iterdir()) == ["landscape.json", "landscape.npz"]

    def refuse(*_: Any) -> None:
        raise AssertionError("a finished landscape is read, not computed")

    monkeypatch.setattr(computing, "evaluate", refuse)
    finished = landscape(network, F.cross_entropy, data, folder=tmp_path, name="new", **options)
    assert torch.equal(finished.losses, whole.losses)
    assert finished.name == "new"
    with pytest.raises(ps.PathspaceError, match="differs in directions"):
        with_another(seed=1)


def test_one_process_computes_a_landscape(tmp_path: Path) -> None:
    """Whoever comes while it is computed is refused by name; a lock that was left is nobody's."""
    network, data = trained()
    seen: list[str] = []

    def progress(done: int, total: int) -> None:
        if done == 0:
            with pytest.raises(Busy, match=r"process \d+ on .* computes this landscape") as refused:
                landscape(network, F.cross_entropy, data, folder=tmp_path, grid=5)
            seen.append(str(refused.value))

    whole = landscape(
        network, F.cross_entropy, data, folder=tmp_path, grid=5, progress=progress, chunk=5
    )
    assert [said.partition("; ")[2] for said in seen] == ["wait for it, or end it"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["landscape.json", "landscape.npz"]
    for name in (".landscape.lock", "landscape.partial.json"):  # of a process that was killed
        (tmp_path / name).write_text("")
    again = landscape(network, F.cross_entropy, data, folder=tmp_path, grid=5, chunk=5)
    assert torch.equal(again.losses, whole.losses)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["landscape.json", "landscape.npz"]


def test_activation_is_part_of_what_is_kept(tmp_path: Path) -> None:
    network, data = trained()
    landscape(network, F.cross_entropy, data, folder=tmp_path, grid=3, scale=SMALL)
    leaky = nn.Sequential(
        *(nn.LeakyReLU(0.1) if isinstance(m, nn.ReLU) else m for m in network.model)
    )
    other = ps.trace(leaky, data[0][0])
    with pytest.raises(ps.PathspaceError, match="differs in model"):
        landscape(other, F.cross_entropy, data, folder=tmp_path, grid=3, scale=SMALL)


def test_memory_is_bounded_by_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    network, data = trained()
    sizes = []
    outputs = GridProgram.outputs

    def spy(self: GridProgram, prepared: Any, points: Tensor) -> Any:
        result = outputs(self, prepared, points)
        sizes.append((len(points), result[1]))
        return result

    monkeypatch.setattr(GridProgram, "outputs", spy)
    monkeypatch.setattr(strategies, "MEMORY", 40_000)
    landscape(network, F.cross_entropy, data, grid=9)
    points, per_point = max(sizes)
    assert 2 < points <= 40_000 // min(size for _, size in sizes)
    assert per_point > 12 * 8 * 8  # at least the activations of one layer
    monkeypatch.setattr(strategies, "KEPT", 0)  # products with the data are then computed anew
    again = landscape(network, F.cross_entropy, data, grid=9)
    monkeypatch.undo()
    torch.testing.assert_close(
        again.losses, landscape(network, F.cross_entropy, data, grid=9, chunk=1).losses
    )


# Pictures ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    with mpl.rc_context({"backend": "agg"}):
        yield
        import matplotlib.pyplot as plt

        plt.close("all")


def two() -> list[Landscape]:
    network, data = trained()
    states = {"small": dict(network.state()), "large": moved(network, 2.0, 0)}
    return list(landscapes(network, states, F.cross_entropy, data, grid=7).values())


def test_pictures_say_what_they_show() -> None:
    a, _ = two()
    ax = a.plot()
    assert ax.get_xlabel().startswith("$t_1$ (× ξ, |ξ| = ")
    assert ax.get_ylabel().startswith("$t_2$ (× η, |η| = ")
    assert ax.get_zlabel() == "cross entropy (nats)"
    assert a.name in ax.get_title()
    contour = a.contour()
    assert contour.get_xlabel().startswith("$t_1$")
    assert "cividis" in {artist.get_cmap().name for artist in contour.collections}
    network, data = trained()
    line = landscape(network, F.cross_entropy, data, dims=1, grid=9).plot()
    assert line.get_ylabel() == "cross entropy (nats)"
    with pytest.raises(ps.PathspaceError, match="line"):
        landscape(network, F.cross_entropy, data, dims=1, grid=3).contour()


def test_side_by_side_has_one_height_scale() -> None:
    a, b = two()
    figure = side_by_side([a, b])
    surfaces = [ax for ax in figure.axes if hasattr(ax, "get_zlim")]
    assert len(surfaces) == 2
    low, high = min(a.range[0], b.range[0]), max(a.range[1], b.range[1])
    for ax in surfaces:
        bottom, top = ax.get_zlim()
        assert bottom <= low
        assert top >= high
    assert surfaces[0].get_zlim() == surfaces[1].get_zlim()
    artists = [artist for ax in figure.axes for artist in ax.collections]
    maps = {artist.get_clim() for artist in artists if artist.get_array() is not None}
    assert len(maps) == 1


def test_interactive_surface_is_one_file(tmp_path: Path) -> None:
    a, b = two()
    figure = surface([a, b])
    assert len({(s.cmin, s.cmax) for s in figure.data if s.type == "surface"}) == 1
    path = write_html([a, b], tmp_path / "surface.html")
    text = path.read_text(encoding="utf-8")
    assert "plotly.js v" in text  # the library itself, so that no network is needed
    assert 'src="http' not in text
    assert a.to_html(tmp_path / "one.html", log=True).exists()


def test_log_colours_need_positive_losses() -> None:
    a, _ = two()
    below = dataclasses.replace(a, losses=a.losses - 10)
    assert math.isfinite(a.range[0])
    a.contour(log=True).figure.canvas.draw()
    a.plot(log=True).figure.canvas.draw()
    with pytest.raises(ps.PathspaceError, match="logarithm"):
        below.contour(log=True)


@pytest.mark.parametrize("name", ["landscape.json", "landscape.npz"])
@pytest.mark.parametrize("content", [b"", b"{", b"PK\x03\x04 cut off", b"[]"])
def test_a_damaged_file_is_named(name, content, tmp_path):
    network, data = trained()
    found = landscape(network, F.cross_entropy, data, grid=3)
    file = found.save(tmp_path / "there") / name
    file.write_bytes(content)
    with pytest.raises(ps.PathspaceError, match=f"{name} is damaged"):
        Landscape.load(file.parent)
