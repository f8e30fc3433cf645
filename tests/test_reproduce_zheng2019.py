"""What the experiments of Zheng et al. say about results that are known beforehand."""

import math

import pytest
import torch
from scipy.stats import kendalltau
from torch.testing import assert_close

import pathspace as ps
from pathspace.experiments.data import Interactions
from pathspace.experiments.executors import Result
from pathspace.experiments.reproduce.running import conduct
from pathspace.experiments.reproduce.zheng2019 import fig2, fig3, table1
from pathspace.experiments.reproduce.zheng2019.capacity import (
    BP,
    BP_LARGEST,
    CAPACITIES,
    FLATNESS,
    MARGIN,
    PATH,
    PATH_WIDTHS,
    SIZE,
    SPECTRAL,
    WEIGHT,
    capacities,
    over_margin,
)
from pathspace.experiments.reproduce.zheng2019.correlation import kendall, kendall_difference
from pathspace.experiments.reproduce.zheng2019.recommending import (
    ARMS,
    best_lambdas,
    crossed,
    user_ranks,
)
from pathspace.experiments.training import Outcome, Trial, loading, train
from trials import few_pairs, small


def said(found, part):
    (statement,) = [text for text in found.statements if part in text]
    return statement


# Kendall's τ -------------------------------------------------------------------------------------


def test_kendall_is_that_of_scipy_with_ties_and_repeated_draws():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(6, (20,), generator=generator).double() for _ in range(2))
    found = kendall(x.tolist(), y.tolist(), range(20), draws=3, seed=5)
    assert_close(found.tau, float(kendalltau(x, y).statistic))
    # The same draws by hand: of points, several times, as scipy would see them.
    drawn = torch.randint(20, (3, 20), generator=torch.Generator().manual_seed(5))
    taus = [float(kendalltau(x[index], y[index]).statistic) for index in drawn]
    wanted = torch.tensor(taus, dtype=torch.float64).quantile(torch.tensor([0.025, 0.975]).double())
    assert_close(torch.tensor([found.low, found.high], dtype=torch.float64), wanted)


def test_seeds_of_one_configuration_are_drawn_together():
    x, y = [1.0, 1.1, 2.0, 2.1], [1.0, 1.1, 2.0, 2.1]
    alone = kendall([1, 2, 3, 4], [4, 1, 3, 2], range(4))
    assert alone.configurations == 4
    pairs = kendall(x, y, [0, 0, 1, 1])
    assert (pairs.tau, pairs.configurations) == (1.0, 2)
    assert math.isnan(pairs.low)  # two clusters are no sample
    assert pairs.verdict("above 0") == "undecided"


def test_constant_measures_have_no_correlation():
    assert str(kendall([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], range(3))) == "undefined"


def test_difference_of_correlations():
    x, other, y = [1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6]
    found = kendall_difference(x, other, y, range(6))
    assert (found.tau, found.low, found.high) == (2.0, 2.0, 2.0)
    assert found.verdict("above 0") == "seen"


# Figure 2 ----------------------------------------------------------------------------------------


def test_capacities_are_the_formulas():
    """Against products over layers and a sum over all paths, of a network of two hidden layers."""
    trial = small(model="mlp-nobias:64-5-5-10", lr=0.3)
    outcome = train(trial)
    options = {"images": 20, "largest": 10_000, "epsilon": 1e-3, "sigma": 1e-3}
    measures = capacities([outcome], None, **options)["measures"]
    first, second, third = (w.double() for w in outcome.weights.values())
    layers = (first, second, third)
    frobenius = math.prod(float(4 * w.square().sum()) for w in layers)
    spectral = math.prod(len(w) * float(torch.linalg.matrix_norm(w, 2)) ** 2 for w in layers)
    paths = torch.einsum("ai,ba,kb->", first**2, second**2, third**2)
    assert_close(measures[WEIGHT], math.log10(frobenius))
    assert_close(measures[SPECTRAL], math.log10(spectral))
    assert_close(measures[PATH], math.log10(paths))
    assert_close(measures[PATH_WIDTHS], math.log10(paths * 4**3 * 5 * 5 * 10))
    assert measures[SIZE] == math.log10(64 * 5 + 5 * 5 + 5 * 10)
    # The network without its output layer: roots are first[j, j] · second[j, j].
    roots = (first[:, :5].diag() * second.diag()).abs().log().abs().max()
    diagonal = torch.eye(5, dtype=torch.bool)
    through = (first[:, :5].diag() * second).masked_fill(diagonal, 0)
    into = (first * second.diag()[:, None]).clone()
    into[:, :5].masked_fill_(diagonal, 0)
    gamma = float(torch.stack([roots, through.abs().max(), into.abs().max()]).max())
    assert_close(measures[BP], ps.bounds.basis_path_measure(gamma, 64, 5, 3))
    assert all(name in measures for name in (BP_LARGEST, *FLATNESS))


