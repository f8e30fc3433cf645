"""`trace` as a whole: the record is complete, and the model is left as it was."""

import collections
import copy
import io
import pickle
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pathspace as ps
from operations import CASES
from pathspace.tracing.guards import mode_readers
from reference import call, replay, tensors_in
from test_operations import made, traced

# The record ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_recorded_program_computes_what_the_model_computes(name: str) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model, example = made(name)
        network = traced(name, "pinned")
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            inputs = tensors_in(copy.deepcopy(example))
            expected = tensors_in(call(copy.deepcopy(model).eval(), copy.deepcopy(example)))
            torch.manual_seed(1)
            results = tensors_in(replay(network, *inputs))
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(results) == len(expected) > 0
    for result, value in zip(results, expected, strict=True):
        torch.testing.assert_close(result, value, rtol=1e-12, atol=1e-12)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


X = torch.randn(2, 3)


def test_parameters_are_matched_by_identity() -> None:
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    model[3].weight = model[1].weight
    model.again = model[0]
    network = ps.trace(nn.Sequential(model[0], nn.ReLU(), model[1], nn.ReLU(), model[3]), X)
    names = [edge.parameter for edge in network.edges]
    assert names == ["0.weight", "0.bias", "2.weight", "2.bias", "4.bias"]
    assert network.unreached == ()
    assert network.m == 9 + 3 + 9 + 3 + 3
    # the weight under both its names, and only once in the graph
    state = ps.rescale(network, ps.random_rescaling(network))
    assert state["2.weight"] is state["4.weight"]


def test_parameters_that_nothing_uses_are_listed() -> None:
    model = mlp()
    model.extra = nn.Linear(2, 2)
    model[0].spare = nn.Parameter(torch.zeros(5))
    model.forward = lambda x: model[2](model[1](model[0](x)))
    network = ps.trace(model, X)
    assert network.unreached == ("0.spare", "extra.weight", "extra.bias")
    assert network.m == 12 + 4 + 8 + 2
    assert "not reached by the graph: 0.spare, extra.weight, extra.bias" in str(network)


def test_wrappers_are_taken_off() -> None:
    model = mlp()
    H = ps.trace(model, X).H
    for wrapped in (nn.DataParallel(model), nn.DataParallel(nn.DataParallel(model))):
        network = ps.trace(wrapped, X)
        assert network.model is model
        assert network.H == H


def never(*_: Any) -> Any:
    raise AssertionError("trace must not compile")


def test_compiled_models_are_not_compiled() -> None:
    model = mlp()
    assert ps.trace(torch.compile(model, backend=never), X).model is model
    inside = nn.Sequential(torch.compile(mlp(), backend=never), nn.ReLU(), nn.Linear(2, 2))
    assert ps.trace(inside, X).H == 4 + 2
    itself = mlp()
    itself.compile(backend=never)
    assert ps.trace(itself, X).H == 4


