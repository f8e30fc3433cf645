"""Balance against brute force, by its defining property, and at its limits."""

import itertools
import math
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import pathspace as ps
from architectures import (
    Act,
    BatchNorm,
    Concat,
    Flatten,
    Map,
    Pool,
    Residual,
    Spec,
    Split,
    build,
    example_input,
)
from fuzz.drawing import batch_of, draw
from pathspace import scaleflow, scalelinear, scaleloops
from pathspace.network import Streams
from pathspace.perron import ScaleMatrix

R = Act()

NETWORKS = {
    "mlp": Spec((3,), (Map(4), R, Map(5), R, Map(2))),
    "mlp without bias": Spec((3,), (Map(4, False), R, Map(5, False), R, Map(2, False))),
    "batch norm": Spec((3,), (Map(4), BatchNorm(), R, Map(5), BatchNorm(), R, Map(2))),
    "cnn": Spec((2, 5, 5), (Map(4, kernel=3), R, Pool("max"), Map(3), R, Flatten(), Map(2))),
    "depthwise": Spec((2, 6), (Map(4), R, Map(4, kernel=3, groups=4), R, Map(2))),
    "residual": Spec((3,), (Map(4), R, Residual((Map(5), R, Map(4))), R, Map(2))),
    "two blocks": Spec(
        (2, 6),
        (
            Map(3, kernel=3),
            Residual((Map(4), R, Map(3, kernel=3))),
            Residual((Map(2), R, Map(5)), (Map(5),)),
            R,
            Map(2),
        ),
    ),
    "one stream": Spec((3,), (Map(4), *[Residual((Map(3), R, Map(4)))] * 3, R, Map(2))),
    "stream of inputs": Spec((3,), (Residual((Map(5), R, Map(3))), R, Map(2))),
    "dense": Spec((2,), (Concat(((Map(3), R), ())), Concat(((Map(3), R), ())), Map(2))),
    "split": Spec((2,), (Map(4), R, Split(((Map(3), R), ())), Map(2))),
    "pinned between": Spec((3,), (Map(4), R, Map(3), Act("sigmoid"), Map(5), R, Map(2))),
}


# In a network without sums, streams make no difference.
CASES: list[tuple[str, Streams]] = [(name, "pinned") for name in NETWORKS]
CASES += [(name, "shared") for name in ("residual", "one stream", "two blocks")]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def traced(spec: Spec, streams: Streams = "pinned") -> ps.Network:
    return ps.trace(build(spec), example_input(spec), streams=streams)


def mlp(
    widths: list[int], *, bias: bool = False, dtype: torch.dtype = torch.float64, size: float = 1.0
) -> ps.Network:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after, bias=bias), nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).to(dtype)
    random = generator()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(size * torch.randn(p.shape, generator=random, dtype=torch.float64))
    return ps.trace(model, torch.ones(1, widths[0], dtype=dtype))


class Groups:
    """The groups of weights whose norms are balanced, weight by weight.

    One group for each scale that may move: the weights into its units. One for each part of the
    network: the weights that lead from its scales into scales that do not move. Two scales are in
    one part if a weight leads from one to the other, or if weights of one tensor lead from both
    into scales that do not move.

    Attributes:
        part: the part of each group, 0..parts-1.
    """

    def __init__(self, network: ps.Network) -> None:
        self.network = network
        self.weights = {n: w.detach().clone() for n, w in network.parameters().items()}
        self.moves = torch.cat([torch.tensor([False]), network.exact])
        label = {scale: scale for scale in range(network.H + 1) if self.moves[scale]}

        def unite(a: int, b: int) -> None:
            old, new = label[a], label[b]
            label.update({scale: new for scale in label if label[scale] == old})

        for edge in network.edges:
            ends = torch.broadcast_tensors(edge.target_scale, edge.source_scale)
            leaving = []
            for v, u in torch.stack(ends).reshape(2, -1).unique(dim=1).T.tolist():
                if v in label and u in label:
                    unite(v, u)
                elif u in label:
                    leaving.append(u)
            for u, v in itertools.pairwise(leaving):
                unite(u, v)
        numbers = {root: number for number, root in enumerate(sorted(set(label.values())))}
        self.parts = len(numbers)
        self.of_scale = torch.full((network.H + 1,), -1)
        for scale, root in label.items():
            self.of_scale[scale] = numbers[root]
        self.part = torch.cat([self.of_scale[self.moves], torch.arange(self.parts)])

    def norms(self, log: Tensor, p: float) -> Tensor:
        """The norms of the groups after a rescaling with these logarithms of factors."""
        log = torch.cat([log.new_zeros(1), torch.where(self.network.exact, log, 0.0)])
        into = torch.zeros(len(log), dtype=torch.float64)
        out = torch.zeros(self.parts, dtype=torch.float64)
        for edge in self.network.edges:
            power = (self.weights[edge.parameter].abs().log() + edge.ratio(log)).mul(p).exp()
            ends = torch.broadcast_tensors(edge.target_scale, edge.source_scale, power)
            target, source, power = (end.reshape(-1) for end in ends)
            into = into.index_add(0, target, power)
            exits = ~self.moves[target] & self.moves[source]
            out = out.index_add(0, self.of_scale[source[exits]], power[exits])
        return torch.cat([into[self.moves], out]) ** (1 / p)

    def largest(self, log: Tensor, p: float) -> Tensor:
        """The largest norm of each part."""
        norms = self.norms(log, p)
        return torch.stack([norms[self.part == part].max() for part in range(self.parts)])


