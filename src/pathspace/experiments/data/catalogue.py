"""The data sets: their files, checksums and addresses.

About the checksums. All are of the official files. Those of MNIST, Fashion-MNIST, ``ratings.dat``
and the files inside ``cifar-10-binary.tar.gz`` were computed from local copies, and agree with the
published sums (SHA-256, and MD5 for ``ratings.dat``). Debian's Fashion-MNIST is packed anew: its
files are others, and what is inside is the same. Those of the three archives, of the files
inside ``cifar-100-binary.tar.gz`` and of SVHN are published ones that we had no file to compare to.
"""

from __future__ import annotations

import difflib
from functools import partial

import torch
from torch import Tensor

from pathspace.experiments.data import formats
from pathspace.experiments.data.dataset import Split
from pathspace.experiments.data.errors import DataError, FormatError
from pathspace.experiments.data.sources import File, Read, Source

EMBEDDED = "digits"  # comes with scikit-learn, so it is in no table of files
EMBEDDED_ROWS = (1_442, 355)


def find_source(name: str) -> Source:
    """The entry of that name.

    Raises:
        DataError: there is none; the message suggests the nearest.

    Example:
        >>> find_source("cifar10").title
        'CIFAR-10'
        >>> find_source("cifra10")
        Traceback (most recent call last):
        pathspace.experiments.data.errors.DataError: unknown data set 'cifra10'; did you mean ...
    """
    if name in SOURCES:
        return SOURCES[name]
    known = [EMBEDDED, *SOURCES]
    close = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise DataError(f"unknown data set {name!r}; {hint}known are {', '.join(known)}")


def _read_idx_pairs(read: Read) -> tuple[Split, Split]:
    def images(content: bytes) -> Tensor:
        array = formats.read_idx(content)
        if array.dim() != 3:
            raise FormatError(f"its array has shape {tuple(array.shape)}, which are no images")
        return array.unsqueeze(1)

    def labels(content: bytes) -> Tensor:
        array = formats.read_idx(content)
        if array.dim() != 1:
            raise FormatError(f"its array has shape {tuple(array.shape)}, which are no labels")
        formats.check_labels(array, 10)
        return array.long()

    train, test = (
        Split(
            read(f"{part}-images-idx3-ubyte.gz", images),
            read(f"{part}-labels-idx1-ubyte.gz", labels),
        )
        for part in ("train", "t10k")
    )
    return train, test


def _read_cifar(train: tuple[str, ...], test: str, classes: int, read: Read) -> tuple[Split, Split]:
    parse = partial(formats.read_cifar, classes=classes)
    images, labels = zip(*(read(name, parse) for name in train), strict=True)
    return Split(torch.cat(images), torch.cat(labels)), Split(*read(test, parse))


def _read_svhn(read: Read) -> tuple[Split, Split]:
    parts = ("train_32x32.mat", "test_32x32.mat")
    train, test = (Split(*read(name, formats.read_svhn)) for name in parts)
    return train, test


# The files of MNIST and Fashion-MNIST have the same names and shapes.
_idx = partial(Source, rows=(60_000, 10_000), read=_read_idx_pairs, classes=10)

_cifar = partial(
    Source,
    hosts=("https://www.cs.toronto.edu/~kriz",),
    rows=(50_000, 10_000),
    terms="cite Krizhevsky 2009",
)

# name, bytes, SHA-256, rows, SHA-256 of what is inside
# fmt: off
_ALL = (
    _idx(
        name="mnist",
        title="MNIST",
        folder="mnist",
        files=(
            File("train-images-idx3-ubyte.gz", 9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 60_000, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),  # noqa: E501
            File("train-labels-idx1-ubyte.gz", 28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 60_000, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),  # noqa: E501
            File("t10k-images-idx3-ubyte.gz", 1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 10_000, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),  # noqa: E501
            File("t10k-labels-idx1-ubyte.gz", 4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 10_000, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),  # noqa: E501
        ),
        # The authors' own server refuses downloads; these copies are byte for byte the same.
        hosts=(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ),
        terms="as published by LeCun and Cortes",
    ),
    _idx(
        name="fashion-mnist",
        title="Fashion-MNIST",
        folder="fashion-mnist",
        files=(
            File("train-images-idx3-ubyte.gz", 26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 60_000, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),  # noqa: E501
            File("train-labels-idx1-ubyte.gz", 29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 60_000, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),  # noqa: E501
            File("t10k-images-idx3-ubyte.gz", 4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 10_000, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),  # noqa: E501
            File("t10k-labels-idx1-ubyte.gz", 5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 10_000, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),  # noqa: E501
        ),
        hosts=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
        terms="MIT",
        system=("/usr/share/datasets/fashion-mnist",),  # apt-get install dataset-fashion-mnist
    ),
    _cifar(
        name="cifar10",
        title="CIFAR-10",
        folder="cifar-10-batches-bin",
        files=(
            File("data_batch_1.bin", 30_730_000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5", 10_000),  # noqa: E501
            File("data_batch_2.bin", 30_730_000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed", 10_000),  # noqa: E501
            File("data_batch_3.bin", 30_730_000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67", 10_000),  # noqa: E501
            File("data_batch_4.bin", 30_730_000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48", 10_000),  # noqa: E501
            File("data_batch_5.bin", 30_730_000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add", 10_000),  # noqa: E501
            File("test_batch.bin", 30_730_000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b", 10_000),  # noqa: E501
        ),
        archive=File("cifar-10-binary.tar.gz", 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),  # noqa: E501
        read=partial(
            _read_cifar, tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin", 10
        ),
        classes=10,
    ),
    _cifar(
        name="cifar100",
        title="CIFAR-100",
        folder="cifar-100-binary",
        files=(
            File("train.bin", 153_700_000, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29", 50_000),  # noqa: E501
            File("test.bin", 30_740_000, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a", 10_000),  # noqa: E501
        ),
        archive=File("cifar-100-binary.tar.gz", 168_513_733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),  # noqa: E501
        read=partial(_read_cifar, ("train.bin",), "test.bin", 100),
        classes=100,
        partial=True,
    ),
    Source(
        name="svhn",
        title="SVHN, cropped digits",
        folder="svhn",
        files=(
            File("train_32x32.mat", 182_040_794, "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8", 73_257),  # noqa: E501
            File("test_32x32.mat", 64_275_384, "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b", 26_032),  # noqa: E501
        ),
        hosts=("http://ufldl.stanford.edu/housenumbers",),
        rows=(73_257, 26_032),
        read=_read_svhn,
        classes=10,
        terms="non-commercial use",
        partial=True,
    ),
    Source(
        name="ml-1m",
        title="MovieLens-1M",
        folder="ml-1m",
        files=(
            File("ratings.dat", 24_594_131, "506d64ca44484487c11dc2d9a28de5c54948213e6b96285e298afe28d6ea4e0f", 1_000_209),  # noqa: E501
        ),
        archive=File("ml-1m.zip", 5_917_549, "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20"),  # noqa: E501
        hosts=("https://files.grouplens.org/datasets/movielens",),
        rows=(994_169, 6_040),
        read=None,
        classes=2,
        terms="research use with acknowledgement, no redistribution",
    ),
)
# fmt: on

SOURCES = {entry.name: entry for entry in _ALL}
