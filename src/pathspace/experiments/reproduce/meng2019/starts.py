"""Networks that begin with skeleton weights of chosen signs and sizes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from pathspace.experiments.models import build, example_input
from pathspace.gauge import skeleton_init_
from pathspace.network import Network
from pathspace.rescalings import random_rescaling, rescale_
from pathspace.tracing import trace


class Starts:
    """One architecture with several ways to begin; each method makes a model for a trial.

    Weights are drawn by He's rule from the seed that torch has, which a training sets: with one
    seed, all ways begin with the same weights off the skeleton.

    Args:
        model: a built-in name.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = Starts("plainnet8-thin").random_signs()
        >>> model.stage1[0].branch[0].weight[:, :, 1, 1].diagonal().abs()
        tensor([1., 1., 1., 1.], grad_fn=<AbsBackward0>)
    """

    def __init__(self, model: str) -> None:
        self.model = model

    def ones(self) -> nn.Module:
        """All skeleton weights are 1: the paper's."""
        return self._begun(torch.ones_like)

    def halves(self) -> nn.Module:
        """All skeleton weights are 1/2."""
        return self._begun(lambda drawn: torch.full_like(drawn, 0.5))

    def twos(self) -> nn.Module:
        """All skeleton weights are 2."""
        return self._begun(lambda drawn: torch.full_like(drawn, 2.0))

    def drawn_signs(self) -> nn.Module:
        """Skeleton weights are 1 or −1, with the signs that were drawn."""
        return self._begun(torch.sign)

    def random_signs(self) -> nn.Module:
        """Skeleton weights are 1 or −1 by a coin each."""
        coins = self._generator(1)
        return self._begun(
            lambda drawn: torch.randint(2, drawn.shape, generator=coins).mul(2).sub(1).to(drawn)
        )

    def random_sizes(self) -> nn.Module:
        """All skeleton weights 1, then rescaled at random: the same function."""
        model, network = self._drawn()
        skeleton_init_(network)
        rescale_(network, random_rescaling(network, generator=self._generator(2)))
        return model

    def _begun(self, values: Callable[[Tensor], Tensor]) -> nn.Module:
        model, network = self._drawn()
        drawn = {name: p.detach().clone() for name, p in model.named_parameters()}
        skeleton_init_(network, value=math.inf)  # no weight is infinite: this marks the skeleton
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                marked = parameter.isinf()
                parameter[marked] = values(drawn[name][marked])
        return model

    def _drawn(self) -> tuple[nn.Module, Network]:
        model = build(self.model, self._generator(0))
        return model, trace(model, example_input(self.model))

    def _generator(self, number: int) -> Generator:
        return torch.Generator().manual_seed((torch.initial_seed() + number) % 2**63)


plainnet8_thin = Starts("plainnet8-thin")
plainnet8_thin_small = Starts("plainnet8-thin-small")
plainnet34 = Starts("plainnet34")
