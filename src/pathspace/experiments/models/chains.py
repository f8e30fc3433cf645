"""Networks whose layers follow one another: perceptrons, VGG, and the tower of NCF."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from pathspace.experiments.models.construction import convolution, materialize


def mlp(
    widths: Sequence[int],
    bias: bool = True,
    batch_norm: bool = False,
    dropout: float = 0.0,
    *,
    flatten: bool = True,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    r"""Multi-layer perceptron with ReLU between its linear layers.

    .. math:: x \mapsto W_L \, \sigma(W_{L-1} \dots \sigma(W_1 x)), \qquad \sigma(z) = \max(z, 0).

    Args:
        widths: Sizes of all layers from input to output, at least two.
        bias: Whether the linear layers have biases.
        batch_norm: Put batch norm between each hidden linear layer and its ReLU.
        dropout: Probability of dropping a hidden unit; 0 leaves the layers out.
        flatten: Accept images as well, by flattening all but the first axis.
        generator: Source of the weights, see `initialize_`.

    Returns:
        The network, one layer after the other.

    Raises:
        ValueError: Fewer than two widths, or one that is not positive.

    Example:
        >>> mlp([4, 3, 2], flatten=False)
        Sequential(
          (0): Linear(in_features=4, out_features=3, bias=True)
          (1): ReLU()
          (2): Linear(in_features=3, out_features=2, bias=True)
        )
    """
    if len(widths) < 2 or min(widths) < 1:
        raise ValueError(f"mlp widths {list(widths)}: expected at least two, all positive")
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Flatten()] if flatten else []
        for inputs, outputs in pairwise(widths[:-1]):
            layers.append(nn.Linear(inputs, outputs, bias))
            if batch_norm:
                layers.append(nn.BatchNorm1d(outputs))
            layers.append(nn.ReLU())
            if dropout:
                layers.append(nn.Dropout(dropout))
        layers.append(nn.Linear(widths[-2], widths[-1], bias))
        model = nn.Sequential(*layers)
    return materialize(model, generator)


def vgg(
    widths: Sequence[int] = (8, 16, 32),
    *,
    convolutions: int = 1,
    hidden: int = 64,
    batch_norm: bool = False,
    size: int = 32,
    channels: int = 3,
    classes: int = 10,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """VGG-like net: convolutions and ReLU, halved by max-pooling, then a perceptron on the pixels.

    Flattening hands the classifier ``(size / 2^stages)^2`` inputs per channel: one channel of the
    last convolution is one unit, read through many columns.

    Args:
        widths: Channels of each stage; every stage ends in a max-pooling by 2.
        convolutions: Convolutions per stage.
        hidden: Units of the hidden layer of the classifier.
        batch_norm: Put batch norm after each convolution.
        size: Side of the image, a multiple of ``2 ** len(widths)``.
        channels: Channels of the image.
        classes: Logits.
        generator: Source of the weights, see `initialize_`.

    Returns:
        The network, one layer after the other.

    Raises:
        ValueError: The image cannot be halved as often as there are stages.

    Example:
        >>> vgg()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

    Reference:
        Simonyan, Zisserman. Very deep convolutional networks. ICLR 2015.
    """
    reduction = 2 ** len(widths)
    if size % reduction:
        raise ValueError(
            f"vgg image size {size}: expected a multiple of {reduction}, one halving per stage"
        )
    with torch.device("meta"):
        layers: list[nn.Module] = []
        inputs = channels
        for width in widths:
            for _ in range(convolutions):
                layers += [*convolution(inputs, width, batch_norm=batch_norm), nn.ReLU()]
                inputs = width
            layers.append(nn.MaxPool2d(2))
        pixels = (size // reduction) ** 2
        layers += [nn.Flatten(), nn.Linear(inputs * pixels, hidden), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(hidden, classes))
    return materialize(model, generator)


class NCF(nn.Module):
    """Perceptron on the concatenated embeddings of a user and an item; see `ncf`."""

    def __init__(self, factors: int, users: int, items: int) -> None:
        super().__init__()
        self.user = nn.Embedding(users, 2 * factors)
        self.item = nn.Embedding(items, 2 * factors)
        self.tower = nn.Sequential(
            nn.Linear(4 * factors, 2 * factors),
            nn.ReLU(),
            nn.Linear(2 * factors, factors),
            nn.ReLU(),
            nn.Linear(factors, 1),
        )

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        """One logit per pair of indices: (B,), (B,) -> (B, 1)."""
        return self.tower(torch.cat([self.user(user), self.item(item)], dim=1))


def ncf(
    factors: int = 8,
    *,
    users: int = 64,
    items: int = 96,
    generator: torch.Generator | None = None,
) -> NCF:
    """The perceptron of neural collaborative filtering: will this user interact with this item?

    Embeddings of ``2 * factors`` for user and item, concatenated, then a tower of
    ``4 * factors -> 2 * factors -> factors -> 1``.

    Args:
        factors: Units of the last hidden layer; 8, 16, 32 or 64 in the paper.
        users: Number of users.
        items: Number of items.
        generator: Source of the weights, see `initialize_`.

    Returns:
        A network of two index tensors (B,), giving logits (B, 1).

    Raises:
        ValueError: A count is not positive.

    Example:
        >>> ncf(8)(torch.tensor([0, 1]), torch.tensor([5, 7])).shape
        torch.Size([2, 1])

    Reference:
        He, Liao, Zhang, Nie, Hu, Chua. Neural collaborative filtering. WWW 2017, sec. 3.3.
    """
    if min(factors, users, items) < 1:
        raise ValueError(f"ncf({factors=}, {users=}, {items=}): expected positive counts")
    with torch.device("meta"):
        model = NCF(factors, users, items)
    return materialize(model, generator)
