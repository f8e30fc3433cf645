"""The action of the group: forms, refusals, side effects, gradients and optimizer state."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pathspace as ps
from architectures import Act, BatchNorm, Flatten, Map, Pool, Residual, Spec, build, example_input
from pathspace.rescalings import Factors

MLP = Spec((3,), (Map(4), Act(), Map(5), Act(), Map(2)))
CNN = Spec(
    (2, 5, 5),
    (Map(4, kernel=3), BatchNorm(), Act(), Pool("max"), Map(3, kernel=3), Act(), Flatten(), Map(2)),
)
STREAM = Spec((3,), (Map(4), Act(), Residual((Map(5), Act(), Map(4))), Act(), Map(2)))


def traced(spec: Spec = MLP, **options: Any) -> ps.Network:
    return ps.trace(build(spec), example_input(spec), **options)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def copies(network: ps.Network) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state().items()}


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0)


# What changes and what does not ------------------------------------------------------------------


def test_rescale_makes_new_tensors_and_leaves_the_model_alone() -> None:
    network = traced(CNN)
    before, versions = copies(network), {n: t._version for n, t in network.state().items()}
    state = ps.rescale(network, ps.random_rescaling(network, generator=generator()))
    assert_equal(network.state(), before)
    assert {n: t._version for n, t in network.state().items()} == versions
    changed = {name for name, tensor in network.state().items() if state[name] is not tensor}
    assert changed == {"1.weight", "1.bias", "4.weight", "4.bias", "7.weight"}
    for name in changed:
        assert not torch.equal(state[name], before[name])
        assert not state[name].requires_grad
        assert state[name].data_ptr() != network.state()[name].data_ptr()


def test_rescale_in_place_writes_the_same_weights_into_the_model() -> None:
    network = traced(CNN)
    c = ps.random_rescaling(network, normalized=True, generator=generator())
    expected = {name: tensor.clone() for name, tensor in ps.rescale(network, c).items()}
    tensors = network.state()
    assert ps.rescale_(network, c) is network
    assert_equal(network.state(), expected)
    assert all(network.state()[name] is tensor for name, tensor in tensors.items())
    assert all(parameter.requires_grad for parameter in network.parameters().values())


def test_rescale_acts_on_a_state_that_is_given() -> None:
    network = traced(CNN)
    c = ps.random_rescaling(network, normalized=True, generator=generator())
    doubled = {name: 2 * tensor for name, tensor in network.state().items()}
    state = ps.rescale(network, c, doubled)
    torch.testing.assert_close(state["0.weight"], 2 * ps.rescale(network, c)["0.weight"])
    assert state["7.bias"] is doubled["7.bias"]
    parameters = {name: tensor for name, tensor in doubled.items() if "running" not in name}
    assert ps.rescale(network, c, parameters).keys() == parameters.keys()
    with pytest.raises(ps.RescalingError, match=r"no entry `7.weight`; pass all parameters"):
        ps.rescale(network, c, {name: t for name, t in doubled.items() if name != "7.weight"})


def test_one_weight_is_multiplied_by_target_over_source() -> None:
    network = traced()
    first, second = torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([1.0, 3.0, 9.0, 27.0, 81.0])
    old, new = copies(network), ps.rescale(network, {"0": first, "2": second})
    for name, factor in {
        "0.weight": first[:, None],
        "0.bias": first,
        "2.weight": second[:, None] / first,
        "2.bias": second,
        "4.weight": 1 / second,
        "4.bias": torch.ones(2),
    }.items():
        torch.testing.assert_close(new[name], old[name] * factor)


def test_batch_norm_statistics_follow_the_scale_before_it() -> None:
    network = traced(CNN)
    norm = network.normalizations[0]
    old, new = copies(network), ps.rescale(network, {"0": 3.0})
    torch.testing.assert_close(new["1.running_mean"], 3 * old["1.running_mean"])
    expected = 9 * (old["1.running_var"] + norm.eps) - norm.eps
    torch.testing.assert_close(new["1.running_var"], expected)
    torch.testing.assert_close(new["0.weight"], 3 * old["0.weight"])
    assert new["1.weight"] is network.state()["1.weight"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_all_float_types_keep_their_type_and_the_function(dtype: torch.dtype) -> None:
    model, x = build(CNN).to(dtype), example_input(CNN).to(dtype)
    network = ps.trace(model, x)
    y = model(x)
    ps.rescale_(network, ps.random_rescaling(network, 0.3, normalized=True, generator=generator()))
    assert {t.dtype for t in network.state().values() if t.is_floating_point()} == {dtype}
    tolerance = 30 * torch.finfo(dtype).eps
    torch.testing.assert_close(model(x), y, rtol=tolerance, atol=tolerance)


def test_tied_parameters_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.b(self.a(x).relu()).relu())

    torch.manual_seed(0)
    model, x = Tied().double(), torch.randn(5, 3, dtype=torch.float64)
    network = ps.trace(model, x)
    y = model(x)
    assert network.H == 0  # inputs are pinned, so all that the shared weight reads is
    reads_itself = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), model).double()
    network, y = ps.trace(reads_itself, x), reads_itself(x)
    assert network.H == 3  # one scale per channel, the same behind each use
    state = ps.rescale(network, ps.random_rescaling(network, generator=generator()))
    assert state["2.a.weight"] is state["2.b.weight"]
    ps.rescale_(network, ps.random_rescaling(network, generator=generator()))
    assert model.a.weight is model.b.weight
    torch.testing.assert_close(reads_itself(x), y)


def test_a_shared_stream_is_scaled_as_a_whole() -> None:
    network = traced(STREAM, streams="shared")
    x = example_input(STREAM)
    y, old = network.model(x), copies(network)
    assert ps.rescaling(network, {"0": 3.0}).of("2.body.2").tolist() == pytest.approx([3.0] * 4)
    ps.rescale_(network, {"0": 3.0})
    torch.testing.assert_close(network.model(x), y, rtol=1e-12, atol=1e-12)
    writers = ["0.weight", "0.bias", "2.body.2.weight", "2.body.2.bias"]
    readers = ["2.body.0.weight", "4.weight"]
    for name, tensor in network.state().items():
        factor = 3.0 if name in writers else 1 / 3 if name in readers else 1.0
        torch.testing.assert_close(tensor.detach(), factor * old[name])
    with pytest.raises(ps.RescalingError, match="'0' are pinned"):
        ps.rescale(traced(STREAM), {"0": 3.0})


# The forms of a rescaling ------------------------------------------------------------------------


def test_all_forms_mean_the_same() -> None:
    network = traced()
    log = torch.linspace(-1, 1, network.H, dtype=torch.float64)
    c = ps.Rescaling(network, log)
    assert ps.rescaling(network, c) is c
    units = {space.name: c.of(space.name) for space in network.spaces}
    forms: list[Factors] = [c.factors, c.factors.tolist(), tuple(c.factors.tolist()), units]
    for form in forms:
        torch.testing.assert_close(ps.rescaling(network, form).log, log)
    torch.testing.assert_close(c.of("0"), c.factors[:4])
    torch.testing.assert_close(c.of("4"), torch.ones(2, dtype=torch.float64))


def test_a_mapping_takes_one_factor_or_one_per_unit() -> None:
    network = traced()
    c = ps.rescaling(network, {"0": 2, "2": [1.0, 2.0, 3.0, 4.0, 5.0]})
    torch.testing.assert_close(c.factors, torch.tensor([2.0] * 4 + [1, 2, 3, 4, 5]).double())
    torch.testing.assert_close(ps.rescaling(network, {}).log, ps.identity(network).log)
    assert ps.rescaling(network, {"2": torch.tensor(2.0, requires_grad=True)}).of("2")[0] == 2
    assert ps.rescaling(network, {"input": 1.0}).log.abs().max() == 0


def test_one_factor_for_a_space_leaves_its_pinned_units_alone() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            left, right = self.a(x).relu().chunk(2, 1)
            return self.b(left) + right.sigmoid()

    network = ps.trace(Half(), torch.ones(1, 3))
    assert ps.rescaling(network, {"a": 2.0}).of("a").tolist() == [2.0, 2.0, 1.0, 1.0]
    assert ps.rescaling(network, {"a": [2.0, 2.0, 1.0, 1.0]}).of("a").tolist() == [2, 2, 1, 1]
    with pytest.raises(ps.RescalingError, match=r"'a' are pinned \(.*sigmoid.*\); their factor is"):
        ps.rescaling(network, {"a": [2.0, 2.0, 2.0, 1.0]})


@pytest.mark.parametrize(
    ("c", "message"),
    [
        ({"0": 2.0, "nope": 2.0}, r"no space 'nope' in this network; there are: input, 0, 2, 4"),
        ({"4": 2.0}, r"units of '4' are pinned \(output\); their factor is 1"),
        ({"input": [1.0, 1.0, 2.0]}, r"units of 'input' are pinned \(input\)"),
        ({"0": [1.0, 2.0]}, r"space '0' has 4 units, got \(2,\) factors"),
        ({"0": [[1.0, 2.0, 3.0, 4.0]]}, r"space '0' has 4 units, got \(1, 4\) factors"),
        ({"0": 0.0}, "factors of '0' must be positive and finite"),
        ({"0": [1.0, 1.0, 1.0, -1.0]}, "factors of '0' must be positive and finite"),
        ({"2": float("nan")}, "factors of '2' must be positive and finite"),
        ({"2": float("inf")}, "factors of '2' must be positive and finite"),
        (torch.ones(8), r"expected 9 factors, one per free scale, got shape \(8,\)"),
        (torch.ones(9, 1), r"expected 9 factors, one per free scale, got shape \(9, 1\)"),
        (torch.tensor(2.0), r"expected 9 factors, one per free scale, got shape \(\)"),
        ([1.0] * 8 + [0.0], "factors of a rescaling must be positive and finite"),
        ([1.0] * 8 + [-1.0], "factors of a rescaling must be positive and finite"),
        ([1.0] * 8 + [float("nan")], "factors of a rescaling must be positive and finite"),
        ([1.0] * 8 + [float("inf")], "factors of a rescaling must be positive and finite"),
        (2.0, r'float does not say which units to scale; pass .* or a mapping such as {"fc1"'),
        ("0", "str does not say which units to scale"),
        (None, "NoneType does not say which units to scale"),
    ],
)
def test_what_is_no_rescaling_is_refused(c: Any, message: str) -> None:
    network = traced()
    before = copies(network)
    for action in (ps.rescaling, ps.rescale, ps.rescale_):
        with pytest.raises(ps.RescalingError, match=message):
            action(network, c)
    assert_equal(network.state(), before)


def test_two_factors_for_one_scale_are_refused() -> None:
    network = traced(STREAM, streams="shared")
    assert ps.rescaling(network, {"0": 2.0, "2.body.2": 2.0}).log.any()
    with pytest.raises(ps.RescalingError, match=r"'2\.body\.2' share a scale but were given two"):
        ps.rescaling(network, {"0": 2.0, "2.body.2": 3.0})
    grouped = ps.trace(_TwiceRead(), torch.ones(1, 2))
    with pytest.raises(ps.RescalingError, match="'a' share a scale but were given two"):
        ps.rescaling(grouped, {"a": [1.0, 2.0]})


class _TwiceRead(nn.Module):
    """Two units that are read through one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.a(x).relu().split(1, 1)
        return torch.cat([self.b(first), self.b(second)], 1)


