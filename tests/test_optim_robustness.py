"""Where the published algorithm breaks: roots at zero, other skeletons, dead units, large rates."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pathspace as ps
from cases import mlp
from optimizers import apart
from pathspace.balancing import balance_weights
from pathspace.optim.balanced import BalancedSpace
from pathspace.optim.rules import Adam


def network_of(*widths, seed=0, bias=True):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = mlp(*widths, bias=bias).double()
        x = torch.randn(32, widths[0], dtype=torch.float64)
    return model, ps.trace(model, x), x


def step(model, optimizer, x):
    optimizer.zero_grad()
    output = model(x)
    loss = F.mse_loss(output, x[:, : output.shape[1]].cos())
    loss.backward()
    optimizer.step()
    return loss.item()


def products(optimizer):
    """Momentum times the change of its coordinate per change of log |v|, for all basis paths."""
    space = optimizer.space
    graph = space.skeleton.graph
    weights = {leaf.name: leaf.parameter.detach() for s in space.sheets for leaf in s.leaves}
    found = {}
    for edge in graph.edges:
        factor = space.log_source[edge.source_scale] + space.log_target[edge.target_scale]
        momentum = optimizer.state[dict(optimizer.network.model.named_parameters())[edge.parameter]]
        value = weights[edge.parameter] * (-factor).exp()
        found[edge.parameter] = momentum["momentum_buffer"] * value
    basis = ps.BasisPaths(optimizer.network, space.skeleton)
    flat = basis.flat(found)
    roots = basis.coordinate(space.skeleton.incoming[basis.is_root])
    buffers = basis.flat(
        {
            name: optimizer.state[parameter]["momentum_buffer"]
            for name, parameter in optimizer.network.model.named_parameters()
        }
    )
    flat[roots] = buffers[roots] * math.sqrt(2)
    return basis, flat


def test_momentum_is_carried_to_the_new_basis_exactly():
    model, network, x = network_of(3, 5, 4, 2)
    optimizer = ps.optim.GSGD(model.parameters(), 0.01, momentum=0.9, network=network)
    for _ in range(5):
        step(model, optimizer, x)
    space = optimizer.space
    with torch.no_grad():  # the root of the first unit is small now: another edge is better
        model[0].weight[0, 0] *= 0.01
    network_before = {k: v.detach().clone() for k, v in network.state().items()}

    # The change of the loss that the momentum predicts for any change of the weights.
    generator = torch.Generator().manual_seed(2)
    direction = {
        k: torch.randn(v.shape, generator=generator, dtype=v.dtype) * v
        for k, v in network_before.items()
    }

    def prediction():
        basis, q = products(optimizer)

        t = torch.zeros((), dtype=torch.float64, requires_grad=True)
        state = {k: v + t * direction[k] for k, v in network_before.items()}
        (q * basis.flat(basis.values(state)).abs().log()).sum().backward()
        return t.grad

    def of_free_weights():
        names = dict(model.named_parameters())
        buffers = {k: optimizer.state[p]["momentum_buffer"] for k, p in names.items()}
        return space.skeleton.graph.places(space.skeleton.outgoing[1:]).take(buffers)

    before, y, kept = prediction(), model(x).detach(), of_free_weights()
    assert (kept != 0).double().mean() > 0.5  # a dead unit has none
    optimizer.zero_grad()
    F.mse_loss(model(x), x[:, :2]).backward()
    work = optimizer._step_of(optimizer._arranged())
    for sheet in optimizer._arranged():
        sheet.load()
    for place, sheet in enumerate(work.sheets):
        work.states[place] = sheet.kept | {"step": 5}
    with torch.no_grad():
        space._revise(space.has.clone(), work)
    assert space.rechosen >= 1
    torch.testing.assert_close(prediction(), before, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(of_free_weights(), kept, rtol=0, atol=0)
    torch.testing.assert_close(model(x).detach(), y, rtol=0, atol=0)


@pytest.mark.parametrize("large", [False, True])
def test_one_huge_gradient_does_not_move_a_root_for_ever(large, monkeypatch):
    if large:
        apart(monkeypatch)
    model, network, _ = network_of(3, 5, 4, 2)
    optimizer = ps.optim.GSGD(model.parameters(), 0.1, momentum=0.9, network=network)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    for number in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        if number == 0:
            model[0].weight.grad[0, 0] = 1e9 * model[0].weight[0, 0].sign()
        optimizer.step()
    basis = ps.BasisPaths(network)
    before, after = (basis.flat(basis.values(state)) for state in (start, network.state()))
    # The first step is limited to a factor of 2, and momentum goes on from there.
    expected = torch.tensor(2.0).double() ** -(1 + 0.9 + 0.9**2)
    torch.testing.assert_close((after / before)[basis.roots[0]], expected)


@pytest.mark.parametrize("roots", ["multiplicative", "additive"])
@pytest.mark.parametrize("skeleton", ["modulo", "largest"])
def test_a_root_that_must_change_its_sign_does_not_stop_training(roots, skeleton):
    model, network, x = network_of(2, 6, 6, 1)
    optimizer = ps.optim.GSGD(
        model.parameters(), 0.05, network=network, roots=roots, skeleton=skeleton
    )
    with torch.no_grad():
        model[0].weight[:, 0].mul_(0.02)
    first = [step(model, optimizer, x) for _ in range(300)]
    assert all(math.isfinite(loss) for loss in first)
    assert first[-1] < 0.7 * first[0]


@pytest.mark.parametrize("cls", [ps.optim.GSGD, ps.optim.PathSGD, ps.optim.GAdam])
def test_zero_and_dead_units_take_finite_steps(cls):
    model, network, x = network_of(3, 5, 4, 2)
    with torch.no_grad():
        model[0].weight[0].zero_(), model[0].bias[0].zero_()  # nothing enters unit 0
        model[2].weight[:, 1].zero_()  # nothing leaves unit 1
        model[2].weight[2].zero_(), model[2].bias.zero_()
    optimizer = cls(model.parameters(), 0.01, network=network)
    for _ in range(20):
        assert math.isfinite(step(model, optimizer, x))
    assert optimizer.skipped == 0


def test_all_weights_zero():
    model, network, x = network_of(3, 4, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for cls in (ps.optim.GSGD, ps.optim.PathSGD, ps.optim.BalancedSGD):
        optimizer = cls(model.parameters(), 0.1, network=network)
        assert math.isfinite(step(model, optimizer, x))


SGDS = ("GSGD", "PathSGD", "BalancedSGD")
KINDS = (*SGDS, "GAdam", "GAdagrad", "PathAdam", "PathAdagrad")


@pytest.mark.parametrize("rate", [1e-5, 1e-2, 1.0, 10.0])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_no_nan_at_a_rate_at_which_sgd_stays_finite(rate, norm, kind):
    def trained(make):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            layers = [nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3)]
            if norm:
                layers[1:1], layers[4:4] = [nn.BatchNorm1d(12)], [nn.BatchNorm1d(12)]
            model = nn.Sequential(*layers)
            data = torch.randn(100, 32, 5)
        optimizer = make(model, ps.trace(model, data[0]))
        for x in data:
            optimizer.zero_grad()
            F.cross_entropy(model(x), x.argmax(1) % 3).backward()
            optimizer.step()
        return all(bool(p.isfinite().all()) for p in model.parameters()), optimizer

    sgd, _ = trained(lambda model, network: torch.optim.SGD(model.parameters(), rate))
    make = getattr(ps.optim, kind)
    ours, optimizer = trained(
        lambda model, network: make(model.parameters(), rate, network=network)
    )
    if sgd:
        assert ours
        assert optimizer.skipped == 0


def balanced(network, state, logs):
    """Weights, or their gradients, as one vector of numbers that rescaling does not touch."""
    edges = {edge.parameter: edge for edge in network.edges}
    return torch.cat([(w * edges[n].ratio(logs).exp()).flatten() for n, w in state.items()])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("size", [0.1, 1e3, 1e30])
def test_balanced_steps_are_no_longer_than_a_tenth_of_the_weights(momentum, size):
    model, network, _ = network_of(4, 6, 5, 3)
    generator = torch.Generator().manual_seed(0)
    optimizer = ps.optim.BalancedSGD(model.parameters(), 0.01, momentum, network=network)
    state = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = size * torch.randn(parameter.shape, generator=generator).double()
    movable = torch.arange(network.H + 1) > 0
    logs = balance_weights(network.edges, state, movable)
    logs = torch.cat([logs.new_zeros(1), logs])
    plain = model[-1].bias
    weights = balanced(network, state, logs)[: -len(plain)]
    gradients = balanced(network, {n: p.grad for n, p in model.named_parameters()}, -logs)
    gradients = gradients[: -len(plain)]
    optimizer.step()
    moved = {name: p.detach() - state[name] for name, p in model.named_parameters()}
    torch.testing.assert_close(moved[f"{len(model) - 1}.bias"], -0.01 * plain.grad)
    step = balanced(network, moved, logs)[: -len(plain)]
    longest = 0.1 * max(weights.norm(), math.sqrt(2 * (6 + 5 + 3))) * (1 - momentum)
    expected = 0.01 * gradients
    assert optimizer.space.limited == int(expected.norm() > longest)
    assert optimizer.space.limited == int(size > 0.1)
    expected *= min(1.0, longest / expected.norm())
    torch.testing.assert_close(step, -expected)


def test_shortened_gradients_are_invariant():
    found = []
    for spread in (0.0, 2.0):
        model, network, x = network_of(4, 6, 5, 3)
        generator = torch.Generator().manual_seed(1)
        ps.rescale_(network, ps.random_rescaling(network, spread, generator=generator))
        optimizer = ps.optim.BalancedSGD(model.parameters(), 3.0, 0.5, network=network)
        for _ in range(20):
            step(model, optimizer, x)
        found.append(model(x).detach())
        assert 5 < optimizer.space.limited <= 20
        assert f"shortened: {optimizer.space.limited}" in repr(optimizer)
    torch.testing.assert_close(*found)


def test_balanced_steps_go_with_rules_without_momentum():
    class BalancedAdam(ps.optim.InvariantOptimizer, rule=Adam, space=BalancedSpace):
        pass

    model, network, x = network_of(4, 6, 3)
    optimizer = BalancedAdam(model.parameters(), 0.01, network=network)
    losses = [step(model, optimizer, x) for _ in range(50)]
    assert losses[-1] < 0.9 * losses[0]


def test_balanced_steps_leave_weights_that_start_at_zero():
    model, network, x = network_of(4, 6, 3)
    with torch.no_grad():
        model[2].weight.zero_(), model[2].bias.zero_()
    optimizer = ps.optim.BalancedSGD(model.parameters(), 0.1, network=network)
    losses = [step(model, optimizer, x) for _ in range(200)]
    assert losses[-1] < 0.7 * losses[0]


PUBLISHED = {"metric": "paper", "roots": "additive", "start": "skeleton_init"}


@pytest.mark.parametrize("normalized", [False, True], ids=["plain", "batch norms"])
def test_the_published_algorithm_is_there(normalized):
    """Skeleton weights are 1 at the start, the free ones stay 1, and one step is Eq. (11.1).

    In front of a batch norm gradients are those of Eq. (40); its own parameters get plain steps.
    """
    model, _, x = network_of(4, 4, 4, 2, bias=False)
    if normalized:
        norms = [nn.BatchNorm1d(4).double() for _ in range(2)]
        model = nn.Sequential(model[0], norms[0], *model[1:3], norms[1], *model[3:])
        for parameter in (p for norm in norms for p in norm.parameters()):
            nn.init.uniform_(parameter, 0.5, 2.0, torch.Generator().manual_seed(3))
    network = ps.trace(model, x)
    optimizer = ps.optim.GSGD(model.parameters(), 0.01, network=network, **PUBLISHED)
    weights = [layer.weight for layer in model if isinstance(layer, nn.Linear)]
    eye = torch.eye(4, dtype=torch.float64)
    for w in weights[:2]:
        torch.testing.assert_close(w.detach().diagonal(), eye.diagonal())
    old = [w.detach().clone() for w in weights]
    norms = [layer for layer in model if isinstance(layer, nn.BatchNorm1d)]
    own = [(p, p.detach().clone()) for norm in norms for p in norm.parameters()]
    step(model, optimizer, x)
    g1, g2, g3 = (w.grad.clone() for w in weights)
    if normalized:
        g1, g2 = (g * w.norm(dim=1, keepdim=True) for g, w in zip((g1, g2), old[:2], strict=True))
    # All I and O are 1. Root j: its own gradient minus what leaves hidden units j, not free.
    out = {0: (g2 * old[1]).sum(0) - (g2 * old[1]).diagonal()}
    last = g3 * old[2]
    free = torch.zeros_like(last)
    free[torch.arange(4) % 2, torch.arange(4)] = 1  # the free weights of the last hidden units
    out[1] = (last * (1 - free)).sum(0)
    ratio = 1 - 0.01 * (g1.diagonal() - out[0] - out[1])
    expected1 = (old[0] - 0.01 * g1) * (1 - eye) + torch.diag(ratio)
    expected2 = (old[1] - 0.01 * g2) / ratio * (1 - eye) + eye
    expected3 = (old[2] - 0.01 * g3) / ratio * (1 - free) + old[2] * free
    for w, expected in zip(weights, (expected1, expected2, expected3), strict=True):
        torch.testing.assert_close(w.detach(), expected, rtol=1e-12, atol=1e-14)
    for p, before in own:
        torch.testing.assert_close(p.detach(), before - 0.01 * p.grad)


def test_the_scale_of_a_dead_unit_is_not_seen_in_the_skeleton():
    """Nothing enters it, so it has no basis path; what leaves it must not be large by its scale."""
    chosen = []
    for scale in (1.0, 1e4, 1e-4):
        generator = torch.Generator().manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
        model.append(nn.Linear(4, 2)).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
            model[0].weight[1], model[0].bias[1] = 0.0, 0.0
            model[2].weight[:, 1] *= scale
        x = torch.randn(5, 3, generator=generator).double()
        network = ps.trace(model, x)
        optimizer = ps.optim.GSGD(model.parameters(), 0.01, network=network, skeleton="largest")
        model(x).square().sum().backward()
        optimizer.step()
        chosen.append(optimizer.space.skeleton.incoming)
    assert torch.equal(chosen[0], chosen[1])
    assert torch.equal(chosen[0], chosen[2])


@pytest.mark.parametrize(("size", "chosen"), [(3.0, "0.weight[0, 0]"), (1.5, "0.weight[0, 1]")])
def test_a_root_at_zero_gives_way_to_a_weight_that_is_twice_as_large(size, chosen):
    model, network, _ = network_of(2, 2, 1, bias=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
        model[0].weight[0, 0] = 0.0  # so that the papers' choice of the root is not possible
    optimizer = ps.optim.GSGD(model.parameters(), 0.1, network=network, roots="additive")

    def root():
        skeleton = optimizer.space.skeleton
        return skeleton.graph.name(int(skeleton.incoming[1]))

    assert root() == "0.weight[0, 1]"
    with torch.no_grad():
        model[0].weight[0, 0] = size
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    model[0].weight.grad[0, 1] = 100.0  # the root would go through zero
    optimizer.step()
    assert root() == chosen
    is_new = chosen == "0.weight[0, 0]"
    assert (optimizer.space.rechosen, optimizer.space.limited) == ((1, 0) if is_new else (0, 1))


@pytest.mark.parametrize(("size", "chosen"), [(3.0, "2.weight[2, 1]"), (1.5, "2.weight[2, 0]")])
@pytest.mark.parametrize("scale", [1.0, 30.0, 1 / 30])
def test_which_weight_a_root_gives_way_to_does_not_depend_on_the_scaling(scale, size, chosen):
    model, network, _ = network_of(2, 2, 4, 1, bias=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
        model[0].weight[1] *= scale
        model[2].weight[:, 1] /= scale
    optimizer = ps.optim.GSGD(model.parameters(), 0.1, network=network, roots="additive")
    with torch.no_grad():
        model[2].weight[2, 1] *= size
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    model[2].weight.grad[2, 0] = 100.0  # a root, as the papers choose it
    optimizer.step()
    skeleton = optimizer.space.skeleton
    assert skeleton.graph.name(int(skeleton.incoming[1 + 2 + 2])) == chosen


def test_weights_of_one_are_weights_like_all_others():
    """Not dead, as those of zero are: steps are the same from any scaling."""
    outputs = []
    for scale in (1.0, 8.0):
        model, network, x = network_of(2, 3, 2, bias=False)
        with torch.no_grad():
            model[0].weight.fill_(scale)
            model[2].weight.fill_(1 / scale)
        optimizer = ps.optim.GSGD(model.parameters(), 0.02, network=network)
        for _ in range(3):
            step(model, optimizer, x)
        outputs.append(model(x).detach())
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-12, atol=1e-12)


def test_the_published_algorithm_follows_paths_through_a_sum_with_a_batch_norm():
    """O of the units in front of the sum has the weight behind it too, as that of any unit has."""

    class Shortcut(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (nn.Linear(n, 4, bias=False) for n in (3, 4))
            self.norm, self.shortcut = nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False)
            self.last = nn.Linear(4, 2, bias=False)

        def forward(self, x):
            h = self.first(x).relu()
            return self.last((self.norm(self.second(h)) + self.shortcut(h)).relu())

    generator = torch.Generator().manual_seed(0)
    model = Shortcut().double()
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn.sign() * (0.5 + drawn.abs()))
    x = torch.randn(16, 3, generator=generator).double()
    network = ps.trace(model, x, streams="shared")
    before = model.first.weight.detach().clone()
    through, last = model.shortcut.weight.detach().diagonal(), model.last.weight.detach()
    outer = through * last[torch.arange(4) % 2, torch.arange(4)]
    rate = 1e-5
    optimizer = ps.optim.GSGD(
        model.parameters(), rate, network=network, metric="paper", roots="additive"
    )
    step(model, optimizer, x)
    assert optimizer.space.rechosen == optimizer.space.limited == 0
    is_root = torch.arange(4)[:, None] % 3 == torch.arange(3)
    expected = before - rate * model.first.weight.grad / outer.square()[:, None]
    found = model.first.weight.detach()
    torch.testing.assert_close(found[~is_root], expected[~is_root], rtol=0, atol=1e-14)
    assert not torch.equal(found[~is_root], before[~is_root])


class TestNormsThatEnterBatchNorms:
    """They mean nothing, and every step that is measured by them makes them larger."""

    def trained(self, kind, steps, *, training=True, freeze=(), rate=0.1, scale=1.0, every=1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            layers = [nn.Linear(5, 12), nn.BatchNorm1d(12), nn.ReLU()]
            layers += [nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3)]
            model = nn.Sequential(*layers).double()
            data = torch.randn(20, 32, 5).double()
        with torch.no_grad():
            model[0].weight.mul_(scale), model[0].bias.mul_(scale)
        model[1].running_mean.mul_(scale), model[1].running_var.mul_(scale**2)
        for norm in (model[1], model[4]):
            norm.train(training).eps = 1e-30
        for name in freeze:
            model.get_parameter(name).requires_grad_(False)
        network = ps.trace(model, data[0])
        options = {} if every == 1 else {"every": every}
        optimizer = getattr(ps.optim, kind)(model.parameters(), rate, network=network, **options)
        before = model[0].weight.detach().norm(dim=1)
        for number in range(steps):
            x = data[number % 20]
            optimizer.zero_grad()
            F.cross_entropy(model(x), x.argmax(1) % 3).backward()
            optimizer.step()
        growth = model[0].weight.detach().norm(dim=1) / before
        return model, optimizer, growth, model(data[0]).detach()

    @pytest.mark.parametrize("every", [1, 3])
    @pytest.mark.parametrize("kind", ["PathSGD", "PathAdam", "BalancedSGD"])
    def test_stay_where_they_were(self, kind, every):
        growth = self.trained(kind, 301, every=every, rate=0.01)[2]
        assert float((growth - 1).abs().max()) < 0.05

    def test_grew_until_they_overflowed(self, monkeypatch):
        held = self.trained("PathSGD", 100, rate=1.0)
        monkeypatch.setattr("pathspace.optim.heldnorms.HeldNorms.is_possible", lambda self: False)
        free = self.trained("PathSGD", 100, rate=1.0)
        assert float(free[2].max()) > 1e3 > 1e2 > float(held[2].max())
        torch.testing.assert_close(held[3], free[3], rtol=1e-6, atol=1e-6)  # the same function

    @pytest.mark.parametrize("kind", ["PathSGD", "PathAdam", "BalancedSGD"])
    def test_may_be_any(self, kind):
        one, other = (self.trained(kind, 50, scale=scale)[3] for scale in (1.0, 64.0))
        torch.testing.assert_close(one, other)

    def test_are_not_touched_where_they_mean_something(self):
        """Batch norms that use their running statistics, and weights that are not trained."""
        optimizer = self.trained("PathSGD", 50, training=False)[1]
        assert all(bool((part == 1).all()) for part in self.factors(optimizer))
        _, optimizer, growth, _ = self.trained("PathSGD", 50, freeze=["0.bias"])
        assert float(growth.max()) > 1.02
        names = [leaf.name for sheet in optimizer.space.sheets for leaf in sheet.leaves]
        assert "0.bias" not in names

    def factors(self, optimizer):
        return [part for parts in optimizer.space.back for part in parts if part is not None]

    def test_are_held_after_loading(self):
        model, optimizer, *_ = self.trained("PathSGD", 5)
        twin = copy.deepcopy(model)
        state = copy.deepcopy(optimizer.state_dict())
        network = ps.trace(twin, torch.ones(2, 5).double())
        resumed = ps.optim.PathSGD(twin.parameters(), 0.1, network=network)
        resumed.load_state_dict(state)
        for one, chosen in ((model, optimizer), (twin, resumed)):
            chosen.zero_grad()
            one(torch.eye(5).double()).square().sum().backward()
            chosen.step()
        assert all(map(torch.equal, model.parameters(), twin.parameters()))
        assert any(bool((part != 1).any()) for part in self.factors(resumed))
