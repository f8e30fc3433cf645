"""The official file formats, from bytes to tensors, without running anything the bytes contain.

Every function takes the whole content of one file and either returns exactly what it holds or
raises :class:`FormatError`. CIFAR is read from its binary version, because reading the version for
Python would mean to unpickle it.
"""

from __future__ import annotations

import gzip
import io
import math
import zlib

import torch
from torch import Tensor

from pathspace.experiments.data.errors import FormatError, require

CIFAR_SHAPE = (3, 32, 32)
UNSIGNED_BYTE = 0x08  # the IDX code of the type of the elements


def read_idx(content: bytes) -> Tensor:
    """An array of bytes in the gzipped IDX format of MNIST and Fashion-MNIST.

    Two zero bytes, the type of the elements, the number of axes, the length of each axis as a
    big-endian integer, then the elements.

    Example:
        >>> header = bytes([0, 0, 8, 2]) + (1).to_bytes(4, "big") + (3).to_bytes(4, "big")
        >>> read_idx(gzip.compress(header + bytes([7, 8, 9])))
        tensor([[7, 8, 9]], dtype=torch.uint8)
    """
    try:
        raw = bytearray(gzip.decompress(content))  # torch wants memory it may write to
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"it is not a whole gzip file ({error})") from error
    if len(raw) < 4 or raw[:3] != bytes([0, 0, UNSIGNED_BYTE]):
        raise FormatError(f"it does not start like an IDX file of bytes, but with {raw[:4].hex()}")
    start = 4 + 4 * raw[3]
    shape = [int.from_bytes(raw[at : at + 4], "big") for at in range(4, start, 4)]
    if len(raw) != start + math.prod(shape):
        raise FormatError(
            f"its header speaks of {tuple(shape)}, {math.prod(shape):,} bytes, but "
            f"{max(len(raw) - start, 0):,} follow"
        )
    if 0 in shape:
        raise FormatError(f"it is empty: {tuple(shape)}")
    return torch.frombuffer(raw, dtype=torch.uint8, offset=start).view(shape)


def read_cifar(content: bytes, *, classes: int) -> tuple[Tensor, Tensor]:
    """Images and labels of a binary CIFAR file.

    A record is the label (CIFAR-100: the coarse label, then the fine one, which we take) and 3072
    bytes, red before green before blue, row by row. The number of records follows from the size.

    Args:
        content: of the file.
        classes: 10 or 100; tells how many label bytes there are.

    Returns:
        uint8 (N, 3, 32, 32) and int64 (N,).

    Example:
        >>> images, labels = read_cifar(bytes([4]) + bytes(3072), classes=10)
        >>> images.shape, labels
        (torch.Size([1, 3, 32, 32]), tensor([4]))
    """
    label_bytes = 2 if classes == 100 else 1
    record = label_bytes + math.prod(CIFAR_SHAPE)
    if not content or len(content) % record:
        raise FormatError(
            f"its {len(content):,} bytes are no whole number of records of {record:,}"
        )
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, record)
    labels = records[:, label_bytes - 1].long()
    check_labels(labels, classes)
    return records[:, label_bytes:].reshape(-1, *CIFAR_SHAPE), labels


def read_svhn(content: bytes) -> tuple[Tensor, Tensor]:
    """Images and labels of an SVHN file of cropped digits (MATLAB 5 format).

    The file has ``X`` of shape (32, 32, 3, N) and ``y`` of shape (N, 1), in which 10 stands for the
    digit 0.

    Returns:
        uint8 (N, 3, 32, 32) and int64 (N,), each label the digit itself.
    """
    scipy_io = require("scipy.io")
    try:
        arrays = scipy_io.loadmat(io.BytesIO(content), variable_names=("X", "y"))
    except Exception as error:  # of any kind: the content steers the parser
        raise FormatError(f"it is not a whole MATLAB 5 file ({error})") from error
    images, digits = arrays.get("X"), arrays.get("y")
    if images is None or digits is None:
        raise FormatError("it lacks the variables X and y")
    count = images.shape[-1]
    if images.shape != (32, 32, 3, count) or digits.shape != (count, 1) or not count:
        raise FormatError(
            f"X has shape {images.shape} and y {digits.shape}, instead of (32, 32, 3, N), (N, 1)"
        )
    if images.dtype != "uint8" or digits.dtype.kind not in "ui":
        raise FormatError(f"X holds {images.dtype} and y {digits.dtype}, instead of whole numbers")
    labels = torch.from_numpy(digits[:, 0].astype("int64"))
    check_labels(labels - 1, 10)
    return torch.from_numpy(images.transpose(3, 2, 0, 1).copy()), labels % 10


def read_ratings(content: bytes) -> Tensor:
    r"""Ratings of a MovieLens ``.dat`` file: user, movie, rating and time of each line.

    Returns:
        int64 (N, 4) in the order of the file.

    Example:
        >>> read_ratings(b"1::1193::5::978300760\n1::661::3::978302109\n")
        tensor([[        1,      1193,         5, 978300760],
                [        1,       661,         3, 978302109]])
    """
    lines = content.count(b"\n") + (not content.endswith(b"\n"))
    table = _integers(content.replace(b"::", b" "))
    if not content or len(table) != 4 * lines or content.count(b"::") != 3 * lines:
        raise FormatError("its lines are not all of the form user::movie::rating::time")
    ratings = table.view(-1, 4)
    if (ratings[:, :3] < 1).any() or (ratings[:, 2] > 5).any():
        raise FormatError("it has ids below 1 or ratings outside 1 to 5")
    return ratings


def read_candidates(content: bytes) -> Tensor:
    r"""The leave-one-out test of a recommender: per line a user, the test item, then negatives.

    Returns:
        int64 (users, 2 + negatives).

    Example:
        >>> read_candidates(b"1\t48\t1956\t1247\n2\t10\t3867\t1324\n")
        tensor([[   1,   48, 1956, 1247],
                [   2,   10, 3867, 1324]])
    """
    widths = {line.count(b"\t") + 1 for line in content.splitlines()}
    table = _integers(content)
    if len(widths) != 1 or len(table) != (width := widths.pop()) * len(content.splitlines()):
        raise FormatError("its lines are not all the same number of integers, separated by tabs")
    if width < 3:
        raise FormatError(f"its lines hold {width} numbers: no user, test item and negatives")
    return table.view(-1, width)


def check_labels(labels: Tensor, classes: int) -> None:
    """Refuse labels outside 0, ..., classes - 1."""
    if labels.min() < 0 or labels.max() >= classes:
        raise FormatError(f"it has labels that are none of the {classes} classes")


def _integers(content: bytes) -> Tensor:
    """All numbers of a text that holds nothing but digits and blanks."""
    if content.translate(None, b"0123456789 \t\r\n"):
        raise FormatError("it holds something other than whole numbers")
    return torch.from_numpy(require("numpy").fromstring(content, sep=" ", dtype="int64"))