def test_products_and_inverses_are_those_of_the_group() -> None:
    network, generator = traced(), torch.Generator().manual_seed(0)
    a, b = (ps.random_rescaling(network, generator=generator) for _ in range(2))
    torch.testing.assert_close((a * b).factors, a.factors * b.factors)
    torch.testing.assert_close(ps.compose(a, b, a).factors, a.factors**2 * b.factors)
    torch.testing.assert_close((a * a.inverse()).factors, torch.ones_like(a.factors))
    assert torch.equal(ps.inverse(b).log, -b.log)


def test_rescalings_of_different_networks_do_not_mix() -> None:
    a, b = ps.identity(traced()), ps.identity(traced(STREAM))
    with pytest.raises(ps.RescalingError, match="9 and 5 scales belong to different networks"):
        _ = a * b
    with pytest.raises(ps.RescalingError, match="network with 5 free scales, this one has 9"):
        ps.rescale(a.network, b)
    with pytest.raises(ps.RescalingError, match=r"expected 9 factors, .* got shape \(5,\)"):
        ps.Rescaling(a.network, b.log)


def test_a_rescaling_says_what_it_is() -> None:
    network = traced()
    c = ps.rescaling(network, {"0": 10.0, "2": 0.01})
    assert repr(c) == "<Rescaling of 9 scales, factors 0.01 to 10>"
    none = ps.identity(ps.trace(nn.Linear(2, 2), torch.ones(1, 2)))
    assert repr(none) == "<Rescaling of 0 scales>"
    assert ps.rescale_(none.network, none) is none.network
    assert len({c, c, none}) == 2


