"""The framework behind `pathspace reproduce`: statistics, plans, controls, resumption, files."""

import json
import math
import signal
import sys
from dataclasses import dataclass, replace

import pytest
import scipy.stats
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

import gated
from pathspace.cli.application import application
from pathspace.experiments.executors import Archive, Local, compute
from pathspace.experiments.reproduce import (
    Claim,
    Difference,
    Experiment,
    Figure,
    Findings,
    Plan,
    Preset,
    Sample,
    best_rate,
    compare,
    find_experiment,
    learning_curve,
    metric,
    paired_difference,
    registry,
    reproduce,
    sgd_and_gsgd,
    side_by_side,
    sign_test,
)
from pathspace.experiments.reproduce.experiment import ExperimentError
from pathspace.experiments.reproduce.markdown import page_text
from pathspace.experiments.reproduce.page import reproduction_page
from pathspace.experiments.reproduce.progress import Bar, Forecast, Lines
from pathspace.experiments.reproduce.running import conduct, reproduce_all
from pathspace.experiments.reproduce.statistics import StatisticsError
from pathspace.experiments.reproduce.writing import write_index, write_reproduction
from pathspace.experiments.training import Outcome, Trial, TrialError, train
from pathspace.page import DataTable, render
from pathspace.plot.backend import pyplot
from pathspace.tables import Column, Row, Table
from trials import small

STEPS = ("unit_interval", "subset:train=200:test=50", "flatten")


# Statistics --------------------------------------------------------------------------------------


def test_the_interval_is_students():
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 7, generator=generator, dtype=torch.float64).tolist()
    found = paired_difference(Sample(tuple(one)), Sample(tuple(other)), level=0.9)
    reference = scipy.stats.ttest_rel(one, other)
    interval = reference.confidence_interval(0.9)
    assert_close([found.low, found.high], [interval.low, interval.high])
    assert found.mean == pytest.approx(sum(one) / 7 - sum(other) / 7)
    # A 95 % interval excludes 0 exactly if the t-test says p < 0.05.
    for shift in (0.0, 0.7, 0.9, 1.1, 2.0):
        shifted = [number - shift for number in one]
        gap = paired_difference(Sample(tuple(shifted)), Sample(tuple(other)))
        decided = scipy.stats.ttest_rel(shifted, other).pvalue < 0.05
        assert (gap.verdict("below 0") != "undecided") == decided


def test_divergence_is_not_hidden():
    one, other = Sample((1.0, math.nan, 3.0)), Sample((2.0, 2.0, math.inf))
    assert math.isnan(one.mean)
    assert str(one) == "diverged in 1 of 3"
    gap = paired_difference(one, other)
    assert (gap.values, gap.dropped, gap.mean) == ((-1.0,), 2, -1.0)
    assert math.isnan(gap.low)
    assert gap.verdict("below 0") == "undecided"  # one pair decides nothing
    assert str(gap) == "-1, 2 diverged"
    assert str(paired_difference(Sample((math.nan,)), Sample((1.0,)))) == "diverged"
    with pytest.raises(StatisticsError, match="3 and 1"):
        paired_difference(one, Sample((1.0,)))


@pytest.mark.parametrize(
    ("claim", "interval", "verdict"),
    [
        ("below 0", (-2.0, -1.0), "seen"),
        ("below 0", (1.0, 2.0), "contrary"),
        ("above 0", (1.0, 2.0), "seen"),
        ("above 0", (-2.0, -1.0), "contrary"),
        ("above 0", (-2.0, 1.0), "undecided"),
    ],
)
def test_verdicts(claim, interval, verdict):
    assert Difference((0.0, 0.0), 0, 0.0, *interval).verdict(claim) == verdict


