"""Rules that end a training before its budget is used, as functions of the metrics so far.

Neyshabur et al. 2017, Figure 1, train to zero training error and loss, and compare that with early
stopping on a validation set; both numbers come out of one trial (``best`` beside ``final``), and
the rules save the time beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pathspace.experiments.training.naming import build

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Rule:
    """When to stop.

    Attributes:
        reason: of the rows of metrics: why to stop now, or None to go on.
        needs: columns that the rows must have.
    """

    reason: Callable[[Rows], str | None]
    needs: tuple[str, ...] = ()


def never() -> Rule:
    """Use the whole budget."""
    return Rule(lambda rows: None)


def training_error(at_most: float = 0.0) -> Rule:
    """Stop when the error on the training set is at most this, by default zero.

    Example:
        >>> training_error().reason([{"train_error": 0.0}])
        'training error 0 is at most 0'
    """
    return Rule(
        lambda rows: _reached(rows, "train_error", "training error", at_most), ("train_error",)
    )


def training_loss(at_most: float = 0.0) -> Rule:
    """Stop when the loss on the training set is at most this; ``truncated-softmax`` reaches 0."""
    return Rule(
        lambda rows: _reached(rows, "train_loss", "training loss", at_most), ("train_loss",)
    )


def converged(loss: float = 0.0) -> Rule:
    """Stop at zero training error and a training loss of at most this."""

    def reason(rows: Rows) -> str | None:
        first, second = training_error().reason(rows), training_loss(loss).reason(rows)
        return f"{first}, {second}" if first and second else None

    return Rule(reason, ("train_error", "train_loss"))


def overfitting(patience: int = 10, metric: str = "validation_error") -> Rule:
    """Stop when a metric has not fallen below its least value for so many evaluations.

    Example:
        >>> rows = [{"validation_error": e} for e in (0.5, 0.2, 0.3, 0.2)]
        >>> overfitting(2).reason(rows), overfitting(3).reason(rows)
        ('validation_error has not improved for 2 evaluations', None)
    """
    if patience < 1:
        raise ValueError(f"patience should be at least 1, not {patience}")

    def reason(rows: Rows) -> str | None:
        values = [row[metric] for row in rows if row.get(metric) is not None]
        if not values or len(values) - 1 - values.index(min(values)) < patience:
            return None
        return f"{metric} has not improved for {patience} evaluations"

    return Rule(reason, (metric,))


RULES: dict[str, Callable[..., Rule]] = {
    "never": never,
    "training-error": training_error,
    "training-loss": training_loss,
    "converged": converged,
    "overfitting": overfitting,
}


def parse_rule(text: str) -> Rule:
    """The rule that a text such as ``overfitting:10`` names.

    Example:
        >>> parse_rule("training-loss:0.01").reason([{"train_loss": 0.1}])
    """
    return build("stopping rule", text, RULES)


def _reached(rows: Rows, name: str, words: str, at_most: float) -> str | None:
    value = rows[-1].get(name) if rows else None
    if value is None or value > at_most:
        return None
    return f"{words} {value:g} is at most {at_most:g}"