# The edges of the number range -------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e30, 1e39, 1e300, 1e-39, 1e-300])
def test_leaving_the_range_is_refused_and_nothing_is_written(factor: float) -> None:
    model = build(MLP).float()
    with torch.no_grad():
        model.get_parameter("4.weight").mul_(1e10)  # 1e30 is too much for the last layer only
        model.get_parameter("2.weight").mul_(1e20)
    network = ps.trace(model, example_input(MLP).float())
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(example_input(MLP).float()).sum().backward()
    optimizer.step()
    before = copies(network)
    with pytest.raises(ps.RescalingError, match=r"`\d.\w+` leaves the range of float32 under this"):
        ps.rescale_(network, {"2": factor}, optimizer=optimizer)
    assert_equal(network.state(), before)


@pytest.mark.parametrize("factor", [1e25, 1e-12])
def test_a_variance_out_of_range_is_refused(factor: float) -> None:
    """It would overflow; or its sum with eps would be a difference without correct digits."""
    network = ps.trace(build(CNN).float(), example_input(CNN).float())
    before = copies(network)
    with pytest.raises(ps.RescalingError, match=r"`1\.running_var` leaves the range of float32"):
        ps.rescale_(network, {"0": factor})
    assert_equal(network.state(), before)


def test_state_out_of_range_is_refused_by_name() -> None:
    network = ps.trace(build(MLP).float(), example_input(MLP).float())
    optimizer = torch.optim.Adam(network.model.parameters())
    network.model(example_input(MLP).float()).sum().backward()
    optimizer.step()
    before = copies(network)
    with pytest.raises(ps.RescalingError, match=r"`exp_avg_sq` of `0\.weight` leaves the range"):
        ps.rescale_(network, {"0": 1e25}, optimizer=optimizer)
    assert_equal(network.state(), before)


