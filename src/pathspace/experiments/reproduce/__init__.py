r"""The papers' tables and figures: one experiment each, from trials to a page.

How to add one
==============

Write ``experiments/reproduce/<paper>/<name>.py``, for instance ``meng2019/fig5.py``, with a
module-level ``EXPERIMENT``. That is all: files are found by their names, no list has to be changed,
and ``pathspace reproduce meng2019 fig5`` runs it. Modules without an ``EXPERIMENT`` are helpers. If
one figure needs more than about 250 lines, let the plan stay in ``fig5.py`` and move the rest into
helper modules beside it.

An :class:`Experiment` says what the paper shows, has two presets (``quick``: minutes on two cores,
real data, at least 3 seeds; ``paper``: the published setting), and a *plan*.

**A plan is a generator.** It gets the preset's settings, yields lists of jobs, receives their
results in the same order, and returns :class:`Findings`. Later jobs may depend on earlier results,
and what was learned stays in local variables::

    def plan(settings):
        tuning = yield [Trial(..., lr=rate) for rate in settings.rates]  # list of Outcome
        best = best_rate(...)
        finals = yield [Trial(..., lr=best, seed=seed) for seed in settings.seeds]
        return Findings(...)

A *job* is

* a :class:`~pathspace.experiments.training.Trial`, answered by its ``Outcome`` (``.final``,
  ``.best``, ``.curves``, ``.weights``, ``.status``; weights are read only when asked for); or
* a *computation*, made with ``compute(function, trials, **arguments)`` and answered by a ``Result``
  (``result["name"]``). The function stands in a module, is called as
  ``function(outcomes, data_dir, **arguments)`` with the outcomes of ``trials``, and gives a dict of
  numbers, texts, lists and tensors. Measures, flatness and landscapes of trained networks are
  computations. When you change what it computes, raise ``compute(..., version=2)``.

Every job is done once, whoever asks for it: results are kept by the hash of the configuration, so
an interrupted experiment goes on where it was. So a plan must be deterministic: no clock, no
global random numbers, and the same jobs for the same settings. Yield as many jobs as possible at
once; they run together.

Parts to build from (each once, here):

* :func:`compare` – a comparison of optimizers with its controls: every arm at a common rate and at
  its own best rate by validation error. Used as ``comparison = yield from compare(arms, ...)``.
  :func:`sgd_and_gsgd` gives SGD, SGD from skeleton weights, G-SGD as published, and G-SGD from
  SGD's own start.
* :func:`side_by_side` – several plans at once, such as one ``compare`` per width: their jobs are
  yielded together.
* :func:`metric` – a metric of outcomes as a :class:`Sample` (mean ± standard deviation over seeds,
  shares in percent); :func:`paired_difference` – its difference over seeds with Student's
  confidence interval; :func:`sign_test`; :func:`best_rate`.
* :func:`directed_claim` – a claim that something is below or above 0, judged by its interval;
  :func:`share_of` – what share of a gain the start alone explains, with Fieller's interval.
* :func:`table_of` and :class:`Line` – a table of numbers over seeds, with its data.
* :class:`Figure` – a picture drawn by matplotlib; :class:`Panel` and :func:`draw_panels` – panels
  of curves; :func:`learning_curves` and :func:`learning_block` – curves over epochs of several
  arms, for panels and for the web page.

:class:`Findings` hold, in this order on the page: ``statements`` (what we see, in plain words with
the numbers), ``claims`` (the table "paper · ours · difference · seeds"), ``figures``, further
``tables`` and ``blocks`` of the web page, and ``deviations`` (every way in which this is not the
paper's setting). Where a gain turns out to come from the start or from the rate, a statement says
so. Statements are computed from the numbers, never written beforehand.

Every experiment is tested as soon as its file is there: ``tests/test_reproduce_experiments.py``
runs :func:`rehearse` on both presets, on a few random images. That runs the whole plan, every
training for two iterations: so the ``paper`` preset is known to start, and the analysis to work on
whatever comes (all seeds alike, nothing learned). It also gives the number of jobs that a preset
should state. Test besides what is special about the experiment, with made-up outcomes and
:func:`~pathspace.experiments.reproduce.running.conduct`.

Example:
    A complete experiment.

    >>> from dataclasses import dataclass, replace
    >>> from pathspace.experiments.training import Trial
    >>> from pathspace.experiments.reproduce import (
    ...     Claim,
    ...     Experiment,
    ...     Findings,
    ...     Plan,
    ...     Preset,
    ...     directed_claim,
    ...     metric,
    ...     paired_difference,
    ... )

    >>> @dataclass(frozen=True)
    ... class Settings:
    ...     width: int
    ...     epochs: int
    ...     seeds: tuple[int, ...]

    >>> def plan(settings: Settings) -> Plan[Findings]:
    ...     base = Trial(f"mlp:64-{settings.width}-10", "digits", lr=0.1, epochs=settings.epochs)
    ...     sgd = yield [replace(base, seed=seed) for seed in settings.seeds]
    ...     gsgd = yield [replace(base, seed=s, optimizer="gsgd") for s in settings.seeds]
    ...     errors = metric(gsgd, "test_error"), metric(sgd, "test_error")
    ...     gap = paired_difference(*errors)
    ...     return Findings(
    ...         claims=(
    ...             Claim("SGD, test error (%)", 8.25, errors[1]),
    ...             directed_claim("G-SGD − SGD (%)", "below 0", gap),
    ...         ),
    ...         statements=(f"G-SGD's test error differs from SGD's by {gap} points.",),
    ...         deviations=("Digits stand in for the paper's images.",),
    ...     )

    >>> EXPERIMENT = Experiment(
    ...     name="meng2019 example",
    ...     title="SGD against G-SGD on digits",
    ...     where="Section 5",
    ...     shows="G-SGD has a lower test error than SGD.",
    ...     plan=plan,
    ...     quick=Preset(Settings(width=8, epochs=2, seeds=(0, 1, 2)), jobs=6, time="2 seconds"),
    ...     paper=Preset(Settings(width=64, epochs=100, seeds=(0, 1)), jobs=4, time="1 minute"),
    ... )

    Run it, and print its first table.

    >>> import tempfile
    >>> from pathspace.experiments.executors import Archive
    >>> from pathspace.experiments.reproduce import reproduce
    >>> found = reproduce(EXPERIMENT, "quick", Archive(tempfile.mkdtemp()))
    >>> print(found.findings.table().text())
    Paper and reproduction
    quantity                paper  ours  difference  seeds
    ...
"""

