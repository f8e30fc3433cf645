"""Preprocessing, batches and augmentation, against slow and obvious ways to compute them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

import pathspace as ps
from pathspace.evaluation import Objective
from pathspace.experiments import data


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dataset(side: int = 28, channels: int = 3, train: int = 700, test: int = 30) -> data.Dataset:
    """Random images; more of them than are computed with at a time."""

    def split(count: int, seed: int) -> data.Split:
        g = generator(seed)
        shape = (count, channels, side, side)
        # channels of different mean and deviation
        levels = torch.tensor([[256], [100], [20]])[:channels, :, None]
        images = (torch.rand(shape, generator=g) * levels).to(torch.uint8)
        return data.Split(images, torch.randint(10, (count,), generator=g))

    return data.Dataset("random", split(train, 1), split(test, 2), classes=10, maximum=255)


# Inputs ------------------------------------------------------------------------------------------


def test_unit_interval() -> None:
    raw = dataset()
    scaled = raw.apply(data.unit_interval())
    assert_close(scaled.train.inputs, raw.train.inputs.float() / 255)
    assert_close(scaled.test.inputs, raw.test.inputs.float() / 255)
    assert scaled.maximum == 1
    assert_close(scaled.apply(data.unit_interval()).train.inputs, scaled.train.inputs)
    with pytest.raises(data.DataError, match="cannot follow standardize"):
        raw.apply(data.standardize(), data.unit_interval())


@pytest.mark.parametrize("before", ["", "unit_interval"])
def test_standardize_uses_the_training_split(before: str) -> None:
    raw = dataset().apply(*data.parse_steps(before))
    done = raw.apply(data.standardize(), data.validation_split(10))
    images = raw.train.inputs.double()
    mean = images.mean((0, 2, 3), keepdim=True)
    deviation = images.std((0, 2, 3), correction=0, keepdim=True)
    expected = (raw.test.inputs.double() - mean) / deviation
    assert_close(done.test.inputs, expected.float(), rtol=1e-5, atol=1e-5)
    assert done.train.inputs.dtype == torch.float32
    assert done.maximum is None
    constant = replace(raw, train=data.Split(torch.zeros(5, 3, 2, 2), torch.zeros(5)))
    with pytest.raises(data.DataError, match="a channel is constant"):
        constant.apply(data.standardize())


@pytest.mark.parametrize(("size", "side"), [(28, 7), (28, 10), (32, 10), (8, 8), (5, 1), (7, 6)])
def test_downsample_is_the_mean_over_the_area(size: int, side: int) -> None:
    raw = dataset(size, train=260, test=3)
    small = raw.apply(data.downsample(side)).train.inputs
    # Every pixel as side × side equal ones; then each share is a whole number of them.
    fine = raw.train.inputs.double().repeat_interleave(side, 2).repeat_interleave(side, 3)
    expected = functional.avg_pool2d(fine, size)
    assert small.shape == (260, 3, side, side)
    assert_close(small, expected.float(), rtol=1e-5, atol=1e-4)
    assert_close(small.mean(), raw.train.inputs.float().mean(), rtol=1e-4, atol=0)


def test_average_pool() -> None:
    raw = dataset(28)
    pooled = raw.apply(data.average_pool(7))
    expected = functional.avg_pool2d(raw.train.inputs.float(), 4)
    assert_close(pooled.train.inputs, expected, rtol=1e-5, atol=1e-4)
    with pytest.raises(data.DataError, match="average_pool:10 does not divide 28×28; downsample"):
        raw.apply(data.average_pool(10))


def test_the_papers_preprocessing() -> None:
    fashion = dataset(28, channels=1).apply(
        *data.parse_steps("average_pool:7,unit_interval,flatten")
    )
    assert fashion.shape == (49,)
    assert 0 <= fashion.train.inputs.min() <= fashion.train.inputs.max() <= 1
    assert fashion.steps == ("average_pool:7", "unit_interval", "flatten")
    cifar = dataset(32).apply(data.downsample(10), data.flatten())
    assert cifar.shape == (300,)


@pytest.mark.parametrize("step", ["standardize", "downsample:2", "average_pool:2"])
def test_steps_on_images_refuse_vectors(step: str) -> None:
    with pytest.raises(data.DataError, match="put it before flatten"):
        dataset(4).apply(data.flatten(), *data.parse_steps(step))


@pytest.mark.parametrize("side", [0, 29])
def test_downsample_refuses_other_sizes(side: int) -> None:
    with pytest.raises(data.DataError, match="from 1 to 28"):
        dataset(28).apply(data.downsample(side))


# Samples and labels ------------------------------------------------------------------------------


@pytest.mark.parametrize(("amount", "count"), [(0, 0), (50, 50), (700, 700), (0.1, 70), (1.0, 700)])
def test_corrupt_labels(amount: int | float, count: int) -> None:
    raw = dataset(4)
    corrupted = raw.apply(data.corrupt_labels(amount, 3))
    assert int((corrupted.train.targets != raw.train.targets).sum()) == count
    assert_close(corrupted.train.inputs, raw.train.inputs)
    assert_close(corrupted.test.targets, raw.test.targets)
    assert corrupted.notes == (f"random labels: {count} of 700 training labels are wrong",)
    again = raw.apply(data.corrupt_labels(amount, generator(3)))
    assert_close(again.train.targets, corrupted.train.targets)


def test_corrupt_labels_among_all_classes() -> None:
    raw = dataset(4, train=5000)
    drawn = raw.apply(data.corrupt_labels(1.0, wrong=False)).train.targets
    assert 4300 < int((drawn != raw.train.targets).sum()) < 4700  # nine of ten
    wrong = raw.apply(data.corrupt_labels(1.0)).train.targets
    for targets in (drawn, wrong):
        assert targets.bincount(minlength=10).min() > 400


def test_growing_sets_of_random_labels_keep_their_true_part() -> None:
    """000, Fig. 2: the same true samples, and more and more mislabelled ones."""
    raw = dataset(4)

    def mislabelled(count: int) -> data.Dataset:
        return raw.apply(data.subset(train=100 + count), data.corrupt_labels(count, last=True))

    small, large = mislabelled(20), mislabelled(50)
    true = raw.apply(data.subset(train=150)).train
    assert_close(large.train.inputs[:120], small.train.inputs)
    assert_close(large.train.targets[:120], small.train.targets)
    assert_close(large.train.targets[:100], true.targets[:100])
    assert (large.train.targets[100:] != true.targets[100:]).all()


def test_validation_split() -> None:
    raw = dataset(4)
    ids = data.Split(torch.arange(700), raw.train.targets)
    raw = raw.with_splits(train=ids)
    done = raw.apply(data.validation_split(0.1, 5))
    assert done.validation is not None
    assert len(done.validation) == 70
    parts = done.train.inputs, done.validation.inputs
    assert_close(torch.cat(parts).sort().values, torch.arange(700))
    for part in parts:
        assert (part.diff() > 0).all()  # the order of before
    assert_close(done.validation.targets, raw.train.targets[done.validation.inputs])
    assert list(done.splits) == ["train", "validation", "test"]
    assert "630 training, 70 validation and 30 test samples" in repr(done)
    other = raw.apply(data.validation_split(70, 6)).validation
    assert other is not None
    assert not torch.equal(other.inputs, done.validation.inputs)
    with pytest.raises(data.DataError, match="has a validation split already"):
        done.apply(data.validation_split(10))
    for empty in (0, 700, 0.0, 1.0):
        with pytest.raises(data.DataError, match="empty"):
            raw.apply(data.validation_split(empty))


def test_steps_reach_the_validation_split() -> None:
    done = dataset(8).apply(data.validation_split(10), data.average_pool(4), data.unit_interval())
    assert done.validation is not None
    assert done.validation.inputs.shape == (10, 3, 4, 4)
    assert done.validation.inputs.max() <= 1


def test_subset() -> None:
    raw = dataset(4)
    small = raw.apply(data.subset(train=50, test=5, seed=2))
    large = raw.apply(data.subset(train=80, seed=2))
    assert_close(large.train.inputs[:50], small.train.inputs)
    assert (len(small.test), len(large.test)) == (5, 30)
    assert small.notes == (
        "subset: 50 of 700 training samples",
        "subset: 5 of 30 test samples",
    )
    assert len(raw.apply(data.subset(train=0)).train) == 0
    only_test = raw.apply(data.subset(test=5, seed=2))
    assert_close(only_test.test.inputs, small.test.inputs)
    assert_close(only_test.train.inputs, raw.train.inputs)


@pytest.mark.parametrize("step", ["corrupt_labels:{}", "validation_split:{}", "subset:{}"])
@pytest.mark.parametrize("amount", ["-1", "701"])
def test_impossible_amounts(step: str, amount: str) -> None:
    with pytest.raises(data.DataError, match=f"{amount} should be a number from 0 to 700"):
        dataset(4).apply(*data.parse_steps(step.format(amount)))
    if "subset" not in step:
        with pytest.raises(data.DataError, match=r"1\.5 should be a fraction from 0\.0 to 1\.0"):
            dataset(4).apply(*data.parse_steps(step.format("1.5")))


def test_random_state_and_originals_are_left_alone() -> None:
    raw = dataset(8)
    before = [t.clone() for split in raw.splits.values() for t in (split.inputs, split.targets)]
    state = torch.get_rng_state()
    names = "corrupt_labels:9,validation_split:9,subset:20:5,average_pool:4,standardize,flatten"
    done = raw.apply(*data.parse_steps(names))
    again = done.apply(data.corrupt_labels(3))
    list(again.train.batches(4, generator=generator()))
    floats = raw.apply(data.unit_interval())
    copy = floats.train.inputs.clone()
    floats.apply(data.standardize(), data.corrupt_labels(9))
    assert_close(floats.train.inputs, copy)
    assert torch.equal(torch.get_rng_state(), state)
    after = [t for split in raw.splits.values() for t in (split.inputs, split.targets)]
    for old, new in zip(before, after, strict=True):
        assert_close(new, old)


# Names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "unit_interval",
        "standardize",
        "downsample:5",
        "average_pool:4",
        "flatten",
        "corrupt_labels:100:seed=3",
        "corrupt_labels:0.25:seed=0:wrong=false:last=true",
        "validation_split:0.1:seed=2",
        "subset:train=10:test=5:seed=1",
        "subset:test=5:seed=0",
    ],
)
def test_names_say_all(name: str) -> None:
    """A data set's record of its steps is enough to repeat them."""
    (step,) = data.parse_steps(name)
    assert step.name == name
    once = dataset(8).apply(step)
    again = dataset(8).apply(*data.parse_steps(once.steps))
    assert again.steps == once.steps == (name,)
    assert_close(again.train.inputs, once.train.inputs)
    assert_close(again.train.targets, once.train.targets)


