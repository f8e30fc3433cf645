"""How every built-in model comes into being: laid out without memory, then drawn from a generator.

A builder describes its layers under ``torch.device("meta")``, where torch's own initialisation
costs nothing and touches no random state, and hands them to `materialize`. Whoever wraps the
builder in ``torch.device("meta")`` gets shapes only: the way to count parameters of large models.
"""

import math
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

Model = TypeVar("Model", bound=nn.Module)


def materialize(model: Model, generator: torch.Generator | None = None) -> Model:
    """Give a model laid out on the meta device memory on the default device, and initial weights.

    Args:
        model: A model whose parameters and buffers are on the meta device.
        generator: Source of the weights, see `initialize_`.

    Returns:
        The same model.
    """
    return initialize_(model.to_empty(device=torch.get_default_device()), generator)


@torch.no_grad()
def initialize_(model: Model, generator: torch.Generator | None = None) -> Model:
    r"""Redraw all parameters by the rule of He et al. and reset all running statistics.

    .. math:: w \sim N(0, 2 / \text{fan-in}), \qquad b = 0, \qquad \gamma = 1, \qquad \beta = 0.

    Fan-in is the number of weights that one output value sums over; a transposed convolution of
    stride s sums over 1/s of its kernel along each axis, on average. An embedding sums over
    nothing; its fan-in is taken as the row length, so that rows have expected squared length 2.
    Numbers are drawn where the generator lives and then copied: a CPU generator gives the same
    weights on every device.

    Args:
        model: Any composition of linear, convolution, embedding and batch-norm layers with layers
            that have no parameters.
        generator: Source of the numbers. ``None`` starts one from ``torch.initial_seed()``: the
            weights follow ``torch.manual_seed``, but two calls draw the *same* ones.

    Returns:
        The same model.

    Raises:
        TypeError: A layer holds parameters or buffers that no rule covers.

    Example:
        >>> layer = initialize_(nn.Linear(800, 400), torch.Generator().manual_seed(0))
        >>> round(layer.weight.std().item(), 3)  # sqrt(2 / 800)
        0.05

    Reference:
        He, Zhang, Ren, Sun. Delving deep into rectifiers. ICCV 2015, eq. 10.
    """
    if generator is None:
        generator = torch.Generator("cpu").manual_seed(torch.initial_seed())
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear | nn.Embedding | _ConvNd):
            _draw_(layer.weight, math.sqrt(2 / _fan_in(layer)), generator)
            if not isinstance(layer, nn.Embedding) and layer.bias is not None:
                layer.bias.zero_()
        elif isinstance(layer, _BatchNorm):
            layer.reset_parameters()  # gamma 1, beta 0, running statistics afresh; draws nothing
        elif [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
            raise TypeError(
                f"`{name}` ({type(layer).__name__}) has no initialisation rule; initialize_ knows "
                "linear, convolution, embedding and batch-norm layers"
            )
    return model


def convolution(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    *,
    batch_norm: bool = True,
) -> list[nn.Module]:
    """A convolution that keeps the image size at stride 1, then batch norm in place of its bias.

    Args:
        inputs: Channels read.
        outputs: Channels written.
        kernel: Side of the kernel, odd.
        stride: Step of the kernel.
        groups: Groups of channels; ``inputs`` makes the convolution depthwise.
        batch_norm: Without it the convolution has a bias instead.

    Returns:
        The layers, to be spread into an ``nn.Sequential``.

    Example:
        >>> convolution(3, 8, batch_norm=False)
        [Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))]
    """
    layer = nn.Conv2d(
        inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=not batch_norm
    )
    return [layer, nn.BatchNorm2d(outputs)] if batch_norm else [layer]


def classifier(inputs: int, classes: int) -> list[nn.Module]:
    """Average over the image, then one linear layer: the head of all convolutional nets but VGG.

    Args:
        inputs: Channels read.
        classes: Logits written.

    Returns:
        The layers, to be spread into an ``nn.Sequential``.

    Example:
        >>> nn.Sequential(*classifier(64, 10))(torch.zeros(2, 64, 8, 8)).shape
        torch.Size([2, 10])
    """
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]


def _draw_(weight: torch.Tensor, std: float, generator: torch.Generator) -> None:
    if not weight.is_meta:
        device, dtype = generator.device, weight.dtype
        weight.copy_(torch.randn(weight.shape, generator=generator, device=device, dtype=dtype))
        weight.mul_(std)


def _fan_in(layer: nn.Linear | nn.Embedding | _ConvNd) -> float:
    if isinstance(layer, nn.Linear):
        return layer.in_features
    if isinstance(layer, nn.Embedding):
        return layer.embedding_dim
    window = math.prod(layer.kernel_size) * layer.in_channels // layer.groups
    return window / math.prod(layer.stride) if layer.transposed else window
