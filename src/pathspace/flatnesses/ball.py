"""Ball flatness: the largest rise of the loss within a ball; and its elementwise-adaptive rival."""

from __future__ import annotations

import torch
from torch import Tensor

from pathspace.evaluation import Objective
from pathspace.flatnesses.coordinates import Coordinates
from pathspace.flatnesses.derivatives import gradients
from pathspace.flatnesses.result import Details, Flatness


def ball_flatness(
    objective: Objective,
    coordinates: Coordinates,
    *,
    epsilon: float = 0.05,
    restarts: int = 4,
    steps: int = 30,
    seed: int = 0,
) -> Flatness:
    r"""The largest relative rise of the loss within a Euclidean ball around the point.

    .. math:: F = \max_{\|\delta\| \le \varepsilon} \frac{l(v+\delta) - l(v)}{1 + l(v)}

    Searched by projected gradient ascent (see ``ascend``): a lower bound of the maximum, and
    exactly attained by the perturbation that is returned. Each step of each restart costs one
    gradient over the data.

    In basis-path space the ball may reach beyond the end of the space, where a root is zero and the
    loss usually has a pole: the maximum over the whole ball is then infinite. The search keeps at
    least half of every root, and ``details["reaches_end"]`` says whether the ball goes further than
    that; if so, take a smaller ``epsilon`` to compare networks.

    Args:
        objective: the mean loss over the data.
        coordinates: the space.
        epsilon: radius of the ball.
        restarts: searches, of which the best counts; the first starts along the gradient.
        steps: gradients per search.
        seed: of the random starts.

    Returns:
        the best value and the perturbation that attains it.

    Example:
        >>> import torch, pathspace as ps
        >>> from pathspace.flatnesses import WeightCoordinates
        >>> model = torch.nn.Linear(2, 1, bias=False).double()
        >>> _ = torch.nn.init.zeros_(model.weight)
        >>> network = ps.trace(model, torch.ones(1, 2).double())
        >>> data = (torch.tensor([[3.0, 4.0]]).double(), torch.zeros(1, 1).double())
        >>> objective = Objective(network, torch.nn.functional.mse_loss, data)
        >>> found = ball_flatness(objective, WeightCoordinates(network), epsilon=0.1)
        >>> round(found.value, 6)  # the loss is (3 w₁ + 4 w₂)², so ε² |x|²
        0.25
        >>> round(float(objective(found.perturbed_state())), 6)
        0.25

    Reference: Yi et al. 2019, Eq. (1) and (7); Keskar et al. 2017.
    """
    metric = torch.ones_like(coordinates.point)
    loss, rise, perturbation = ascend(
        objective, coordinates, metric, epsilon, restarts=restarts, steps=steps, seed=seed
    )
    details: Details = {
        "epsilon": epsilon,
        "radius": float(perturbation.norm()),
        "restarts": restarts,
        "steps": steps,
        "reaches_end": bool((coordinates.room < epsilon).any()),
    }
    return Flatness(
        "ball",
        coordinates.space,
        rise / (1 + loss),
        loss,
        None,
        details,
        coordinates,
        perturbation,
    )


def adaptive_sharpness(
    objective: Objective,
    coordinates: Coordinates,
    *,
    rho: float = 0.5,
    restarts: int = 4,
    steps: int = 30,
    seed: int = 0,
) -> Flatness:
    r"""Elementwise-adaptive sharpness: a ball measured in units of the weights themselves.

    .. math:: F = \max_{\|\delta / |w|\,\|_2 \le \rho} l(w+\delta) - l(w)

    The usual rescaling-invariant rival of path-space flatness: ``δ/|w|`` does not change when both
    are rescaled. Searched as in :func:`ball_flatness`; not divided by 1 + l, as published. In
    basis-path space ``|v|`` takes the place of ``|w|``. Weights that are zero stay zero.

    Args:
        objective: the mean loss over the data.
        coordinates: the space.
        rho: radius of the ball; 0.5 is the authors' value for CIFAR-10.
        restarts: searches, of which the best counts; the first starts along the gradient.
        steps: gradients per search.
        seed: of the random starts.

    Returns:
        the best value and the perturbation δ that attains it.

    Reference: Kwon et al. 2021 (ASAM), Definition 2 with the elementwise operator.
    """
    metric = coordinates.point.abs()
    loss, rise, perturbation = ascend(
        objective, coordinates, metric, rho, restarts=restarts, steps=steps, seed=seed
    )
    relative = torch.where(metric > 0, perturbation / metric, 0.0)
    details: Details = {
        "rho": rho,
        "radius": float(relative.norm()),
        "restarts": restarts,
        "steps": steps,
        "reaches_end": bool((coordinates.room < rho * metric).any()),
    }
    return Flatness(
        "adaptive", coordinates.space, rise, loss, None, details, coordinates, perturbation
    )