def test_every_step_has_a_name() -> None:
    assert {name for name in data.STEPS if callable(getattr(data, name))} == set(data.STEPS)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("flaten", "unknown step 'flaten'; did you mean 'flatten'?"),
        ("7x7", "unknown step '7x7'; known are unit_interval"),
        ("downsample", "missing a required argument: 'side'; downsample takes side"),
        ("flatten:3", "too many positional arguments; flatten takes no arguments"),
        ("downsample:side=4:colour=1", "unexpected keyword argument 'colour'"),
        ("downsample:2.5", "side should be int, not 2.5"),
        ("downsample:true", "side should be int, not True"),
        ("corrupt_labels:5:last=1", "last should be bool, not 1"),
        ("subset:0.5", "train should be int | None, not 0.5"),
        ("downsample:ten", "'ten' should be a number, true or false"),
    ],
)
def test_wrong_names(names: str, message: str) -> None:
    with pytest.raises(data.DataError) as caught:
        data.parse_steps(names)
    assert message in str(caught.value)


def test_augmentation_by_name() -> None:
    images = torch.rand(4, 3, 8, 8)
    named = data.parse_augmentation("crop_and_flip:2")(images, generator())
    assert_close(named, data.crop_and_flip(2)(images, generator()))
    with pytest.raises(data.DataError, match=r"unknown augmentation 'crop'; .*known are crop_and"):
        data.parse_augmentation("crop")


