"""One update of small networks in two sets of weights that are one function: numbers, drawings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pathspace.experiments.models.chains import mlp
from pathspace.experiments.reproduce.figures import Figure
from pathspace.experiments.reproduce.findings import Claim
from pathspace.experiments.training import Outcome
from pathspace.experiments.training.optimizers import make_optimizer
from pathspace.plot.backend import pyplot
from pathspace.plot.measures import INK
from pathspace.rescalings import rescale_
from pathspace.tracing import trace

STARTS = ("balanced", "unbalanced")
OPTIMIZERS = {"sgd": "SGD", "pathsgd": "Path-SGD"}


@dataclass(frozen=True)
class Example:
    """A network with one hidden layer, no biases, and what one update of it is computed from.

    Attributes:
        name: the panel of Figure 2.
        inner: weights into the hidden units, a row per unit.
        outer: weights out of them, a row per output.
        scales: of the hidden units, which unbalance it: into a unit times, out of it divided by.
    """

    name: str
    inner: tuple[tuple[float, ...], ...]
    outer: tuple[tuple[float, ...], ...]
    scales: tuple[float, ...]


# The caption gives input, step size and output gradient; the weights are ours.
EXAMPLES = (
    Example("b", ((1.0,),), ((1.0,),), (100.0,)),
    Example("c", ((1.0, 2.0), (2.0, 1.0)), ((1.0, 2.0), (2.0, 1.0)), (10.0, 0.1)),
)


def one_update(
    outcomes: Sequence[Outcome], data_dir: Path | None, example: Mapping[str, Any]
) -> dict[str, Any]:
    r"""Weights and outputs of a network before and after one update, in both sets of weights.

    The loss is :math:`\langle \delta, f(x)\rangle` with x = (1, …, 1) and δ = (−1, …, −1), so
    that δ is the gradient with respect to the output; the step size is 1.

    Args:
        outcomes: none.
        data_dir: not used.
        example: an :class:`Example` as data.

    Returns:
        by start: ``before`` and each optimizer: weights ``inner`` and ``outer``, and ``output``.

    Example:
        >>> from dataclasses import asdict
        >>> found = one_update([], None, asdict(EXAMPLES[0]))
        >>> [round(found["unbalanced"][moment]["outer"][0][0], 6) for moment in ("before", "SGD")]
        [0.01, 100.01]
    """
    return {
        start: {
            "before": _state(_network(example, start)),
            **{said: _updated(example, start, name) for name, said in OPTIMIZERS.items()},
        }
        for start in STARTS
    }


def updates_figure(example: Example, found: Mapping[str, Any]) -> Figure:
    """Both networks before and after, with their weights and outputs."""

    def draw() -> Any:
        moments = ("before", *OPTIMIZERS.values())
        plt = pyplot()
        size = (3.2 * len(moments), len(STARTS) * (0.6 + 0.9 * len(example.scales)))
        figure, axes = plt.subplots(len(STARTS), len(moments), figsize=size, layout="constrained")
        for row, start in zip(axes, STARTS, strict=True):
            for ax, moment in zip(row, moments, strict=True):
                _draw(ax, found[start][moment])
                after = moment if moment == "before" else f"after {moment}"
                output = ", ".join(f"{y:.6g}" for y in found[start][moment]["output"])
                ax.set_title(f"{start}, {after}\nf(x) = {output}", fontsize=9)
        return figure

    outputs = {
        (start, moment): found[start][moment]["output"]
        for start in STARTS
        for moment in ("before", *OPTIMIZERS.values())
    }
    said = "; ".join(f"{start} {moment}: {value}" for (start, moment), value in outputs.items())
    return Figure(
        f"update-{example.name}",
        draw,
        f"Figure 2 ({example.name}): one update from x = (1, …, 1), output gradient −1, step size "
        f"1. The two rows are one function in two sets of weights: hidden units scaled by "
        f"{', '.join(f'{scale:g}' for scale in example.scales)}. Edges carry their weights, and "
        "are as thick as these are large.",
        f"Drawings of small networks. Outputs: {said}.",
    )


def update_claims(found: Mapping[str, Any]) -> list[Claim]:
    """What the paper says about both examples, beside the numbers."""
    return [*_b_claims(found["b"]), *_c_claims(found["c"])]


def update_statements(found: Mapping[str, Any]) -> list[str]:
    """What one step does to both networks of each example."""
    told = []
    for name, one in found.items():
        outputs = {
            (start, moment): ", ".join(f"{y:.6g}" for y in one[start][moment]["output"])
            for start in STARTS
            for moment in ("before", "SGD", "Path-SGD")
        }
        told.append(
            f"({name}) Before the step both networks give f(x) = {outputs['balanced', 'before']}. "
            f"One step of SGD makes that {outputs['balanced', 'SGD']} in the balanced and "
            f"{outputs['unbalanced', 'SGD']} in the unbalanced one; one step of Path-SGD "
            f"{outputs['balanced', 'Path-SGD']} and {outputs['unbalanced', 'Path-SGD']}."
        )
    return told


# Helpers -----------------------------------------------------------------------------------------


def _b_claims(found: Any) -> list[Claim]:
    group = "(b) one SGD step of the unbalanced chain"
    before, after = found["unbalanced"]["before"], found["unbalanced"]["SGD"]
    large = after["inner"][0][0] / before["inner"][0][0]
    small = after["outer"][0][0] / before["outer"][0][0]
    return [
        Claim("the large weight grows by a factor of", "almost 1", large, group=group),
        Claim("the small weight grows by a factor of", "blows up", small, group=group),
    ]


def _c_claims(found: Any) -> list[Claim]:
    paper: dict[str, float | str] = {"before": 0.0, "SGD": "very different", "Path-SGD": 0.0}
    return [
        Claim(
            f"outputs differ by at most, {moment if moment == 'before' else f'after {moment}'}",
            said,
            round(_distance(found, moment), 9),
            group="(c) balanced and unbalanced network",
        )
        for moment, said in paper.items()
    ]


def _distance(found: Any, moment: str) -> float:
    pairs = zip(*(found[start][moment]["output"] for start in STARTS), strict=True)
    return max(abs(one - other) for one, other in pairs)


def _network(example: Mapping[str, Any], start: str) -> nn.Module:
    inner, outer = (torch.tensor(example[side], dtype=torch.float64) for side in ("inner", "outer"))
    model = mlp((inner.shape[1], inner.shape[0], outer.shape[0]), bias=False).double()
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), (inner, outer), strict=True):
            parameter.copy_(values)
    if start == "unbalanced":
        network = trace(model, _input(model))
        rescale_(network, torch.tensor(example["scales"], dtype=torch.float64))
    return model


def _updated(example: Mapping[str, Any], start: str, optimizer: str) -> dict[str, Any]:
    model = _network(example, start)
    network = trace(model, _input(model))
    step = make_optimizer(
        optimizer, model.parameters(), lr=1.0, weight_decay=0.0, options={}, network=network
    )
    (-model(_input(model)).sum()).backward()
    step.step()
    return _state(model)


@torch.no_grad()
def _state(model: nn.Module) -> dict[str, Any]:
    inner, outer = (parameter.tolist() for parameter in model.parameters())
    return {"inner": inner, "outer": outer, "output": model(_input(model))[0].tolist()}


def _input(model: nn.Module) -> Tensor:
    return torch.ones(1, next(model.parameters()).shape[1], dtype=torch.float64)


def _draw(ax: Any, state: Mapping[str, Any]) -> None:
    """Units as circles from left to right, weights along the edges."""
    inner, outer = state["inner"], state["outer"]
    layers = [len(inner[0]), len(inner), len(outer)]
    places = [[(x, (n - 1) / 2 - k) for k in range(n)] for x, n in enumerate(layers)]
    largest = max(abs(w) for matrix in (inner, outer) for row in matrix for w in row)
    for x, matrix in enumerate((inner, outer)):
        for target, row in enumerate(matrix):
            for source, weight in enumerate(row):
                (x0, y0), (x1, y1) = places[x][source], places[x + 1][target]
                width = 0.5 + 3.5 * (abs(weight) / largest) ** 0.5
                ax.plot([x0, x1], [y0, y1], color="#0072b2", linewidth=width, zorder=1)
                near = 0.3 if source != target else 0.5  # labels of crossing edges stay apart
                ax.annotate(
                    f"{weight:.6g}", (x0 + near * (x1 - x0), y0 + near * (y1 - y0)),
                    ha="center", va="center", fontsize=8, color=INK,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8}, zorder=3,
                )  # fmt: skip
    for layer in places:
        ax.scatter(
            [x for x, _ in layer], [y for _, y in layer],
            s=130, facecolor="white", edgecolor=INK, zorder=2,
        )  # fmt: skip
    height = (max(layers) - 1) / 2 + 0.3
    ax.set_xlim(-0.25, len(layers) - 0.75)
    ax.set_ylim(-height, height)
    ax.set_axis_off()
