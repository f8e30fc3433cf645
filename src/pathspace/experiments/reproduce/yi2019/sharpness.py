"""What pairs of networks say about flatness and generalization, in claims and words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pathspace.experiments.executors import Result
from pathspace.experiments.reproduce.findings import Findings
from pathspace.experiments.reproduce.signs import sign_test
from pathspace.experiments.reproduce.statistics import Sample, metric, paired_difference
from pathspace.experiments.reproduce.yi2019.effort import KINDS, Effort
from pathspace.experiments.reproduce.yi2019.pairclaims import (
    SURE,
    Trained,
    accuracies_of,
    accuracy_claims,
    changes_of,
    decided,
    moved_claims,
    sharper_claims,
)
from pathspace.experiments.reproduce.yi2019.pairs import (
    HEIGHT,
    PSI,
    WEIGHT,
    Pair,
    flatter_is_better,
    follows_roots,
)
from pathspace.experiments.reproduce.yi2019.pairviews import (
    MOVED,
    landscapes_figure,
    measures_figure,
    measures_table,
    moved_table,
)

PUBLISHED_SCALE = 0.05


def sharpness(
    names: tuple[str, ...],
    trained: Trained,
    pairs: Sequence[Pair],
    moved: Sequence[Result],
    usual: Sequence[Result],
    least: float,
    effort: Effort,
    deviations: tuple[str, ...],
) -> Findings:
    """Findings from all trainings, the pairs that were measured, and the rescaled networks.

    Args:
        names: of the networks with the small and with the large batch.
        trained: all pairs of outcomes, by seed.
        pairs: those in which no training diverged.
        moved: small and large batch before and after a rescaling; none if all diverged.
        usual: roots of a network trained from He's weights; none if that diverged.
        least: the least root of all networks that were measured.
        effort: how flatness was measured.
        deviations: those of the preset.
    """
    accuracies = accuracies_of(trained)
    claims = accuracy_claims(names, trained, accuracies)
    said = [_accuracy_statement(names, trained, accuracies)]
    if not pairs:
        said.append("In every pair a training diverged: there is no flatness to compare.")
        return Findings(
            claims=tuple(claims), statements=tuple(said), deviations=_deviations(deviations)
        )
    claims += [*sharper_claims(pairs), *moved_claims(moved)]
    said += [
        _sharper(names, pairs, PSI),
        _better(pairs),
        _sharper(names, pairs, WEIGHT),
        _moved(names, moved),
        _roots(pairs),
        _scale(pairs, usual, least, effort),
    ]
    return Findings(
        claims=tuple(claims),
        statements=tuple(said),
        figures=(landscapes_figure(pairs[0]), measures_figure(names, pairs)),
        tables=(measures_table(names, pairs, effort), moved_table(names, moved)),
        deviations=_deviations(deviations),
    )


# Words -------------------------------------------------------------------------------------------


def _accuracy_statement(
    names: tuple[str, ...], trained: Trained, accuracies: tuple[Sample, Sample]
) -> str:
    small, large = accuracies
    gap = paired_difference(small, large)
    losses = [metric([pair[k] for pair in trained], "train_loss") for k in (0, 1)]
    test = sign_test([-value for value in gap.values])
    ends = " and ".join(f"{loss} ({name})" for name, loss in zip(names, losses, strict=True))
    return (
        f"Test accuracies are {small} % with {names[0]} and {large} % with {names[1]}, a "
        f"difference of {gap} points over {len(trained)} seeds (small batch better in "
        f"{test.negative} of {test.negative + test.positive}, p = {test.p:.2g}). Training losses "
        f"end at {ends}."
    )


def _sharper(names: tuple[str, ...], pairs: Sequence[Pair], measures: tuple[str, ...]) -> str:
    parts = []
    for measure in measures:
        ratios = [large / small for small, large in (p.values(measure) for p in pairs) if small]
        test = sign_test([b - a for a, b in (pair.values(measure) for pair in pairs)])
        parts.append(
            f"{measure.partition(', ')[2]}: {test.positive} of {test.negative + test.positive} "
            f"(p = {test.p:.2g}), median ratio {_median(ratios):.3g}"
        )
    kind = measures[0].partition(",")[0]
    return f"Seeds in which {names[1]} is sharper than {names[0]} by {kind}: {'; '.join(parts)}."


def _better(pairs: Sequence[Pair]) -> str:
    """Whether the paper's conclusion is seen, by all measures in basis-path space."""
    tests = {measure: flatter_is_better(pairs, measure) for measure in (*PSI, HEIGHT)}
    counts = "; ".join(
        f"{measure}: {test.positive} of {test.negative + test.positive}, p = {test.p:.2g}"
        for measure, test in tests.items()
    )
    verdicts = {decided(test) for test in tests.values()}
    least = 2 / 2 ** len(pairs)
    if verdicts == {"seen"}:
        said = "by every measure in basis-path space the flatter network generalizes better"
    elif verdicts == {"undecided"}:
        said = "the pairs do not decide whether flatter networks generalize better"
        if least >= SURE:
            said += f" (with {len(pairs)} of them p cannot be below {least:.2g})"
    elif "contrary" not in verdicts:
        said = "some measures in basis-path space bear the paper out, others do not decide"
    else:
        said = "at least one measure in basis-path space says the contrary"
    return (
        f"The flatter network of a pair has the lower test error in so many pairs ({counts}): "
        f"{said}."
    )


