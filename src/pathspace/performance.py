"""What a network does on data, gathered by one pass: loss, errors, margins, sizes of inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.evaluation import Batch, Data, Loss, Objective
from pathspace.network import Network
from pathspace.tracing.values import leaves
from pathspace.weightnorms import double, margins


@dataclass(frozen=True)
class InputSizes:
    """How large inputs are, where all tensors that the model takes count as one vector.

    Attributes:
        norm: the largest 2-norm of an input.
        entry: the largest size of an entry.
        total: the 2-norm of all inputs together.
    """

    norm: float = 0.0
    entry: float = 0.0
    total: float = 0.0

    def __or__(self, other: InputSizes) -> InputSizes:
        """The sizes of both sets of inputs together."""
        return InputSizes(
            _larger(self.norm, other.norm),
            _larger(self.entry, other.entry),
            math.hypot(self.total, other.total),
        )


@dataclass(frozen=True)
class Performance:
    """Loss, margins and sizes of inputs of a network on data.

    Attributes:
        samples: how many there are.
        loss: their mean loss.
        margin: (samples,) the margins in float64, sorted, those that are no numbers first;
            ``None`` if it is no classification.
        no_margin: why there are no margins.
        sizes: of the inputs; ``None`` if they are indices.
    """

    samples: int
    loss: float
    margin: Tensor | None
    no_margin: str | None
    sizes: InputSizes | None

    @property
    def margins(self) -> Tensor:
        """The margins; raises where there are none."""
        if self.margin is None:
            raise PathspaceError(str(self.no_margin))
        return self.margin

    @property
    def error(self) -> float:
        """The share of samples whose class does not have the largest score, ties included."""
        return float((~(self.margins > 0)).double().mean())  # no number is no right answer

    def quantile(self, share: float) -> float:
        """The smallest margin that at least this share of the samples does not exceed."""
        margin = self.margins
        return float(margin[max(0, math.ceil(share * len(margin)) - 1)])

    @property
    def inputs(self) -> InputSizes:
        """The sizes of the inputs; raises where they are indices."""
        if self.sizes is None:
            raise PathspaceError("the inputs are integers (indices), which have no size")
        if not math.isfinite(self.sizes.total):
            raise PathspaceError("some inputs are not finite, or too large for their norm")
        return self.sizes


def performance(
    network: Network,
    loss: Loss,
    data: Data,
    state: Mapping[str, Tensor] | None = None,
    *,
    dtype: torch.dtype | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Performance:
    """Run a network once over the data, in eval mode and without autograd.

    Args:
        network: the traced network.
        loss: see :class:`~pathspace.evaluation.Objective`, as for ``data`` and ``dtype``.
        data: pairs (inputs, targets).
        state: parameters and buffers of the model; by default its own.
        dtype: what floating-point inputs are converted to.
        advance: called after each batch.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> _ = torch.nn.init.eye_(model.weight)
        >>> network = ps.trace(model, torch.ones(1, 2))
        >>> data = (torch.tensor([[3.0, 4.0], [2.0, 1.0]]), torch.tensor([0, 0]))
        >>> result = performance(network, torch.nn.functional.cross_entropy, data)
        >>> result.error, result.inputs.norm, result.margins.tolist()
        (0.5, 5.0, [-1.0, 1.0])
    """
    state = network.state() if state is None else state
    seen: list[Any] = []

    def observed(outputs: Any, target: Any) -> Any:
        seen[:] = [outputs]
        return loss(outputs, target)

    objective = Objective(network, observed, data, dtype=dtype)
    count, total = 0, 0.0
    found: list[Tensor] = []
    no_margin = None
    sizes: InputSizes | None = InputSizes()
    with torch.no_grad(), objective.evaluating():
        for batch in objective.batches():
            total += float(objective.on(batch, state)) * batch.size
            count += batch.size
            outputs = seen[0]
            no_margin = no_margin or _no_classification(outputs, batch.target)
            if no_margin is None:
                found.append(margins(outputs, batch.target).to("cpu", torch.float64))
            further = _input_sizes(batch)
            sizes = None if sizes is None or further is None else sizes | further
            advance()
    return Performance(
        samples=count,
        loss=total / count,
        margin=None if no_margin else _sorted(torch.cat(found)),
        no_margin=no_margin,
        sizes=sizes,
    )


def _larger(a: float, b: float) -> float:
    """The larger one; NaN if one is, which ``max`` would lose."""
    return a if a > b or math.isnan(a) else b


def _sorted(values: Tensor) -> Tensor:
    """In ascending order, NaN (the margin of an answer that is none) first."""
    return values[values.nan_to_num(nan=-math.inf, neginf=-math.inf, posinf=math.inf).argsort()]


def _no_classification(outputs: Any, target: Any) -> str | None:
    """Why margins do not exist, if so: they need one score per class and one class per sample."""
    if not isinstance(outputs, Tensor) or not isinstance(target, Tensor):
        return "no classification: outputs and targets must each be one tensor"
    fits = outputs.dim() == 2 and outputs.shape[1] > 1 and target.shape == outputs.shape[:1]
    if not fits or target.is_floating_point():
        return (
            "no classification: it needs outputs of shape (N, K) and integer targets of shape "
            f"(N,), not {tuple(outputs.shape)} and {target.dtype} {tuple(target.shape)}"
        )
    if int(target.min()) < 0 or int(target.max()) >= outputs.shape[1]:
        return f"some targets are not among the {outputs.shape[1]} classes"
    return None


def _input_sizes(batch: Batch) -> InputSizes | None:
    """The sizes of the inputs in a batch; none if they are not all numbers."""
    tensors = [x for x in leaves((batch.args, batch.kwargs)) if isinstance(x, Tensor) and x.dim()]
    if not tensors or not all(x.is_floating_point() and len(x) == batch.size for x in tensors):
        return None
    rows = [double(x).reshape(batch.size, -1).cpu() for x in tensors]
    norms = torch.stack([torch.linalg.vector_norm(x, dim=1) for x in rows]).norm(dim=0)
    entry = max(float(x.abs().max()) for x in rows)
    return InputSizes(float(norms.max()), entry, float(norms.norm()))
