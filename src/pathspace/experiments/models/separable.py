"""Networks of depthwise and 1x1 convolutions: MobileNet and ShuffleNet, in small."""

import torch
from torch import nn

from pathspace.experiments.models.construction import classifier, convolution, materialize


class InvertedResidual(nn.Module):
    """Widen (1x1), filter (depthwise 3x3), narrow (1x1, no ReLU); plus the input where it fits."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, expansion: int, activation: type[nn.Module]
    ) -> None:
        super().__init__()
        inner = inputs * expansion
        self.branch = nn.Sequential(
            *convolution(inputs, inner, 1),
            activation(),
            *convolution(inner, inner, 3, stride, groups=inner),
            activation(),
            *convolution(inner, outputs, 1),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        y = self.branch(x)
        return x + y if self.residual else y


def mobilenet(
    *,
    width: int = 8,
    expansion: int = 4,
    relu6: bool = False,
    channels: int = 3,
    classes: int = 10,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """MobileNet-like net: one depthwise separable block, then three inverted residuals.

    The papers use ReLU6, which is *not* positively homogeneous; for that reason ReLU is the default
    here.

    Args:
        width: Channels of the stem; later blocks have two and three times as many.
        expansion: Factor by which an inverted residual widens its input.
        relu6: Clip the activations at 6.
        channels: Channels of the image.
        classes: Logits.
        generator: Source of the weights, see `initialize_`.

    Returns:
        The network.

    Example:
        >>> mobilenet()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

    Reference:
        Howard et al. MobileNets. 2017; Sandler et al. MobileNetV2. CVPR 2018.
    """
    activation = nn.ReLU6 if relu6 else nn.ReLU
    with torch.device("meta"):
        model = nn.Sequential(
            *convolution(channels, width, 3, 2),
            activation(),
            *convolution(width, width, 3, groups=width),
            activation(),
            *convolution(width, 2 * width, 1),
            activation(),
            InvertedResidual(2 * width, 2 * width, 1, expansion, activation),
            InvertedResidual(2 * width, 3 * width, 2, expansion, activation),
            InvertedResidual(3 * width, 3 * width, 1, expansion, activation),
            *classifier(3 * width, classes),
        )
    return materialize(model, generator)


class ShuffleUnit(nn.Module):
    """Half of the channels pass, half are transformed, then the halves are interleaved."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = _shuffle_branch(channels // 2, channels // 2, stride=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, channels, H, W) -> the same shape."""
        kept, changed = x.chunk(2, dim=1)
        return channel_shuffle(torch.cat([kept, self.branch(changed)], dim=1), groups=2)


class DownsamplingShuffleUnit(nn.Module):
    """Both branches read all channels with stride 2, and are then interleaved."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.left = nn.Sequential(
            *convolution(inputs, inputs, 3, 2, groups=inputs),
            *convolution(inputs, outputs // 2, 1),
            nn.ReLU(),
        )
        self.right = _shuffle_branch(inputs, outputs // 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / 2, W / 2)."""
        return channel_shuffle(torch.cat([self.left(x), self.right(x)], dim=1), groups=2)


def channel_shuffle(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Interleave the groups of channels, as transposing a (groups, channels / groups) table does.

    Args:
        x: Activations (B, channels, H, W).
        groups: Number of groups, a divisor of the channels.

    Returns:
        The same channels in another order.

    Example:
        >>> channel_shuffle(torch.arange(6).view(1, 6, 1, 1), groups=2).flatten().tolist()
        [0, 3, 1, 4, 2, 5]
    """
    batch, channels, height, width = x.size()
    x = x.view(batch, groups, channels // groups, height, width)
    return x.transpose(1, 2).contiguous().view(batch, channels, height, width)


def shufflenet(
    *,
    width: int = 8,
    channels: int = 3,
    classes: int = 10,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """ShuffleNet-like net (version 2): channel split, depthwise branch, concatenation and shuffle.

    Args:
        width: Channels of the stem; later stages have two and four times as many.
        channels: Channels of the image.
        classes: Logits.
        generator: Source of the weights, see `initialize_`.

    Returns:
        The network.

    Example:
        >>> shufflenet()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

    Reference:
        Ma, Zhang, Zheng, Sun. ShuffleNet V2. ECCV 2018.
    """
    with torch.device("meta"):
        model = nn.Sequential(
            *convolution(channels, width),
            nn.ReLU(),
            DownsamplingShuffleUnit(width, 2 * width),
            ShuffleUnit(2 * width),
            ShuffleUnit(2 * width),
            DownsamplingShuffleUnit(2 * width, 4 * width),
            ShuffleUnit(4 * width),
            *classifier(4 * width, classes),
        )
    return materialize(model, generator)


def _shuffle_branch(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        *convolution(inputs, outputs, 1),
        nn.ReLU(),
        *convolution(outputs, outputs, 3, stride, groups=outputs),
        *convolution(outputs, outputs, 1),
        nn.ReLU(),
    )