from pathspace.experiments.executors import Computation, Job, Result, compute
from pathspace.experiments.reproduce.controls import Comparison, compare, sgd_and_gsgd
from pathspace.experiments.reproduce.experiment import (
    Experiment,
    Plan,
    Preset,
    PresetName,
    side_by_side,
)
from pathspace.experiments.reproduce.figures import (
    Figure,
    draw_curves,
    learning_block,
    learning_curve,
    learning_curves,
)
from pathspace.experiments.reproduce.findings import Claim, Findings, directed_claim
from pathspace.experiments.reproduce.panels import Panel, draw_panels
from pathspace.experiments.reproduce.papers import PAPERS, Paper
from pathspace.experiments.reproduce.registry import find_experiment, find_experiments
from pathspace.experiments.reproduce.running import Reproduction, rehearse, reproduce
from pathspace.experiments.reproduce.shares import Share, share_of
from pathspace.experiments.reproduce.signs import SignTest, sign_test
from pathspace.experiments.reproduce.statistics import (
    Difference,
    Sample,
    best_rate,
    metric,
    paired_difference,
)
from pathspace.experiments.reproduce.tables import Line, table_of

__all__ = [
    "PAPERS",
    "Claim",
    "Comparison",
    "Computation",
    "Difference",
    "Experiment",
    "Figure",
    "Findings",
    "Job",
    "Line",
    "Panel",
    "Paper",
    "Plan",
    "Preset",
    "PresetName",
    "Reproduction",
    "Result",
    "Sample",
    "Share",
    "SignTest",
    "best_rate",
    "compare",
    "compute",
    "directed_claim",
    "draw_curves",
    "draw_panels",
    "find_experiment",
    "find_experiments",
    "learning_block",
    "learning_curve",
    "learning_curves",
    "metric",
    "paired_difference",
    "rehearse",
    "reproduce",
    "sgd_and_gsgd",
    "share_of",
    "side_by_side",
    "sign_test",
    "table_of",
]
