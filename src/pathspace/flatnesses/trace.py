r"""Trace flatness: the trace of the Hessian, :math:`F = \operatorname{tr} \nabla^2 l`."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pathspace.evaluation import Objective
from pathspace.flatnesses.coordinates import Coordinates
from pathspace.flatnesses.derivatives import BLOCK, block_sizes, hessian_products, quadratic_forms
from pathspace.flatnesses.result import Details, Flatness
from pathspace.flatnesses.sampling import Probes, random_probes, sample_until, standard_error

Method = Literal["auto", "exact", "hutchinson", "hutch++"]
SMALL = 512  # coordinates up to which the trace is computed exactly by default


def trace_flatness(
    objective: Objective,
    coordinates: Coordinates,
    *,
    method: Method = "auto",
    rtol: float = 0.05,
    max_probes: int = 256,
    rank: int = 10,
    probes: Probes = "rademacher",
    seed: int = 0,
) -> Flatness:
    r"""The trace of the Hessian of the mean loss.

    ``exact`` sums :math:`e_i^\top \nabla^2 l\, e_i` over all n coordinates. ``hutchinson`` averages
    :math:`z^\top \nabla^2 l\, z` over random signs z; the variance of one sample is
    :math:`2\sum_{i\ne j} (\nabla^2 l)_{ij}^2`. ``hutch++`` first finds an orthonormal basis Q of
    the image of ``rank`` probes and computes the trace there exactly, then averages over probes
    projected away from it: the variance is that of what Q leaves over, which is less where few
    directions hold most of the trace, as they do in a trained network. Each probe costs one
    Hessian-vector product over the data; in basis-path space O(m) more.

    Args:
        objective: the mean loss over the data.
        coordinates: the space.
        method: ``"auto"`` is exact for at most 512 coordinates, Hutch++ as long as Q has at most
            2²⁵ entries, and Hutchinson's method beyond.
        rtol: stop when the standard error is at most this part of the value; 0 uses all probes.
        max_probes: Hessian-vector products at most (at least 10 are used for the error).
        rank: columns of Q for ``hutch++``; it takes ``2 * rank`` of the products.
        probes: ``"rademacher"`` signs or ``"gaussian"`` numbers, which have a larger variance.
        seed: of the probes.

    Returns:
        the trace with its standard error (0 if exact). ``details["converged"]`` says whether the
        error aimed at was reached. Where few directions hold the trace the forms are skewed, and an
        estimate by Hutchinson's method that is too low comes with an error that is too low.

    Example:
        >>> import torch, pathspace as ps
        >>> from pathspace.flatnesses import WeightCoordinates
        >>> model = torch.nn.Linear(3, 1, bias=False)
        >>> network = ps.trace(model, torch.ones(1, 3))
        >>> data = (torch.tensor([[1.0, 2.0, 3.0]]), torch.zeros(1, 1))
        >>> objective = Objective(network, torch.nn.functional.mse_loss, data)
        >>> float(trace_flatness(objective, WeightCoordinates(network)))  # 2 |x|²
        28.0

    Reference: Yi et al. 2019, Definition 4.1; Hutchinson 1989; Meyer et al. 2021 (Hutch++).
    """
    n = len(coordinates)
    if method not in ("auto", "exact", "hutchinson", "hutch++"):
        raise ValueError(
            f'method must be "auto", "exact", "hutchinson" or "hutch++", not {method!r}'
        )
    chosen = method
    if method == "auto":
        sampled: Method = "hutch++" if n * rank <= BLOCK else "hutchinson"
        chosen = "exact" if n <= SMALL else sampled
    if chosen == "exact" or (chosen == "hutch++" and rank >= n):
        loss, value = _exact_trace(objective, coordinates)
        details: Details = {"method": "exact", "probes": n, "converged": True}
        return Flatness("trace", coordinates.space, value, loss, 0.0, details, coordinates)

    generator = torch.Generator().manual_seed(seed)
    known, used, loss = 0.0, 0, 0.0
    found: Tensor | None = None
    if chosen == "hutch++":
        found, known = _dominant(objective, coordinates, rank, probes, generator)
        used = 2 * rank

    def draw(count: int) -> Tensor:
        nonlocal loss
        forms = []
        for size in block_sizes(count, coordinates):
            z = random_probes((size, n), coordinates.point, generator, probes)
            if found is not None:
                z -= (z @ found) @ found.T
            loss, some = quadratic_forms(objective, coordinates, z)
            forms.append(some)
        return torch.cat(forms)

    samples, converged = sample_until(
        draw, rtol=rtol, least=10, most=max(10, max_probes - used), block=10, offset=known
    )
    details = {"method": chosen, "probes": used + len(samples), "converged": converged}
    value = known + float(samples.mean())
    error = standard_error(samples)
    return Flatness("trace", coordinates.space, value, loss, error, details, coordinates)


def _exact_trace(
    objective: Objective, coordinates: Coordinates, block: int = 128
) -> tuple[float, float]:
    """The loss and the sum of the diagonal of its Hessian, some columns at a time."""
    n, total, loss = len(coordinates), 0.0, 0.0
    for start in range(0, n, block):
        count = min(block, n - start)
        unit = coordinates.point.new_zeros(count, n)
        unit[torch.arange(count), torch.arange(start, start + count)] = 1.0
        loss, forms = quadratic_forms(objective, coordinates, unit)
        total += float(forms.sum())
    return loss, total


def _dominant(
    objective: Objective,
    coordinates: Coordinates,
    rank: int,
    probes: Probes,
    generator: torch.Generator,
) -> tuple[Tensor, float]:
    """(n, rank) orthonormal basis of the image of random probes, and the trace within it."""
    sketch = random_probes((rank, len(coordinates)), coordinates.point, generator, probes)
    basis = torch.linalg.qr(hessian_products(objective, coordinates, sketch).T).Q
    return basis, float(quadratic_forms(objective, coordinates, basis.T.contiguous())[1].sum())