# What it is --------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("widths", [[3, 4, 1], [2, 3, 4, 1], [3, 2, 5, 2, 1], [1, 1, 1, 1]])
def test_the_largest_norm_is_a_root_of_the_path_norm(widths: list[int], p: float) -> None:
    """Lemma 4.1 of Neyshabur et al.: the smallest largest norm, to the power d."""
    network = mlp(widths)
    weights = [weight.detach().tolist() for weight in network.parameters().values()]
    paths = 0.0
    for path in itertools.product(*map(range, widths)):
        steps = zip(weights, itertools.pairwise(path), strict=True)
        paths += math.prod(abs(weight[v][u]) ** p for weight, (u, v) in steps)
    ps.balance_(network, p)
    depth = len(widths) - 1
    norms = torch.cat([w.detach().norm(p, dim=1) for w in network.parameters().values()])
    assert (norms.max() ** depth).item() == pytest.approx(paths ** (1 / p), rel=1e-11)
    torch.testing.assert_close(norms, norms[:1].expand_as(norms), rtol=1e-11, atol=0)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 4.0])
def test_several_outputs_are_one_group(p: float) -> None:
    network = mlp([3, 4, 5, 3])
    layers = list(network.parameters().values())
    path_norm = torch.ones(3, dtype=torch.float64)
    for weight in layers:
        path_norm = weight.detach().abs() ** p @ path_norm
    ps.balance_(network, p)
    t = layers[-1].detach().norm(p)
    assert (t**3).item() == pytest.approx(path_norm.sum().item() ** (1 / p), rel=1e-11)
    for weight in layers[:-1]:
        norms = weight.detach().norm(p, dim=1)
        torch.testing.assert_close(norms, t.expand_as(norms), rtol=1e-11, atol=0)
    assert (layers[-1].detach().norm(p, dim=1) < t).all()


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 4.0])
@pytest.mark.parametrize(("name", "streams"), CASES)
def test_all_groups_of_a_part_have_one_norm(name: str, streams: Streams, p: float) -> None:
    network = traced(NETWORKS[name], streams)
    one = ps.identity(network).log
    before = Groups(network)
    ps.balance_(network, p)
    after = Groups(network)
    t = after.largest(one, p)
    torch.testing.assert_close(after.norms(one, p), t[after.part], rtol=1e-10, atol=0)
    assert (t < 0.99 * before.largest(one, p)).all()


def test_parts_have_norms_of_their_own() -> None:
    network = ps.balance_(traced(NETWORKS["pinned between"]))
    groups = Groups(network)
    assert torch.bincount(groups.part).tolist() == [4 + 1, 5 + 1]
    a, b = groups.largest(ps.identity(network).log, 2.0).tolist()
    assert a != pytest.approx(b, rel=1e-3)
    assert Groups(traced(NETWORKS["residual"], "shared")).parts == 1
    assert Groups(traced(NETWORKS["two blocks"], "pinned")).parts == 2