def test_without_a_margin_nothing_is_divided_by_it():
    options = {"images": 20, "largest": 10, "epsilon": 1e-3, "sigma": 1e-3}
    outcome = train(small(model="mlp-nobias:64-5-10", lr=0.0, epochs=1))
    measures = capacities([outcome], None, **options)["measures"]
    assert MARGIN not in measures
    assert over_margin(BP) not in measures
    assert not any(name in measures for name in FLATNESS)  # more than 10 weights


SETTINGS = fig2.Settings(
    labels=(0, 1000, 2000, 3000),
    widths=(16, 32, 64, 512),
    depths=(1, 2, 3, 4),
    seeds=(0, 1, 2),
    labels_width=64,
    images=10_000,
    epochs=10,
)


def measured(measure, error, train_error=lambda trial: 0.0):
    """What figure 2 says if measures and test errors (%) are such functions of the trial."""

    def answer(job):
        if isinstance(job, Trial):
            row = {"epoch": 9, "train_error": train_error(job), "test_error": error(job) / 100}
            return Outcome(job, "stopped", "", [row], {})
        (trial,) = job.trials
        names = (*CAPACITIES, *map(over_margin, CAPACITIES), MARGIN, SIZE, *FLATNESS)
        values = {name: float(measure(name, trial)) for name in names}
        return Result(job, {"measures": values, "by root": True, "reaches end": False})

    return conduct(fig2.plan(SETTINGS), lambda jobs: list(map(answer, jobs)))


def wrong_labels(trial):
    steps = [step for step in trial.preprocess if step.startswith("corrupt_labels")]
    return int(steps[0].split(":")[1]) if steps else 0


def test_error(trial):
    """Least at 512 units and 3 layers, more with more wrong labels, a little by seed."""
    hidden = [int(width) for width in trial.model.split("-")[2:-1]]
    size = 9 - math.log2(hidden[0]) + abs(len(hidden) - 3)
    return 2 + size + wrong_labels(trial) / 500 + trial.seed / 100


test_error.__test__ = False


def test_a_measure_that_goes_with_the_gap_is_called_that():
    def measure(name, trial):
        return test_error(trial) if name.startswith("BP") else -test_error(trial)

    found = measured(measure, test_error)
    assert "above 0 in 3 of 3 sweeps" in said(found, "Kendall's τ between")
    assert "is ahead of the weight norm over widths" in said(found, "Kendall's τ between")
    claims = {(claim.group, claim.what): claim for claim in found.claims}
    least = [claim for claim in found.claims if "least mean test error" in claim.what]
    assert [claim.difference for claim in least] == [0.0, 0.0]
    advantages = [claim for (group, _), claim in claims.items() if "BP measure − other" in group]
    assert {claim.verdict for claim in advantages} == {"seen"}
    # 2 × 32 units belong to two sweeps, and so do 2 × 64 without wrong labels: 3 seeds each.
    assert "30 of 30 networks" in said(found, "end without")


def test_a_measure_that_does_not_is_called_that():
    found = measured(
        lambda name, trial: trial.seed if name == PATH else -test_error(trial), test_error
    )
    assert "is not seen here" in said(found, "Kendall's τ between")
    advantages = [claim for claim in found.claims if "BP measure − other" in claim.group]
    assert "seen" not in {claim.verdict for claim in advantages}


def test_a_count_of_weights_that_does_as_well_is_named():
    found = measured(lambda name, trial: test_error(trial), test_error)
    assert "number of weights (+1.00" in said(found, "without any norm")
    weak = measured(
        lambda name, trial: test_error(trial) if over_margin(BP) == name else trial.seed,
        test_error,
    )
    assert "Neither the number of weights" in said(weak, "Neither")


def test_networks_that_do_not_fit_are_named():
    found = measured(
        lambda name, trial: test_error(trial),
        test_error,
        lambda trial: 0.01 * ("-16-16-" in trial.model),
    )
    assert "Not so: 16 hidden units per layer (3 of 3" in said(found, "end without")
    (claim,) = [claim for claim in found.claims if "units from which" in claim.what]
    assert claim.difference == 0.0


# Figure 3 and Table 1 ----------------------------------------------------------------------------


