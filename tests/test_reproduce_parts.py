"""What pages of experiments are built from: shares with intervals, tables of numbers, panels."""

import math
import random
from dataclasses import replace

import pytest
import scipy.stats

from pathspace.experiments.reproduce import (
    Line,
    Panel,
    Sample,
    directed_claim,
    draw_panels,
    find_experiment,
    metric,
    paired_difference,
    share_of,
    table_of,
)
from pathspace.experiments.reproduce.figures import learning_block
from pathspace.experiments.reproduce.panels import draw_differences
from pathspace.experiments.reproduce.settings import POWERS_OF_TEN, subset_step
from pathspace.experiments.reproduce.shares import Share, share_words
from pathspace.experiments.reproduce.statistics import StatisticsError
from pathspace.experiments.reproduce.tables import Cell, TableError
from pathspace.experiments.training import Outcome, Trial
from pathspace.page import Curve
from pathspace.plot.backend import pyplot
from pathspace.tables import Column

# Shares ------------------------------------------------------------------------------------------


def draws(count, part, whole, spread, seed=0):
    chance = random.Random(seed)
    shared = [chance.gauss(0, spread) for _ in range(count)]
    return (
        Sample(tuple(part + s / 2 + chance.gauss(0, spread) for s in shared)),
        Sample(tuple(whole + s for s in shared)),
    )


def is_possible(part, whole, ratio):
    """Fieller by definition: the t-test of part − ratio · whole does not tell it from 0."""
    gaps = [a - ratio * b for a, b in zip(part.values, whole.values, strict=True)]
    return scipy.stats.ttest_1samp(gaps, 0).pvalue >= 0.05


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [3, 5, 12])
def test_the_interval_holds_what_the_t_test_allows(count, seed):
    part, whole = draws(count, -3.0, -4.0, 0.2, seed)
    share = share_of(part, whole)
    assert share.low < share.value < share.high
    width = share.high - share.low
    for ratio in (share.low + 1e-6 * width, share.high - 1e-6 * width, share.value):
        assert is_possible(part, whole, ratio)
    for ratio in (share.low - 1e-6 * width, share.high + 1e-6 * width):
        assert not is_possible(part, whole, ratio)


def test_a_gain_that_may_be_none_has_no_bounded_share():
    part, whole = draws(5, -0.5, -0.1, 1.0)
    assert paired_difference(whole, Sample((0.0,) * 5)).verdict("below 0") == "undecided"
    share = share_of(part, whole)
    assert (share.low, share.high) == (-math.inf, math.inf)
    assert share.size == "undecided"
    assert "no bounded interval" in share_words(share, "the gain")


def test_seeds_that_diverged_are_left_out_in_pairs():
    part, whole = Sample((1.0, math.nan, 1.1, 5.0)), Sample((2.0, 2.0, 2.1, math.inf))
    assert share_of(part, whole) == share_of(Sample((1.0, 1.1)), Sample((2.0, 2.1)))


def test_shares_of_nothing():
    nothing = share_of(Sample((math.nan,)), Sample((1.0,)))
    assert nothing.seeds == 0
    assert "no share" in share_words(nothing, "the gain")
    one = share_of(Sample((1.0,)), Sample((2.0,)))
    assert (str(one), one.size) == ("50 %", "undecided")
    with pytest.raises(StatisticsError, match="2 and 1 numbers are no pairs"):
        share_of(Sample((1.0, 2.0)), Sample((1.0,)))


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (Share(0.8, 0.6, 1.0, 3), "come from the initial weights, not from the space"),
        (Share(0.8, 0.4, 1.2, 3), "whether that is most of it, these seeds do not tell"),
        (Share(0.2, 0.1, 0.4, 3), "most of it they do not"),
        (Share(-0.2, -0.3, -0.1, 3), "none of the gain comes from the initial weights"),
    ],
)
def test_words_follow_the_interval(share, said):
    assert said in share_words(share, "the gain")


# Tables and claims -------------------------------------------------------------------------------


def table(lines, columns=("a", "b")):
    heads = {name: name for name in columns}
    return table_of("numbers", [Column("h")], heads, lines, "", across="column", file="numbers")


