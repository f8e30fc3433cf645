"""Weight norms against loops over units and dense matrices, in float64."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import pathspace as ps
from cases import CASES, Case, mlp
from pathspace import spectral
from pathspace import weightnorms as wn
from pathspace.weightgraph import WeightGraph

EXPONENTS = [(1.0, 1.0), (2.0, 2.0), (2.0, 1.0), (1.5, 3.0), (2.0, math.inf), (math.inf, 2.0)]


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def incoming(network: ps.Network) -> dict[int, list[float]]:
    """The incoming weights of every unit, one by one."""
    graph = WeightGraph(network)
    weights = graph.weights()
    found: dict[int, list[float]] = {}
    for edge in graph.edges:
        targets = edge.target.expand(edge.shape).reshape(-1).tolist()
        values = weights[edge.parameter].detach().reshape(-1).tolist()
        for unit, weight in zip(targets, values, strict=True):
            found.setdefault(unit, []).append(weight)
    return found


def norm(values: list[float], p: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).norm(p)


def close(value: Tensor, expected: Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(value.detach(), expected.detach(), **tolerance)


# Group norms -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "q"), EXPONENTS)
def test_group_norm_is_the_loop_over_units(case: Case, p: float, q: float) -> None:
    model, x = case.make()
    network = ps.trace(model, x)
    groups = incoming(network)
    expected = norm([float(norm(group, p)) for group in groups.values()], q)
    close(wn.group_norm(network, p, q), expected)
    close(wn.group_norm(network, p, q, log=True), expected.log())
    if math.isinf(q):
        close(wn.max_norm(network, p), expected)
    outputs = [w for unit in groups for w in groups[unit] if unit in last_units(network)]
    rest = [float(norm(group, p)) for u, group in groups.items() if u not in last_units(network)]
    together = norm([*rest, float(norm(outputs, p))], q)
    close(wn.group_norm(network, p, q, one_output_group=True), together)


def last_units(network: ps.Network) -> range:
    """In every case of the table the last layer writes the output."""
    return range(network.spaces[-1].start, network.spaces[-1].start + network.spaces[-1].size)


def test_the_parts_of_a_sum_that_is_the_output_are_output_units() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b = (nn.Linear(3, 3, bias=False) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            h = self.stem(x).relu()
            return self.a(h) + self.b(h)

    model = Sum().double()
    network = ps.trace(model, torch.ones(1, 3).double())
    groups = [*model.stem.weight.norm(dim=1), torch.cat([model.a.weight, model.b.weight]).norm()]
    close(wn.group_norm(network, 2, 1, one_output_group=True), torch.stack(groups).sum())


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_weight_norm_is_the_norm_of_the_parameter_vector(p: float) -> None:
    model = mlp(3, 4, 2, bias=True).double()
    network = ps.trace(model, torch.ones(1, 3).double())
    close(wn.weight_norm(network, p), nn.utils.parameters_to_vector(model.parameters()).norm(p))


def test_large_and_zero_weights() -> None:
    model = mlp(2, 3, 2).double()
    network = ps.trace(model, torch.ones(1, 2).double())
    plain = wn.group_norm(network, 2, 3, log=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e200)
    close(wn.group_norm(network, 2, 3, log=True), plain + math.log(1e200))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert wn.group_norm(network) == 0
    assert wn.max_norm(network, log=True) == -math.inf
    assert spectral.spectral_norm(network) == 0
    assert spectral.spectral_complexity(network) == 0


@pytest.mark.parametrize(("p", "q"), EXPONENTS)
def test_group_norm_has_gradients_even_at_zero(p: float, q: float) -> None:
    model = mlp(3, 4, 2, bias=True).double()
    network = ps.trace(model, torch.ones(1, 3).double())
    state = {n: t.detach().clone().requires_grad_() for n, t in network.state().items()}
    names = list(state)
    assert torch.autograd.gradcheck(
        lambda *tensors: wn.group_norm(network, p, q, state=dict(zip(names, tensors, strict=True))),
        tuple(state.values()),
    )
    with torch.no_grad():
        state["0.weight"][1] = 0
        state["0.bias"].zero_()
    gradients = torch.autograd.grad(wn.group_norm(network, p, q, state=state), state.values())
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("widths", [(3, 4, 2), (3, 5, 4, 3), (2, 3, 3, 3, 2)])
def test_after_balancing_the_max_norm_is_a_root_of_the_path_norm(
    widths: tuple[int, ...], p: float
) -> None:
    model = mlp(*widths).double()
    network = ps.trace(model, torch.ones(1, widths[0]).double())
    depth = len(widths) - 1
    before = wn.max_norm(network, p, one_output_group=True) ** depth
    path_norm = ps.path_norm(network, p)
    assert before > path_norm * 1.001
    ps.balance_(network, p)
    close(wn.max_norm(network, p, one_output_group=True), path_norm ** (1 / depth))
    assert wn.max_norm(network, p) <= wn.max_norm(network, p, one_output_group=True)


@pytest.mark.parametrize("option", [{"p": 0.5}, {"q": 0.0}, {"p": math.nan}])
def test_exponents_are_checked(option: dict[str, float]) -> None:
    network = ps.trace(mlp(2, 2), torch.ones(1, 2))
    with pytest.raises(ValueError, match="at least 1"):
        wn.group_norm(network, **option)


# Layers ------------------------------------------------------------------------------------------


def test_norm_21_sums_the_norms_of_rows() -> None:
    case = next(case for case in CASES if case.name == "conv 3x3")
    model, x = case.make()
    network = ps.trace(model, x)
    start = {name: tensor.detach().clone() for name, tensor in network.state().items()}
    found = dict(wn.norm_21(network))
    assert list(found) == ["0.weight", "4.weight", "8.weight"]
    for name, value in found.items():
        close(value, start[name].flatten(1).norm(dim=1).sum())
    assert all(value == 0 for _, value in wn.norm_21(network, reference=start))
    with torch.no_grad():
        model[8].weight[0, 0] += 3
    assert [float(value) for _, value in wn.norm_21(network, reference=start)] == pytest.approx(
        [0, 0, 3]
    )


CONVOLUTIONS = {
    "plain": (lambda: nn.Conv2d(2, 3, 3), (2, 6, 5)),
    "padding": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 6, 5)),
    "same": (lambda: nn.Conv2d(2, 3, 3, padding="same", dilation=2), (2, 6, 5)),
    "stride": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 6, 5)),
    "stride over pixels": (lambda: nn.Conv2d(2, 3, 1, stride=3), (2, 6, 5)),
    "dilation": (lambda: nn.Conv2d(2, 3, (3, 2), dilation=(2, 1), padding=(2, 0)), (2, 6, 5)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (4, 4, 4)),
    "depthwise": (lambda: nn.Conv2d(3, 3, 3, groups=3), (3, 5, 5)),
    "1d": (lambda: nn.Conv1d(2, 3, 3, padding=2), (2, 7)),
    "3d": (lambda: nn.Conv3d(1, 2, 2, stride=2), (1, 4, 4, 2)),
    "transposed": (
        lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1),
        (2, 3, 4),
    ),
    "transposed groups": (lambda: nn.ConvTranspose1d(4, 2, 3, groups=2, dilation=2), (4, 5)),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_norm_of_a_convolution_is_that_of_its_dense_matrix(name: str, batch: int) -> None:
    build, shape = CONVOLUTIONS[name]
    torch.manual_seed(0)
    layer = build().double()
    network = ps.trace(layer, torch.zeros(batch, *shape).double())
    size = math.prod(shape)
    with torch.no_grad():
        basis = torch.eye(size).double().view(size, *shape)
        matrix = (layer(basis) - layer(torch.zeros_like(basis))).flatten(1).T
    [found] = spectral.spectral_norms(network)
    assert found.parameter == "weight"
    assert found.error <= 1e-8
    close(found.value, torch.linalg.matrix_norm(matrix, ord=2), rtol=1e-9, atol=0)
    [found] = spectral.spectral_norms(network, exact=False)
    close(found.value, torch.linalg.matrix_norm(layer.weight.flatten(1), ord=2))


def test_convolutions_inside_a_network_see_their_own_input_size() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(2, 2, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 2),
    ).double()
    network = ps.trace(model, torch.zeros(5, 1, 8, 8).double())
    inner = ps.trace(model[3], torch.zeros(1, 2, 4, 4).double())
    outer = ps.trace(model[0], torch.zeros(1, 1, 8, 8).double())
    found = spectral.spectral_norms(network)
    assert [norm.parameter for norm in found] == ["0.weight", "3.weight", "6.weight"]
    close(found[0].value, spectral.spectral_norms(outer)[0].value)
    close(found[1].value, spectral.spectral_norms(inner)[0].value)
    close(found[2].value, torch.linalg.matrix_norm(model[6].weight, ord=2))
    product = math.prod(float(norm.value) for norm in found)
    assert float(spectral.spectral_norm(network)) == pytest.approx(product)
    assert float(spectral.spectral_norm(network, log=True)) == pytest.approx(math.log(product))


def test_spectral_norms_are_listed_for_every_case(case: Case) -> None:
    model, x = case.make()
    network = ps.trace(model, x)
    names = [norm.parameter for norm in spectral.spectral_norms(network)]
    edges = [edge.parameter for edge in WeightGraph(network).edges if not edge.from_constant]
    assert sorted(names) == sorted(edges)


def test_large_matrices_are_iterated(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Linear(80, 60).double()
    network = ps.trace(model, torch.zeros(1, 80).double())
    [dense] = spectral.spectral_norms(network)
    monkeypatch.setattr(spectral, "_LARGE", 10)
    [found] = spectral.spectral_norms(network)
    close(found.value, dense.value, rtol=1e-12, atol=0)
    monkeypatch.setattr(spectral, "_BASIS", 2)
    monkeypatch.setattr(spectral, "_RESTARTS", 1)
    [early] = spectral.spectral_norms(network)
    assert early.error > 1e-3  # that it has not converged is reported
    assert early.value < found.value


def test_batch_norms_and_products_are_diagonal_layers() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
            self.matrix = nn.Parameter(torch.randn(4, 4))
            self.factor = nn.Parameter(torch.tensor([1.0, -5.0]))
            self.last = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.first(x)).relu() @ self.matrix.T
            return self.last(x.relu()) * self.factor

    torch.manual_seed(0)
    model = Scaled().double().eval()
    with torch.no_grad():
        model.norm.weight.copy_(torch.tensor([1.0, -4.0, 2.0, 3.0]))
        model.norm.running_var.copy_(torch.tensor([1.0, 4.0, 9.0, 16.0]))
    found = {
        n: float(v)
        for n, v, _ in spectral.spectral_norms(ps.trace(model, torch.ones(2, 3).double()))
    }
    assert list(found) == ["first.weight", "norm.weight", "matrix", "last.weight", "factor"]
    assert found["norm.weight"] == pytest.approx(2, rel=1e-4)  # 4/√4
    matrix = model.matrix.detach()
    assert found["matrix"] == pytest.approx(float(torch.linalg.matrix_norm(matrix, ord=2)))
    assert found["factor"] == 5


def test_batch_norms_without_weights_or_modules() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False)
            self.gain, self.shift = (
                nn.Parameter(torch.full((4,), -3.0)),
                nn.Parameter(torch.ones(4)),
            )
            self.register_buffer("average", torch.zeros(4))
            self.register_buffer("spread", torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.first(x)).relu()
            return nn.functional.batch_norm(x, self.average, self.spread, self.gain, self.shift)

    network = ps.trace(Plain().double().eval(), torch.ones(2, 3).double())
    found = {name: float(value) for name, value, _ in spectral.spectral_norms(network)}
    assert list(found) == ["first.weight", "norm.running_var", "gain"]
    assert found["gain"] == pytest.approx(3, rel=1e-4)
    assert float(spectral.spectral_complexity(network)) > 0
    bare = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False))
    with pytest.raises(ps.PathspaceError, match="running statistics"):
        spectral.spectral_norms(ps.trace(bare, torch.ones(2, 3)))


def test_a_weight_behind_a_function_is_refused_by_name() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.matrix[:2])

    with pytest.raises(ps.PathspaceError, match="`matrix`"):
        spectral.spectral_norms(ps.trace(Cut(), torch.ones(1, 3)))


def test_spectral_norms_have_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).double()
    network = ps.trace(model, torch.zeros(1, 1, 6).double())
    state = {n: t.detach().clone().requires_grad_() for n, t in network.state().items()}
    names = list(state)
    assert torch.autograd.gradcheck(
        lambda *tensors: spectral.spectral_complexity(
            network, 2.0, state=dict(zip(names, tensors, strict=True))
        ),
        tuple(state.values()),
    )


@pytest.mark.parametrize("with_reference", [False, True])
def test_spectral_complexity_is_its_formula(with_reference: bool) -> None:
    torch.manual_seed(0)
    model = mlp(3, 5, 4, 2, bias=True).double()
    network = ps.trace(model, torch.ones(1, 3).double())
    start = {name: torch.randn_like(tensor) for name, tensor in network.state().items()}
    product, total = 1.0, 0.0
    for place in (0, 2, 4):
        weight = model[place].weight.detach()
        sigma = float(torch.linalg.matrix_norm(weight, ord=2))
        moved = weight - start[f"{place}.weight"] if with_reference else weight
        product *= sigma
        total += (float(moved.norm(dim=1).sum()) / sigma) ** (2 / 3)
    options = {"reference": start} if with_reference else {}
    expected = product * total**1.5 / 0.3
    assert float(spectral.spectral_complexity(network, 0.3, **options)) == pytest.approx(expected)
    log = spectral.spectral_complexity(network, 0.3, log=True, **options)
    assert float(log) == pytest.approx(math.log(expected))


def test_the_margin_must_be_positive() -> None:
    network = ps.trace(mlp(2, 2), torch.ones(1, 2))
    with pytest.raises(ValueError, match="positive"):
        spectral.spectral_complexity(network, 0.0)


# All of them -------------------------------------------------------------------------------------

MEASURES = {
    "group": lambda n: wn.group_norm(n, 2, 1),
    "max": wn.max_norm,
    "weight": wn.weight_norm,
    "(2,1)": lambda n: torch.stack([value for _, value in wn.norm_21(n)]).sum(),
    "spectral": spectral.spectral_norm,
    "spectral, kernel": lambda n: spectral.spectral_norm(n, exact=False),
    "complexity": spectral.spectral_complexity,
}


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("kind", ["mlp equal, bias", "conv 3x3", "conv residual, batch norm"])
def test_rescaling_moves_the_measure_and_measuring_changes_nothing(name: str, kind: str) -> None:
    model, x = next(case for case in CASES if case.name == kind).make()
    model.train()
    network = ps.trace(model, x)
    before = copy.deepcopy(model.state_dict())
    value = MEASURES[name](network)
    assert value == MEASURES[name](network)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    torch.manual_seed(0)
    ps.rescale_(network, ps.random_rescaling(network))
    assert abs(float(MEASURES[name](network) / value) - 1) > 1e-3


def test_margins_on_hand_made_scores() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0], [0.0, 4.0, 1.0], [2.0, 2.0, 0.0], [-5.0, -1.0, -2.0]])
    labels = torch.tensor([0, 2, 1, 1])
    assert wn.margins(logits, labels).tolist() == [1.0, -3.0, 0.0, 1.0]


@pytest.mark.parametrize("shapes", [((4, 1), (4,)), ((4, 3), (3,)), ((4,), (4,))])
def test_margins_check_shapes(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="shape"):
        wn.margins(torch.zeros(shapes[0]), torch.zeros(shapes[1], dtype=torch.long))


# Groups ------------------------------------------------------------------------------------------


def test_units_read_through_two_sums_are_no_outputs() -> None:
    class Stream(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.head = (nn.Linear(2, 2, bias=False) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.head((self.a(x).relu() + self.b(x).relu()) + self.c(x).relu())

    model, x = Case("", Stream, (2,)).make()
    found = wn.group_norm(ps.trace(model, x, streams="shared"), 2, 1, one_output_group=True)
    hidden = [row.norm() for layer in (model.a, model.b, model.c) for row in layer.weight]
    close(found, torch.stack([*hidden, model.head.weight.norm()]).sum())


def test_weights_that_end_at_no_unit_are_one_group_per_tensor() -> None:
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.PReLU(3), nn.PReLU(3)).double()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([3.0, 4.0, 0.0]))
        model[2].weight.copy_(torch.tensor([0.0, 5.0, 12.0]))
    rows = model[0].weight.norm(dim=1).sum()
    network = ps.trace(model, torch.ones(1, 2, dtype=torch.float64))
    close(wn.group_norm(network, 2, 1), rows + 5 + 13)
