"""How large a network is, and what it does on data."""

from __future__ import annotations

from pathspace.entries import NETWORK
from pathspace.measures.measure import Measure, Reading
from pathspace.weightgraph import WeightGraph

DATA = "on the data"

NETWORK_MEASURES = (
    Measure(
        "weights",
        "number of weights that the graph reaches",
        "m",
        NETWORK,
        "weights",
        True,
        lambda s: Reading.of(s.network.m),
    ),
    Measure(
        "free scales",
        "number of scales that rescaling may choose",
        "H",
        NETWORK,
        "scales",
        True,
        lambda s: Reading.of(s.network.H),
    ),
    Measure(
        "invariant ratio",
        "share of the dimensions that rescaling makes redundant",
        "H/m",
        NETWORK,
        "",
        True,
        lambda s: Reading.of(s.network.invariant_ratio),
    ),
    Measure(
        "basis paths",
        "number of independent path values, batch norm folded",
        "m − H",
        NETWORK,
        "paths",
        True,
        lambda s: Reading.of(WeightGraph(s.network).m - s.network.H),
    ),
)

DATA_MEASURES = (
    Measure(
        "samples",
        "number of samples in the data",
        "n",
        DATA,
        "samples",
        True,
        lambda s: Reading.of(s.on_data.samples),
        "data",
    ),
    Measure(
        "loss",
        "mean loss in eval mode",
        "l",
        DATA,
        "",
        True,
        lambda s: Reading.of(s.on_data.loss),
        "data",
    ),
    Measure(
        "error",
        "share of samples that are misclassified",
        "",
        DATA,
        "%",
        True,
        lambda s: Reading.of(100 * s.on_data.error),
        "data",
    ),
    Measure(
        "smallest margin",
        "score of the right class less the largest other score, smallest over the data",
        "min γ",
        DATA,
        "score",
        True,
        lambda s: Reading.of(s.on_data.quantile(0.0)),
        "data",
    ),
    Measure(
        "10 % margin",
        "margin that a tenth of the samples does not exceed",
        "γ",
        DATA,
        "score",
        True,
        lambda s: Reading.of(s.on_data.quantile(0.1)),
        "data",
    ),
    Measure(
        "median margin",
        "margin that half of the samples do not exceed",
        "med γ",
        DATA,
        "score",
        True,
        lambda s: Reading.of(s.on_data.quantile(0.5)),
        "data",
    ),
    Measure(
        "largest input",
        "largest 2-norm of an input",
        "max ‖x‖₂",
        DATA,
        "in",
        True,
        lambda s: Reading.of(s.on_data.inputs.norm),
        "data",
    ),
)
