"""Roots move their units by what leaves or by what enters them: the same function."""

import itertools

import pytest
import torch
from torch import nn

import pathspace as ps
from optimizers import apart
from test_optim_invariance import NETWORKS, OPTIMIZERS, norm_net, train

BASIS = {name: given for name, given in OPTIMIZERS.items() if name.startswith("G")}


def perceptron(*widths):
    layers = []
    for ends in itertools.pairwise(widths):
        layers += [nn.Linear(*ends), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def sides(model, x, **settings):
    """Whether the units of each layer are moved by what enters them."""
    network = ps.trace(model, x)
    optimizer = ps.optim.GSGD(model.parameters(), network=network, **settings)
    entered = optimizer.space._entered
    found = {}
    for edge in network.edges:
        units = edge.target_scale[edge.target_scale > 0]
        if len(units) and optimizer.space.has[units].all():
            assert len(entered[units].unique()) == 1
            found[edge.parameter] = bool(entered[units][0])
    return found


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("kind", BASIS)
def test_the_side_does_not_matter(network, kind, monkeypatch):
    make, shape, streams = NETWORKS[network]
    ours, settings = BASIS[kind]
    outputs, optimizers = [], []
    for layout in ("together", "apart"):
        if layout == "apart":
            apart(monkeypatch)
        torch.manual_seed(1)
        model = make().double()
        data = [torch.randn(8, *shape, dtype=torch.float64) for _ in range(30)]
        traced = ps.trace(model, data[0], streams=streams)
        output, optimizer = train(
            lambda model, net: ours(model.parameters(), **settings, network=net),
            model, traced, data,
        )  # fmt: skip
        with torch.no_grad():
            outputs += [(output, model.eval()(data[1]))]
        optimizers.append(optimizer)
    # Rules that divide by the size of a gradient enlarge the rounding of small ones.
    close = 1e-6 if kind in ("GAdagrad", "GAdam") else 1e-9
    torch.testing.assert_close(*outputs, rtol=close, atol=close / 10)
    assert not optimizers[0].space._is_any_entered
    # else nothing was compared; in the small residual network what leaves is always smaller
    assert optimizers[1].space._is_any_entered or network == "residual"


def test_the_smaller_side_is_read(monkeypatch):
    apart(monkeypatch)
    x = torch.randn(2, 8, dtype=torch.float64)
    found = sides(perceptron(8, 40, 40, 3), x)
    assert found == {"0.weight": True, "0.bias": True, "2.weight": False, "2.bias": False}


def test_one_pass_serves_the_layers_at_both_ends(monkeypatch):
    apart(monkeypatch)
    model = perceptron(*[6] * 8)
    found = sides(model, torch.randn(2, 6, dtype=torch.float64))
    entered = [found[f"{2 * layer}.weight"] for layer in range(6)]
    # W2 serves layers 1 and 2, W4 layers 3 and 4, W6 layers 5 and 6
    assert entered == [False, True] * 3


def test_behind_a_batch_norm_nothing_else_is_read(monkeypatch):
    apart(monkeypatch)
    model = norm_net().double()
    found = sides(model, torch.randn(2, 2, 3, dtype=torch.float64))
    assert found == dict.fromkeys(("1.weight", "1.bias", "4.weight", "4.bias"), True)


def test_with_weight_decay_free_weights_stay(monkeypatch):
    apart(monkeypatch)
    x = torch.randn(2, 8, dtype=torch.float64)
    model = perceptron(8, 40, 40, 3)
    assert not any(sides(model, x, weight_decay=0.1).values())
    network = ps.trace(model, x)
    optimizer = ps.optim.GSGD(model.parameters(), network=network)
    assert optimizer.space._is_any_entered
    optimizer.param_groups[0]["weight_decay"] = 0.1
    model(x).square().sum().backward()
    optimizer.step()
    assert not optimizer.space._is_any_entered


def test_the_published_algorithm_keeps_free_weights(monkeypatch):
    apart(monkeypatch)
    x = torch.randn(2, 8, dtype=torch.float64)
    assert not any(sides(perceptron(8, 40, 40, 3), x, metric="paper").values())


def test_a_unit_that_a_batch_norm_reads_is_never_rescaled(monkeypatch):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
            self.one, self.other = nn.Linear(6, 50), nn.Linear(6, 50)

        def forward(self, x):
            x = self.first(x).relu()
            return self.one(x) + self.other(self.norm(x))

    apart(monkeypatch)
    found = sides(Both().double(), torch.randn(5, 4, dtype=torch.float64))
    assert not found.get("first.weight", False)


def test_a_checkpoint_goes_on_bit_for_bit(monkeypatch):
    apart(monkeypatch)
    x = torch.randn(6, 8, dtype=torch.float64)

    def steps(model, optimizer, count):
        for _ in range(count):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    torch.manual_seed(0)
    model = perceptron(8, 40, 40, 3)
    optimizer = ps.optim.GSGD(model.parameters(), 0.1, 0.9, network=ps.trace(model, x))
    steps(model, optimizer, 3)
    twin = perceptron(8, 40, 40, 3)
    twin.load_state_dict(model.state_dict())
    resumed = ps.optim.GSGD(twin.parameters(), 0.1, 0.9, network=ps.trace(twin, x))
    resumed.load_state_dict(optimizer.state_dict())
    steps(model, optimizer, 3)
    steps(twin, resumed, 3)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


def partly_apart(monkeypatch, size):
    """Layers of fewer weights than ``size`` lie end to end, others are matrices of their own."""
    for module in ("sheets", "sides"):
        monkeypatch.setattr(f"pathspace.optim.{module}.SMALL", size)


def test_small_layers_are_read_in_place_of_large_ones(monkeypatch):
    partly_apart(monkeypatch, 40)
    found = sides(perceptron(3, 6, 8, 2), torch.randn(2, 3, dtype=torch.float64))
    assert found == {"0.weight": True, "0.bias": True, "2.weight": False, "2.bias": False}


def test_units_that_one_unit_feeds_may_have_neighbours_of_any_size(monkeypatch):
    """The weights between them, of a small layer, belong to the unit that they leave."""
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outputs, layouts = [], []
    for size in (1000, 20, 0):
        partly_apart(monkeypatch, size)
        torch.manual_seed(0)
        layers = [nn.Linear(n, m, bias=False) for n, m in ((3, 1), (1, 6), (6, 5))]
        model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.LeakyReLU(), layers[2]).double()
        with torch.no_grad():
            layers[0].weight.fill_(1.0)  # else nothing may come through
        optimizer = ps.optim.GSGD(model.parameters(), 0.1, network=ps.trace(model, x))
        layouts.append([sheet.single for sheet in optimizer.space.sheets])
        before = model(x).detach()
        for _ in range(5):
            optimizer.zero_grad()
            model(x).sub(1).square().mean().backward()
            optimizer.step()
        outputs.append(model(x).detach())
        assert (outputs[-1] - before).abs().max() > 0.01
    assert layouts == [[False], [False, True], [True] * 3]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(outputs[2], outputs[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("maximize", [False, True])
def test_a_layer_may_be_read_for_the_units_that_it_enters_alone(maximize, monkeypatch):
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outputs = []
    for layout in ("together", "apart"):
        if layout == "apart":
            apart(monkeypatch)
        torch.manual_seed(0)
        model = perceptron(3, 9, 9, 2)
        network = ps.trace(model, x)
        optimizer = ps.optim.GSGD(model.parameters(), 0.05, network=network, maximize=maximize)
        before = model(x).detach()
        for _ in range(5):
            optimizer.zero_grad()
            model(x).sin().mean().backward()
            optimizer.step()
        outputs.append(model(x).detach())
        assert (outputs[-1] - before).abs().max() > 0.01
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-10, atol=1e-10)
    assert sides(model, x) == {"0.weight": True, "0.bias": True, "2.weight": False, "2.bias": False}