@pytest.mark.parametrize("p", [1.0, 2.0, 4.0])
@pytest.mark.parametrize(("name", "streams"), CASES)
def test_no_rescaling_has_a_smaller_largest_norm(name: str, streams: Streams, p: float) -> None:
    """Neither random ones, near or far, nor what descent on a smooth maximum finds."""
    network = traced(NETWORKS[name], streams)
    groups = Groups(network)
    best = groups.largest(ps.balance(network, p).log, p)
    for seed in range(12):
        noise = ps.random_rescaling(network, 10.0 ** -(seed % 4), generator=generator(seed)).log
        near = groups.largest(ps.balance(network, p).log + noise, p)
        assert (near >= best * (1 - 1e-12)).all()
    log = ps.identity(network).log.requires_grad_()
    optimizer = torch.optim.Adam([log], lr=0.03)
    for step in range(120):
        optimizer.zero_grad()
        sharp = 20 * 1.04**step * groups.norms(log, p).log()
        smooth = [sharp[groups.part == part].logsumexp(0) for part in range(groups.parts)]
        (torch.stack(smooth).sum() / (20 * 1.04**step)).backward()
        optimizer.step()
    found = groups.largest(log.detach(), p)
    assert (found >= best * (1 - 1e-12)).all()
    assert (found <= best * 1.1).all()  # the search was no straw man


# What it keeps -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "streams"), CASES)
def test_the_function_is_kept_and_scales_before_batch_norm_stay(
    name: str, streams: Streams
) -> None:
    network, x = traced(NETWORKS[name], streams), example_input(NETWORKS[name])
    y = network.model(x)
    c = ps.balance(network)
    assert c.log.ne(0).tolist() == network.exact.tolist()
    assert ps.balance_(network) is network
    torch.testing.assert_close(network.model(x), y, rtol=1e-11, atol=1e-11)


def test_balance_does_not_touch_the_model() -> None:
    network = traced(NETWORKS["residual"], "shared")
    before = {name: tensor.clone() for name, tensor in network.state().items()}
    versions = [tensor._version for tensor in network.state().values()]
    state = torch.get_rng_state()
    ps.balance(network)
    torch.testing.assert_close(network.state(), before, rtol=0, atol=0)
    assert [tensor._version for tensor in network.state().values()] == versions
    assert torch.equal(torch.get_rng_state(), state)


# Its limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.99, -1.0, math.inf, math.nan])
def test_p_must_be_at_least_one_and_finite(p: float) -> None:
    with pytest.raises(ValueError, match=f"p must be at least 1 and finite, not {p}"):
        ps.balance(mlp([2, 2, 1]), p)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_named(value: float) -> None:
    network = mlp([2, 2, 1])
    with torch.no_grad():
        network.model.get_parameter("2.weight")[0, 1] = value
    with pytest.raises(ps.RescalingError, match=r"`2\.weight` holds values that are not finite"):
        ps.balance(network)


def test_nothing_to_balance() -> None:
    network = ps.trace(nn.Linear(2, 2), torch.ones(1, 2))
    assert ps.balance(network).log.shape == (0,)


@pytest.mark.parametrize("p", [1.0, 2.0, 4.0, 30.0])
@pytest.mark.parametrize("size", [1e-100, 1e-30, 1e30, 1e100])
def test_weights_of_any_size(size: float, p: float) -> None:
    widths = [3, 4, 5, 2]
    network, huge = mlp(widths), mlp(widths, size=size)
    # A common factor of all weights of a layered network does not change the balanced scales.
    torch.testing.assert_close(ps.balance(huge, p).log, ps.balance(network, p).log)


@pytest.mark.parametrize(("name", "streams"), CASES)
def test_scales_of_any_size(name: str, streams: Streams) -> None:
    network = traced(NETWORKS[name], streams)
    expected = ps.balance(network).log
    c = ps.random_rescaling(network, 60.0, generator=generator())  # factors of 1e-60 to 1e60
    assert float(c.log.abs().max()) > 60
    ps.rescale_(network, c)
    torch.testing.assert_close(ps.balance(network).log + c.log, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [1.0, 1e-20, 1e18])
def test_a_very_deep_network_in_float32(size: float) -> None:
    network = mlp([6] * 301, dtype=torch.float32, size=size)
    ps.balance_(network)
    norms = torch.stack([w.detach().norm(dim=1) for w in network.parameters().values()][:-1])
    t = list(network.parameters().values())[-1].detach().norm()
    torch.testing.assert_close(norms, t.expand_as(norms), rtol=1e-5, atol=0)