def ascend(
    objective: Objective,
    coordinates: Coordinates,
    metric: Tensor,
    radius: float,
    *,
    restarts: int,
    steps: int,
    seed: int,
) -> tuple[float, float, Tensor]:
    r"""Maximise the loss over :math:`\{\delta = M s : \|s\| \le r\}`, M diagonal.

    Projected gradient ascent on s with a step length of its own per restart: first twice the radius
    (a step across the ball, the power method where the loss is quadratic), half of it after a step
    that does not raise the loss, 1.5 times it after one that does. All restarts share the passes
    over the data. Where the space ends inside the ball, the set is cut off there; the projection
    on the intersection is exact.

    Returns:
        the loss at the point, the rise l(v+δ) − l(v), at least 0, and the δ that attains it.
    """
    if not radius > 0 or restarts < 1 or steps < 1:
        raise ValueError(
            f"need a positive radius, restarts >= 1 and steps >= 1, got {radius}, {restarts} and "
            f"{steps}"
        )
    point = coordinates.point
    lowest = _lowest(coordinates, metric)
    values, slopes = gradients(objective, coordinates, point[None])
    loss = values[0]
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(restarts, len(point), generator=generator, dtype=point.dtype).to(point)
    start = torch.where(metric > 0, start, 0.0)
    if bool(slopes.any()):
        start[0] = slopes[0] * metric
    best = project(_unit(start) * radius, lowest, point.sign(), radius)
    height, slopes = gradients(objective, coordinates, point + metric * best)
    length = torch.full((restarts, 1), 2 * radius, dtype=point.dtype, device=point.device)
    for _ in range(steps - 1):
        trial = project(best + length * _unit(slopes * metric), lowest, point.sign(), radius)
        reached, there = gradients(objective, coordinates, point + metric * trial)
        better = (reached > height)[:, None].to(point.device)  # never true for NaN
        height = torch.where(better[:, 0].cpu(), reached, height)
        best, slopes = torch.where(better, trial, best), torch.where(better, there, slopes)
        length = torch.where(better, (1.5 * length).clamp_max(2 * radius), length / 2)
    rise = torch.where(height.isnan(), -torch.inf, height) - loss
    winner = int(rise.argmax())
    if not rise[winner] > 0:  # a maximum already, as far as was searched
        return float(loss), 0.0, torch.zeros_like(point)
    return float(loss), float(rise[winner]), metric * best[winner]


def project(vectors: Tensor, lowest: Tensor, sign: Tensor, radius: float) -> Tensor:
    r"""The nearest points of the ball in which ``sign * s >= -lowest``.

    The nearest point is :math:`\max(x/(1+\lambda), -\text{lowest})` for the smallest λ ≥ 0 that
    puts it into the ball (the conditions of Karush, Kuhn and Tucker); λ is found by bisection, on
    the coordinates that are bounded.

    Args:
        vectors: (k, n) any points.
        lowest: (n,) how far each coordinate may go against its sign; infinite if at will.
        sign: (n,) the signs.
        radius: of the ball.
    """
    ends = torch.isfinite(lowest).nonzero().squeeze(1)
    bounded = vectors[:, ends] * sign[ends]
    free = vectors.square().sum(1, keepdim=True) - bounded.square().sum(1, keepdim=True)

    def fits(factor: Tensor) -> Tensor:
        cut = torch.maximum(bounded * factor, -lowest[ends])
        return factor.square() * free + cut.square().sum(1, keepdim=True) <= radius**2

    high = vectors.new_ones(len(vectors), 1)
    low = fits(high).to(vectors)  # 1 where nothing has to shrink
    for _ in range(60):
        middle = (low + high) / 2
        inside = fits(middle)
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    result = vectors * low
    result[:, ends] = sign[ends] * torch.maximum(bounded * low, -lowest[ends])
    return result


def _lowest(coordinates: Coordinates, metric: Tensor) -> Tensor:
    """How far s may go towards zero in the units of the metric."""
    return torch.where(metric > 0, coordinates.room / metric, torch.inf)


def _unit(vectors: Tensor) -> Tensor:
    norm = vectors.norm(dim=1, keepdim=True)
    return torch.where(norm > 0, vectors / norm, 0.0)
