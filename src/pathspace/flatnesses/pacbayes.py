r"""The PAC-Bayes bound of the perturbed network, over a grid of perturbations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pathspace.bounds import Bound, pac_bayes_bound
from pathspace.errors import PathspaceError
from pathspace.evaluation import Data, Loss, Objective
from pathspace.flatnesses.expected import expected_flatness, log_kept
from pathspace.flatnesses.paths import PathCoordinates, SkeletonChoice
from pathspace.flatnesses.result import Flatness
from pathspace.network import Network

SIGMAS = tuple(10 ** (-k / 2) for k in range(7))  # from 1 down to 0.001


@dataclass(frozen=True)
class PacBayes:
    """The bound at the best σ of a grid.

    Attributes:
        bound: the best bound, which has paid for the choice of σ.
        sigma: the σ of that bound.
        flatness: the expected flatness there.
        bounds: the bounds of all σ of the grid.
    """

    bound: Bound
    sigma: float
    flatness: Flatness = field(repr=False)
    bounds: Mapping[float, Bound] = field(repr=False)

    def __str__(self) -> str:
        rows = [f"  σ = {sigma:.4g}: 10^{b.log10:.2f}" for sigma, b in self.bounds.items()]
        return "\n".join([str(self.bound), *rows])


def pac_bayes(
    network: Network,
    loss: Loss,
    data: Data,
    *,
    sigmas: Sequence[float] = SIGMAS,
    delta: float = 0.05,
    choice: SkeletonChoice = "modulo",
    prior: Tensor | None = None,
    fixed_signs: bool = False,
    state: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
    max_pairs: int = 64,
    seed: int = 0,
) -> PacBayes:
    r"""The PAC-Bayes bound in basis-path space at the best perturbation of a grid.

    .. math:: \mathbb{E}_u[l(v+u)] - \hat l(v) \le F_{\text{expected}}(v, \sigma)
        + 4\sqrt{\frac1n\Big(KL + \ln\frac{2nK}{\delta}\Big)}, \qquad
        KL = \frac{\|v - v_0\|^2}{2\sigma^2} - \sum_a \ln Z_a + H \ln 2

    for K values of σ fixed in advance (the union bound pays ln K for choosing among them). The
    second term is the exact price of cutting the normal distribution of each root off at half its
    value (see :func:`expected_flatness`), :math:`Z_a` the probability kept. The last is that of the
    signs of the free weights, which the values do not tell and training may have chosen.

    Args:
        network: the traced network.
        loss: with values between 0 and 1, such as :func:`error_rate`; must average over the batch.
        data: the training data, all of it: n is their number.
        sigmas: the grid.
        delta: the bound holds with probability at least 1 − δ.
        choice: the skeleton. It must not depend on the data, so ``"largest"`` is no bound unless it
            was chosen before training.
        prior: (m − H,) the centre :math:`v_0`, chosen before training; by default 0.
        fixed_signs: the free weights kept their signs through training, as with G-SGD: no H ln 2.
        state: parameters and buffers to measure; by default the model's.
        dtype: ``torch.float64`` computes in double precision; by default as the model does.
        max_pairs: random pairs per σ. The expectation is estimated; its standard error is noted.
        seed: of the perturbations.

    Example:
        >>> import torch, pathspace as ps
        >>> from pathspace.flatnesses import error_rate, pac_bayes
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)
        ... )
        >>> data = (torch.randn(500, 2), torch.randint(2, (500,)))
        >>> found = pac_bayes(ps.trace(model, data[0]), error_rate, data, sigmas=(0.1, 1.0))
        >>> found.sigma
        1.0

    Reference: Yi et al. 2019, Eq. (8); McAllester 1999.
    """
    if not sigmas:
        raise ValueError("sigmas is empty: give at least one perturbation")
    objective = Objective(network, loss, data, dtype=dtype)
    place = PathCoordinates(network, choice, state=state, dtype=dtype)
    centre = torch.zeros_like(place.point) if prior is None else prior.to(place.point)
    distance = float((place.point - centre).double().square().sum())
    count = sum(batch.size for batch in objective.batches())
    signs = 0.0 if fixed_signs else network.H * math.log(2)
    measured, bounds = {}, {}
    for sigma in sigmas:
        found = expected_flatness(
            objective, place, sigma=sigma, rtol=0.0, max_pairs=max_pairs, seed=seed
        )
        if not 0 <= found.loss <= 1:
            raise PathspaceError(
                f"the mean loss is {found.loss:.4g}, but the bound is for losses between 0 and 1; "
                "use pathspace.error_rate"
            )
        if not math.isfinite(found.value):
            raise PathspaceError(
                f"the mean loss of networks perturbed with σ = {sigma:.4g} is not finite; use "
                "pathspace.flatnesses.error_rate"
            )
        paid = signs - log_kept(place, sigma)
        bound = pac_bayes_bound(
            found.value,
            distance + 2 * sigma**2 * paid,
            sigma,
            count,
            delta,
            grid=len(sigmas),
        )
        notes = [
            *bound.assumptions,
            f"the flatness is a Monte-Carlo estimate, ± {found.standard_error:.2g}",
            f"KL pays {-log_kept(place, sigma):.4g} for cutting the roots' noise off, and "
            f"{signs:.4g} for the signs of free weights",
        ]
        if choice != "modulo":
            notes.append("assumes that the skeleton was chosen before training")
        measured[sigma], bounds[sigma] = found, replace(bound, assumptions=tuple(notes))
    best = min(sigmas, key=lambda sigma: bounds[sigma].log10)
    return PacBayes(bounds[best], best, measured[best], bounds)


def error_rate(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of wrong classes: a loss between 0 and 1, without a gradient.

    Scores that are not numbers (NaN) are no right answer.

    Example:
        >>> error_rate(torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([1, 1]))
        tensor(0.5000)
    """
    wrong = (outputs.argmax(1) != targets) | outputs.isnan().any(1)
    return wrong.to(outputs.dtype).mean()