def test_a_weight_used_many_times() -> None:
    """A recurrent network: the hidden units read themselves."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.hold, self.out = nn.Linear(2, 5), nn.Linear(5, 5), nn.Linear(5, 1)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.read(x[:, 0]).relu()
            for step in range(1, x.shape[1]):
                hidden = (self.read(x[:, step]) + self.hold(hidden)).relu()
            return self.out(hidden)

    torch.manual_seed(0)
    model, x = Recurrent().double(), torch.randn(7, 4, 2, dtype=torch.float64)
    network = ps.trace(model, x, streams="shared")
    y = model(x)
    assert network.H == 5
    for gain in (1.0, 1e3, 1e-3):  # loops that dominate, and loops that hardly matter
        with torch.no_grad():
            model.hold.weight.mul_(gain)
        groups = Groups(ps.balance_(network))
        norms = groups.norms(ps.identity(network).log, 2.0)
        torch.testing.assert_close(norms, norms[:1].expand_as(norms), rtol=1e-10, atol=0)
        if gain == 1:
            torch.testing.assert_close(model(x), y)


@dataclass
class Passes:
    """How often all weights were looked at."""

    count: int = 0


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    """The passes of a balancing: sweeps in the order of computation, and steps on loops."""
    found = Passes()

    def counted(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def count(*args: object) -> object:
            found.count += 1
            return original(*args)

        monkeypatch.setattr(owner, name, count)

    counted(scaleflow.Flow, "_swept")
    counted(scaleloops._Point, "__init__")
    return found


def assert_balanced(network: ps.Network, p: float = 2.0) -> None:
    groups, one = Groups(ps.balance_(network, p)), ps.identity(network).log
    norms = groups.norms(one, p)
    torch.testing.assert_close(norms, groups.largest(one, p)[groups.part], rtol=1e-8, atol=0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e-20, 1e18])
def test_few_passes_for_a_deep_network(passes: Passes, size: float, bias: bool) -> None:
    assert_balanced(mlp([4] * 61, bias=bias, size=size))
    assert passes.count <= (20 if bias else 4)


@pytest.mark.parametrize("seed", [5, 419, 763])
def test_few_passes_for_a_deep_network_with_loops(passes: Passes, seed: int) -> None:
    """Networks drawn at random, 20 to 60 blocks deep; the power method took up to 394 passes."""
    spec = draw(seed)
    network = ps.trace(build(spec), batch_of(spec), streams="shared")
    ps.balance(network)
    assert 0 < passes.count <= 30


@pytest.mark.parametrize("streams", ["pinned", "shared"])
@pytest.mark.parametrize("spread", [5.0, 25.0])
@pytest.mark.parametrize("name", ["residual", "one stream", "two blocks", "dense"])
def test_uneven_weights_on_loops(name: str, spread: float, streams: Streams) -> None:
    """Single weights of sizes from 1e-20 to 1e20 and more."""
    network = traced(NETWORKS[name], streams)
    for seed in range(3):
        with torch.no_grad():
            for weight in network.parameters().values():
                uneven = torch.randn(weight.shape, generator=generator(seed), dtype=torch.float64)
                weight.mul_(torch.exp(spread * uneven))
        assert_balanced(network)


@pytest.mark.parametrize(("seed", "spread"), [(609, 5.0)])
def test_steps_that_cannot_fail_where_newton_s_do(
    monkeypatch: pytest.MonkeyPatch, seed: int, spread: float
) -> None:
    """Shares on loops are 1 up to rounding there, and bounds fall from step to step."""
    taken = []
    step = scaleloops._Point.noda
    monkeypatch.setattr(scaleloops._Point, "noda", lambda p: taken.append(p.bound) or step(p))
    spec = draw(seed)
    network = ps.trace(build(spec), batch_of(spec), streams="shared")
    random = generator(seed)
    with torch.no_grad():
        for weight in network.parameters().values():
            uneven = torch.randn(weight.shape, generator=random, dtype=torch.float64)
            weight.mul_(torch.exp(spread * uneven))
    log_z = -2 * ps.balance(network).log
    assert taken
    assert all(bool((later <= before + 1e-9).all()) for before, later in pairwise(taken))
    point = scaleloops._Point(flow_of(network), torch.cat([log_z.new_zeros(1), log_z]))
    assert float(point.missing.abs().max()) < 1e-9


def flow_of(network: ps.Network) -> scaleflow.Flow:
    movable = torch.cat([torch.tensor([False]), network.exact])
    matrix = ScaleMatrix(network.edges, network.parameters(), movable, 2.0)
    return scaleflow.Flow(matrix.blocks, matrix.inflow, matrix.outflow, matrix.part, matrix.live)


def test_many_scales_on_loops_are_solved_for_iteratively(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [NETWORKS["one stream"], NETWORKS["two blocks"], draw(5)]
    for spec in specs:
        network = ps.trace(build(spec), batch_of(spec), streams="shared")
        expected = ps.balance(network).log
        with monkeypatch.context() as patch:
            patch.setattr(scalelinear, "DENSE", 0)
            torch.testing.assert_close(ps.balance(network).log, expected, rtol=0, atol=1e-10)
        assert torch.equal(ps.balance(network).log, expected)


def test_what_does_not_settle_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaleloops, "STEPS", 1)
    network = traced(NETWORKS["residual"], "shared")
    message = r"no balanced weights.* `.*weight.* streams=\"pinned\""
    with pytest.raises(ps.RescalingError, match=message):
        ps.balance(network)


@pytest.mark.parametrize("bias", [False, True])
def test_edges_in_any_order(bias: bool) -> None:
    """The order of computation makes it fast; any other order leads to the same result."""
    network = mlp([3, 4, 5, 4, 6, 2], bias=bias)
    expected = ps.balance(network).log
    network.edges = network.edges[::-1]
    torch.testing.assert_close(ps.balance(network).log, expected)


# Dead units --------------------------------------------------------------------------------------


def dead(rows: dict[str, slice], columns: dict[str, slice]) -> ps.Network:
    network = mlp([3, 4, 5, 2])
    with torch.no_grad():
        for name, units in rows.items():
            network.model.get_parameter(name)[units] = 0
        for name, units in columns.items():
            network.model.get_parameter(name)[:, units] = 0
    return network


ONE, ALL = slice(1, 2), slice(None)


@pytest.mark.parametrize(
    ("rows", "columns", "kept"),
    [
        ({"0.weight": ONE}, {}, [1]),  # nothing comes in: no factor is best, so it stays 1
        ({"2.weight": ONE}, {}, [5]),
        ({}, {"2.weight": ONE}, []),  # nothing goes out: its incoming norm is t all the same
        ({}, {"4.weight": ONE}, []),
        ({"0.weight": ONE}, {"2.weight": ONE}, [1]),
        ({"0.weight": ALL}, {}, list(range(9))),
        ({"0.weight": ALL, "2.weight": ALL, "4.weight": ALL}, {}, list(range(9))),
    ],
)
def test_dead_units(rows: dict[str, slice], columns: dict[str, slice], kept: list[int]) -> None:
    network = dead(rows, columns)
    c = ps.balance(network)
    assert (c.log == 0).nonzero().squeeze(1).tolist() == kept
    with torch.no_grad():  # what leaves a unit that is always zero does not count
        for unit in kept:
            name, column = ("2.weight", unit) if unit < 4 else ("4.weight", unit - 4)
            network.model.get_parameter(name)[:, column] = 0
    torch.testing.assert_close(ps.balance(network).log, c.log)
    ps.rescale_(network, c)
    groups, one = Groups(network), ps.identity(network).log
    norms = groups.norms(one, 2.0)
    alive = torch.tensor([unit not in kept for unit in range(network.H)])
    t = groups.largest(one, 2.0).expand(network.H)
    torch.testing.assert_close(norms[:-1][alive], t[alive])


def test_where_nothing_leaves_the_norms_are_one() -> None:
    """A head that starts at zero: the class still has one balanced network."""
    network = dead({"4.weight": ALL}, {})
    c = ps.random_rescaling(network, generator=generator())
    balanced = ps.rescale(network, ps.balance(network))
    for name in ("0.weight", "2.weight"):
        norms = balanced[name].norm(dim=1)
        torch.testing.assert_close(norms, torch.ones_like(norms))
    ps.rescale_(network, c)
    torch.testing.assert_close(ps.rescale(network, ps.balance(network)), balanced)


@pytest.mark.parametrize("gain", [0.1, 0.99, 1.0, 10.0])
def test_loops_that_lead_nowhere(gain: float) -> None:
    """Channels of a shared stream that feed themselves and are not read out: t = 1 if it can be."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = nn.Linear(2, 4, bias=False), nn.Linear(4, 1, bias=False)
            self.gain = nn.Parameter(torch.tensor([0.5, 0.5, gain, gain]))

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.head((x + self.gain * x.relu()).relu())

    torch.manual_seed(0)
    model, x = Loop().double(), torch.randn(7, 2, dtype=torch.float64)
    with torch.no_grad():
        model.head.weight[:, 2:] = 0
    network = ps.trace(model, x, streams="shared")
    y = model(x)
    c = ps.balance(network)
    assert (c.log == 0).tolist() == [False, False, gain >= 1, gain >= 1]
    ps.rescale_(network, c)
    torch.testing.assert_close(model(x), y)
    stem, gains = model.stem.weight.detach().square().sum(1), model.gain.detach().square()
    incoming = (stem + gains).sqrt()
    torch.testing.assert_close(incoming[:2], model.head.weight.detach().norm().expand(2))
    if gain < 1:
        torch.testing.assert_close(incoming[2:], torch.ones(2, dtype=torch.float64))