@pytest.mark.parametrize("signs", [(5, 0), (3, 2), (0, 4), (1, 8), (2, 2)])
def test_the_sign_test_is_the_binomial_one(signs):
    negative, positive = signs
    found = sign_test([-1.0] * negative + [2.0] * positive + [0.0])
    reference = scipy.stats.binomtest(negative, negative + positive)
    assert (found.negative, found.positive) == signs
    assert found.p == pytest.approx(reference.pvalue)


def outcome(error=0.25, status="finished", **more):
    return Outcome(small(), status, "", [{"epoch": 1, "validation_error": error, **more}], {})


def test_the_best_rate_is_one_that_did_not_diverge():
    rates = {
        1.0: [outcome(0.0, "diverged"), outcome(0.1)],
        0.1: [outcome(0.2), outcome(0.4)],
        0.01: [outcome(0.25), outcome(0.34)],
        0.001: [outcome(None), outcome(0.1)],
    }
    assert best_rate(rates) == 0.01
    assert best_rate({k: v for k, v in rates.items() if k in (1.0, 0.001)}) == 1.0


def test_metrics_are_of_the_last_or_the_best_evaluation():
    rows = [{"epoch": e, "validation_error": v, "test_error": e / 10} for e, v in ((1, 0), (2, 1))]
    one = Outcome(small(), "finished", "", rows, {})
    assert metric([one, one], "test_error").values == (20.0, 20.0)
    assert metric([one], "test_error", "best").values == (10.0,)
    assert math.isnan(metric([replace(one, status="diverged")], "test_error").values[0])
    assert math.isnan(metric([one], "train_loss").values[0])


def test_learning_curves_are_means_over_seeds():
    rows = [[{"epoch": 0, "loss": None}, {"epoch": 1, "loss": loss}] for loss in (1.0, 3.0)]
    curve = learning_curve("x", [Outcome(small(), "finished", "", row, {}) for row in rows], "loss")
    assert (curve.x, curve.y) == ((1.0,), (2.0,))


# Plans -------------------------------------------------------------------------------------------


def test_plans_side_by_side_share_their_rounds():
    def plan(rounds, name):
        heard = []
        for number in range(rounds):
            heard.append((yield [f"{name}{number}{k}" for k in range(number + 1)]))
        return heard

    asked = []

    def execute(jobs):
        asked.append(list(jobs))
        return [job.upper() for job in jobs]

    lengths = {"a": 2, "b": 0, "c": 3}
    found = conduct(side_by_side({name: plan(n, name) for name, n in lengths.items()}), execute)
    assert asked == [["a00", "c00"], ["a10", "a11", "c10", "c11"], ["c20", "c21", "c22"]]
    assert found["a"] == [["A00"], ["A10", "A11"]]
    assert found["b"] == []
    assert found["c"][2] == ["C20", "C21", "C22"]
    assert list(found) == ["a", "b", "c"]


@dataclass(frozen=True)
class Settings:
    seeds: tuple[int, ...] = (0, 1)
    rates: tuple[float, ...] = (0.01, 0.1)


def sum_of_weights(outcomes, data_dir):
    """A computation that reads what was trained."""
    return {"sum": sum(float(t.sum()) for outcome in outcomes for t in outcome.weights.values())}


def plan(settings: Settings) -> Plan[Findings]:
    base = Trial("mlp:64-6-10", "digits", preprocess=STEPS, batch=50, epochs=2)
    found = yield from compare(
        sgd_and_gsgd(base), seeds=settings.seeds, rates=settings.rates, common=0.1, validation=50
    )
    trials = [one.trial for one in found.common["G-SGD"]]
    (weighed,) = yield [compute(sum_of_weights, trials)]
    gap = found.difference("G-SGD", "SGD", "test_error", "common")
    table = Table("Rates", (Column("arm"), Column("rate", number=True)), (Row(("a_b", "1 < 2")),))
    return Findings(
        claims=(
            Claim("sum of weights", 1.5, weighed["sum"]),
            Claim("gap (%)", "below 0", gap, gap.verdict("below 0"), "with | bars", "a *note*"),
            Claim("error (%)", 20.0, found.sample("SGD", "test_error", "best")),
        ),
        statements=(f"The gap is {gap}.",),
        figures=(Figure("one", draw, "What is <seen>.", "A line."),),
        tables=(DataTable(table, "Of all arms.", ({"arm": "a_b"},)),),
        deviations=("Small.",),
    )


