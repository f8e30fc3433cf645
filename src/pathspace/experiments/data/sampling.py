"""Steps that choose samples or change labels, with a local generator."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator

from pathspace.experiments.data.dataset import Dataset, Split
from pathspace.experiments.data.errors import DataError
from pathspace.experiments.data.steps import Step

Seed = int | Generator


def corrupt_labels(
    amount: int | float, seed: Seed = 0, *, wrong: bool = True, last: bool = False
) -> Step:
    """Replace labels of the training split by random ones (000, Fig. 2).

    Args:
        amount: how many, if an int; which fraction, if a float.
        seed: of a local generator, or the generator.
        wrong: draw among the other classes, so that exactly this many labels are wrong; else among
            all classes, so that some stay right by chance.
        last: corrupt the last samples of the split instead of random ones. After :func:`subset`,
            whose order is random, a growing set with one seed then keeps its true part, as in the
            figure: ``subset(train=10_000 + k), corrupt_labels(k, last=True)``.

    Example:
        >>> from pathspace.experiments import data
        >>> digits = data.load("digits")
        >>> corrupted = digits.apply(corrupt_labels(100))
        >>> int((corrupted.train.targets != digits.train.targets).sum())
        100
        >>> corrupted.notes[-1]
        'random labels: 100 of 1,442 training labels are wrong'
    """

    def transform(dataset: Dataset) -> Dataset:
        targets, classes = dataset.train.targets.clone(), dataset.classes
        count = _count(amount, len(targets), "corrupt_labels")
        generator = _generator(seed)
        if last:
            index = torch.arange(len(targets) - count, len(targets))
        else:
            index = torch.randperm(len(targets), generator=generator)[:count]
        drawn = torch.randint(int(wrong), classes, (count,), generator=generator)
        index, drawn = index.to(targets.device), drawn.to(targets.device)
        targets[index] = (targets[index] + drawn) % classes if wrong else drawn
        verb = "are wrong" if wrong else "are replaced"
        return replace(
            dataset,
            train=Split(dataset.train.inputs, targets),
            notes=(
                *dataset.notes,
                f"random labels: {count:,} of {len(targets):,} training labels {verb}",
            ),
        )

    options = ("" if wrong else ":wrong=false") + (":last=true" if last else "")
    return Step(f"corrupt_labels:{amount}{_seed_option(seed)}{options}", transform)


def validation_split(amount: int | float, seed: Seed = 0) -> Step:
    """Move random samples of the training split to a validation split.

    Args:
        amount: how many, if an int; which fraction, if a float.
        seed: of a local generator, or the generator.

    Example:
        >>> from pathspace.experiments import data
        >>> data.load("digits").apply(validation_split(0.1)).splits
        {'train': Split(1,298 samples ...), 'validation': Split(144 samples ...), 'test': ...}
    """

    def transform(dataset: Dataset) -> Dataset:
        if dataset.validation is not None:
            raise DataError(f"{dataset.name} has a validation split already")
        count = _count(amount, len(dataset.train), "validation_split")
        if count in (0, len(dataset.train)):
            raise DataError(
                f"validation_split:{amount} leaves one of the splits of {dataset.name} empty"
            )
        order = torch.randperm(len(dataset.train), generator=_generator(seed))
        # sorted: what stays keeps the order it had
        chosen, rest = order[:count].sort().values, order[count:].sort().values
        return replace(
            dataset, train=dataset.train.select(rest), validation=dataset.train.select(chosen)
        )

    return Step(f"validation_split:{amount}{_seed_option(seed)}", transform)


def subset(train: int | None = None, test: int | None = None, seed: Seed = 0) -> Step:
    """Keep that many random samples of a split; all, if None.

    The samples come in random order, and with one seed a larger subset starts with the smaller one.

    Example:
        >>> from pathspace.experiments import data
        >>> small = data.load("digits").apply(subset(train=100))
        >>> len(small.train), len(small.test), small.notes[-1]
        (100, 355, 'subset: 100 of 1,442 training samples')
    """

    def transform(dataset: Dataset) -> Dataset:
        generator = _generator(seed)
        chosen: dict[str, Split] = {}
        notes = []
        for name, word, wanted in (("train", "training", train), ("test", "test", test)):
            split = dataset.splits[name]
            order = torch.randperm(len(split), generator=generator)
            if wanted is None:
                continue
            count = _count(wanted, len(split), "subset")
            chosen[name] = split.select(order[:count])
            notes.append(f"subset: {count:,} of {len(split):,} {word} samples")
        return replace(dataset.with_splits(**chosen), notes=(*dataset.notes, *notes))

    parts = "".join(
        f":{name}={value}"
        for name, value in (("train", train), ("test", test))
        if value is not None
    )
    return Step(f"subset{parts}{_seed_option(seed)}", transform)


def _count(amount: int | float, total: int, step: str) -> int:
    """A number of samples from a number or a fraction."""
    fraction = isinstance(amount, float)
    if not 0 <= amount <= (1 if fraction else total):
        limit = "a fraction from 0.0 to 1.0" if fraction else f"a number from 0 to {total:,}"
        raise DataError(f"{step}: {amount} should be {limit}")
    return round(amount * total) if fraction else int(amount)


def _generator(seed: Seed) -> Generator:
    return seed if isinstance(seed, Generator) else torch.Generator().manual_seed(seed)


def _seed_option(seed: Seed) -> str:
    return f":seed={seed.initial_seed() if isinstance(seed, Generator) else seed}"
