"""The sum over all paths, from the description of a network: slow, and independent of the tracer.

With |w|^p in place of every weight, a layer with weights is what it is; what has no weights is
written as a matrix, entry by entry raised to the power p.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from architectures import (
    Act,
    BatchNorm,
    Concat,
    Dropout,
    Flatten,
    Layer,
    LayerNorm,
    Map,
    Pool,
    Residual,
    Shuffle,
    Spec,
    Split,
    Upsample,
)
from fuzz.layers import (
    SHARES,
    Conv,
    Embed,
    FromTable,
    Join,
    Joined,
    Op,
    Raw,
    Shared,
    Sharing,
    Tokens,
    Window,
)
from fuzz.unweighted import OPERATIONS

Powers = dict[int, Tensor]  # |w|^p by identity of the parameter


class NotKnown(Exception):
    """This reference does not know the sum over paths, or there is none."""


def path_sum(spec: Spec, model: nn.Module, p: float) -> tuple[Tensor, dict[str, Tensor]]:
    """The sum over all paths of the product of |w|^p, and the powers that it is a function of.

    Returns:
        the sum, differentiable with respect to the powers, and these by name.
    """
    powers = {
        name: parameter.detach().abs().pow(p).requires_grad_()
        for name, parameter in model.named_parameters()
    }
    by_identity = {id(parameter): powers[name] for name, parameter in model.named_parameters()}
    x = torch.ones(1, *spec.shape, dtype=torch.float64)
    flow = Reference(p, by_identity).sequence(spec.layers, model, x)
    return flow.sum(), powers


class Reference:
    """Sums over paths, layer by layer."""

    def __init__(self, p: float, powers: Powers) -> None:
        self.p, self.powers = p, powers

    def sequence(self, layers: tuple[Layer, ...], module: nn.Module, x: Tensor) -> Tensor:
        modules = list(module.children())
        place = 0
        while place < len(layers):
            layer, own = layers[place], modules[place]
            folded = place
            while folded + 1 < len(layers) and _is_nothing(layers[folded + 1]):
                folded += 1
            behind = layers[folded + 1] if folded + 1 < len(layers) else None
            if isinstance(layer, Map | Conv) and isinstance(behind, BatchNorm) and layer.bias:
                x = self.weighted(own, x, without="bias")
                x = self.norm(modules[folded + 1], x, own.bias)
                place = folded + 2
            else:
                x = self.layer(layer, own, x)
                place += 1
                by_token = isinstance(layer, Tokens | Raw) and isinstance(behind, BatchNorm)
                if by_token and x.shape[1] == 1:  # then its bias may be that of the channel
                    raise NotKnown("a bias of another kind in front of a batch norm")
        return x

    def layer(self, layer: Layer, module: nn.Module, x: Tensor) -> Tensor:
        match layer:
            case Map() | Conv() | Tokens() | Raw():
                return self.weighted(module, x)
            case Act(name="relu" | "leaky") | Dropout():
                return x
            case Act(name="prelu"):
                slopes = self.powers[id(module.weight)].clamp_min(1.0)
                return x * slopes.view(-1, *[1] * (x.dim() - 2))
            case BatchNorm():
                return self.norm(module, x, None)
            case Flatten() | Shuffle():
                return module(x)
            case Window(kind="Max") | Pool(kind="max" | "adaptive_max"):
                return self.matrix(module, x, counted=True)
            case Window() | Pool() | Upsample():
                return self.matrix(module, x)
            case Embed(bag=bag):
                rows = self.powers[id(module.weight)].sum(0)
                if not bag:
                    return rows.expand(*x.shape, -1)
                words = x.shape[1]
                return (rows * words * (words**-self.p if bag == "mean" else 1)).expand(1, -1)
            case Op(name=name):
                return self.operation(name, x)
            case Residual(body=body, projection=projection):
                other = self.sequence(projection, module.projection, x)
                return self.sequence(body, module.body, x) + other
            case Concat(branches=branches):
                flows = [
                    self.sequence(b, m, x) for b, m in zip(branches, module.branches, strict=True)
                ]
                return torch.cat(flows, 1)
            case Split(branches=branches):
                halves = zip(branches, module.branches, x.chunk(len(branches), 1), strict=True)
                return torch.cat([self.sequence(b, m, part) for b, m, part in halves], 1)
            case Sharing(body=body, how=how):
                assert isinstance(module, Shared)
                one = self.sequence(body, module.body, x)
                then = one if how == "again" else 2**self.p * x.flip(1)
                other = self.sequence(body, module.body, then)
                if how == "again":
                    return other
                return torch.cat([one, other], 1) if how == "cat" else one + other
            case Join(branches=branches, how=how) if how in SHARES:
                assert isinstance(module, Joined)
                flows = [
                    share**self.p * self.sequence(b, m, x)
                    for b, m, share in zip(branches, module.branches, SHARES[how], strict=True)
                ]
                return flows[0] + flows[1]
            case LayerNorm() | Act() | FromTable() | Join():
                raise NotKnown(repr(layer))
        raise TypeError(f"no layer: {layer!r}")

    def weighted(self, module: nn.Module, x: Tensor, without: str = "") -> Tensor:
        """The module with |w|^p in place of its weights."""
        state = {
            name: self.powers[id(parameter)] * (name != without)
            for name, parameter in module.named_parameters()
        }
        return functional_call(module, state, (x,))

    def norm(self, module: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """A folded batch norm; a bias right in front of it is part of its own bias."""
        if module.running_var is None:
            raise NotKnown("a batch norm without running statistics")
        scale = (module.running_var + module.eps).rsqrt()
        gain = scale.pow(self.p)
        if module.weight is not None:
            gain = gain * self.powers[id(module.weight)]
            scale = scale * module.weight.detach()
        shift = -module.running_mean * scale
        if bias is not None:
            shift = shift + bias.detach() * scale
        if module.bias is not None:
            shift = shift + module.bias.detach()
        gain, shift = (v.view(1, -1, *[1] * (x.dim() - 2)) for v in (gain, shift))
        return x * gain + shift.abs().pow(self.p)

    def matrix(self, function: nn.Module, x: Tensor, *, counted: bool = False) -> Tensor:
        """A map without weights: its matrix, from unit vectors."""
        units = torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape[1:])
        zero = function(torch.zeros_like(x))
        entries = (function(units) - zero).abs()
        entries = (entries > 0).to(x) if counted else entries.pow(self.p)
        return torch.einsum("n,n...->...", x.flatten(), entries)[None]

    def operation(self, name: str, x: Tensor) -> Tensor:
        operation = OPERATIONS[name]
        function = operation.function
        match operation.kind:
            case "same":
                return x
            case "move":
                return function(x)
            case "linear":
                return self.matrix(function, x)
            case "most":
                return self.matrix(function, x, counted=True)
            case "shift":
                return self.matrix(function, x) + function(torch.zeros_like(x)).abs().pow(self.p)
        raise NotKnown(name)


def _is_nothing(layer: Layer) -> bool:
    """Whether a layer passes on what it gets, in eval mode."""
    return isinstance(layer, Dropout) or layer == Op("clone")
