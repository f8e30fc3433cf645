"""Image data sets by name, whatever folder they are in."""

from __future__ import annotations

import torch

from pathspace.experiments.data.catalogue import EMBEDDED, find_source
from pathspace.experiments.data.copies import Copy, Folder, find
from pathspace.experiments.data.dataset import Dataset, Split
from pathspace.experiments.data.errors import DataError, require
from pathspace.experiments.data.fetching import fetch
from pathspace.experiments.data.sources import Source


def load(
    name: str, folder: Folder = None, *, download: bool = False, verify: bool = True
) -> Dataset:
    """Load a data set of images.

    Args:
        name: ``digits``, ``mnist``, ``fashion-mnist``, ``cifar10``, ``cifar100`` or ``svhn``.
        folder: the data folder. Without it ``$PATHSPACE_DATA``, the cache of downloads and the
            folders of the system are searched, in this order.
        download: fetch what is not there.
        verify: refuse files that are not the official ones. Switched off, the data set says in its
            notes which they are.

    Returns:
        Images as uint8 (N, C, H, W), and labels. CIFAR-100 and SVHN may have fewer rows than the
        official files; the notes say so.

    Raises:
        DataError: unknown name, or a file that is missing, cut off or altered: which, its
            checksums, and the command that puts it right.

    Example:
        >>> digits = load("digits")
        >>> digits.train.inputs.shape, digits.train.inputs.dtype, digits.maximum
        (torch.Size([1442, 1, 8, 8]), torch.uint8, 16)
        >>> digits.notes
        ('no official split: every fifth image of each class is for testing',)
    """
    if name == EMBEDDED:
        return _digits()
    source = find_source(name)
    if source.read is None:
        raise DataError(f"{name} has no images: use load_movielens")
    if download and find(source, folder) is None:
        fetch(name, folder)
    copy = Copy(source, folder, verify=verify)
    train, test = source.read(copy)
    return Dataset(
        name=name,
        train=train,
        test=test,
        classes=source.classes,
        maximum=255,
        notes=(*_missing_rows(source, train, test), *unverified(copy)),
    )


def unverified(copy: Copy) -> tuple[str, ...]:
    """Notes on the files that were taken although they are not the official ones."""
    if copy.verify:
        return ()
    return tuple(
        f"not verified: {name} has sha256 {found}, not the official one"
        for name, found in copy.differing.items()
    )


def _missing_rows(source: Source, train: Split, test: Split) -> tuple[str, ...]:
    rows = zip(("training", "test"), (train, test), source.rows, strict=True)
    return tuple(
        f"subset: {len(split):,} of {official:,} {which} images"
        for which, split, official in rows
        if len(split) != official
    )


def _digits() -> Dataset:
    """The handwritten digits inside scikit-learn, 8×8 with values from 0 to 16.

    The split must not depend on a random number generator and not on the order of the images (the
    labels of whole stretches of it go 0, 1, ..., 9, over and over), hence by rank within the class.
    """
    images, labels = require("sklearn.datasets").load_digits(return_X_y=True)
    inputs = torch.from_numpy(images).to(torch.uint8).view(-1, 1, 8, 8)
    targets = torch.from_numpy(labels).long()
    one_hot = torch.nn.functional.one_hot(targets, 10)
    rank = (one_hot.cumsum(0) * one_hot).sum(1)  # 1, 2, ... within each class
    whole = Split(inputs, targets)
    return Dataset(
        name=EMBEDDED,
        train=whole.select((rank % 5 != 0).nonzero()[:, 0]),
        test=whole.select((rank % 5 == 0).nonzero()[:, 0]),
        classes=10,
        maximum=16,
        notes=("no official split: every fifth image of each class is for testing",),
    )