def test_every_number_is_in_the_data():
    numbers = {"a": Sample((1.0, 2.0)), "b": Cell("3 (0.1)", {"rate": 0.1, "mean": 3.0})}
    found = table([Line(("8",), numbers, {"h": 8}, "widths")])
    (row,) = found.table.rows
    assert (row.cells, row.group) == (("8", "1.5 ± 0.71", "3 (0.1)"), "widths")
    assert [record["mean"] for record in found.records] == [1.5, 3.0]
    assert found.records[1] == {"h": 8, "column": "b", "rate": 0.1, "mean": 3.0}


def test_a_line_of_other_columns_is_refused():
    with pytest.raises(TableError, match=r"the line 8 has numbers for \['a'\]"):
        table([Line(("8",), {"a": Sample((1.0,))})])


def test_directed_claims_are_judged_by_the_interval():
    below = paired_difference(Sample((1.0, 2.0, 3.0)), Sample((2.0, 3.1, 4.0)))
    assert directed_claim("gap", "below 0", below).verdict == "seen"
    assert directed_claim("gap", "above 0", below).verdict == "contrary"
    assert directed_claim("gap", "above 0", below, "group").row().group == "group"


# Panels ------------------------------------------------------------------------------------------


@pytest.fixture
def plt():
    found = pyplot()
    yield found
    found.close("all")


def panel(name="one"):
    return Panel([Curve(name, (1.0, 10.0), (2.0, 1.0))], "x", "y", "title", log_x=True)


def test_panels_share_their_axes(plt):
    figure = draw_panels([[panel(), panel()]] * 2, (4, 3), share_x=True, share_y=True, legend=2)
    assert [ax.get_xlabel() for ax in figure.axes] == ["", "", "x", "x"]
    assert [ax.get_ylabel() for ax in figure.axes] == ["y", "", "y", ""]
    assert len(figure.legends) == 1
    assert {ax.get_xscale() for ax in figure.axes} == {"log"}


def test_ticks_and_what_else_is_drawn(plt):
    drawn = []
    one = replace(panel(), ticks=(2, 8), finish=drawn.append)
    figure = draw_panels([[one]], (4, 3))
    (ax,) = figure.axes
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["2", "8"]
    assert drawn == [ax]
    assert ax.get_legend() is not None
    assert draw_panels([[one]], (4, 3), legend=None).axes[0].get_legend() is None


@pytest.mark.parametrize("sideways", [False, True])
def test_differences_are_drawn_with_their_intervals(plt, sideways):
    gap = paired_difference(Sample((1.0, 2.0, 3.0)), Sample((2.0, 3.1, 4.0)))
    single = paired_difference(Sample((1.0,)), Sample((2.0,)))  # which has no interval
    _, ax = plt.subplots()
    draw_differences(ax, {"gap": [gap, single]}, lambda number: [0.0, 1.0], sideways=sideways)
    (bars,) = ax.containers
    ends = [segment[:, 0 if sideways else 1] for segment in bars[2][0].get_segments()]
    assert ends[0] == pytest.approx([gap.low, gap.high])
    assert ends[1] == pytest.approx([-1.0, -1.0])


def test_a_block_says_where_curves_end():
    trial = Trial("mlp:64-8-10", "digits")
    rows = [{"epoch": e, "test_error": error} for e, error in enumerate((0.9, 0.25))]
    lines = {"SGD": [Outcome(trial, "finished", "", rows, {})] * 2}
    block = learning_block(lines, "test_error", "test error (%)", "Errors", file="errors")
    assert block.curves[0].y == (90.0, 25.0)
    assert block.alt == f"SGD ends at {metric(lines['SGD'], 'test_error')}."
    assert block.caption.startswith("Errors; mean over seeds")


# Settings ----------------------------------------------------------------------------------------


def test_the_papers_grid_is_that_of_three_presets():
    names = ("neyshabur2017 fig2", "neyshabur2017 fig3", "meng2019 fig5")
    assert {find_experiment(name).paper.settings.rates for name in names} == {POWERS_OF_TEN}


def test_subsets_of_one_kind():
    assert subset_step(None, 5) == ("subset:test=5",)
    assert subset_step(7, None) == ("subset:train=7",)