def draw():
    figure, ax = pyplot().subplots()
    ax.plot([0, 1])
    return figure


EXPERIMENT = Experiment(
    name="meng2019 small",
    title="A small one",
    where="Nowhere",
    shows="That it works.",
    plan=plan,
    quick=Preset(Settings(), jobs=25, time="a second"),
    paper=Preset(Settings(seeds=(0, 1, 2, 3, 4)), jobs=49, time="two seconds"),
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return Archive(tmp_path_factory.mktemp("archive") / "results")


@pytest.fixture(scope="module")
def reproduction(archive):
    return reproduce(EXPERIMENT, "quick", archive)


def test_jobs_are_done_once_and_counted(reproduction, archive):
    assert len(reproduction.answers) <= EXPERIMENT.quick.jobs
    assert len(reproduction.outcomes) == len(reproduction.answers) - 1
    assert reproduction.seconds > 0

    class Never(Local):
        def run(self, groups, site):
            raise AssertionError("there is nothing to do")

    again = reproduce(EXPERIMENT, "quick", archive, Never())
    assert again.findings.claims == reproduction.findings.claims
    assert [one.trial for one in again.outcomes] == [one.trial for one in reproduction.outcomes]


def test_experiments_side_by_side(reproduction, archive, tmp_path):
    """Rounds are done together, shared jobs once; each is given as soon as it is ready."""

    class Rounds(Local):
        def __init__(self):
            super().__init__()
            self.rounds = []

        def run(self, groups, site):
            self.rounds.append([job for group in groups for job in group])
            return super().run(groups, site)

    def empty(settings):
        return replace(reproduction.findings, claims=())
        yield

    def first(settings):
        yield trials
        return replace(reproduction.findings, claims=())

    trials = [one.trial for one in reproduction.outcomes][:2]
    experiments = [
        EXPERIMENT,
        replace(EXPERIMENT, name="meng2019 empty", plan=empty),
        replace(EXPERIMENT, name="meng2019 first", plan=first),
    ]
    executor, ready = Rounds(), []
    found = reproduce_all(
        experiments, "quick", Archive(tmp_path / "here"), executor, ready=ready.append
    )
    assert [one.experiment.name for one in found] == [one.name for one in experiments]
    assert [one.experiment.name.split()[1] for one in ready] == ["empty", "first", "small"]
    done = [job for jobs in executor.rounds for job in jobs]
    assert len(done) == len(set(done)) == len(reproduction.answers)
    assert set(trials) <= set(executor.rounds[0])
    assert [one.trial for one in found[2].outcomes] == trials
    assert found[0].findings.claims == reproduction.findings.claims


def test_an_interrupted_experiment_goes_on(reproduction, tmp_path):
    class Fragile(Local):
        done = 0

        def run(self, groups, site):
            for finished in super().run([(job,) for group in groups for job in group], site):
                self.done += 1
                yield finished
                if self.done == limit:
                    raise KeyboardInterrupt

    archive, counts = Archive(tmp_path / "archive"), []
    for limit in (3, 9, None):
        executor = Fragile()
        try:
            found = reproduce(EXPERIMENT, "quick", archive, executor)
        except KeyboardInterrupt:
            assert limit is not None
        counts.append(executor.done)
    assert counts[:2] == [3, 9]
    assert sum(counts) == len(reproduction.answers)  # nothing twice
    for one, other in zip(found.outcomes, reproduction.outcomes, strict=True):
        assert one.final["test_error"] == pytest.approx(other.final["test_error"], abs=0.021)


# Controls ----------------------------------------------------------------------------------------


def test_the_arms_start_as_they_say():
    base = Trial("mlp:64-6-10", "digits", preprocess=STEPS, epochs=0, dtype="float64")
    arms = {name: train(trial) for name, trial in sgd_and_gsgd(base).items()}
    sgd, skeleton, gsgd, own = (dict(one.weights) for one in arms.values())
    assert_close(gsgd, skeleton, rtol=0, atol=0)
    assert_close(own, sgd, rtol=0, atol=0)
    assert any(not torch.equal(sgd[name], skeleton[name]) for name in sgd)
    weights = [tensor for tensor in skeleton.values() if tensor.dim() == 2]
    assert all((weight == 1).any() for weight in weights)


def test_published_gsgd_is_the_optimizers_own_start():
    base = Trial("mlp:64-6-10", "digits", preprocess=STEPS, lr=0.05, epochs=1, dtype="float64")
    published = sgd_and_gsgd(base)["G-SGD"]
    by_optimizer = replace(
        published, init="he", options={**published.options, "start": "skeleton_init"}
    )
    assert_close(
        dict(train(published).weights), dict(train(by_optimizer).weights), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("change", [{"optimizer": "adam"}, {"init": "glorot"}])
def test_other_bases_are_refused(change):
    with pytest.raises(TrialError, match="a trial of sgd from init he"):
        sgd_and_gsgd(small(**change))


def test_rates_are_chosen_by_validation_error():
    base = Trial("mlp:64-6-10", "digits", preprocess=STEPS, batch=50, epochs=2)
    asked = []

    def execute(jobs):
        asked.append(jobs)
        # The larger the rate, the lower the validation error; the test error says the contrary.
        return [
            Outcome(
                trial,
                "finished",
                "",
                [{"epoch": 1, "validation_error": 0.5 - trial.lr, "test_error": trial.lr}],
                {},
            )
            for trial in jobs
        ]

    found = conduct(
        compare({"a": base}, seeds=(3, 4), rates=(0.1, 0.2), common=0.1, validation=50), execute
    )
    tuning, final = asked
    assert [(trial.lr, trial.seed) for trial in tuning] == [(0.1, 3), (0.2, 3)]
    assert all(trial.preprocess[-1] == "validation_split:50:seed=0" for trial in tuning)
    assert [(trial.lr, trial.seed) for trial in final] == [(0.1, 3), (0.1, 4), (0.2, 3), (0.2, 4)]
    assert all(trial.preprocess == base.preprocess for trial in final)
    assert found.best_rates == {"a": 0.2}
    assert found.at_the_edge == ("a",)
    assert found.sample("a", "test_error", "best").values == (20.0, 20.0)
    assert found.sample("a", "test_error", "common").values == (10.0, 10.0)


def test_without_validation_examples_no_rate_can_be_chosen():
    with pytest.raises(TrialError, match="no validation examples"):
        next(compare({"a": small()}, seeds=(0,), rates=(0.1,), common=0.1))


# Findings and files ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim", "cells"),
    [
        (Claim("m", 536, 540), ("m", "536", "540", "+4", "–")),
        (Claim("e", 7.0, Sample((6.0, 9.0))), ("e", "7", "7.5 ± 2.1", "+0.5", "2")),
        (Claim("e", 7.0, Sample((6.0, math.nan))), ("e", "7", "diverged in 1 of 2", "–", "2")),
        (Claim("e", "low", "high", "contrary"), ("e", "low", "high", "contrary", "–")),
    ],
)
def test_claims(claim, cells):
    assert claim.row().cells == cells


def test_files(reproduction, tmp_path):
    folder = write_reproduction(reproduction, tmp_path)
    names = {file.name for file in folder.iterdir()}
    assert names == {"README.md", "one.png", "one.svg", "trials.csv", "summary.json"}
    lines = (folder / "trials.csv").read_text().splitlines()
    assert len(lines) == 1 + len(reproduction.outcomes)
    columns = lines[0].split(",")
    assert columns[:3] == ["key", "model", "data"]
    assert {"loss", "lr", "final_loss", "final_test_error", "seconds"} <= set(columns)
    assert ",cross-entropy," in lines[1]
    held = json.loads((folder / "summary.json").read_text())
    assert held["claims"][0]["ours"] == reproduction.findings.claims[0].ours
    first = {name: (folder / name).read_bytes() for name in names}
    write_reproduction(reproduction, tmp_path)
    assert {name: (folder / name).read_bytes() for name in names} == first


def test_the_markdown_page_holds_everything(reproduction):
    text = page_text(reproduction)
    findings = reproduction.findings
    assert text.startswith("# meng2019 small: A small one\n")
    for part in ("That it works.", findings.statements[0], "(one.png)", "Small.", "seeds 0, 1"):
        assert part in text
    assert "| **with \\| bars** |" in text
    assert "[1] a \\*note\\*" in text
    assert "What is \\<seen\\>." in text
    assert text.endswith("$ pathspace reproduce meng2019 small --preset quick\n```\n")
    # Every line of a table has as many cells as its heading.
    tables = [block for block in text.split("\n\n") if block.startswith("| ")]
    assert len(tables) == 2
    for table in tables:
        assert len({line.replace("\\|", "").count("|") for line in table.splitlines()}) == 1


def test_the_web_page_holds_everything(reproduction, archive):
    text = render(reproduction_page([reproduction], archive))
    for part in (
        "A small one",
        "That it works.",
        "What is &lt;seen&gt;.",
        "Every trial on its own",
    ):
        assert part in text
    assert text.count("data:image/png;base64,") == 1


# Progress ----------------------------------------------------------------------------------------


def test_the_time_left_is_that_of_jobs_of_the_same_kind():
    from pathspace.experiments.executors import Finished

    short, long = small(), small(epochs=30)
    others = [small(seed=1), small(epochs=30, seed=1, lr=0.2)]
    forecast = Forecast(6)
    assert math.isnan(forecast.seconds_left(1))
    forecast.ask([short, long, *others, small(seed=9)], [short, long, *others])
    assert forecast.done == 1
    forecast.finish(Finished((short,), 1.0))
    forecast.finish(Finished((long,), 9.0))
    # One of each kind is left, and one job of which nothing is known.
    assert forecast.seconds_left(1) == 1.0 + 9.0 + 5.0
    assert forecast.seconds_left(3) == 5.0


@pytest.mark.parametrize("kind", [Lines, Bar])
def test_progress_is_shown(kind, tmp_path, capsys, reproduction):
    experiment = replace(EXPERIMENT, quick=Preset(Settings((0,), (0.1,)), 9, "a second"))
    archive = Archive(tmp_path)
    reproduce(experiment, "quick", archive, progress=kind())
    shown = capsys.readouterr()
    assert shown.out == ""
    if kind is Lines:
        lines = shown.err.splitlines()
        assert lines[0] == "meng2019 small: 4 jobs to do"
        assert "of 9, " in lines[1]
        reproduce(experiment, "quick", archive, progress=kind())
        assert "0 jobs to do, 4 are there already" in capsys.readouterr().err


# The registry and the command --------------------------------------------------------------------


def test_names():
    assert find_experiment("meng2019 fig4").slug == "meng2019-fig4"
    assert find_experiment("meng2019 fig8").name == "meng2019 fig7"
    with pytest.raises(ExperimentError, match="did you mean 'meng2019 table1'"):
        find_experiment("meng2019 tabel1")
    with pytest.raises(ExperimentError, match="should begin with one of"):
        replace(EXPERIMENT, name="nobody1999 fig1")


def test_settings_may_be_changed():
    found = find_experiment("meng2019 fig4").changed("paper", ["widths=[8, 16]", "rates=[]"])
    assert found.paper.settings.widths == (8, 16)
    assert found.paper.settings.rates == ()
    assert found.quick.changes == ()
    expected = "pathspace reproduce meng2019 fig4 --preset paper --set 'widths=[8, 16]'"
    assert found.command("paper") == f"{expected} --set 'rates=[]'"
    with pytest.raises(ExperimentError, match="unknown setting 'width'; known are widths"):
        found.changed("quick", ["width=[8]"])
    with pytest.raises(ExperimentError, match="epochs should be a whole number"):
        found.changed("quick", ["epochs=many"])
    films = find_experiment("zheng2019 fig3").changed("stable", ["schedule=constant", "epochs=3"])
    assert films.preset("stable").settings.schedule == "constant"
    assert films.preset("stable").settings.epochs == 3
    assert films.quick.changes == films.paper.changes == ()
    with pytest.raises(ExperimentError, match="no preset 'stable'; it has quick, paper"):
        found.preset("stable")


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "find_experiments", lambda: (EXPERIMENT,))
    for module in ("pathspace.experiments.reproduce",):
        monkeypatch.setattr(sys.modules[module], "find_experiments", lambda: (EXPERIMENT,))

    def run(*arguments):
        env = {"COLUMNS": "200", "TERMINAL_WIDTH": "200"}
        return CliRunner().invoke(application(), ["reproduce", *arguments], env=env)

    return run


