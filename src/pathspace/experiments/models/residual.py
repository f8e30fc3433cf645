"""Plain and residual networks of He et al., one builder for all of them.

Depth decides how blocks are laid out; everything else about a net (shortcuts, batch norm, the order
inside a block, a gate) is a field of `Style`. A PlainNet is the same net without its shortcuts.
"""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn

from pathspace.experiments.models.construction import classifier, convolution, materialize

# blocks per stage, and whether a block is a bottleneck; He et al. 2016, table 1
LAYOUTS = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}
EXPANSION = 4  # of the channels that leave a bottleneck


@dataclass(frozen=True)
class Style:
    """What one block looks like, the same for all blocks of a net."""

    residual: bool = True
    batch_norm: bool = True
    preactivation: bool = False
    squeeze_excitation: bool = False
    bottleneck: bool = False


def resnet(
    depth: int,
    *,
    residual: bool = True,
    batch_norm: bool = True,
    preactivation: bool = False,
    squeeze_excitation: bool = False,
    width: float = 1.0,
    imagenet: bool = False,
    channels: int = 3,
    classes: int | None = None,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    r"""Residual network, or with ``residual=False`` the PlainNet of the same layers.

    A block computes :math:`\sigma(F(x) + S(x))`, where :math:`F` is two 3x3 convolutions (1x1, 3x3,
    1x1 in a bottleneck) and :math:`S` the identity, or a 1x1 convolution where the shape changes; a
    PlainNet has :math:`\sigma(F(x))`.

    Depths 18, 34, 50, 101, 152 have four stages of 64, 128, 256, 512 channels; any other depth
    6n + 2 (8, 14, 20, 32, 56, ...) has three stages of n blocks with 16, 32, 64. 50 and 152 could
    be read either way and mean the four-stage nets.

    Args:
        depth: Number of weight layers on the longest path, shortcuts not counted.
        residual: Add shortcuts.
        batch_norm: Batch norm after each convolution; without it convolutions have biases.
        preactivation: Normalise and rectify before each convolution instead of after, with nothing
            after the sum; projections read the raw input of the block and are not normalised.
        squeeze_excitation: Gate the channels of each :math:`F` by a sigmoid of their means.
        width: Multiplier of all channel counts; 1/4 gives the thin nets of 16, 32, 64, 128.
        imagenet: Stem of a 7x7 convolution and max-pooling, and 1000 classes; else a 3x3
            convolution and 10 classes.
        channels: Channels of the image.
        classes: Logits, if not the above.
        generator: Source of the weights, see `initialize_`.

    Returns:
        The network: ``stem``, ``stage1``, ``stage2``, ..., ``head``.

    Raises:
        ValueError: No network of that depth or width.

    Example:
        >>> resnet(20)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
        >>> with torch.device("meta"):
        ...     sum(p.numel() for p in resnet(50, imagenet=True).parameters())
        25557032

    Reference:
        He, Zhang, Ren, Sun. Deep residual learning. CVPR 2016. Other than there, the stride of a
        bottleneck is in its 3x3 convolution, as is common today, and the 6n + 2 nets have
        projections (option B) instead of zero padding (option A).
    """
    stages, bottleneck = _layout(depth, imagenet)
    style = Style(residual, batch_norm, preactivation, squeeze_excitation, bottleneck)
    base = round(width * (64 if len(stages) == 4 else 16))
    if base < 1:
        raise ValueError(f"resnet width {width}: leaves no channels")
    with torch.device("meta"):
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        parts["stem"] = _stem(channels, base, style, imagenet)
        inputs = base
        for stage, blocks in enumerate(stages):
            outputs = base * 2**stage * (EXPANSION if bottleneck else 1)
            row = []
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                row.append(Block(inputs, outputs, stride, style))
                inputs = outputs
            parts[f"stage{stage + 1}"] = nn.Sequential(*row)
        if classes is None:
            classes = 1000 if imagenet else 10
        head = _activation(inputs, style) if preactivation else []
        head += classifier(inputs, classes)
        parts["head"] = nn.Sequential(*head)
        model = nn.Sequential(parts)
    return materialize(model, generator)


class Block(nn.Module):
    """One block of a plain or residual net; see `resnet`."""

    def __init__(self, inputs: int, outputs: int, stride: int, style: Style) -> None:
        super().__init__()
        if style.bottleneck:
            inner = outputs // EXPANSION
            shapes = [(inputs, inner, 1, 1), (inner, inner, 3, stride), (inner, outputs, 1, 1)]
        else:
            shapes = [(inputs, outputs, 3, stride), (outputs, outputs, 3, 1)]
        layers: list[nn.Module] = []
        for position, shape in enumerate(shapes):
            if style.preactivation:
                layers += _activation(shape[0], style)
            elif position > 0:
                layers.append(nn.ReLU())
            layers += _convolution(*shape, style)
        if style.squeeze_excitation:
            layers.append(SqueezeExcitation(outputs))
        self.branch = nn.Sequential(*layers)
        self.shortcut: nn.Module | None = None
        if style.residual and stride == 1 and inputs == outputs:
            self.shortcut = nn.Identity()
        elif style.residual:
            self.shortcut = nn.Sequential(*_convolution(inputs, outputs, 1, stride, style))
        self.activation = nn.Identity() if style.preactivation else nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        y = self.branch(x)
        if self.shortcut is not None:
            y = y + self.shortcut(x)
        return self.activation(y)


class SqueezeExcitation(nn.Module):
    """Channels times a sigmoid of a small perceptron of their means (Hu, Shen, Sun, CVPR 2018)."""

    def __init__(self, channels: int, reduction: int = 4) -> None:
        super().__init__()
        inner = max(1, channels // reduction)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, inner, 1),
            nn.ReLU(),
            nn.Conv2d(inner, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, channels, H, W) -> the same shape."""
        return x * self.gate(x)  # (B, channels, H, W) * (B, channels, 1, 1)


def _layout(depth: int, imagenet: bool) -> tuple[tuple[int, ...], bool]:
    if depth in LAYOUTS:
        return LAYOUTS[depth]
    known = ", ".join(map(str, LAYOUTS))
    if imagenet:
        raise ValueError(f"resnet depth {depth} for ImageNet: expected one of {known}")
    if depth < 8 or depth % 6 != 2:
        raise ValueError(f"resnet depth {depth}: expected {known} or 6n + 2 (8, 14, 20, 32, ...)")
    return ((depth - 2) // 6,) * 3, False


def _stem(channels: int, width: int, style: Style, imagenet: bool) -> nn.Sequential:
    kernel, stride = (7, 2) if imagenet else (3, 1)
    layers = _convolution(channels, width, kernel, stride, style)
    if not style.preactivation:
        layers.append(nn.ReLU())
    if imagenet:
        layers.append(nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*layers)


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int, style: Style
) -> list[nn.Module]:
    if not style.preactivation:
        return convolution(inputs, outputs, kernel, stride, batch_norm=style.batch_norm)
    # the next activation normalises, wherever it is
    bias = not style.batch_norm
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=bias)]


def _activation(inputs: int, style: Style) -> list[nn.Module]:
    return [nn.BatchNorm2d(inputs), nn.ReLU()] if style.batch_norm else [nn.ReLU()]
