"""Data sets as tensors: official files in, batches out.

Small data sets need no worker processes: they are loaded whole, preprocessed once by named steps,
and handed out by indexing. Nothing is unpickled, every official file is checked, and a copy that is
not the official one says so in its notes.

Example:
    >>> import torch
    >>> from pathspace.experiments import data
    >>> digits = data.load("digits").apply(*data.parse_steps("unit_interval, flatten"))
    >>> generator = torch.Generator().manual_seed(0)
    >>> for inputs, targets in digits.train.batches(64, generator=generator):
    ...     pass
    >>> inputs.shape
    torch.Size([34, 64])
"""

from pathspace.experiments.data.archives import unpack
from pathspace.experiments.data.augmentation import crop_and_flip
from pathspace.experiments.data.catalogue import (
    EMBEDDED,
    EMBEDDED_ROWS,
    SOURCES,
    find_source,
)
from pathspace.experiments.data.copies import (
    VARIABLE,
    Finding,
    data_folder,
    look,
    size_in_words,
)
from pathspace.experiments.data.dataset import Augment, Dataset, Loader, Split
from pathspace.experiments.data.errors import DataError, FormatError
from pathspace.experiments.data.fetching import fetch
from pathspace.experiments.data.interactions import Interactions, Statistics
from pathspace.experiments.data.loading import load
from pathspace.experiments.data.movielens import load_movielens
from pathspace.experiments.data.naming import (
    AUGMENTATIONS,
    STEPS,
    parse_augmentation,
    parse_steps,
)
from pathspace.experiments.data.sampling import corrupt_labels, subset, validation_split
from pathspace.experiments.data.sources import File, Source
from pathspace.experiments.data.steps import (
    Step,
    average_pool,
    channel_statistics,
    downsample,
    flatten,
    standardize,
    unit_interval,
)

__all__ = [
    "AUGMENTATIONS",
    "EMBEDDED",
    "EMBEDDED_ROWS",
    "SOURCES",
    "STEPS",
    "VARIABLE",
    "Augment",
    "DataError",
    "Dataset",
    "File",
    "Finding",
    "FormatError",
    "Interactions",
    "Loader",
    "Source",
    "Split",
    "Statistics",
    "Step",
    "average_pool",
    "channel_statistics",
    "corrupt_labels",
    "crop_and_flip",
    "data_folder",
    "downsample",
    "fetch",
    "find_source",
    "flatten",
    "load",
    "load_movielens",
    "look",
    "parse_augmentation",
    "parse_steps",
    "size_in_words",
    "standardize",
    "subset",
    "unit_interval",
    "unpack",
    "validation_split",
]
