r"""Expected flatness: the mean change of the loss under random perturbations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pathspace.evaluation import Objective
from pathspace.flatnesses.coordinates import Coordinates
from pathspace.flatnesses.derivatives import block_sizes, losses
from pathspace.flatnesses.result import Details, Flatness
from pathspace.flatnesses.sampling import sample_until, standard_error


def expected_flatness(
    objective: Objective,
    coordinates: Coordinates,
    *,
    sigma: float = 0.05,
    rtol: float = 0.05,
    max_pairs: int = 128,
    seed: int = 0,
) -> Flatness:
    r"""How far the loss moves on average under Gaussian perturbations of the coordinates.

    .. math:: F = \big|\,\mathbb{E}_u\, l(v+u) - l(v)\,\big|, \qquad u \sim N(0, \sigma^2 I)

    Estimated from antithetic pairs ±u, which cancel the linear term; the standard error is that of
    the means of the pairs. Each pair costs two forward passes over the data.

    In basis-path space the normal distribution of a root :math:`v_a` is cut off at
    :math:`\pm|v_a|/2`. Without that the mean would not exist: weights are quotients by roots, so a
    loss that grows linearly has a pole :math:`1/|v_a + u_a|`, whose integral diverges for every σ.
    ``details["cut"]`` is the probability that an uncut u would have left that range.

    Args:
        objective: the mean loss over the data.
        coordinates: the space.
        sigma: standard deviation of every coordinate; 0.05 is that of the paper's landscapes.
        rtol: stop when the standard error is at most this part of the value; 0 uses all pairs.
        max_pairs: pairs at most (at least 8 are drawn).
        seed: of the perturbations.

    Returns:
        the mean change with its standard error. ``details["radius"]`` is the largest ‖u‖ drawn, and
        ``details["converged"]`` says whether the error aimed at was reached.

    Example:
        >>> import torch, pathspace as ps
        >>> from pathspace.flatnesses import WeightCoordinates
        >>> model = torch.nn.Linear(3, 1, bias=False).double()
        >>> network = ps.trace(model, torch.ones(1, 3).double())
        >>> data = (torch.tensor([[1.0, 2.0, 3.0]]).double(), torch.zeros(1, 1).double())
        >>> objective = Objective(network, torch.nn.functional.mse_loss, data)
        >>> found = expected_flatness(objective, WeightCoordinates(network), sigma=0.1)
        >>> abs(found.value - 0.14) < 4 * found.standard_error  # σ² |x|²
        True

    Reference: Yi et al. 2019, Definition 4.1; Neyshabur et al. 2017.
    """
    if not sigma > 0:
        raise ValueError(f"sigma must be positive, got {sigma}")
    loss = losses(objective, coordinates, coordinates.point[None])[0]
    generator = torch.Generator().manual_seed(seed)
    radius = 0.0

    def draw(count: int) -> Tensor:
        nonlocal radius
        rises = []
        for size in block_sizes(count, coordinates):
            moved = perturbations(coordinates, sigma, size, generator)
            radius = max(radius, float(moved.norm(dim=1).max()))
            points = torch.cat([coordinates.point + moved, coordinates.point - moved])
            rises.append(losses(objective, coordinates, points).view(2, size).mean(0) - loss)
        return torch.cat(rises)

    samples, converged = sample_until(
        draw, rtol=rtol, least=min(8, max_pairs), most=max_pairs, block=8, offset=0.0
    )
    details: Details = {
        "sigma": sigma,
        "pairs": len(samples),
        "converged": converged,
        "radius": radius,
        "cut": abs(math.expm1(log_kept(coordinates, sigma))),
    }
    value = abs(float(samples.mean()))
    error = standard_error(samples)
    return Flatness("expected", coordinates.space, value, float(loss), error, details, coordinates)


def perturbations(
    coordinates: Coordinates, sigma: float, count: int, generator: torch.Generator
) -> Tensor:
    """(count, n) normal perturbations, cut off where the space would end."""
    point = coordinates.point
    shape = (count, len(point))
    drawn = torch.randn(shape, generator=generator, dtype=point.dtype).to(point).mul_(sigma)
    ends = torch.isfinite(coordinates.room).nonzero().squeeze(1)
    if len(ends):
        # By the inverse of the distribution function: uniform numbers between those of ±room.
        uniform = torch.rand(count, len(ends), generator=generator, dtype=torch.float64) * 2 - 1
        reach = coordinates.room[ends].to("cpu", torch.float64) / (math.sqrt(2) * sigma)
        cut = math.sqrt(2) * sigma * torch.erfinv(uniform * torch.erf(reach))
        drawn[:, ends] = cut.to(drawn)
    return drawn


def log_kept(coordinates: Coordinates, sigma: float) -> float:
    """The logarithm of the probability that a normal perturbation needs no cut, in float64."""
    room = coordinates.room
    reach = room[torch.isfinite(room)].to("cpu", torch.float64) / (math.sqrt(2) * sigma)
    return float(torch.erf(reach).log().sum())
