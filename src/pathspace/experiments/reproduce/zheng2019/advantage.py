"""What Figure 3 comes to, in claims and words: whether the basis-path penalty is ahead."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean

from pathspace.experiments.reproduce.findings import Claim, Findings, directed_claim
from pathspace.experiments.reproduce.statistics import metric
from pathspace.experiments.reproduce.zheng2019.recommendationviews import (
    curves_block,
    figure_3,
    gains_table,
    lambdas_table,
    scores_table,
    training_figure,
)
from pathspace.experiments.reproduce.zheng2019.recommending import (
    ARMS,
    BP,
    METRICS,
    NONE,
    Recommendations,
)
from pathspace.experiments.training.ranking import TOP

OTHERS = tuple(arm for arm in ARMS if arm != BP)


def advantage(found: Recommendations, deviations: tuple[str, ...]) -> Findings:
    """Findings from the ranks of all users in all arms."""
    return Findings(
        claims=tuple(_claims(found)),
        statements=tuple(_statements(found)),
        figures=(figure_3(found), training_figure(found)),
        tables=(scores_table(found), gains_table(found), lambdas_table(found)),
        blocks=(curves_block(found),),
        deviations=deviations,
    )


def _claims(found: Recommendations) -> Iterable[Claim]:
    for name, label in METRICS.items():
        for factors in found.factors:
            for other in OTHERS:
                gain = found.gain(factors, other, name)
                group = f"Figure 3: {label}@10, basis-path penalty − other"
                what = f"{other}, {factors} factors"
                yield directed_claim(what, "above 0", gain, group)


def _statements(found: Recommendations) -> Iterable[str]:
    yield _levels(found)
    yield _gains(found)
    yield _lists(found)
    yield _of_lambda(found)
    yield _stability(found)


def _levels(found: Recommendations) -> str:
    told = []
    for factors in found.factors:
        scores = [f"{found.score(factors, arm, 'hr', 10)} with {_article(arm)}" for arm in ARMS]
        told.append(f"{', '.join(scores)} ({factors} factors)")
    return f"HR@10 is {'; '.join(told)}: means over users, {len(found.seeds)} seeds."


def _gains(found: Recommendations) -> str:
    """Whether the paper's order is seen, chosen by the intervals."""
    verdicts = [
        found.gain(factors, other, name).verdict("above 0")
        for factors in found.factors
        for other in OTHERS
        for name in METRICS
    ]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    told = "; ".join(
        f"{found.gain(factors, other, 'hr')} on {_article(other)} ({factors} factors)"
        for factors in found.factors
        for other in OTHERS
    )
    if all(verdict == "seen" for verdict in verdicts):
        word = "The paper's order is seen."
    elif "seen" not in verdicts:
        word = "That the basis-path penalty is ahead is not seen here."
    else:
        word = "The paper's order is seen in part."
    return (
        f"{word} In HR@10 the basis-path penalty gains {told}; of all {len(verdicts)} comparisons "
        f"in HR@10 and NDCG@10: {counts} (paired over seeds, 95 % confidence)."
    )


def _lists(found: Recommendations) -> str:
    """For how many lengths of the list the basis-path penalty has the largest mean."""
    factors = max(found.factors)
    told = []
    for name, label in METRICS.items():
        means = [[found.score(factors, arm, name, k).mean for arm in ARMS] for k in TOP]
        ahead = sum(row[ARMS.index(BP)] > max(row[: ARMS.index(BP)]) for row in means)
        told.append(f"{label}@K at {ahead} of {len(TOP)} lengths K")
    return (
        f"With {factors} factors the basis-path penalty has the largest mean over seeds in "
        f"{' and in '.join(told)} (the paper: at all)."
    )


def _of_lambda(found: Recommendations) -> str:
    """What the choice of λ does, against what the seed does."""
    told = []
    for factors in found.factors:
        parts = []
        for arm in ARMS[1:]:
            tried = [s.mean for (f, a, _), s in found.tried.items() if (f, a) == (factors, arm)]
            lams = " and ".join(f"{lam:g}" for lam in dict.fromkeys(found.chosen[factors, arm]))
            spread = max(tried) - min(tried)
            parts.append(f"{spread:.4f} for {_article(arm)} (λ = {lams} is taken)")
        seeds = found.score(factors, NONE, "hr", 10).values
        told.append(
            f"{', '.join(parts)} with {factors} factors, where seeds alone differ by "
            f"{max(seeds) - min(seeds):.4f}"
        )
    return f"Over the whole grid of λ, HR@10 differs by {'; '.join(told)}."


def _stability(found: Recommendations) -> str:
    """How much HR@10 still moves at the end."""
    told = []
    for factors in found.factors:
        outcomes = found.outcomes[factors, NONE]
        late = [
            fmean(changes)
            for outcome in outcomes
            if (changes := _late_changes([row.get("test_hr@10") for row in outcome.curves]))
        ]
        if late:
            told.append(
                f"{fmean(late):+.4f} with {factors} factors (it ends at "
                f"{metric(outcomes, 'test_hr@10')})"
            )
    if not told:
        return "There are too few evaluations to see whether HR@10 is stable."
    return (
        "Over the last quarter of the training, HR@10 without a regularizer changes per "
        f"evaluation by {'; '.join(told)}."
    )


def _late_changes(values: list[float | None]) -> list[float]:
    """Differences of neighbours in the last quarter, at least one."""
    known = [value for value in values if value is not None]
    count = max(1, len(known) // 4)
    late = known[-count - 1 :]
    return [after - before for before, after in pairwise(late)]


def _article(arm: str) -> str:
    return arm if arm in (NONE, ARMS[1]) else f"the {arm}"