def test_the_command(invoke, tmp_path, archive, reproduction):
    result = invoke("meng2019", "small", "--out", "here", "--archive", str(archive.path))
    assert result.exit_code == 0, result.output
    assert "Paper and reproduction" in result.stdout
    assert reproduction.findings.statements[0] in result.stdout
    assert "are there already" in result.stderr
    assert {file.name for file in (tmp_path / "here").iterdir()} == {
        "README.md",
        "report.html",
        "meng2019-small",
    }
    index = (tmp_path / "here" / "README.md").read_text()
    assert "[meng2019 small](meng2019-small/README.md)" in index
    # An earlier page stays in the list.
    (tmp_path / "here" / "earlier").mkdir()
    held = json.loads((tmp_path / "here" / "meng2019-small" / "summary.json").read_text())
    earlier = json.dumps({**held, "experiment": "meng2019 fig2"})
    (tmp_path / "here" / "earlier" / "summary.json").write_text(earlier)
    index = write_index(tmp_path / "here").read_text()
    assert index.index("meng2019 fig2") < index.index("meng2019 small")


def test_an_interruption_is_no_error(invoke, monkeypatch):
    def stopped(settings):
        yield [compute(gated.interrupt)]

    monkeypatch.setattr(
        sys.modules["pathspace.experiments.reproduce"],
        "find_experiment",
        lambda name: replace(EXPERIMENT, plan=stopped),
    )
    result = invoke("meng2019", "small", "-q")
    assert result.exit_code == 128 + signal.SIGTERM
    assert "nothing that was finished is lost" in " ".join(result.stderr.split())


@pytest.mark.parametrize("what", [("all",), ("meng2019",)])
def test_several_experiments(invoke, archive, reproduction, what):
    result = invoke(*what, "--archive", str(archive.path), "--json", "-q")
    assert result.exit_code == 0, result.output
    assert [one["experiment"] for one in json.loads(result.stdout)] == ["meng2019 small"]


def test_the_list(invoke):
    assert "meng2019 small" in invoke("list").stdout
    (held,) = json.loads(invoke("list", "--json").stdout)
    assert held["quick"] == {"jobs": 25, "time": "a second"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("meng2019", "smal"), 1, "did you mean 'meng2019 small'"),
        (("meng2019", "small", "--preset", "huge"), 2, "it has quick, paper"),
        (("meng2019", "small", "--executor", "slurm"), 1, "known are local"),
        (("--preset", "quick"), 2, "name an experiment"),
    ],
)
def test_what_is_wrong_is_said(invoke, arguments, code, said):
    result = invoke(*arguments)
    assert result.exit_code == code
    assert said in " ".join(result.stderr.replace("│", " ").split())
