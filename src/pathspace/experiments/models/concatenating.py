"""Networks that join branches by concatenation: DenseNet, Inception and U-Net, in small."""

from collections.abc import Sequence

import torch
from torch import nn

from pathspace.experiments.models.construction import classifier, convolution, materialize


class DenseLayer(nn.Module):
    """The input, followed by ``growth`` new channels computed from it."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.ReLU(),
            nn.Conv2d(inputs, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, inputs, H, W) -> (B, inputs + growth, H, W)."""
        return torch.cat([x, self.branch(x)], dim=1)


def densenet(
    blocks: Sequence[int] = (2, 2),
    *,
    growth: int = 8,
    channels: int = 3,
    classes: int = 10,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """DenseNet-like net: every layer reads all earlier ones of its block, after BN and ReLU.

    Between blocks a transition halves the channels (BN-ReLU-1x1) and averages 2x2 pixels.

    Args:
        blocks: Layers of each dense block.
        growth: Channels that a layer adds; the stem has twice as many.
        channels: Channels of the image.
        classes: Logits.
        generator: Source of the weights, see `initialize_`.

    Returns:
        The network.

    Example:
        >>> densenet()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

    Reference:
        Huang, Liu, van der Maaten, Weinberger. Densely connected convolutional networks. CVPR 2017.
    """
    with torch.device("meta"):
        width = 2 * growth
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
        for block, depth in enumerate(blocks):
            if block > 0:
                transition = nn.Conv2d(width, width // 2, 1, bias=False)
                layers += [nn.BatchNorm2d(width), nn.ReLU(), transition, nn.AvgPool2d(2)]
                width //= 2
            for _ in range(depth):
                layers.append(DenseLayer(width, growth))
                width += growth
        layers += [nn.BatchNorm2d(width), nn.ReLU(), *classifier(width, classes)]
        model = nn.Sequential(*layers)
    return materialize(model, generator)


class Branches(nn.Module):
    """Parallel branches of one input, concatenated along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, inputs, H, W) -> (B, sum of the branches' outputs, H, W)."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def inception(
    *,
    width: int = 8,
    batch_norm: bool = True,
    channels: int = 3,
    classes: int = 10,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Inception-like net: two modules of four branches (1x1; 3x3; two 3x3; max-pool), concatenated.

    Args:
        width: Channels of each branch; the stem has twice as many.
        batch_norm: Batch norm after each convolution.
        channels: Channels of the image.
        classes: Logits.
        generator: Source of the weights, see `initialize_`.

    Returns:
        The network.

    Example:
        >>> inception()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

    Reference:
        Szegedy et al. Going deeper with convolutions. CVPR 2015; two 3x3 in place of a 5x5 as in
        Szegedy et al. Rethinking the inception architecture. CVPR 2016.
    """

    def step(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
        return [*convolution(inputs, outputs, kernel, batch_norm=batch_norm), nn.ReLU()]

    def module(inputs: int) -> Branches:
        return Branches(
            nn.Sequential(*step(inputs, width, 1)),
            nn.Sequential(*step(inputs, width, 1), *step(width, width, 3)),
            nn.Sequential(*step(inputs, width, 1), *step(width, width, 3), *step(width, width, 3)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), *step(inputs, width, 1)),
        )

    with torch.device("meta"):
        model = nn.Sequential(
            *step(channels, 2 * width, 3),
            nn.MaxPool2d(2),
            module(2 * width),
            nn.MaxPool2d(2),
            module(4 * width),
            *classifier(4 * width, classes),
        )
    return materialize(model, generator)


class UNet(nn.Module):
    """Contracting and expanding halves with skips between equal resolutions; see `unet`."""

    def __init__(
        self, widths: Sequence[int], transposed: bool, batch_norm: bool, channels: int, classes: int
    ) -> None:
        super().__init__()

        def step(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(*convolution(inputs, outputs, batch_norm=batch_norm), nn.ReLU())

        def enlarge(inputs: int, outputs: int) -> nn.Module:
            if transposed:
                return nn.ConvTranspose2d(inputs, outputs, 2, stride=2)
            return nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(inputs, outputs, 1))

        finer, coarser = widths[:-1], widths[1:]
        pairs = list(zip(finer, coarser, strict=True))
        self.first = step(channels, widths[0])
        self.contract = nn.ModuleList(nn.Sequential(nn.MaxPool2d(2), step(*p)) for p in pairs)
        self.enlarge = nn.ModuleList(enlarge(below, here) for here, below in reversed(pairs))
        self.merge = nn.ModuleList(step(2 * here, here) for here in reversed(finer))
        self.last = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, channels, H, W) -> (B, classes, H, W)."""
        x = self.first(x)
        skips = []
        for contract in self.contract:
            skips.append(x)
            x = contract(x)
        for enlarge, merge in zip(self.enlarge, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), enlarge(x)], dim=1))
        return self.last(x)


def unet(
    widths: Sequence[int] = (8, 16, 32),
    *,
    transposed: bool = True,
    batch_norm: bool = False,
    channels: int = 3,
    classes: int = 2,
    generator: torch.Generator | None = None,
) -> UNet:
    """U-Net-like net for segmentation: down by max-pooling, up again, skips concatenated.

    Args:
        widths: Channels at each resolution, finest first; images are multiples of
            ``2 ** (len(widths) - 1)``.
        transposed: Enlarge by a transposed convolution, else by repeating pixels and a 1x1 one.
        batch_norm: Batch norm after each 3x3 convolution.
        channels: Channels of the image.
        classes: Logits per pixel.
        generator: Source of the weights, see `initialize_`.

    Returns:
        The network.

    Example:
        >>> unet()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 2, 32, 32])

    Reference:
        Ronneberger, Fischer, Brox. U-Net. MICCAI 2015.
    """
    with torch.device("meta"):
        model = UNet(widths, transposed, batch_norm, channels, classes)
    return materialize(model, generator)