def test_tiny_halfs_may_vanish() -> None:
    """Weights below the normal range have few digits to lose; refusing them would refuse all."""
    network = ps.trace(build(MLP).half(), example_input(MLP).half())
    with torch.no_grad():
        network.model.get_parameter("0.weight")[0, 0] = 6e-8
    ps.rescale_(network, {"0": 0.1})
    assert network.state()["0.weight"][0, 0] == 0


# Random ones -------------------------------------------------------------------------------------

DRAWS: list[Callable[..., ps.Rescaling]] = [ps.random_rescaling, ps.unbalanced_rescaling]


@pytest.mark.parametrize("draw", DRAWS)
def test_a_generator_decides_the_draw_and_the_global_state_is_untouched(
    draw: Callable[..., ps.Rescaling],
) -> None:
    network = traced(CNN)
    before = torch.get_rng_state()
    a, b, other = (draw(network, generator=generator(seed)).log for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a, b)
    assert not torch.equal(a, other)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        a = draw(network).log
        torch.manual_seed(1)
        assert torch.equal(draw(network).log, a)


def test_random_factors_are_log_normal() -> None:
    network = traced(Spec((2,), (Map(5000), Act(), Map(1))))
    log = ps.random_rescaling(network, spread=0.5, generator=generator()).log
    assert log.mean().abs() < 4 * 0.5 / 5000**0.5
    assert log.std().item() == pytest.approx(0.5, rel=0.05)
    assert not ps.random_rescaling(network, spread=0.0).log.any()


