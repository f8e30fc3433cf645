"""`measure`: the same numbers as the functions one by one, and what rescaling does to them."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pathspace as ps
from cases import CASES, Case, ConvResidual, conv, mlp
from pathspace.measures import Measure, Reading, UnknownMeasure, measures
from pathspace.measuring import measure, self_check
from pathspace.selfcheck import AS_CLAIMED, NOT_AS_CLAIMED

INVARIANT = [one.name for one in measures() if one.invariant is True]
MOVING = [one.name for one in measures() if one.invariant is not True]
by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def labelled(model, x, flips=0):
    """Labels that the model gives itself, so that margins are positive, but for some flips."""
    with torch.no_grad():
        y = model.eval()(x).argmax(1)
    y[:flips] = (y[:flips] + 1) % 2
    return x, y


def net_and_data():
    model, x = Case("", lambda: mlp(3, 6, 5, 2, bias=True), (3,)).make()
    return model, labelled(model, x)


# Numbers -----------------------------------------------------------------------------------------


def test_entries_are_the_functions_of_the_library():
    model, (x, y) = net_and_data()
    network = ps.trace(model, x)
    report = measure(network, (x, y), choice="largest", p=(1, 3, math.inf))
    assert report["weights"].value == network.m == 71
    assert report["free scales"].value == network.H == 11
    assert report["basis paths"].value == 60
    norm = ps.basis_path_norm(network, "largest")
    expected = {
        "path norm (p=1)": ps.path_norm(network, 1),
        "path norm (p=3)": ps.path_norm(network, 3),
        "path norm (p=inf)": ps.path_norm(network, math.inf),
        "basis-path norm": norm.value,
        "basis-path norm, roots": norm.roots,
        "basis-path norm, positive": norm.positive,
        "weight norm (p=1)": ps.weight_norm(network, 1),
        "weight norm (p=2)": ps.weight_norm(network),
        "group norm (p=1, q=inf)": ps.group_norm(network, 1, math.inf),
        "max norm (p=2)": ps.max_norm(network),
        "(2,1) norm": sum(value for _, value in ps.norm_21(network)),
        "spectral norm": ps.spectral_norm(network),
        "spectral complexity": ps.spectral_complexity(network),
    }
    for name, value in expected.items():
        assert report[name].value == pytest.approx(float(value), rel=1e-12), name
    assert "path norm (p=2)" not in report
    assert " → ".join(norm.path) in report["basis-path norm"].notes[0]


def test_data_are_summed_up_over_uneven_batches():
    model, x = Case("", lambda: mlp(3, 6, 5, 2), (3,)).make()
    _, y = labelled(model, x, flips=3)
    report = measure(model, DataLoader(TensorDataset(x, y), batch_size=3))
    logits = model(x).detach()
    margin = ps.margins(logits, y).sort().values
    assert report["samples"].value == 8
    assert report["loss"].value == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-12)
    assert report["error"].value == 37.5
    assert report["smallest margin"].value == pytest.approx(float(margin[0]))
    assert report["10 % margin"].value == pytest.approx(float(margin[0]))  # ⌈0.8⌉ of 8 samples
    assert report["median margin"].value == pytest.approx(float(margin[3]))
    assert report["largest input"].value == pytest.approx(float(x.norm(dim=1).max()))
    normalised = float(margin[0] / ps.path_norm(ps.trace(model, x)))
    assert report["margin / path norm"].value == pytest.approx(normalised)


def test_entries_of_convolutions():
    model, x = Case("", lambda: conv(3), (2, 4, 4)).make()
    network = ps.trace(model, x)
    report = measure(network)
    for prefix, exact in (("", True), ("kernel ", False)):
        norm = float(ps.spectral_norm(network, exact=exact))
        assert report[f"{prefix}spectral norm"].value == pytest.approx(norm)
        complexity = float(ps.spectral_complexity(network, exact=exact))
        assert report[f"{prefix}spectral complexity"].value == pytest.approx(complexity)
    assert report["spectral norm"].value != pytest.approx(report["kernel spectral norm"].value)


def test_bounds_get_the_sizes_that_their_theorems_speak_of():
    model, (x, y) = net_and_data()
    network = ps.trace(model, x)
    report = measure(network, [(x[:3], y[:3]), (x[3:], y[3:])])
    margin = report["10 % margin"].value
    assert margin > 0
    expected = {
        "basis-path bound": ps.bounds.basis_path_bound(network, 8, float(x.norm(dim=1).max())),
        "path-norm bound": ps.bounds.path_norm_bound(network, 8, float(x.abs().max()), margin),
        "weight-norm bound": ps.bounds.weight_norm_bound(
            network, 8, float(x.norm(dim=1).max()), margin
        ),
        "spectral bound": ps.bounds.spectral_bound(network, 8, float(x.norm()), margin),
    }
    for name, bound in expected.items():
        assert report[name].log10 == pytest.approx(bound.log10, rel=1e-12), name
        assert all(text in " ".join(report[name].notes) for text in bound.assumptions)
    fewer = measure(network, (x, y), samples=8000)
    whole = ps.bounds.spectral_bound(network, 8000, float(x.norm()) * 1000**0.5, margin)
    assert fewer["spectral bound"].log10 == pytest.approx(whole.log10)
    assert fewer["samples"].value == 8


def test_margin_bounds_refuse_a_margin_that_is_not_positive():
    model, (x, y) = net_and_data()
    report = measure(model, (x, 1 - y))
    assert "not positive" in report["path-norm bound"].reason
    assert report["basis-path bound"].value > 0


def test_large_numbers_keep_their_logarithm():
    model = mlp(4, *[16] * 40, 2).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1e8)
    report = measure(model, example_input=torch.ones(1, 4).double(), measures=["path norm (p=1)"])
    entry = report["path norm (p=1)"]
    paths = math.log10(4 * 16.0**40 * 2)
    assert entry.log10 == pytest.approx(41 * 8 + paths, rel=1e-12)
    assert math.isinf(entry.value)
    assert f"10^{entry.log10:.2f}" in str(report)


# Invariance --------------------------------------------------------------------------------------


@by_case
def test_claims_hold_on_every_network(case):
    model, x = case.make()
    if model(x).shape[1] > 1:
        x, y = labelled(model, x)
        check = self_check(model, (x, y), streams="shared")
    else:
        check = self_check(model, (x, torch.zeros(8, 1).double()), F.mse_loss, streams="shared")
    wrong = [row.name for row in check.rows if row.verdict == NOT_AS_CLAIMED]
    assert wrong == []
    assert check.ok
    checked = {row.name for row in check.rows if row.moved is not None}
    assert {"path norm (p=2)", "basis-path norm", "loss", "weight norm (p=2)"} <= checked
    assert all(row.change <= 1e-9 for row in check.rows if row.moved is False)


@pytest.mark.parametrize("name", MOVING)
def test_every_measure_that_is_not_invariant_is_seen_to_move(name):
    perceptron = Case("", lambda: mlp(3, 6, 5, 2, bias=True), (3,))
    convolutions = Case("", lambda: conv(3), (2, 4, 4))
    model, x = (convolutions if name.startswith("kernel") else perceptron).make()
    row = self_check(model, labelled(model, x), measures=[name])[name]
    assert row.moved
    assert row.change > 1e-3
    assert row.verdict == AS_CLAIMED


def test_partial_invariance_is_what_it_says():
    model, (x, y) = net_and_data()
    network = ps.trace(model, x)
    name = "basis-path bound"
    before = measure(network, (x, y), measures=[name])[name]
    assert "last hidden layer" in before.invariant
    ps.rescale_(network, {"0": torch.tensor([2.0, 3.0, 0.2, 0.5, 7.0, 1.0])})
    assert measure(network, (x, y), measures=[name])[name].log10 == pytest.approx(
        before.log10, rel=1e-12
    )
    ps.rescale_(network, {"2": 3.0})
    assert abs(measure(network, (x, y), measures=[name])[name].log10 - before.log10) > 0.1


def test_self_check_catches_a_false_claim():
    model, x = Case("", lambda: mlp(3, 4, 2), (3,)).make()
    liar = Measure(
        "first weight", "", "", "mine", "", True,
        lambda s: Reading.of(float(s.state["0.weight"][0, 0].abs())),
    )  # fmt: skip
    check = self_check(model, example_input=x, measures=[liar, "path norm (p=2)"])
    assert not check.ok
    assert check["first weight"].verdict == NOT_AS_CLAIMED
    assert check["path norm (p=2)"].verdict == AS_CLAIMED
    assert "NOT as claimed" in str(check)
    assert "class='wrong'" in check.to_html()
    report = measure(model, example_input=x, measures=[liar], self_check=True)
    assert not report.check.ok


@pytest.mark.parametrize(("tolerance", "moved"), [(1e-9, True), (1e-5, False)])
def test_a_change_counts_from_the_tolerance_on(tolerance, moved):
    model, x = Case("", lambda: mlp(3, 4, 2), (3,)).make()
    almost = Measure(
        "almost", "", "", "mine", "", True,
        lambda s: Reading.of(1 + 1e-7 * float(s.state["0.weight"].norm())),
    )  # fmt: skip
    check = self_check(model, example_input=x, measures=[almost], tolerance=tolerance)
    assert 1e-9 < check["almost"].change < 1e-5
    assert check["almost"].moved is moved
    assert check.ok is not moved


def test_self_check_of_a_float32_model_is_in_float64():
    model, x = Case("", lambda: conv(3, batch_norm=True), (2, 4, 4)).make()
    model, x = model.float(), x.float()
    check = self_check(model, labelled(model, x), spread=2.0)
    assert check.ok
    assert check["loss"].moved is False
    assert check["weight norm (p=2)"].moved  # it was rescaled


def test_scales_in_front_of_a_batch_norm_are_rescaled_too():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double().eval()
    x = torch.randn(8, 3).double()
    check = self_check(model, (x, torch.arange(8) % 2))
    assert ps.trace(model, x).exact.tolist() == [False, False]
    assert check.ok
    assert check["weight norm (p=2)"].moved
    assert check["path norm (p=2)"].moved is False


def test_batch_norm_without_statistics_leaves_its_input_alone():
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    model = nn.Sequential(nn.Linear(3, 4), norm, nn.ReLU(), nn.Linear(4, 2)).double()
    check = self_check(model, (torch.randn(8, 3).double(), torch.arange(8) % 2))
    assert check.ok
    assert check["loss"].moved is False
    assert "without running statistics" in str(check)


def test_self_check_of_a_model_that_insists_on_float32():
    class Insisting(nn.Linear):
        def forward(self, x):
            return super().forward(x.float())

    model, x = Insisting(3, 2), torch.randn(4, 3)
    data = (x, torch.zeros(4).long())
    assert measure(model, data)["loss"].value > 0
    with pytest.raises(ps.PathspaceError, match="self-check needs float64"):
        measure(model, data, self_check=True)


def test_spread_and_seed_are_used():
    model, (x, _) = net_and_data()
    options = {"example_input": x, "measures": ["weight norm (p=2)"]}

    def after(**how):
        return self_check(model, **options, **how).rows[0].after.value

    assert after() == after(seed=0)
    assert after() != after(seed=1)
    still = self_check(model, **options, spread=0.0).rows[0]
    assert still.moved is False
    assert still.verdict == "did not move"


def test_measure_with_self_check_is_the_same_check():
    model, data = net_and_data()
    report = measure(model, data, self_check=True)
    assert report.check == self_check(model, data)
    assert measure(model, data).entries == report.entries


def fused(module):
    """A copy in which each batch norm is folded into the convolution in front of it."""
    module = copy.deepcopy(module)
    layers = dict(module.named_children())
    pairs = [("0", "1")] if "0" in layers else [("a", "na"), ("b", "nb")]
    for convolution, norm in pairs:
        fuse = nn.utils.fusion.fuse_conv_bn_eval
        setattr(module, convolution, fuse(layers[convolution], layers[norm]))
        setattr(module, norm, nn.Identity())
    return module


@pytest.mark.parametrize("build", [lambda: conv(3, True), lambda: ConvResidual(True)])
@pytest.mark.parametrize("streams", ["pinned", "shared"])
def test_fusing_batch_norm_changes_no_invariant_measure(build, streams):
    shape = (1, 4) if isinstance(build(), ConvResidual) else (2, 4, 4)
    model, x = Case("", build, shape).make()
    data = labelled(model, x)
    a, b = (measure(m, data, streams=streams) for m in (model, fused(model)))
    assert a["weights"].value != b["weights"].value
    counts = {"weights", "free scales", "invariant ratio"}  # of weights, not of the function
    names = [name for name in INVARIANT if name not in counts and "flatness" not in name]
    compared = [name for name in names if a[name].value is not None]
    assert len(compared) >= 14
    for name in compared:
        assert a[name].value == pytest.approx(b[name].value, rel=1e-9), name


# Refusals ----------------------------------------------------------------------------------------


def test_refusals_are_reasons_not_errors():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)).double()
    x = torch.randn(5, 3).double()
    report = measure(model, (x, torch.zeros(5).long()))
    assert report["path norm (p=2)"].value is None
    assert "sigmoid" in report["path norm (p=2)"].reason
    assert "sigmoid" in str(report)
    assert report["weight norm (p=2)"].value > 0
    assert report["spectral norm"].value > 0
    assert "margin / path norm" in report
    with pytest.raises(ValueError, match="was not measured: `1` \\(sigmoid\\)"):
        float(report["path norm (p=2)"])


def test_dead_units_have_no_basis_paths_but_a_path_norm():
    model, (x, _) = net_and_data()
    with torch.no_grad():
        model[2].weight[:, 1] = 0
    report = measure(model, example_input=x)
    assert "0[1]" in report["basis-path norm"].reason
    assert report["path norm (p=2)"].value > 0


def test_convolutions_have_no_bounds():
    model, x = Case("", lambda: conv(3), (2, 4, 4)).make()
    report = measure(model, labelled(model, x))
    assert "`0.weight` is a convolution" in report["path-norm bound"].reason


def test_outputs_that_are_no_numbers_are_errors():
    model, (x, y) = net_and_data()
    with torch.no_grad():
        model[0].bias.fill_(math.nan)
    report = measure(model, (x, y), measures=["on the data"])
    assert report["error"].value == 100
    assert math.isnan(report["loss"].value)


def test_regression_has_no_margins():
    model, (x, _) = net_and_data()
    report = measure(model, (x, torch.zeros(8, 2).double()), F.mse_loss)
    assert report["loss"].value == pytest.approx(float(model(x).detach().square().mean()))
    assert "no classification" in report["error"].reason
    assert report["largest input"].value > 0


def test_indices_have_no_size():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2)).double()
    x = torch.tensor([[0, 1], [2, 4], [3, 3]])
    report = measure(model, (x, torch.tensor([0, 1, 0])))
    assert "indices" in report["largest input"].reason
    assert report["loss"].value > 0


def test_a_model_that_cannot_be_copied_is_measured_all_the_same():
    model, data = net_and_data()
    model.stream = open(__file__)  # noqa: SIM115 - cannot be copied
    try:
        check = measure(model, data, self_check=True).check
    finally:
        model.stream.close()
    assert check["path norm (p=2)"].moved is False
    assert "cannot be copied" in check["path-norm bound"].after.reason


# What is asked for -------------------------------------------------------------------------------


def test_selection_by_name_family_and_group():
    model, (x, y) = net_and_data()
    names = measure(model, example_input=x, measures=["path norm", "max norm (p=2)"]).names()
    assert names == ["path norm (p=1)", "path norm (p=2)", "path norm (p=inf)", "max norm (p=2)"]
    group = measure(model, (x, y), measures=["on the data"])
    assert {entry.group for entry in group} == {"on the data"}
    assert len(group) == 7
    with pytest.raises(UnknownMeasure, match=r"did you mean 'path norm \(p=2\)'"):
        measure(model, example_input=x, measures=["path-norm (p=2)"])


def test_without_data_only_what_weights_give():
    model, (x, _) = net_and_data()
    report = measure(model, example_input=x)
    assert [entry.name for entry in report if entry.group in ("on the data", "bounds")] == []
    assert measure(model, example_input=x, measures=["loss"])["loss"].reason == "needs data"
    with pytest.raises(ps.PathspaceError, match="needs data or example_input"):
        measure(model)
    with pytest.raises(ps.PathspaceError, match="empty"):
        measure(model, [])


def test_expensive_measures_wait_until_they_are_named(monkeypatch):
    model, x = Case("", lambda: conv(3), (2, 4, 4)).make()
    monkeypatch.setattr("pathspace.measures.weights.AFFORDABLE", 10)
    report = measure(model, example_input=x)
    assert "ask for it by its name" in report["spectral norm"].reason
    assert report["kernel spectral norm"].value > 0
    names = report.names()
    assert names.index("spectral norm") < names.index("kernel spectral norm")
    assert measure(model, example_input=x, measures=["spectral norm"])["spectral norm"].value > 0


def test_kernels_are_left_out_where_there_are_none():
    model, (x, _) = net_and_data()
    assert "kernel spectral norm" not in measure(model, example_input=x)
    asked = measure(model, example_input=x, measures=["kernel spectral norm", "spectral norm"])
    assert asked["kernel spectral norm"].value == pytest.approx(asked["spectral norm"].value)


# Side effects ------------------------------------------------------------------------------------


def test_the_model_is_left_alone():
    model, x = Case("", lambda: conv(3, batch_norm=True), (2, 4, 4)).make()
    model.train().float()
    x, y = x.float(), torch.arange(8) % 2
    model(x).sum().backward()
    before = {name: (t, t.clone()) for name, t in model.state_dict(keep_vars=True).items()}
    grads = [p.grad.clone() for p in model.parameters()]
    rng = torch.get_rng_state()
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    measure(model, loader, self_check=True)
    assert torch.equal(torch.get_rng_state(), rng)
    after = model.state_dict(keep_vars=True)
    for name, (tensor, value) in before.items():
        assert after[name] is tensor
        assert torch.equal(tensor, value)
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        assert torch.equal(parameter.grad, grad)
        assert parameter.requires_grad
    assert all(module.training for module in model.modules())


class Stream:
    """Data of unknown length, which counts how often it is read."""

    def __init__(self, *batches):
        self.batches, self.reads = batches, 0

    def __iter__(self):
        self.reads += 1
        return iter(self.batches)


def test_data_are_read_once_and_only_if_needed():
    model, (x, y) = net_and_data()
    network = ps.trace(model, x)
    stream = Stream((x[:3], y[:3]), (x[3:], y[3:]))
    assert measure(network, stream)["samples"].value == 8
    assert stream.reads == 1
    measure(network, stream, measures=["path norm", "weight space"])
    assert stream.reads == 2  # for "margin / spectral norm"
    measure(network, stream, measures=["path norm"], self_check=True)
    assert stream.reads == 2


def test_an_iterator_is_enough():
    model, (x, y) = net_and_data()
    report = measure(model, iter([(x[:3], y[:3]), (x[3:], y[3:])]), self_check=True)
    assert report["samples"].value == 8
    assert report.check.ok


@pytest.mark.parametrize("show", [True, False])
def test_progress_bar_is_on_stderr(capsys, monkeypatch, show):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # as if stderr were a terminal
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    monkeypatch.setenv("COLUMNS", "100")
    model, (x, y) = net_and_data()
    measure(model, (x, y), progress=show, measures=["path norm"])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("path norm (p=inf)" in captured.err) == show


@pytest.mark.parametrize("show", [None, True])
def test_no_progress_bar_in_a_pipe(capsys, show):
    model, (x, y) = net_and_data()
    measure(model, (x, y), progress=show)
    assert capsys.readouterr().err == ""


# Flatness, on request ----------------------------------------------------------------------------


def test_flatness_moves_in_weights_and_not_in_paths():
    model, x = Case("", lambda: mlp(3, 5, 4, 3, bias=True), (3,)).make()
    data = (x, torch.arange(8) % 3)
    assert "trace flatness (paths)" not in str(measure(model, data))
    check = self_check(model, data, measures=["flatness"])
    moved = {row.name: row.moved for row in check.rows}
    assert len(moved) == 6
    assert all(moved[name] == ("weights" in name) for name in moved), moved