def _moved(names: tuple[str, ...], moved: Sequence[Result]) -> str:
    outputs = max(float(result["outputs"]) for result in moved)
    paths, weights = (changes_of(moved, space) for space in ("paths", "weights"))
    stayed = max(paths) <= MOVED
    ratios = sorted(
        result["after"]["weights"][kind]["value"] / result["before"]["weights"][kind]["value"]
        for result in moved
        for kind in KINDS
        if result["before"]["weights"][kind]["value"]
    )
    psi = "stay" if stayed else "move"
    weight = "move" if max(weights) > MOVED else "stay"
    return (
        f"After a random rescaling of {names[0]} and {names[1]} (outputs change by {outputs:.1g}), "
        f"the three PSI-flatnesses {psi}: relative changes are at most {max(paths):.2g}. The three "
        f"weight flatnesses {weight}: they are multiplied by {ratios[0]:.3g} to {ratios[-1]:.3g}."
    )


def _roots(pairs: Sequence[Pair]) -> str:
    """How far PSI-flatness is a matter of the root that is nearest to zero."""
    taus = {measure: follows_roots(pairs, measure) for measure in (*PSI, HEIGHT)}
    told = ", ".join(
        f"{measure} {'undefined' if math.isnan(tau) else format(tau, '+.2f')}"
        for measure, tau in taus.items()
    )
    said = f"Kendall's τ with the least root, over all networks: {told}"
    if all(tau < -0.5 for tau in taus.values()):
        said += (
            ". So what is measured in basis-path space is mostly how near one root has come to "
            "zero, by which weights are divided"
        )
    return said + "."


def _scale(pairs: Sequence[Pair], usual: Sequence[Result], least: float, effort: Effort) -> str:
    """What the published size of perturbations would do to the roots."""
    pictures = [one for pair in pairs for one in pair.landscapes()]
    used = effort.sigma
    fits = min(used * (one.about["reach"] or math.inf) for one in pictures)
    gaps = sum(int(one.outside.sum()) for one in pictures)
    said = (
        f"The least root of all these networks is {least:.2g}; so that all of them bear it, balls "
        f"have the radius {effort.epsilon:.2g}, and noise and directions the scale {used:.2g}; "
    )
    if fits < PUBLISHED_SCALE:
        said += (
            f"directions of up to {fits:.2g} fit into the coordinates of all networks, and at the "
            f"published {PUBLISHED_SCALE:g} roots go through zero, where the loss has poles"
        )
    else:
        said += f"directions of the published {PUBLISHED_SCALE:g} would fit"
    if gaps:
        said += f"; {gaps} points of the landscapes beyond are left out"
    for result in usual:
        median = float(result["median"])
        said += (
            ". From He's initial weights instead of skeleton weights, the median root is "
            f"{median:.2g} after training"
        )
        if median < used:
            said += ": even the perturbations taken here bring most roots to zero there"
    return said + "."


def _deviations(deviations: tuple[str, ...]) -> tuple[str, ...]:
    return (
        *deviations,
        "Trainings start from He's weights with the skeleton weights set to 1: from He's or "
        "torch's own, values of paths through 18 layers are so small that perturbations of the "
        "published kind say nothing. The paper takes its training from Meng et al., who "
        "initialise SGD as torch does, and does not speak of small roots.",
        f"Directions and balls are smaller than the published {PUBLISHED_SCALE:g} where the least "
        "root of the networks demands it: batch norms are folded into the weights, as in eval "
        "mode, which makes roots small.",
        "Both batches train at one rate, as in the paper, so that batch and number of steps differ "
        "together; there is no rate tuned for each.",
        "The paper shows one pair of networks and no number for their flatness.",
    )


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    if not ordered:
        return math.nan
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
