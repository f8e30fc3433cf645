"""What functions in rescaled weights say about Theorem 3.2, in claims and words."""

from __future__ import annotations

from collections.abc import Sequence

from pathspace.experiments.executors import Result
from pathspace.experiments.reproduce.findings import Claim
from pathspace.experiments.reproduce.statistics import Sample
from pathspace.experiments.reproduce.yi2019.drivenviews import (
    change_of_function,
    constant_in_ball,
    equation_error,
    largest_change,
    ratios,
)
from pathspace.experiments.reproduce.yi2019.effort import KINDS, SPACES
from pathspace.experiments.reproduce.yi2019.pairs import measure_name


def driven_claims(results: Sequence[Result], factors: Sequence[float]) -> list[Claim]:
    """What the paper proves, beside what was measured."""
    least = min(factors)
    claims = []
    for space in SPACES:
        for kind in KINDS:
            sample = Sample(tuple(ratios(results, space, kind, least)))
            above = all(value > 1.5 for value in sample.values)
            claims.append(
                Claim(
                    f"{measure_name(space, kind)}, times",
                    1.0 if space == "paths" else "any size",
                    sample,
                    "" if space == "paths" else ("seen" if above else "not seen"),
                    f"Theorems 3.2 and 4.1: first hidden layer rescaled by α = {least:g}",
                )
            )
    proof = constant_in_ball(results)
    group = "Proof of Theorem 3.2"
    return [
        *claims,
        Claim(
            "Eq. (6), one unit: largest relative error of the trace",
            0.0,
            equation_error(results),
            group=group,
            digits=3,
        ),
        Claim(
            "ball with the proof's factors: flatness found",
            "at least the constant function's",
            Sample(tuple(found for found, _ in proof)),
            "seen" if all(found >= 0.99 * said for found, said in proof) else "not found",
            group,
        ),
        Claim(
            "the same of the constant function in that ball",
            "a lower bound",
            Sample(tuple(said for _, said in proof)),
            group=group,
        ),
    ]


def driven_statements(results: Sequence[Result], factors: Sequence[float]) -> list[str]:
    """What rescaling does to flatness in both spaces, and to the trace of one unit."""
    least = min(factors)
    grown = ", ".join(
        f"{kind} {Sample(tuple(ratios(results, 'weights', kind, least)))}" for kind in KINDS
    )
    change = largest_change(results, factors, "paths")
    psi = "stays" if change < 1e-6 else "moves"
    proof = constant_in_ball(results)
    held = sum(found >= 0.99 * said for found, said in proof)
    return [
        f"With the weights into the first hidden layer times α = {least:g} and those out of it "
        f"divided by it, outputs change by at most {change_of_function(results):.1g} (relative), "
        f"and the weight flatnesses are multiplied by: {grown} ({len(results)} seeds).",
        f"PSI-flatness {psi}: over all α, all three kinds and all seeds the largest relative "
        f"change is {change:.1g}.",
        f"Eq. (6) gives the trace after rescaling one unit to within {equation_error(results):.1g}"
        " (relative), from the blocks of the Hessian before it.",
        "With the factors of the proof the ball holds a constant function, whose rise of the loss "
        f"is {Sample(tuple(said for _, said in proof))} over 1 + loss; the search finds "
        f"{Sample(tuple(found for found, _ in proof))}, at least as much in {held} of {len(proof)} "
        "seeds (it is a lower bound of the maximum, found by gradient ascent).",
    ]
