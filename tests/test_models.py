"""Built-in models: every name builds, runs and is reproducible; wrong names are answered."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from data_files import cifar, samples
from pathspace.errors import PathspaceError
from pathspace.experiments import models
from pathspace.experiments.models import Entry
from pathspace.experiments.training import OPTIMIZERS, Trial, loading, train
from trials import few_pairs

CATALOGUE = {entry.name: entry for entry in models.catalogue()}
LARGE = {"resnet152-imagenet"}  # shapes only
SIZED = [entry for name, entry in CATALOGUE.items() if name not in LARGE]
QUICK = [entry for entry in SIZED if not entry.name.startswith(("resnet", "plainnet34"))]

# builder variants that no name reaches
VARIANTS: dict[str, Callable[..., nn.Module]] = {
    "mlp-dropout": partial(models.mlp, (3 * 32 * 32, 8, 10), False, True, 0.5),
    "vgg-bn": partial(models.vgg, convolutions=2, batch_norm=True),
    "mobilenet-relu6": partial(models.mobilenet, relu6=True),
    "inception-nobn": partial(models.inception, batch_norm=False),
    "unet-upsampling": partial(models.unet, transposed=False, batch_norm=True),
    "resnet50-thin-nobn": partial(models.resnet, 50, width=1 / 4, batch_norm=False),
    "preact-resnet50-thin": partial(models.resnet, 50, width=1 / 8, preactivation=True),
    "plainnet18-thin-imagenet": partial(
        models.resnet, 18, width=1 / 8, residual=False, imagenet=True
    ),
}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run(model: nn.Module, entry: Entry, batch: int = 2) -> torch.Tensor:
    x = models.example_input(entry, batch)
    return model(*x) if isinstance(x, tuple) else model(x)


def parameter_count(builder: Callable[..., nn.Module]) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in builder().parameters())


def named(entry: Entry) -> str:
    return entry.name


@pytest.mark.parametrize("entry", SIZED, ids=named)
def test_every_entry_builds_and_runs(entry: Entry) -> None:
    model = models.build(entry.name, seeded(0))
    assert model.training
    for mode in (True, False):
        output = run(model.train(mode), entry)
        assert output.shape[0] == 2
        assert output.isfinite().all()
        assert output.std() > 0, "two different inputs, one constant output"


@pytest.mark.parametrize("name", sorted(LARGE))
def test_large_entries_run_on_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        model = models.build(name)
        output = run(model, CATALOGUE[name])
    assert output.is_meta
    assert output.shape == (2, 1000)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_runs(variant: str) -> None:
    images = models.example_input("vgg-small", batch=2)
    output = VARIANTS[variant](generator=seeded(0))(images)
    assert output.shape[0] == 2
    assert output.isfinite().all()


@pytest.mark.parametrize("entry", QUICK, ids=named)
def test_the_generator_decides_the_weights(entry: Entry) -> None:
    first, again, other = (models.build(entry.name, seeded(seed)) for seed in (7, 7, 8))
    torch.testing.assert_close(first.state_dict(), again.state_dict(), rtol=0, atol=0)
    largest = max(first.state_dict(), key=lambda key: first.state_dict()[key].numel())
    assert not torch.equal(first.state_dict()[largest], other.state_dict()[largest])


@pytest.mark.parametrize("generator", [None, seeded(0)], ids=["default", "given"])
@pytest.mark.parametrize("entry", QUICK, ids=named)
def test_the_global_random_state_is_untouched(
    entry: Entry, generator: torch.Generator | None
) -> None:
    before = torch.get_rng_state()
    models.build(entry.name, generator)
    models.example_input(entry, 3)
    assert torch.equal(before, torch.get_rng_state())


def test_without_a_generator_the_weights_follow_the_manual_seed() -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return models.mlp([4, 3, 2]).get_parameter("1.weight")

    with torch.random.fork_rng():
        assert torch.equal(weights(1), weights(1))
        assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize("entry", SIZED, ids=named)
def test_every_entry_can_be_traced(entry: Entry) -> None:
    with torch.device("meta"):
        torch.fx.symbolic_trace(models.build(entry.name)).graph.lint()


@pytest.mark.parametrize(
    ("depth", "count"),
    [
        (18, 11_689_512),
        (34, 21_797_672),
        (50, 25_557_032),
        (101, 44_549_160),
        (152, 60_192_808),
    ],
)
def test_imagenet_resnets_have_the_published_parameter_counts(depth: int, count: int) -> None:
    assert parameter_count(partial(models.resnet, depth, imagenet=True)) == count


def test_parameter_counts_worked_out_by_hand() -> None:
    # stem and three stages of two 3x3 convolutions, biased; linear head
    channels = [(3, 16), (16, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64)]
    plain = sum(9 * inputs * outputs + outputs for inputs, outputs in channels) + 64 * 10 + 10
    assert parameter_count(partial(models.build, "plainnet8-nobn")) == plain
    # shortcuts cost two projections
    projections = 16 * 32 + 32 + 32 * 64 + 64
    assert parameter_count(partial(models.build, "resnet8-nobn")) == plain + projections
    # embeddings of 16 for 64 users and 96 items; tower 32-16-8-1
    tower = (32 * 16 + 16) + (16 * 8 + 8) + (8 + 1)
    assert parameter_count(partial(models.build, "ncf:8")) == (64 + 96) * 16 + tower


@pytest.mark.parametrize(
    ("spec", "widths"),
    [
        ("plainnet34", [64, 128, 256, 512]),
        ("plainnet34-thin", [16, 32, 64, 128]),
        ("resnet50", [256, 512, 1024, 2048]),
        ("resnet56", [16, 32, 64]),
    ],
)
def test_stages_double_the_channels(spec: str, widths: list[int]) -> None:
    with torch.device("meta"):
        model = models.build(spec)
        x = model.get_submodule("stem")(models.example_input(spec))
        for stage, width in enumerate(widths, start=1):
            x = model.get_submodule(f"stage{stage}")(x)
            assert x.shape == (1, width, 32 >> (stage - 1), 32 >> (stage - 1))


@pytest.mark.parametrize("depth", [8, 20, 18, 34, 50])
def test_depth_counts_the_weight_layers_of_a_plain_net(depth: int) -> None:
    with torch.device("meta"):
        layers = models.resnet(depth, residual=False).modules()
        assert sum(isinstance(layer, nn.Conv2d | nn.Linear) for layer in layers) == depth


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [
        (nn.Linear(200, 300), 200),
        (nn.Conv2d(32, 64, 3), 32 * 9),
        (nn.Conv2d(256, 512, 3, groups=64), 4 * 9),
        (nn.ConvTranspose2d(64, 128, 4, stride=2), 64 * 16 / 4),
        (nn.Embedding(1000, 50), 50),
    ],
    ids=lambda value: type(value).__name__,
)
def test_weights_follow_he(layer: nn.Module, fan_in: float) -> None:
    models.initialize_(layer, seeded(0))
    for name, parameter in layer.named_parameters():
        if name == "bias":
            assert not parameter.any()
        else:
            assert parameter.mean().abs() < 4 * (2 / fan_in / parameter.numel()) ** 0.5
            assert parameter.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.03)


def test_initialisation_resets_batch_norm() -> None:
    layer = nn.BatchNorm1d(3)
    fresh = {name: value.clone() for name, value in layer.state_dict().items()}
    with torch.no_grad():
        layer.weight.mul_(3)
    layer(torch.arange(6.0).view(2, 3))
    assert any(not torch.equal(value, fresh[name]) for name, value in layer.state_dict().items())
    models.initialize_(layer)
    torch.testing.assert_close(dict(layer.state_dict()), fresh, rtol=0, atol=0)


def test_initialisation_refuses_a_layer_without_a_rule() -> None:
    with pytest.raises(TypeError, match=r"`1` \(LayerNorm\) has no initialisation rule"):
        models.initialize_(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))


def test_builders_obey_the_default_dtype_and_forwarded_options() -> None:
    model = models.build("resnet8-thin", seeded(0), classes=7, channels=1)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 7)
    torch.set_default_dtype(torch.float64)
    try:
        assert run(models.build("vgg-small"), CATALOGUE["vgg-small"]).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resnet-18", r"unknown model 'resnet-18'; did you mean 'resnet18'\? known are mlp:784"),
        ("ResNet18", "did you mean 'resnet18'"),
        ("vgg_small", "did you mean 'vgg-small'"),
        ("transformer", "unknown model 'transformer'; .*vgg-small"),
        ("", "unknown model ''; known are"),
        ("mlp", "at least two positive widths joined by '-', as in mlp:784-64-64-10"),
        ("mlp:", "at least two positive widths"),
        ("mlp:784", "at least two positive widths"),
        ("mlp:784-x-10", "at least two positive widths"),
        ("mlp:784--10", "at least two positive widths"),
        ("mlp-bn:784-0-10", "as in mlp-bn:784-64-64-10"),
        ("ncf:", "one positive number of factors, as in ncf:8"),
        ("ncf:8-16", "one positive number of factors"),
        ("resnet18-fat", "suffixes among -thin, -nobn, -imagenet, -small, each .* not '-fat'"),
        ("resnet18-imagenet-small", "-imagenet and -small are two sizes"),
        ("resnet18-thin-thin", "each at most once, not '-thin'"),
        ("resnet19", r"resnet19: .*expected 18, 34, 50, 101, 152 or 6n \+ 2"),
        ("resnet2", r"6n \+ 2"),
        ("resnet20-imagenet", "for ImageNet: expected one of 18, 34, 50, 101, 152"),
    ],
)
def test_wrong_names_are_answered_with_what_is_expected(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.build(spec)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(models.mlp, [4]), r"mlp widths \[4\]: expected at least two"),
        (partial(models.mlp, [4, 0, 2]), "all positive"),
        (partial(models.vgg, size=28), "28: expected a multiple of 8"),
        (partial(models.ncf, 0), "expected positive counts"),
        (partial(models.resnet, 8, width=0.01), "leaves no channels"),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_entries_describe_themselves_in_one_line() -> None:
    for entry in CATALOGUE.values():
        assert models.resolve(entry.name).name == entry.name
        assert entry.pattern
        assert entry.description
        assert "\n" not in entry.description


# Training ----------------------------------------------------------------------------------------

# every family, with and without batch norm, in widths for a test
TRAINED = """
    mlp:3072-8-100 mlp-bn:3072-8-100 plainnet18-thin plainnet8-thin-nobn resnet18-thin
    resnet8-thin-nobn vgg-small densenet-small mobilenet-small inception-small
    shufflenet-small preact-resnet-small ncf:8 ncf:16