def test_distributed_models_are_unwrapped(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = mlp()
        wrapped = nn.parallel.DistributedDataParallel(model)
        assert ps.trace(wrapped, X).model is model
    finally:
        dist.destroy_process_group()


class Varied(nn.Module):
    """Constants, properties, slices, pooling: everything that is hard to pickle."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 4, 1), nn.Linear(6, 2)
        self.weight = nn.Parameter(torch.randn(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(self.a(x).relu(), 2)[:, [2, 0, 1]].flatten(1)
        room = torch.zeros(len(x), 6)
        room[:, 2:5] = h
        return self.b(room) @ self.weight.T


def pickled(pair: Any) -> Any:
    return pickle.loads(pickle.dumps(pair))


def saved(pair: Any) -> Any:
    file = io.BytesIO()
    torch.save(pair, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("clone", [copy.deepcopy, pickled, saved])
def test_a_model_and_its_network_are_copied_together(clone: Callable[[Any], Any]) -> None:
    model, x = Varied(), torch.randn(3, 1, 2, 2)
    network = ps.trace(model, x)
    other, its = clone((model, network))
    assert its.model is other is not model
    assert str(its) == str(network)
    expected = model(x)
    ps.rescale_(its, ps.random_rescaling(its))
    assert not torch.equal(other.a.weight, model.a.weight)
    torch.testing.assert_close(other(x), expected)
    torch.testing.assert_close(replay(its, x), expected)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpoints_are_seen_through() -> None:
    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = mlp(), mlp()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.b, F.pad(x, (0, 1)), use_reentrant=True)

    inner = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), Saving())
    network = ps.trace(inner, X)
    assert network.H == 2 + 4
    assert network.unreached == ("2.a.0.weight", "2.a.0.bias", "2.a.2.weight", "2.a.2.bias")


def test_a_deep_network_is_traced_in_time() -> None:
    layers = [layer for _ in range(1000) for layer in (nn.Linear(4, 4), nn.ReLU())]
    start = time.perf_counter()
    network = ps.trace(nn.Sequential(*layers, nn.Linear(4, 1)), torch.randn(1, 4))
    assert network.H == 4 * 1000
    assert time.perf_counter() - start < 10


def test_a_model_without_data_is_traced() -> None:
    for name in ("linear, three", "conv2d: groups", "batch norm 2d", "two residual blocks"):
        torch.manual_seed(0)
        model, x = CASES[name].build(), CASES[name].draw(2)
        model(x)
        expected = ps.trace(model, x, streams="shared")
        network = ps.trace(model.to("meta"), x.to("meta"), streams="shared")
        assert str(network) == str(expected)
        assert torch.equal(network.scale, expected.scale)


class Supervised(nn.Module):
    """In train mode it wants targets, too."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        if self.training and targets is None:
            raise ValueError("targets are missing")
        return self.net(x)


def test_a_train_mode_that_cannot_be_run_is_said() -> None:
    model = Supervised()
    with pytest.warns(UserWarning, match="train mode was not looked at, .* targets are missing"):
        network = ps.trace(model, X)
    assert network.H == 4
    assert ps.trace(model, (X, X)).H == 4


def pick(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    return b if module.training else a


class HiddenSwitch(nn.Module):
    """Train mode reads hidden units that eval mode does not, decided outside the class."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        return pick(self, self.b(h), self.b(h) + h)


def test_train_mode_is_looked_at_where_code_asks_for_it() -> None:
    plain = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 4))
    asking = HiddenSwitch()
    assert ps.trace(plain, X).H == 4 + 4
    assert ps.trace(asking, X).H == 0  # the sum with an output pins h in train mode
    with mode_readers(plain) as readers:
        plain(X)
        asking(X)  # another model
    assert not readers
    with mode_readers(asking) as readers, mode_readers(plain):
        plain.train()
        assert plain[2].training
    with mode_readers(asking) as readers:
        asking(X)
    assert readers == {__name__}
    assert "training" not in vars(nn.Module)
    assert not plain.eval().training


# No side effects ----------------------------------------------------------------------------------


class Meddler(nn.Module):
    """Its forward pass leaves nothing alone."""

    def __init__(self, fail: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(3, 4), nn.Linear(4, 2), nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(3))
        self.register_buffer("average", torch.zeros(4))
        self.tally = torch.zeros(2)  # a tensor that is no buffer
        self.history: list[Any] = []
        self.cache: dict[str, Any] = {}
        self.fail = fail

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.calls[0] = 5
        self.calls[1:].add_(1)
        self.tally.add_(1)
        torch.add(self.tally, 1, out=self.tally)
        self.norm.train()  # counts its batches
        h = self.drop(self.norm(self.a(x)).relu())
        self.average.mul_(0.9).add_(h.mean(0), alpha=0.1)
        self.history.append(h)
        self.cache["h"] = self.last = h
        self.b.bias.requires_grad_(False)
        self.b.extra = nn.Linear(1, 1)
        self.register_buffer("late", torch.ones(1))
        self.a.register_forward_hook(lambda *_: None)
        torch.rand(3)
        if self.fail:
            raise RuntimeError("at the very end")
        return self.b(h)


def fingerprint(model: nn.Module) -> Any:
    """All there is to see of a model: objects by identity, tensors by value and version."""

    def seen(thing: Any) -> Any:
        if isinstance(thing, Tensor):
            grad = thing.grad if thing.is_leaf else None
            grad = None if grad is None else (id(grad), grad.tolist())
            about = (thing.requires_grad, thing._version, thing.dtype, thing.device)
            return (id(thing), thing.tolist(), about, grad)
        if isinstance(thing, dict):
            return [(key, seen(value)) for key, value in thing.items()]
        if isinstance(thing, list | set):
            return [seen(value) for value in thing]
        return id(thing) if not isinstance(thing, bool | int | float | str) else thing

    modules = [(name, id(module), seen(vars(module))) for name, module in model.named_modules()]
    around = (torch.get_rng_state().tolist(), torch.get_default_dtype(), torch.is_grad_enabled())
    return modules, around


@pytest.mark.parametrize("fail", [False, True])
def test_the_model_is_left_as_it_was(fail: bool) -> None:
    model = Meddler(fail)
    model.b.weight.grad = torch.ones(2, 4)
    model.b.weight.requires_grad_(False)
    model.drop.eval()
    model.a.register_forward_pre_hook(lambda module, args: None)
    x, other = torch.randn(2, 3), mlp()
    before, input_version = fingerprint(model), x._version
    if fail:
        with pytest.raises(ps.TraceError, match="at the very end"):
            ps.trace(model, x)
    else:
        assert ps.trace(model, x).H == 4 + 4
    assert fingerprint(model) == before
    assert x._version == input_version
    with torch.no_grad():  # and the mode around it, too
        inside = fingerprint(model)
        ps.trace(other, X)
        assert fingerprint(model) == inside


def test_the_fingerprint_sees_what_a_forward_pass_does() -> None:
    model = Meddler()
    before = fingerprint(model)
    model(torch.randn(2, 3))
    assert fingerprint(model) != before


def test_tracing_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ps.trace(nn.Sequential(nn.Upsample(scale_factor=2), nn.Flatten()), torch.randn(1, 2, 3))


# Errors -------------------------------------------------------------------------------------------


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return {"answer": 42}


class Wrapped:
    def __init__(self, x: Tensor) -> None:
        self.x = x


def overlapping() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].weight.data)
    return model


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        (nn.ReLU, X, "must be a torch.nn.Module, not type; call it to make one"),
        (torch.relu, X, "must be a torch.nn.Module, not builtin_function_or_method"),
        (
            mlp(),
            torch.randn(2, 5),
            r"failed on an example input of shape \(2, 5\) at `0` \(linear\)",
        ),
        (mlp(), torch.randn(0, 3), r"the empty shape \(0, 3\); pass at least one sample"),
        (mlp(), (2, 3), "must hold at least one tensor, not tuple"),
        (mlp(), None, "must hold at least one tensor, not NoneType"),
        (mlp(), {"y": X}, "failed on an example input .* unexpected keyword argument 'y'"),
        (mlp(), (Wrapped(X), X), "holds tensors inside a Wrapped, where they are not looked for"),
        (mlp().to("meta"), X, r"on cpu but the model is on meta; .* example_input.to\('meta'\)"),
        (Nothing(), X, "the model returned dict, in which there is no tensor"),
        (nn.Sequential(nn.LazyLinear(2)), X, "`0.weight` has no shape yet .a lazy layer.; run"),
        (overlapping(), X, "`0.weight` and `1.weight` are two parameters in the same memory"),
    ],
)
def test_what_cannot_be_traced_is_named(model: Any, example: Any, message: str) -> None:
    with pytest.raises(ps.TraceError, match=message):
        ps.trace(model, example)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match='streams must be "pinned" or "shared", not \'both\''):
        ps.trace(mlp(), X, streams="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='on_unknown must be "error" or "pin", not None'):
        ps.trace(mlp(), X, on_unknown=None)  # type: ignore[arg-type]


# What a person sees -------------------------------------------------------------------------------


def test_a_network_prints_as_a_table() -> None:
    layers = {"<b>in</b>": nn.Linear(3, 4), "relu": nn.ReLU(), "a&b": nn.Linear(4, 2)}
    network = ps.trace(nn.Sequential(collections.OrderedDict(layers)), X)
    lines = str(network).splitlines()
    assert lines[0].split() == ["layer", "operation", "weights", "units", "scales"]
    assert set(lines[1]) == {"─", " "}
    assert len(lines[1]) > 40
    assert lines[3].split() == ["<b>in</b>", "linear", "4×3", "+", "4", "4", "4", "free"]
    assert lines[4].endswith("2 pinned: output")
    assert lines[-1].startswith("m = 26 weights, H = 4 free scales, H/m = 0.1538")
    assert repr(network) == "<Network of Sequential: m=26, H=4, H/m=0.1538, streams='pinned'>"
    page = network._repr_html_()
    assert "&lt;b&gt;in&lt;/b&gt;" in page
    assert "a&amp;b" in page
    assert "<b>" not in page
    assert "<thead><tr><th>layer</th><th>operation</th>" in page
    assert "<td>linear</td><td>4×3 + 4</td><td>4</td><td>4 free</td></tr><tr>" in page
