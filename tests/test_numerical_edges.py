"""At the edges of arithmetic: the right number, a finite step or an error by name; no silent NaN.

One table of edges, one of functions, and every function at every edge.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathspace as ps
from pathspace import bounds
from pathspace.evaluation import Objective
from pathspace.performance import performance

Edge = tuple[nn.Module, Tensor, Tensor]
Change = Callable[[nn.Module], Any]
CE = F.cross_entropy


# Edges --------------------------------------------------------------------------------------------


def build(
    change: Change = lambda _: None, dtype: torch.dtype = torch.float64, **options: Any
) -> Edge:
    """A 2-3-2-2 network and eight samples, with a change made to its weights."""
    generator = torch.Generator().manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.ReLU()]
    if options.get("batch_norm"):
        layers.insert(1, nn.BatchNorm1d(3))
    model = nn.Sequential(*layers, nn.Linear(2, options.get("classes", 2))).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        model.to(dtype)
        change(model)
    x = torch.randn(8, 2, generator=generator, dtype=torch.float64).to(dtype)
    return model, x, torch.arange(8) % options.get("classes", 2)


def all_times(factor: float) -> Change:
    return lambda model: [p.mul_(factor) for p in model.parameters()]


def entry(name: str, place: Any, value: float) -> Change:
    def change(model: nn.Module) -> None:
        model.get_parameter(name)[place] = value

    return change


def together(*changes: Change) -> Change:
    return lambda model: [change(model) for change in changes]


def with_inputs(change: Callable[[Tensor], Tensor], **options: Any) -> Edge:
    model, x, y = build(**options)
    return model, change(x.clone()), y


def first_input(value: float) -> Edge:
    def change(x: Tensor) -> Tensor:
        x[0, 0] = value
        return x

    return with_inputs(change)


def nothing_enters(bias: float) -> Change:
    return together(entry("0.weight", 0, 0.0), entry("0.bias", 0, bias))


f16, bf16, f32, f64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
EDGES: dict[str, Callable[[], Edge]] = {
    "ordinary": build,
    "float32": partial(build, dtype=f32),
    "float16": partial(build, dtype=f16),
    "bfloat16": partial(build, dtype=bf16),
    "all weights 0": partial(build, all_times(0.0)),
    "output weights 0": partial(
        build, together(entry("4.weight", ..., 0.0), entry("4.bias", ..., 0.0))
    ),
    "one output 0": partial(build, together(entry("4.weight", 0, 0.0), entry("4.bias", 0, 0.0))),
    "nothing enters a unit": partial(build, nothing_enters(0.0)),
    "nothing but a bias enters a unit": partial(build, nothing_enters(-1.0)),
    "nothing leaves a unit": partial(build, entry("2.weight", (slice(None), 1), 0.0)),
    "all units off": partial(build, entry("0.bias", ..., -100.0)),
    "weights 1e150": partial(build, all_times(1e150)),
    "weights 1e-150": partial(build, all_times(1e-150)),
    "weights 1e30, float32": partial(build, all_times(1e30), f32),
    "weights 1e-30, float32": partial(build, all_times(1e-30), f32),
    "weights 1e4, float16": partial(build, all_times(1e4), f16),
    "weights 1e30 and 1e-30, float32": partial(
        build, lambda m: (m[0].weight.mul_(1e30), m[2].weight.mul_(1e-30)), f32
    ),
    "weight NaN": partial(build, entry("2.weight", (1, 1), math.nan)),
    "weight inf": partial(build, entry("2.weight", (1, 1), math.inf)),
    "weight -inf": partial(build, entry("2.weight", (1, 1), -math.inf)),
    "bias NaN": partial(build, entry("0.bias", 0, math.nan)),
    "bias inf": partial(build, entry("0.bias", 0, math.inf)),
    "bias -inf": partial(build, entry("0.bias", 0, -math.inf)),
    "input NaN": partial(first_input, math.nan),
    "input inf": partial(first_input, math.inf),
    "input -inf": partial(first_input, -math.inf),
    "input 1e200": partial(first_input, 1e200),
    "constant data": partial(with_inputs, torch.ones_like),
    "zero data": partial(with_inputs, torch.zeros_like),
    "one label": lambda: (*build()[:2], torch.zeros(8, dtype=torch.long)),
    "one class": partial(build, classes=1),
    "huge logits": partial(build, lambda m: m[4].weight.mul_(1e200)),
    "huge logits, float32": partial(build, lambda m: m[4].weight.mul_(1e36), f32),
    "batch norm": partial(build, batch_norm=True),
    "batch norm, variance 0": partial(build, lambda m: m[1].running_var.zero_(), batch_norm=True),
    "batch norm, gain 0": partial(build, entry("1.weight", ..., 0.0), batch_norm=True),
    "batch norm, variance NaN": partial(
        build, lambda m: m[1].running_var.fill_(math.nan), batch_norm=True
    ),
}


def one_sample() -> Edge:
    model, x, y = build()
    return model, x[:1], y[:1]


EDGES["batch of one"] = one_sample


# Functions ----------------------------------------------------------------------------------------

Call = Callable[[ps.Network, Tensor, Tensor], Any]


def of_penalty(make: Callable[..., ps.Penalty], **options: Any) -> Call:
    """Value and gradients, as a term of the loss; only the value if that says what is wrong."""

    def call(network: ps.Network, x: Tensor, y: Tensor) -> Any:
        value = make(network, **options)()
        value.backward()
        gradients = [p.grad for p in network.model.parameters()]
        return math.inf if bool(value.isinf()) else [value, *gradients]

    return call


def of_closed_gradients(make: Callable[..., ps.Penalty], **options: Any) -> Call:
    """Gradients in closed form, infinite only where they are beyond the range of their dtype."""

    def call(network: ps.Network, x: Tensor, y: Tensor) -> Any:
        penalty = make(network, **options)
        found = penalty.gradients()
        wide = {n: t.detach().double() for n, t in network.state().items()}
        for name, gradient in penalty.gradients(wide).items():
            assert torch.equal(found[name].isinf(), gradient.to(found[name]).isinf()), name
        return found

    return call


def of_gradient(network: ps.Network, x: Tensor, y: Tensor) -> Any:
    """The gradient of the path norm, where the norm itself is in the range of a float."""
    norm = ps.path_norm(network, state=network.state())
    gradients = torch.autograd.grad(norm, list(network.model.parameters()))
    return gradients if bool(norm.isfinite()) else math.inf


def of_landscape(space: Any, network: ps.Network, x: Tensor, y: Tensor) -> Any:
    found = ps.landscape(network, CE, (x, y), space=space, grid=3)
    wild = int((~found.losses.isfinite()).sum())
    if wild:
        assert any("left out" in note or "not finite" in note for note in found.notes)
    return [*found.axes, found.losses.nan_to_num()]


def of_report(network: ps.Network, x: Tensor, y: Tensor) -> Any:
    report = ps.measure(network, (x, y), progress=False)
    json.dumps(report.to_dict(), allow_nan=False)
    assert "</html>" in report.to_html()
    values = []
    for one in report.entries:
        assert (one.value is None) == bool(one.reason), one
        if one.value is not None and math.isnan(one.value):
            assert any("not a number" in note for note in one.notes), one
        else:
            values.append(one.value)
    return values


def of_margins(network: ps.Network, x: Tensor, y: Tensor) -> Any:
    """NaN exactly where the difference of the scores is no number."""
    scores = network.model(x).detach()
    if scores.shape[1] < 2:
        with pytest.raises(ValueError, match="K ≥ 2"):
            ps.margins(scores, y)
        return 0.0
    found = ps.margins(scores, y)
    rest = scores.gather(1, y[:, None])[:, 0] - scores.gather(1, 1 - y[:, None])[:, 0]
    assert torch.equal(found.isnan(), rest.isnan())
    return found[~found.isnan()]


def of_rescaled(network: ps.Network, x: Tensor, y: Tensor) -> Any:
    """What was not finite stays so in its place, and nothing else becomes so."""
    c = ps.random_rescaling(network, generator=torch.Generator().manual_seed(0))
    found, before = ps.rescale(network, c), network.state()
    for name, tensor in found.items():
        assert torch.equal(tensor.isfinite(), before[name].isfinite())
    return [tensor[tensor.isfinite()] for tensor in found.values()]


def of_action(
    action: Callable[[ps.Network], Any], network: ps.Network, x: Tensor, y: Tensor
) -> Any:
    action(network)
    return list(network.model.parameters())


def of_flatness(kind: Any, space: Any, **options: Any) -> Call:
    return lambda n, x, y: ps.flatness(n, CE, (x, y), kind=kind, space=space, **options)


SMALL_BALL = {"restarts": 1, "steps": 2}
FUNCTIONS: dict[str, Call] = {
    "trace": lambda n, x, y: n.invariant_ratio,
    **{f"path_norm, p={p}": lambda n, x, y, p=p: ps.path_norm(n, p) for p in (1, 2, math.inf)},
    "path_norm, log": lambda n, x, y: ps.path_norm(n, log=True),
    "path_norm, per output": lambda n, x, y: ps.path_norm(n, per_output=True),
    "path_norm, gradient": of_gradient,
    "path_slopes": lambda n, x, y: ps.path_slopes(n),
    "path_contributions": lambda n, x, y: ps.path_contributions(n),
    "path_values": lambda n, x, y: ps.path_values(n),
    "output_from_paths": lambda n, x, y: ps.output_from_paths(n, x),
    "basis_path_norm": lambda n, x, y: ps.basis_path_norm(n),
    "basis_path_norm, largest": lambda n, x, y: ps.basis_path_norm(n, "largest"),
    "BasisPaths.values": lambda n, x, y: ps.BasisPaths(n).values(),
    "path_balance": lambda n, x, y: ps.path_balance(n),
    **{f"weight_norm, p={p}": lambda n, x, y, p=p: ps.weight_norm(n, p) for p in (1, 2, math.inf)},
    "max_norm": lambda n, x, y: ps.max_norm(n),
    "group_norm": lambda n, x, y: ps.group_norm(n, 1, 2),
    "norm_21": lambda n, x, y: ps.norm_21(n),
    "spectral_norm": lambda n, x, y: ps.spectral_norm(n),
    "spectral_norms": lambda n, x, y: ps.spectral_norms(n),
    "spectral_complexity": lambda n, x, y: ps.spectral_complexity(n),
    "basis_path_bound": lambda n, x, y: bounds.basis_path_bound(n, 100, 1.0),
    "path_norm_bound": lambda n, x, y: bounds.path_norm_bound(n, 100, 1.0),
    "spectral_bound": lambda n, x, y: bounds.spectral_bound(n, 100, 1.0),
    "weight_norm_bound": lambda n, x, y: bounds.weight_norm_bound(n, 100, 1.0),
    "ball_bound": lambda n, x, y: ps.ball_bound(n, (x, y)),
    "pac_bayes": lambda n, x, y: ps.pac_bayes(n, ps.error_rate, (x, y), sigmas=(0.1,), max_pairs=2),
    "error_rate": lambda n, x, y: ps.error_rate(n.model(x).detach(), y),
    "margins": of_margins,
    "rescale": of_rescaled,
    "balance": lambda n, x, y: ps.balance(n),
    "are_equivalent": lambda n, x, y: ps.are_equivalent(n, n.state(), n.state()),
    "balance_": partial(of_action, ps.balance_),
    "gauge_": partial(of_action, ps.gauge_),
    "skeleton_init_": partial(of_action, ps.skeleton_init_),
    "BasisPathPenalty": of_penalty(ps.BasisPathPenalty),
    "BasisPathPenalty, exact": of_penalty(ps.BasisPathPenalty, exact=True),
    "PathNormPenalty, p=1": of_penalty(ps.PathNormPenalty, p=1.0),
    "PathNormPenalty": of_penalty(ps.PathNormPenalty),
    "BasisPathPenalty, in closed form": of_closed_gradients(ps.BasisPathPenalty),
    "BasisPathPenalty, exact, in closed form": of_closed_gradients(ps.BasisPathPenalty, exact=True),
    "PathNormPenalty, p=1, in closed form": of_closed_gradients(ps.PathNormPenalty, p=1.0),
    "PathNormPenalty, in closed form": of_closed_gradients(ps.PathNormPenalty),
    **{
        f"flatness, {kind}, {space}": of_flatness(kind, space, **options)
        for kind, space, options in (
            ("ball", "paths", SMALL_BALL),
            ("adaptive", "paths", SMALL_BALL),
            ("ball", "weights", SMALL_BALL),
            ("trace", "paths", {}),
            ("trace", "weights", {}),
            ("expected", "paths", {"max_pairs": 2}),
            ("expected", "weights", {"max_pairs": 2}),
        )
    },
    "landscape, paths": partial(of_landscape, "paths"),
    "landscape, weights": partial(of_landscape, "weights"),
    "measure": of_report,
    "self_check": lambda n, x, y: str(ps.self_check(n, (x, y), progress=False)),
}


def numbers(found: Any) -> Iterator[float]:
    """All floating-point numbers in a result."""
    if isinstance(found, Tensor):
        yield from found.detach().double().flatten().tolist() if found.is_floating_point() else ()
    elif isinstance(found, float):
        yield found
    elif isinstance(found, Mapping):
        yield from numbers(list(found.values()))
    elif isinstance(found, list | tuple):
        for item in found:
            yield from numbers(item)
    elif isinstance(found, ps.Rescaling):
        yield from numbers(found.log)
    elif isinstance(found, ps.Flatness):
        yield from (found.value, found.loss)
    elif dataclasses.is_dataclass(found) and not isinstance(found, ps.Network):
        yield from numbers([getattr(found, field.name) for field in dataclasses.fields(found)])


WRITING = {name for name in FUNCTIONS if name.endswith("_") or "Penalty" in name}
HARMLESS = {"ordinary", "float32", "constant data", "one label"}  # nothing to refuse
IN_RANGE = HARMLESS | {"float16", "bfloat16", "batch of one", "zero data"}  # nothing overflows


@pytest.mark.parametrize("edge", EDGES)
def test_a_number_or_an_error_by_name(edge: str) -> None:
    model, x, y = EDGES[edge]()
    network = ps.trace(model, x)
    wrong = {}
    for name, function in FUNCTIONS.items():
        if name in WRITING:
            model, x, y = EDGES[edge]()
        place = ps.trace(model, x) if name in WRITING else network
        try:
            found = list(numbers(function(place, x, y)))
        except ps.PathspaceError as error:
            if edge in HARMLESS or len(str(error)) < 20:
                wrong[name] = str(error)
        else:
            if any(map(math.isnan, found)) or (edge in IN_RANGE and any(map(math.isinf, found))):
                wrong[name] = str(found)
    assert wrong == {}


def test_weights_that_are_not_finite_are_in_no_number() -> None:
    """Neither left out nor counted: everything that is read from weights names the parameter."""
    of_weights = [
        name for name in FUNCTIONS if "norm" in name or "bound" in name or "Penal" in name
    ]
    assert len(of_weights) > 20
    for edge, parameter in (("weight NaN", "2"), ("weight -inf", "2"), ("bias inf", "0")):
        for name in of_weights:
            model, x, y = EDGES[edge]()
            if "bias" in edge and (name.startswith("spectral_") and name != "spectral_bound"):
                continue  # biases do not count there
            if "bias" in edge and name == "norm_21":
                continue
            with pytest.raises(ps.PathspaceError, match=f"`{parameter}[.`]"):
                FUNCTIONS[name](ps.trace(model, x), x, y)


# Optimizers ---------------------------------------------------------------------------------------

OPTIMIZERS = ("GSGD", "PathSGD", "BalancedSGD", "GAdam", "GAdagrad", "PathAdam", "PathAdagrad")
STEPPED = [edge for edge in EDGES if edge != "one class"]
TAKEN = {"ordinary", "all weights 0", "float16", "bfloat16", "batch of one", "one label"}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("edge", STEPPED)
def test_a_finite_step_or_none_at_all(edge: str, kind: str) -> None:
    model, x, y = EDGES[edge]()
    network = ps.trace(model, x)
    finite = {name: p.detach().isfinite() for name, p in model.named_parameters()}
    optimizer = None
    try:
        optimizer = getattr(ps.optim, kind)(model.parameters(), lr=0.01, network=network)
        for _ in range(3):
            optimizer.zero_grad()
            CE(model(x), y).backward()
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                optimizer.step()
            assert all("not finite; the step was not taken" in str(w.message) for w in said)
    except ps.PathspaceError:
        if edge in TAKEN:
            raise
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.isfinite(), finite[name])
    assert edge not in TAKEN or optimizer.skipped == 0


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_steps_from_weights_of_any_size(kind: str, dtype: torch.dtype) -> None:
    """Tensors of random sizes, up to the ends of a dtype's range: weights stay numbers."""
    chance, ends, refused = random.Random(kind), 35 if dtype == f32 else 300, 0

    def change(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.mul_(10.0 ** chance.uniform(-ends, ends))

    for number in range(20):
        model, x, y = build(change, dtype, batch_norm=number % 3 == 0)
        before = [p.detach().clone() for p in model.train().parameters()]
        network = ps.trace(model, x)
        try:
            optimizer = getattr(ps.optim, kind)(model.parameters(), lr=0.3, network=network)
            for _ in range(3):
                optimizer.zero_grad()
                CE(model(x), y).backward()
                before = [p.detach().clone() for p in model.parameters()]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # the step was not taken
                    optimizer.step()
        except ps.PathspaceError as error:
            refused += 1
            if "no weight has changed" in str(error):
                assert all(map(torch.equal, model.parameters(), before))
        assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert 0 < refused < 20


@pytest.mark.parametrize("kind", ["GSGD", "GAdam", "PathSGD"])
def test_a_step_that_overflows_is_undone(kind: str) -> None:
    """Weights, momentum and coordinates are as before it, and a smaller step goes on from there.

    Steps of BalancedSGD are limited, so that they do not come so far.
    """

    def rescale(model: nn.Sequential) -> None:
        for parameter in model[0].parameters():
            parameter.mul_(1e-9)
        model[2].weight.mul_(1e9)

    def train(*rates: float) -> tuple[list[Tensor], dict[int, Any]]:
        model, x, y = build(rescale, f32)
        optimizer = getattr(ps.optim, kind)(model.parameters(), network=ps.trace(model, x))
        for rate in rates:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            CE(model(x), y).backward()
            before = [p.detach().clone() for p in model.parameters()]
            if rate < 1:
                optimizer.step()
                continue
            with pytest.raises(ps.PathspaceError, match="no weight has changed"):
                optimizer.step()
            assert all(map(torch.equal, model.parameters(), before))
        return list(model.parameters()), optimizer.state_dict()["state"]

    once, state = train(1e-3, 1e-3)
    again, same = train(1e-3, 1e38, 1e-3)
    assert all(map(torch.equal, once, again))
    for number, held in state.items():
        assert all(torch.equal(held[name], same[number][name]) for name in held)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_gradients_of_zero_move_nothing(kind: str) -> None:
    model, x, _ = build()
    network = ps.trace(model, x)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = getattr(ps.optim, kind)(model.parameters(), lr=0.1, network=network)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(2):
        optimizer.step()
    assert optimizer.skipped == 0
    torch.testing.assert_close(list(model.parameters()), before, rtol=1e-12, atol=0)


# The right numbers --------------------------------------------------------------------------------

SIZES: dict[str, tuple[Call, float]] = {  # a quantity, and by what power of t it grows with t·w
    "path_norm": (lambda n, x, y: ps.path_norm(n, log=True, biases=False), 3),
    "weight_norm": (lambda n, x, y: ps.weight_norm(n, log=True), 1),
    "max_norm": (lambda n, x, y: ps.max_norm(n, log=True), 1),
    "spectral_norm": (lambda n, x, y: ps.spectral_norm(n, log=True), 3),
    "spectral_complexity": (lambda n, x, y: ps.spectral_complexity(n, log=True), 3),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("factor", [1e30, 1e-30, 1e150, 1e-150])
def test_logarithms_are_right_at_any_size(name: str, factor: float) -> None:
    function, degree = SIZES[name]
    small, large = (
        function(ps.trace(model, x), x, y) for model, x, y in (build(), build(all_times(factor)))
    )
    torch.testing.assert_close(large, small + degree * math.log(factor), rtol=1e-12, atol=0)


@pytest.mark.parametrize("end", ["linear", "batch norm"])
@pytest.mark.parametrize("bias", [1.0, 1e-120, 0.0])
def test_a_bias_behind_tiny_weights(end: str, bias: float) -> None:
    """The paths from the inputs are smaller by more than a float holds."""
    model, x, _ = build(all_times(1e-150))
    last = model[-1]
    if end == "batch norm":
        last = nn.BatchNorm1d(2).double().eval()
        last.running_mean, last.eps = torch.zeros(2).double(), 0.0
        model.append(last)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
        last.bias.fill_(bias)
    network = ps.trace(model, x)
    found = float(ps.path_norm(network, log=True).detach())
    through = float(ps.path_norm(network, log=True, biases=False).detach())
    expected = math.log(bias) + math.log(2) / 2 if bias else through
    assert math.isclose(found, expected, rel_tol=1e-12)
    assert -2000 < through < -900


def test_a_weight_whose_power_is_zero() -> None:
    """Is not taken for one that is 0."""
    model, x, _ = build(entry("4.weight", ..., 1e-170))
    with torch.no_grad():
        model[-1].bias.zero_()
    network = ps.trace(model, x)
    with pytest.raises(ps.PathspaceError, match=r"`4.weight` has weights as small as 1e-170"):
        ps.path_norm(network, log=True)
    smaller = float(ps.path_norm(network, 1.5, log=True).detach())
    assert abs(smaller + 170 * math.log(10)) < 10


@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
@pytest.mark.parametrize(
    "name", [*SIZES, "basis_path_norm, largest", "norm_21", "path_norm, per output"]
)
def test_coarse_weights_are_measured_in_float64(name: str, dtype: torch.dtype) -> None:
    """As large as with the same, rounded weights in float64: nothing more is rounded."""
    function = SIZES[name][0] if name in SIZES else FUNCTIONS[name]
    model, x, y = build(dtype=dtype)
    found = list(numbers(function(ps.trace(model, x), x, y)))
    expected = list(numbers(function(ps.trace(model.double(), x.double()), x.double(), y)))
    assert found == pytest.approx(expected, rel=1e-12)


def test_zero_is_zero() -> None:
    model, x, y = EDGES["all weights 0"]()
    network = ps.trace(model, x)
    for p in (1, 2, math.inf):
        assert float(ps.path_norm(network, p)) == 0.0
        assert float(ps.weight_norm(network, p)) == 0.0
    assert float(ps.spectral_norm(network)) == float(ps.spectral_complexity(network)) == 0.0
    report = ps.measure(network, (x, y))
    assert report["loss"].value == pytest.approx(math.log(2))
    assert report["error"].value == 100  # ties are no right answers
    for name in ("margin / path norm", "margin / spectral norm"):
        assert report[name].reason == "the norm is 0, and nothing can be divided by it"
    flat = ps.flatness(network, CE, (x, y), kind="trace", space="weights")
    assert flat.value == pytest.approx(0.5)  # of the biases of two outputs: 2 · ¼


def test_the_gradient_of_the_path_norm_where_an_output_is_zero() -> None:
    """The others' derivatives, and 0 for the weights that only it reads."""
    model, x, _ = EDGES["one output 0"]()
    network = ps.trace(model, x)
    found = torch.autograd.grad(
        ps.path_norm(network, state=network.state()), list(model.parameters())
    )
    w, b = ([layer.weight, layer.bias] for layer in (model[0], model[2]))
    inner = b[0].square() @ (w[0].square().sum(1) + w[1].square()) + b[1].square()
    norm = (model[4].weight[1].square() @ inner + model[4].bias[1].square()).sqrt()
    expected = torch.autograd.grad(norm, list(model.parameters()))
    torch.testing.assert_close(found, expected)


def test_scores_that_are_no_numbers_are_wrong_answers() -> None:
    scores = torch.tensor([[math.nan, 0.0], [math.nan, 0.0], [1.0, 0.0], [math.inf, 0.0]])
    assert float(ps.error_rate(scores, torch.tensor([0, 1, 0, 0]))) == 0.5
    model, x, y = EDGES["input NaN"]()
    found = performance(ps.trace(model, x), CE, (x, y))
    expected = ps.margins(model(x[1:]).detach(), y[1:]).sort().values
    assert math.isnan(found.quantile(0.0))
    torch.testing.assert_close(found.margins[1:], expected)
    assert found.error == pytest.approx((1 + float((expected <= 0).sum())) / 8)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_inputs_that_are_not_finite_have_no_size(value: float) -> None:
    model, x, y = first_input(value)
    data = [(x[4:], y[4:]), (x[:4], y[:4]), (x[4:], y[4:])]
    report = ps.measure(model, data, progress=False)
    for name in ("largest input", "basis-path bound"):
        assert report[name].value is None
        assert "inputs are not finite" in report[name].reason
    with pytest.raises(ps.PathspaceError, match="inputs are not finite"):
        ps.ball_bound(ps.trace(model, x), data)


def test_a_margin_over_a_norm_that_no_float_holds() -> None:
    """The quotient of two such numbers is one, or is known by its logarithm."""
    plain, x, _ = build()
    y = plain(x).argmax(1)  # no mistakes
    reports = [
        ps.measure(model, (x, y), progress=False)
        for model in (plain, build(lambda m: [p.mul_(1e-120) for p in m.parameters()])[0])
    ]
    name = "margin / path norm"
    assert all(report["error"].value == 0 for report in reports[:1])
    assert all(report[name].value is not None for report in reports)
    assert not any(math.isnan(report[name].value) for report in reports)


def test_huge_scores() -> None:
    """A loss of 1e200 is a number; softmax does not overflow."""
    model, x, y = EDGES["huge logits"]()
    report = ps.measure(model, (x, y), progress=False)
    margins = ps.margins(model(x).detach(), y)
    assert report["loss"].value == pytest.approx(float(margins.neg().relu().mean()))
    assert report["smallest margin"].value == float(margins.min())
    assert math.isfinite(report["path norm (p=1)"].value)
    assert "smaller p" in report["path norm (p=2)"].reason  # squares are too large


def test_a_batch_of_one_is_its_sample() -> None:
    model, x, y = build()
    network = ps.trace(model, x)
    one = [Objective(network, CE, (x[k : k + 1], y[k : k + 1]))() for k in range(8)]
    torch.testing.assert_close(Objective(network, CE, (x, y))(), torch.stack(one).mean())


# Nothing at all -----------------------------------------------------------------------------------

NO_DATA: dict[str, Any] = {
    "list": [],
    "iterator": iter([]),
    "loader": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(0, 2))),
    "batches without samples": [(torch.ones(0, 2).double(), torch.ones(0).long())] * 2,
}
WITH_DATA: dict[str, Callable[[ps.Network, Any], Any]] = {
    "measure": lambda n, data: ps.measure(n, data, progress=False),
    "self_check": lambda n, data: ps.self_check(n, data, progress=False),
    "flatness": lambda n, data: ps.flatness(n, CE, data),
    "landscape": lambda n, data: ps.landscape(n, CE, data, grid=3),
    "pac_bayes": lambda n, data: ps.pac_bayes(n, CE, data),
    "ball_bound": lambda n, data: ps.ball_bound(n, data),
}


@pytest.mark.parametrize("data", NO_DATA)
@pytest.mark.parametrize("function", WITH_DATA)
def test_no_data_is_an_error_by_name(function: str, data: str) -> None:
    model, x, _ = build()
    with pytest.raises(ps.PathspaceError, match="the data is empty"):
        WITH_DATA[function](ps.trace(model, x), NO_DATA[data])


def test_empty_batches_among_others_do_not_count() -> None:
    model, x, y = build()
    network = ps.trace(model, x)
    holes = [(x[:0], y[:0]), (x[:5], y[:5]), (x[:0], y[:0]), (x[5:], y[5:])]
    whole = ps.measure(network, (x, y), progress=False)
    for one in ps.measure(network, holes, progress=False).entries:
        assert (one.value, one.reason) == pytest.approx((whole[one.name].value, one.reason))
    found, expected = (
        ps.landscape(network, CE, data, grid=3, scale=0.1).losses for data in (holes, (x, y))
    )
    torch.testing.assert_close(found, expected)


def test_no_sample_no_trace() -> None:
    model, x, _ = build()
    with pytest.raises(ps.TraceError, match="empty shape"):
        ps.trace(model, x[:0])