@pytest.mark.parametrize("draw", DRAWS)
def test_scales_before_a_batch_norm_stay_unless_asked_for(
    draw: Callable[..., ps.Rescaling],
) -> None:
    network = traced(CNN)
    assert network.exact.tolist() == [False] * 4 + [True] * 7
    assert draw(network, generator=generator()).log.ne(0).tolist() == network.exact.tolist()
    assert ps.random_rescaling(network, normalized=True, generator=generator()).log.all()


def test_unbalancing_is_the_recipe_of_the_paper() -> None:
    """Pick a unit, multiply what comes in by 10c and divide what goes out by it; 2000 times."""
    spec = Spec((3,), (Map(80, False), Act(), Map(60, False), Act(), Map(2, False)))
    network = traced(spec)
    c = ps.unbalanced_rescaling(network, generator=generator(3))
    random = generator(3)
    units = torch.randint(140, (2000,), generator=random).tolist()
    factors = 10 * torch.randn(2000, dtype=torch.float64, generator=random).exp()
    assert len(set(units)) < 2000  # with replacement
    layers = [network.state()[f"{i}.weight"].detach().clone() for i in (0, 2, 4)]
    for unit, factor in zip(units, factors, strict=True):
        layer, place = divmod(unit, 80) if unit < 80 else (1, unit - 80)
        layers[layer][place] *= factor
        layers[layer + 1][:, place] /= factor
    new = ps.rescale(network, c)
    for layer, name in zip(layers, ("0.weight", "2.weight", "4.weight"), strict=True):
        torch.testing.assert_close(new[name], layer, rtol=1e-9, atol=0)


def test_unbalancing_has_options_and_limits() -> None:
    network = traced()
    none = ps.unbalanced_rescaling(network, picks=0, generator=generator())
    assert not none.log.any()
    once = ps.unbalanced_rescaling(network, 1, 2.0, 0.0, generator=generator()).factors
    torch.testing.assert_close(once.sort().values, torch.tensor([1.0] * 8 + [2.0]).double())
    with pytest.raises(ps.RescalingError, match="must be positive and finite"):
        ps.unbalanced_rescaling(network, factor=-1.0, generator=generator())
    pinned = ps.trace(nn.Linear(2, 2), torch.ones(1, 2))
    assert ps.unbalanced_rescaling(pinned).log.shape == (0,)


# Gradients and optimizers ------------------------------------------------------------------------