""".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a CIFAR-100 of a few images."""
    root = tmp_path_factory.mktemp("data")
    (root / "cifar-100-binary").mkdir()
    for name, count in (("train.bin", 8), ("test.bin", 4)):
        content = cifar(*samples((count, 3, 32, 32), 100, seed=count), coarse=True)
        (root / "cifar-100-binary" / name).write_bytes(content)
    return root


@pytest.mark.parametrize("model", TRAINED)
def test_every_model_trains_with_every_optimizer(
    model: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = few_pairs()
    monkeypatch.setattr(loading, "_interactions", lambda *_: pairs)
    data = "ml-1m" if model.startswith("ncf") else "cifar100"
    steps = ["unit_interval", *(["flatten"] if model.startswith("mlp") else [])]
    trial = Trial(
        model, data, preprocess=() if data == "ml-1m" else tuple(steps), batch=4, iterations=0
    )
    before = train(trial, data_dir=folder).weights
    for optimizer in OPTIMIZERS:
        assert_trains(replace(trial, optimizer=optimizer, lr=1e-3, iterations=2), before, folder)


def assert_trains(trial: Trial, before: Mapping[str, torch.Tensor], folder: Path) -> None:
    outcome = train(trial, data_dir=folder)
    assert outcome.status == "finished", trial.optimizer
    assert all(value.isfinite().all() for value in outcome.weights.values()), trial.optimizer
    moved = [name for name in before if not torch.equal(outcome.weights[name], before[name])]
    assert any("running" not in name and "num_batches" not in name for name in moved)


@pytest.mark.parametrize("optimizer", ["sgd", "pathsgd", "gsgd"])
def test_bottlenecks_train(optimizer: str, folder: Path) -> None:
    trial = Trial("resnet50-thin", "cifar100", preprocess=("unit_interval",), iterations=0, batch=4)
    before = train(trial, data_dir=folder).weights
    assert_trains(replace(trial, optimizer=optimizer, lr=1e-3, iterations=1), before, folder)


@pytest.mark.parametrize(
    ("model", "optimizer", "message"),
    [
        ("unet-small", "sgd", "unet-small gives outputs of shape"),
        ("senet-small", "pathsgd", r"`stage1\.0\.branch\.5\.gate\.4` \(sigmoid\)"),
    ],
)
def test_what_cannot_be_trained_is_named(
    model: str, optimizer: str, message: str, folder: Path
) -> None:
    trial = Trial(model, "cifar100", preprocess=("unit_interval",), optimizer=optimizer, batch=4)
    with pytest.raises(PathspaceError, match=message):
        train(trial, data_dir=folder)


INITIALISED = "he glorot torch as-built balanced unbalanced:50 skeleton skeleton:largest".split()


@pytest.mark.parametrize("init", INITIALISED)
@pytest.mark.parametrize("model", ["resnet8-thin", "vgg-small", "densenet-small", "mlp:3072-8-100"])
def test_every_initialisation_comes_from_the_seed_alone(
    model: str, init: str, folder: Path
) -> None:
    steps = ("unit_interval", "flatten") if model.startswith("mlp") else ("unit_interval",)
    trial = Trial(model, "cifar100", preprocess=steps, init=init, batch=4, iterations=0, seed=3)
    first = train(trial, data_dir=folder).weights
    torch.manual_seed(77)  # of no effect
    torch.testing.assert_close(train(trial, data_dir=folder).weights, first, rtol=0, atol=0)
    other = train(replace(trial, seed=4), data_dir=folder).weights
    assert any(not torch.equal(other[name], value) for name, value in first.items())