# Batches -----------------------------------------------------------------------------------------


def ids(count: int) -> data.Split:
    return data.Split(torch.arange(count)[:, None] * 10, torch.arange(count))


@pytest.mark.parametrize("batch_size", [1, 3, 10, 11])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("seed", [None, 4])
def test_batches_are_one_pass(batch_size: int, drop_last: bool, seed: int | None) -> None:
    g = None if seed is None else generator(seed)
    batches = list(ids(10).batches(batch_size, generator=g, drop_last=drop_last))
    sizes = [len(targets) for _, targets in batches]
    full, rest = divmod(10, batch_size)
    assert sizes == [batch_size] * full + [rest] * (rest > 0 and not drop_last)
    for inputs, targets in batches:
        assert_close(inputs[:, 0], targets * 10)
    seen = torch.cat([t for _, t in batches]) if batches else torch.empty(0, dtype=torch.long)
    assert len(seen.unique()) == sum(sizes)
    if seed is None:
        assert seen.tolist() == list(range(sum(sizes)))
    elif batch_size < 10:
        assert seen.tolist() != sorted(seen.tolist())


def test_order_comes_from_the_generator() -> None:
    split = ids(50)

    def epochs(g: torch.Generator) -> list[list[int]]:
        return [torch.cat([t for _, t in split.batches(7, generator=g)]).tolist() for _ in range(2)]

    first, second = epochs(generator(1))
    assert first != second
    assert [first, second] == epochs(generator(1))
    assert first != epochs(generator(2))[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ids(3).batches(0), "at least one sample, not 0"),
        (lambda: ids(3).loader(0), "at least one sample, not 0"),
        (lambda: ids(3).batches(2, augment=data.crop_and_flip()), "pass generator="),
        (lambda: data.Split(torch.zeros(3), torch.zeros(2)), "3 inputs, but 2 targets"),
        (lambda: data.crop_and_flip(-1), "cannot be negative"),
        (
            lambda: next(ids(3).batches(2, augment=data.crop_and_flip(), generator=generator())),
            "works on images",
        ),
    ],
)
def test_wrong_arguments(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(data.DataError, match=message):
        call()


def test_loader_is_data_for_a_measurement() -> None:
    digits = data.load("digits").apply(data.unit_interval(), data.flatten())
    model = nn.Linear(64, 10)
    network = ps.trace(model, digits.test.inputs[:1])
    loader = digits.test.loader(50)
    measured = Objective(network, functional.cross_entropy, loader)
    expected = functional.cross_entropy(model(digits.test.inputs), digits.test.targets).detach()
    for _ in range(2):
        assert_close(measured().detach(), expected.double(), rtol=1e-5, atol=1e-6)


def test_to() -> None:
    moved = dataset(4).apply(data.validation_split(5)).to("meta")
    assert all(split.inputs.is_meta and split.targets.is_meta for split in moved.splits.values())


# Augmentation ------------------------------------------------------------------------------------


def crops(image: Tensor, padding: int) -> Tensor:
    """Every image that can come of one, one after the other: (places, mirrored or not)."""
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
    padded[:, padding : padding + height, padding : padding + width] = image
    found = []
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            crop = padded[:, top : top + height, left : left + width]
            found += [crop, crop.flip(-1)]
    return torch.stack(found)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_and_flip(dtype: torch.dtype) -> None:
    padding, count = 2, 1000
    image = torch.arange(1, 2 * 5 * 6 + 1).view(2, 5, 6).to(dtype)
    result = data.crop_and_flip(padding)(image.expand(count, -1, -1, -1), generator())
    possible = crops(image, padding)  # (50, 2, 5, 6), all different
    same = (result[:, None] == possible).flatten(2).all(2)
    assert same.sum(1).tolist() == [1] * count  # each is exactly one of them
    assert same.sum(0).min() >= 5  # each of them occurs, 20 times on average
    assert result.dtype == dtype
    flips = same[:, 1::2].any(1).sum()
    assert 440 < flips < 560


def test_images_are_augmented_one_by_one() -> None:
    """Each image is made from itself, not from a neighbour."""
    images = torch.rand(6, 3, 5, 5, generator=generator())
    result = data.crop_and_flip(1)(images, generator(1))
    for image, changed in zip(images, result, strict=True):
        assert (crops(image, 1) == changed).flatten(1).all(1).any()


def test_augmented_batches() -> None:
    split = dataset(8).train
    augment = data.crop_and_flip(1)
    first = list(split.batches(32, generator=generator(), augment=augment))
    again = list(split.batches(32, generator=generator(), augment=augment))
    plain = list(split.batches(32, generator=generator()))
    assert_close(first, again)
    assert not torch.equal(first[0][0], plain[0][0])
    assert_close(first[0][1], plain[0][1])  # the first batch has the same samples