def gradients(model: nn.Module, state: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    """Autograd's gradients of a loss, by name, in train mode."""
    leaves = {n: state[n].detach().clone().requires_grad_() for n, _ in model.named_parameters()}
    buffers = {n: state[n].clone() for n, _ in model.named_buffers()}
    model.train()
    loss = torch.func.functional_call(model, {**leaves, **buffers}, x).square().sum()
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@pytest.mark.parametrize("spec", [MLP, CNN, STREAM], ids=["mlp", "cnn", "stream"])
def test_carried_gradients_are_those_at_the_rescaled_weights(spec: Spec) -> None:
    network, x = traced(spec, streams="shared"), example_input(spec)
    c = ps.random_rescaling(network, generator=generator())
    there = gradients(network.model, ps.rescale(network, c), x)
    here = gradients(network.model, network.state(), x)
    torch.testing.assert_close(ps.carry_gradients(network, c, here), there)
    assert any(not torch.allclose(here[name], there[name]) for name in here)


def test_gradients_are_carried_under_every_name() -> None:
    network = traced()
    network.model.register_parameter("alias", network.model.get_parameter("0.weight"))
    c = ps.rescaling(network, {"0": 4.0})
    ones = {name: torch.ones_like(p) for name, p in network.parameters().items()}
    carried = ps.carry_gradients(network, c, ones)
    torch.testing.assert_close(carried["alias"], ones["alias"] / 4)
    torch.testing.assert_close(carried["0.weight"], ones["alias"] / 4)
    assert ps.carry_gradients(network, c, {"4.bias": ones["4.bias"]}).keys() == {"4.bias"}


OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, int]]] = {
    "sgd": (partial(torch.optim.SGD, lr=0.01, momentum=0.9), {"momentum_buffer": 1}),
    "nesterov": (
        partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
        {"momentum_buffer": 1},
    ),
    "adagrad": (partial(torch.optim.Adagrad, lr=0.01), {"sum": 2}),
    "adam": (partial(torch.optim.Adam, lr=0.01), {"exp_avg": 1, "exp_avg_sq": 2}),
    "amsgrad": (
        partial(torch.optim.AdamW, lr=0.01, amsgrad=True),
        {"exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2},
    ),
    "nadam": (partial(torch.optim.NAdam, lr=0.01), {"exp_avg": 1, "exp_avg_sq": 2}),
    "radam": (partial(torch.optim.RAdam, lr=0.01), {"exp_avg": 1, "exp_avg_sq": 2}),
    "adamax": (partial(torch.optim.Adamax, lr=0.01), {"exp_avg": 1, "exp_inf": 1}),
    "rmsprop": (
        partial(torch.optim.RMSprop, lr=0.01, centered=True),
        {"grad_avg": 1, "square_avg": 2},
    ),
}


def trained(
    spec: Spec, make: Callable[..., torch.optim.Optimizer], steps: int = 3
) -> tuple[ps.Network, torch.optim.Optimizer]:
    """A network after a few steps, with the gradients of the next step in place."""
    network, x = traced(spec), example_input(spec)
    model = network.model.train()
    optimizer = make(model.parameters())
    for step in range(steps + 1):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        if step < steps:
            optimizer.step()
    return network, optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_state_transforms_as_powers_of_the_gradient(name: str) -> None:
    make, powers = OPTIMIZERS[name]
    network, optimizer = trained(CNN, make)
    c = ps.random_rescaling(network, generator=generator())
    old, weights = copy.deepcopy(optimizer.state_dict()["state"]), copies(network)
    slopes = {n: p.grad.clone() for n, p in network.parameters().items() if p.grad is not None}
    assert old[0].keys() - {"step", "mu_product"} == powers.keys()
    ps.rescale_(network, c, optimizer=optimizer)
    for place, (weight, parameter) in enumerate(network.model.named_parameters()):
        factor = (parameter / weights[weight]).detach()
        for key, entry in optimizer.state[parameter].items():
            if key in powers:
                torch.testing.assert_close(entry, old[place][key] / factor ** powers[key])
            else:
                assert entry == old[place][key]
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, slopes[weight] / factor)


def test_without_the_optimizer_its_state_and_the_gradients_stay() -> None:
    network, optimizer = trained(CNN, OPTIMIZERS["adam"][0])
    old = copy.deepcopy(optimizer.state_dict()["state"])
    slopes = {n: p.grad.clone() for n, p in network.parameters().items() if p.grad is not None}
    ps.rescale_(network, ps.random_rescaling(network, generator=generator()))
    torch.testing.assert_close(optimizer.state_dict()["state"], old, rtol=0, atol=0)
    for name, parameter in network.parameters().items():
        assert torch.equal(parameter.grad, slopes[name])  # type: ignore[arg-type]


