"""Data in memory: splits of tensors that hand out batches, and the data set they make up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from pathspace.experiments.data.errors import DataError

Augment = Callable[[Tensor, Generator], Tensor]  # a batch of inputs to another of the same shape


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Samples and what they are, as two tensors of the same length.

    Attributes:
        inputs: images as uint8 (N, C, H, W) as they come from the file, float32 after a step that
            computes with them.
        targets: class of each sample, int64 (N,).

    Example:
        >>> split = Split(torch.arange(10.0).view(5, 2), torch.arange(5))
        >>> [targets.tolist() for _, targets in split.batches(2)]
        [[0, 1], [2, 3], [4]]
        >>> generator = torch.Generator().manual_seed(0)
        >>> epoch = split.batches(2, generator=generator, drop_last=True)
        >>> sum(len(targets) for _, targets in epoch)
        4
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise DataError(f"{len(self.inputs):,} inputs, but {len(self.targets):,} targets")

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        shape = tuple(self.inputs.shape[1:])
        return f"Split({len(self):,} samples of shape {shape}, {self.inputs.dtype})"

    def batches(
        self,
        batch_size: int,
        *,
        generator: Generator | None = None,
        drop_last: bool = False,
        augment: Augment | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over the samples.

        A shuffled batch is two calls of ``index_select``, one in order is two views: a few
        microseconds, without worker processes.

        Args:
            batch_size: samples per batch; the last one may have fewer.
            generator: shuffles the samples. Without it they come in order.
            drop_last: leave out a last batch that is not full.
            augment: changes the inputs of each batch, drawing from the same generator.

        Returns:
            An iterator over (inputs, targets).

        Raises:
            DataError: before the first batch, if the arguments do not fit.
        """
        if batch_size < 1:
            raise DataError(f"a batch has at least one sample, not {batch_size}")
        if augment is not None and generator is None:
            raise DataError("augmentation draws random numbers; pass generator= as well")
        return self._batches(batch_size, generator, drop_last, augment)

    def _batches(
        self,
        batch_size: int,
        generator: Generator | None,
        drop_last: bool,
        augment: Augment | None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        end = len(self) - len(self) % batch_size if drop_last else len(self)
        if not end:  # torch splits nothing into one empty part
            return
        if generator is None:
            yield from zip(
                self.inputs[:end].split(batch_size),
                self.targets[:end].split(batch_size),
                strict=True,
            )
            return
        for index in self.order(generator)[:end].split(batch_size):
            inputs = self.inputs.index_select(0, index)
            if augment is not None:
                inputs = augment(inputs, generator)
            yield inputs, self.targets.index_select(0, index)

    def order(self, generator: Generator) -> Tensor:
        """The samples in the random order of one epoch, by number."""
        order = torch.randperm(len(self), generator=generator, device=generator.device)
        return order.to(self.targets.device)

    def loader(self, batch_size: int) -> Loader:
        """The batches in order, as often as one asks: data for a measurement.

        Example:
            >>> loader = Split(torch.zeros(5, 2), torch.zeros(5)).loader(2)
            >>> len(loader), len(list(loader)), len(list(loader))
            (3, 3, 3)
        """
        if batch_size < 1:
            raise DataError(f"a batch has at least one sample, not {batch_size}")
        return Loader(self, batch_size)

    def select(self, index: Tensor) -> Split:
        """The samples with these indices, in this order."""
        index = index.to(self.targets.device)
        return Split(self.inputs.index_select(0, index), self.targets.index_select(0, index))

    def to(self, device: torch.device | str) -> Split:
        """The split on another device."""
        return Split(self.inputs.to(device), self.targets.to(device))


@dataclass(frozen=True, eq=False)
class Loader:
    """The batches of a split in order; can be read any number of times."""

    split: Split
    batch_size: int

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.split.batches(self.batch_size)

    def __len__(self) -> int:
        return -(-len(self.split) // self.batch_size)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Splits for training and test, perhaps validation, and what is to be known about them.

    Attributes:
        name: as in :func:`pathspace.experiments.data.load`.
        train: what to train on.
        test: what to test on.
        classes: how many classes there are.
        maximum: the largest value an input can have (255 in most image files), or None once the
            inputs are standardised.
        validation: what to choose hyper-parameters on, if ``validation_split`` was applied.
        notes: what a reader of results must know: missing rows, replaced labels, skipped checks.
        steps: the preprocessing so far, as :func:`parse_steps` reads it.

    Example:
        >>> from pathspace.experiments import data
        >>> digits = data.load("digits").apply(data.unit_interval(), data.flatten())
        >>> digits
        Dataset(digits: 1,442 training and 355 test samples of shape (64,), 10 classes)
        >>> digits.steps
        ('unit_interval', 'flatten')
    """

    name: str
    train: Split
    test: Split
    classes: int
    maximum: float | None
    validation: Split | None = None
    notes: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def splits(self) -> dict[str, Split]:
        """The splits there are, by name."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: split for name, split in parts.items() if split is not None}

    def apply(self, *steps: Callable[[Dataset], Dataset]) -> Dataset:
        """The data set after the steps, the first one first; this one stays as it is."""
        dataset = self
        for step in steps:
            dataset = step(dataset)
        return dataset

    def map_inputs(self, function: Callable[[Tensor], Tensor], *, maximum: float | None) -> Dataset:
        """The data set with the inputs of every split replaced.

        Args:
            function: from inputs to inputs, the samples along the first axis.
            maximum: the largest value afterwards, see the attribute.
        """
        mapped = {
            name: Split(function(split.inputs), split.targets)
            for name, split in self.splits.items()
        }
        return replace(self.with_splits(**mapped), maximum=maximum)

    def with_splits(
        self,
        train: Split | None = None,
        validation: Split | None = None,
        test: Split | None = None,
    ) -> Dataset:
        """The data set with these splits instead of its own."""
        return replace(
            self,
            train=self.train if train is None else train,  # an empty split counts as false
            validation=self.validation if validation is None else validation,
            test=self.test if test is None else test,
        )

    def to(self, device: torch.device | str) -> Dataset:
        """The data set on another device."""
        return self.with_splits(**{name: split.to(device) for name, split in self.splits.items()})

    def __repr__(self) -> str:
        words = {"train": "training"}
        counts = [f"{len(split):,} {words.get(name, name)}" for name, split in self.splits.items()]
        counted = " and ".join((", ".join(counts[:-1]), counts[-1]))
        return (
            f"Dataset({self.name}: {counted} samples of shape {self.shape}, {self.classes} classes)"
        )