def ranks_of(hits, users=40):
    """Ranks of users of whom so many in each half are hit."""
    ranks = torch.full((users,), 50)
    ranks[0 : 2 * hits[0] : 2] = 0
    ranks[1 : 1 + 2 * hits[1] : 2] = 0
    return ranks


def test_no_user_chooses_the_lambda_it_is_counted_by():
    tried = {1e-5: [ranks_of((9, 2))], 1e-6: [ranks_of((3, 8))]}
    chosen = best_lambdas(tried)
    assert chosen == (1e-5, 1e-6)
    counted = crossed([tried[lam][0] for lam in chosen])
    assert int((counted < 10).sum()) == 3 + 2  # not 9 + 8


def recommended(hits):
    """What figure 3 says if so many users are hit, by factors, arm, λ and seed."""
    settings = fig3.Settings(factors=(8, 16), seeds=(0, 1, 2), lambdas=(1e-5, 1e-6), epochs=2)
    arms = {"weight": ARMS[1], "path-norm": ARMS[2], "basis-path": ARMS[3]}

    def answer(job):
        if isinstance(job, Trial):
            rows = [{"epoch": k, "test_hr@10": 0.1 * k, "test_ndcg@10": 0.1} for k in range(5)]
            return Outcome(job, "finished", "", rows, {})
        (trial,) = job.trials
        kind, lam = "none", 0.0
        if trial.weight_decay:
            kind, lam = "weight", trial.weight_decay
        elif trial.penalties:
            kind, lam = trial.penalties[0].split(":")
        count = hits(trial.model, arms.get(kind, ARMS[0]), float(lam), trial.seed)
        return Result(job, {"ranks": ranks_of((count, count))})

    return conduct(fig3.plan(settings), lambda jobs: list(map(answer, jobs)))


def test_a_penalty_that_is_ahead_is_called_that():
    found = recommended(lambda model, arm, lam, seed: 5 + seed + 3 * (arm == ARMS[3]))
    assert "The paper's order is seen." in said(found, "paper's order")
    assert {claim.verdict for claim in found.claims} == {"seen"}
    assert "at 10 of 10 lengths K" in said(found, "largest mean")
    assert found.claims[0].number == pytest.approx(6 / 40)


def test_a_penalty_that_is_not_ahead_is_called_that():
    found = recommended(lambda model, arm, lam, seed: 5 + seed)
    assert "is not seen here" in said(found, "is ahead is")
    assert "at 0 of 10 lengths K" in said(found, "largest mean")


def test_lambda_is_chosen_by_the_hits():
    found = recommended(lambda model, arm, lam, seed: 5 + 2 * (lam == 1e-6) + (seed == 2))
    told = said(found, "grid of λ")
    assert "0.1000 for weight decay (λ = 1e-06 is taken)" in told
    assert "seeds alone differ by 0.0500" in told


def test_late_changes_are_those_of_the_last_quarter():
    found = recommended(lambda model, arm, lam, seed: 5)
    assert "+0.1000 with 8 factors (it ends at 0.4" in said(found, "last quarter")


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr("pathspace.experiments.data.load_movielens", lambda *_, **__: few_pairs())
    loading._interactions.cache_clear()
    yield
    loading._interactions.cache_clear()


def test_ranks_are_those_of_the_training_task(few):
    trial = Trial("ncf:2", "ml-1m", optimizer="adam", lr=0.05, batch=16, epochs=2)
    outcome = train(trial)
    ranks = user_ranks([outcome], None)["ranks"]
    assert float((ranks < 5).double().mean()) == pytest.approx(outcome.final["test_hr@5"])


def pairs_of(users, items, count):
    """As many interactions as the paper's table has, of which only the numbers count."""
    return Interactions(
        users=torch.zeros(count - users, dtype=torch.long),
        items=torch.zeros(count - users, dtype=torch.long),
        test_items=torch.zeros(users, dtype=torch.long),
        test_negatives=torch.zeros(users, 99, dtype=torch.long),
        user_ids=torch.arange(users),
        item_ids=torch.arange(items),
    )


@pytest.mark.parametrize(
    ("items", "statement"),
    [(3706, "All four numbers are"), (3707, "Not equal to what the paper prints: items")],
)
def test_table_1(items, statement, monkeypatch):
    pairs = pairs_of(6040, items, 1_000_209)
    monkeypatch.setattr("pathspace.experiments.data.load_movielens", lambda *_, **__: pairs)
    assert said(conduct(table1.plan(table1.Settings())), statement)