def test_a_step_of_momentum_follows_from_the_law() -> None:
    """v and g are divided by the factor: w c/b - lr (0.9 v + g) b/c, for every weight."""
    network, optimizer = trained(CNN, OPTIMIZERS["sgd"][0])
    before = copies(network)
    c = ps.random_rescaling(network, generator=generator())
    expected = {}
    rescaled = ps.rescale(network, c)
    for name, parameter in network.model.named_parameters():
        assert parameter.grad is not None
        factor = rescaled[name].detach() / before[name]
        buffer = 0.9 * optimizer.state[parameter]["momentum_buffer"] + parameter.grad
        expected[name] = before[name] * factor - 0.01 * buffer / factor
    ps.rescale_(network, c, optimizer=optimizer)
    for parameter in network.model.parameters():  # gradients of the rescaled network
        parameter.grad = None
    network.model(example_input(CNN)).square().sum().backward()
    optimizer.step()
    stepped = {n: p.detach() for n, p in network.model.named_parameters()}
    torch.testing.assert_close(stepped, expected)


def test_a_scalar_parameter_is_carried_too() -> None:
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.gain, self.b = (
                nn.Linear(2, 1),
                nn.Parameter(torch.ones(())),
                nn.Linear(1, 1),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.b((self.gain * self.a(x).relu()).relu())

    model, x = Gain(), torch.randn(9, 2, generator=generator())
    network = ps.trace(model, x)
    optimizer = torch.optim.Adam(model.parameters())
    model(x).square().sum().backward()
    optimizer.step()
    step, first = (optimizer.state[model.gain][key].clone() for key in ("step", "exp_avg"))
    y = model(x)
    ps.rescale_(network, {"a": 4.0}, optimizer=optimizer)
    torch.testing.assert_close(model(x), y)
    assert model.gain.item() == pytest.approx(0.25, rel=0.01)
    assert optimizer.state[model.gain]["step"] == step
    torch.testing.assert_close(optimizer.state[model.gain]["exp_avg"], first * 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(torch.optim.RMSprop, lr=0.01, momentum=0.9), "'momentum_buffer' of RMSprop"),
        (torch.optim.Adadelta, "'acc_delta' of Adadelta"),
        (torch.optim.Rprop, "'prev' of Rprop"),
        (torch.optim.ASGD, "'eta' of ASGD"),
        (torch.optim.Adafactor, r"'(variance|\w+_var)' of Adafactor"),
    ],
    ids=["rmsprop", "adadelta", "rprop", "asgd", "adafactor"],
)
def test_state_of_unknown_meaning_is_refused_by_name(
    make: Callable[..., torch.optim.Optimizer], message: str
) -> None:
    network, optimizer = trained(CNN, make)
    before, state = copies(network), copy.deepcopy(optimizer.state_dict()["state"])
    c = ps.random_rescaling(network, generator=generator())
    with pytest.raises(ps.RescalingError, match=f"do not know how the state {message} transforms"):
        ps.rescale_(network, c, optimizer=optimizer)
    assert_equal(network.state(), before)
    torch.testing.assert_close(optimizer.state_dict()["state"], state, rtol=0, atol=0)
    ps.rescale_(network, c)  # without optimizer= it is the user's own responsibility


@pytest.mark.filterwarnings("ignore:Converting a tensor:UserWarning")  # torch 2.8 in L-BFGS
def test_lbfgs_is_refused_by_name() -> None:
    network, x = traced(), example_input(MLP)
    optimizer = torch.optim.LBFGS(network.model.parameters(), max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = network.model(x).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with pytest.raises(ps.RescalingError, match="of LBFGS transforms"):
        ps.rescale_(network, {"2": 2.0}, optimizer=optimizer)


def test_an_optimizer_that_has_not_stepped_has_nothing_to_carry() -> None:
    network = traced()
    optimizer = torch.optim.Adafactor(network.model.parameters())
    ps.rescale_(network, {"0": 2.0}, optimizer=optimizer)
    assert not optimizer.state
