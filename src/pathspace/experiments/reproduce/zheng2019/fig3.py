"""Figure 3: recommendation on MovieLens-1M with regularizers, by HR@K and NDCG@K.

The preset ``stable`` has 8 and 16 factors, trained until HR@10 is stable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from pathspace.experiments.executors import compute
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.findings import Findings
from pathspace.experiments.reproduce.statistics import Sample
from pathspace.experiments.reproduce.zheng2019.advantage import advantage
from pathspace.experiments.reproduce.zheng2019.recommending import (
    ARMS,
    CHOICE,
    NONE,
    Case,
    Recommendations,
    best_lambdas,
    crossed,
    regularized,
    user_ranks,
)
from pathspace.experiments.training import Outcome, Trial
from pathspace.experiments.training.ranking import top_scores

PAPER_LAMBDAS = tuple(10.0**-alpha for alpha in (5, 6, 7, 8, 9))


@dataclass(frozen=True)
class Settings:
    """What is trained.

    Attributes:
        factors: units of the last hidden layer.
        seeds: of each final training.
        lambdas: the grid for each regularizer.
        epochs: of each training.
        batch: pairs per step, positives and negatives together.
        lr: of Adam, at the beginning.
        schedule: of the rate.
        negatives: drawn per positive pair, afresh in each epoch.
        tuning_seeds: by which λ is chosen.
        evaluate_every: epochs between evaluations.
    """

    factors: tuple[int, ...]
    seeds: tuple[int, ...]
    lambdas: tuple[float, ...] = PAPER_LAMBDAS
    epochs: int = 20
    batch: int = 256
    lr: float = 1e-3
    schedule: str = "constant"
    negatives: int = 4
    tuning_seeds: tuple[int, ...] = (0,)
    evaluate_every: int = 1

    def trial(self, case: Case, seed: int) -> Trial:
        """The training of one arm."""
        factors, arm, lam = case
        base = Trial(
            f"ncf:{factors}",
            "ml-1m",
            optimizer="adam",
            lr=self.lr,
            schedule=self.schedule,
            batch=self.batch,
            negatives=self.negatives,
            epochs=self.epochs,
            evaluate_every=self.evaluate_every,
            seed=seed,
        )
        return regularized(base, arm, lam)

    def cases(self) -> Iterator[Case]:
        """All factors, arms and λ; without a regularizer λ is 0."""
        for factors in self.factors:
            for arm in ARMS:
                for lam in (0.0,) if arm == NONE else self.lambdas:
                    yield factors, arm, lam


def plan(settings: Settings) -> Plan[Findings]:
    """Choose λ of every arm by half of the users each, then train with all seeds."""
    cases = list(settings.cases())
    tried = yield from _trained(settings, cases, settings.tuning_seeds)
    grids: dict[tuple[int, str], dict[float, list[Tensor]]] = {}
    for (factors, arm, lam), found in tried.items():
        grids.setdefault((factors, arm), {})[lam] = [ranks for _, ranks in found]
    chosen = {key: best_lambdas(grid) for key, grid in grids.items()}
    wanted = [(*key, lam) for key, lams in chosen.items() for lam in dict.fromkeys(lams)]
    finals = yield from _trained(settings, wanted, settings.seeds)
    return advantage(
        Recommendations(
            factors=settings.factors,
            seeds=settings.seeds,
            chosen=chosen,
            ranks={
                key: [
                    crossed([finals[*key, lam][place][1] for lam in lams])
                    for place in range(len(settings.seeds))
                ]
                for key, lams in chosen.items()
            },
            tried={
                case: Sample(tuple(top_scores(ranks)[CHOICE] for _, ranks in found))
                for case, found in tried.items()
            },
            outcomes={
                key: [outcome for outcome, _ in finals[*key, lams[0]]]
                for key, lams in chosen.items()
            },
        ),
        _deviations(settings),
    )


def _trained(
    settings: Settings, cases: Sequence[Case], seeds: Sequence[int]
) -> Plan[Mapping[Case, list[tuple[Outcome, Tensor]]]]:
    """Outcomes and ranks of all users, one per seed."""
    trials = [settings.trial(case, seed) for case in cases for seed in seeds]
    outcomes = yield trials
    results = yield [compute(user_ranks, [trial]) for trial in trials]
    pairs = [(outcome, result["ranks"]) for outcome, result in zip(outcomes, results, strict=True)]
    count = len(seeds)
    return {case: pairs[k * count : (k + 1) * count] for k, case in enumerate(cases)}


def _deviations(settings: Settings) -> tuple[str, ...]:
    grid = ", ".join(f"{lam:g}" for lam in settings.lambdas)
    return (
        "Figure 3 has no numbers, so that only directions can be compared.",
        "The paper chooses λ on a validation set that it does not describe; the published protocol "
        "has none. Here every second user's HR@10 chooses the λ by which the other users are "
        "counted, and the other way round, with "
        f"{len(settings.tuning_seeds)} seed{'s' * (len(settings.tuning_seeds) > 1)}.",
        f"λ is one of {grid} (paper: 1e-5 to 1e-9 in powers of ten).",
        f"Adam with rate {settings.lr:g} ({settings.schedule}), batches of {settings.batch:,} and "
        f"{settings.negatives} negatives per positive pair for {settings.epochs} epochs; what is "
        "counted is the last epoch. The paper follows He et al. (2017), who take batches of 128 to "
        "1,024 and rates of 0.0001 to 0.005, and does not say how long it trains. "
        "All arms have the same rate; only λ is chosen for each.",
        "The tower is that of He et al., 4f → 2f → f → 1 behind embeddings of 2f for f factors; "
        "the paper has four times the embedding size in each hidden layer. Weights begin by He's "
        "rule, not with a standard deviation of 0.01.",
        "Embeddings are weights that begin paths: both penalties count the paths of all users and "
        "items together. The basis-path penalty has the paper's cheap gradients, which leave "
        "skeleton weights alone, so that λ₂ has no part in it.",
        "The factors in panels (c) and (d) are not said in the paper; here they are the largest.",
    )


LARGE_BATCHES = Settings(
    factors=(8,),
    seeds=(0, 1, 2),
    lambdas=(1e-5, 1e-7),
    epochs=6,
    batch=4096,
    lr=0.01,
)

EXPERIMENT = Experiment(
    name="zheng2019 fig3",
    title="Regularizers of a recommender of films",
    where="Figure 3; section “Recommendation system”",
    shows=(
        "A perceptron on embeddings of users and items learns by Adam which films of MovieLens-1M "
        "users rate, and ranks the film left out of each user among 99 others. (a, b) HR@10 and "
        "NDCG@10 for 8 to 64 factors, (c, d) HR@K and NDCG@K for K from 1 to 10. At its best λ, "
        "the basis-path penalty is above no regularizer, weight decay and the path-norm penalty "
        "everywhere."
    ),
    plan=plan,
    quick=Preset(
        LARGE_BATCHES,
        jobs=42,
        time="5 minutes on 2 cores (estimated)",
    ),
    between={
        "stable": Preset(
            replace(
                LARGE_BATCHES,
                factors=(8, 16),
                lambdas=(1e-5, 1e-7, 1e-9),
                epochs=20,
                schedule="cosine",
            ),
            jobs=76,
            time="100 minutes on 2 cores",
        ),
    },
    paper=Preset(
        Settings(factors=(8, 16, 32, 64), seeds=(0, 1, 2, 3, 4)),
        jobs=352,
        time="about three days on 2 cores (estimated)",
    ),
)
