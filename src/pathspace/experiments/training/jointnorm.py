"""Batch norm over a batch that is divided among processes.

``torch.nn.SyncBatchNorm`` does the same, but on GPUs only. Here it is made of differentiable parts,
so that it runs wherever the model does, with the gradient of the joint batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pathspace.experiments.training.errors import TrialError


def normalise_jointly_(model: nn.Module, is_divided: Callable[[], bool]) -> None:
    """Let all batch norms of a model take the mean and variance of the joint batch.

    The modules stay what they are, with their parameters, buffers and names; only their
    computation in train mode is another one.

    Args:
        model: changed in place.
        is_divided: whether the batch under way is divided; else it is computed as always.

    Raises:
        TrialError: a batch norm keeps no running statistics, so that evaluations would depend on
            how they are divided.
    """
    for name, module in model.named_modules():
        if not isinstance(module, _BatchNorm) or isinstance(module, nn.SyncBatchNorm):
            continue
        if module.running_mean is None:
            raise TrialError(
                f"model: {name} ({type(module).__name__}) keeps no running statistics, so its "
                "outputs depend on how the data is divided among ranks; train in one process"
            )
        module.forward = functools.partial(_forward, module, is_divided)  # type: ignore[method-assign]


def _forward(module: Any, is_divided: Callable[[], bool], inputs: Tensor) -> Tensor:
    """The forward pass of a batch norm, with the statistics of the joint batch in train mode."""
    if not (module.training and is_divided()):
        plain: Tensor = type(module).forward(module, inputs)
        return plain
    module._check_input_dim(inputs)
    mean, variance, count = joint_moments(inputs)
    with torch.no_grad():
        module.num_batches_tracked.add_(1)
        rate = module.momentum
        if rate is None:
            rate = 1 / module.num_batches_tracked.to(mean.dtype)
        unbiased = variance * (count / (count - 1))
        for running, value in ((module.running_mean, mean), (module.running_var, unbiased)):
            running.lerp_(value.to(running.dtype), rate)
    scale = (variance + module.eps).rsqrt()
    scale = scale if module.weight is None else scale * module.weight
    shape = (1, -1, *[1] * (inputs.dim() - 2))
    outputs = (inputs - mean.view(shape)) * scale.view(shape)
    outputs = outputs if module.bias is None else outputs + module.bias.view(shape)
    return outputs.to(inputs.dtype)


def joint_moments(inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Mean and variance of each channel over the shares of all ranks, and the number of values.

    With :math:`n_r, \mu_r, \sigma_r^2` those of the shares,

    .. math::

        \mu = \frac1N \sum_r n_r \mu_r, \qquad
        \sigma^2 = \frac1N \sum_r n_r \left(\sigma_r^2 + (\mu_r - \mu)^2\right), \qquad
        N = \sum_r n_r,

    which is stable where the mean of squares is not, and takes one message per direction.

    Args:
        inputs: (B, C, ...), this rank's share; the number of channels is the same in all.

    Returns:
        (C,), (C,) and a scalar; the first two can be differentiated.

    Reference:
        Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing
        sample variances".
    """
    wide = inputs.float() if inputs.dtype in (torch.float16, torch.bfloat16) else inputs
    axes = [0, *range(2, inputs.dim())]
    variance, mean = torch.var_mean(wide, axes, correction=0)
    count = torch.full_like(mean, inputs.numel() // inputs.shape[1])
    counts, means, variances = stacked(torch.stack([count, mean, variance])).unbind(1)
    total = counts.sum(0)
    shares = counts / total  # (ranks, C)
    joint = (shares * means).sum(0)
    return joint, (shares * (variances + (means - joint).square())).sum(0), total[0]


def stacked(tensor: Tensor) -> Tensor:
    """The tensors of all ranks along a new first axis; differentiable."""
    found: Tensor = _Stack.apply(tensor)
    return found


class _Stack(torch.autograd.Function):
    """Each rank's tensor goes into the losses of all ranks, whose gradients therefore add up."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(found, tensor.contiguous())
        return torch.stack(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total[dist.get_rank()]
