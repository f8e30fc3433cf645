"""Everything about one network in one call, and a check of what is said about invariance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pathspace.basis import BasisPaths
from pathspace.entries import Entry
from pathspace.errors import PathspaceError
from pathspace.evaluation import Data, Loss
from pathspace.measures import Measure, Subject, select
from pathspace.measures import measures as all_measures
from pathspace.network import Network, Streams
from pathspace.performance import Performance, performance
from pathspace.progress import Step, progress_bar
from pathspace.report import Report
from pathspace.rescalings import random_rescaling, rescale
from pathspace.selfcheck import SelfCheck
from pathspace.skeleton import Choice, Skeleton
from pathspace.tracing import trace


def measure(
    model: nn.Module | Network,
    data: Data | None = None,
    loss: Loss = torch.nn.functional.cross_entropy,
    *,
    example_input: Any = None,
    streams: Streams = "pinned",
    choice: Choice | Skeleton | BasisPaths = "modulo",
    p: Sequence[float] = (1, 2, math.inf),
    samples: int | None = None,
    measures: Sequence[str | Measure] | None = None,
    progress: bool | None = None,
    self_check: bool = False,
    name: str | None = None,
) -> Report:
    """Measure everything there is about a network: counts, loss, margins, norms, bounds.

    Norms and bounds are computed in float64. A measure that does not exist for this network (the
    path norm with a sigmoid inside, a bound for perceptrons only) is in the report with its reason.
    The data are read once, in eval mode; the model is left as it was.

    Args:
        model: any module, or a network that was traced already.
        data: pairs (inputs, targets): a ``DataLoader``, another iterable, or one such pair. Without
            data, only what needs no more than the weights is measured.
        loss: takes outputs and targets, returns the mean loss.
        example_input: what to trace the model with; by default the first inputs of ``data``.
        streams: see :func:`pathspace.trace`; not used for a traced network.
        choice: the skeleton of the basis-path norm, see :func:`pathspace.choose_skeleton`.
        p: exponents of the path norms.
        samples: number of training samples in the bounds; by default those in ``data``.
        measures: names to measure only these: of a measure (``"path norm (p=2)"``), of a family
            (``"path norm"``) or of a group (``"path space"``). An expensive one that is left out
            otherwise is measured if its own name is given. A :class:`~pathspace.measures.Measure`
            of your own is measured too.
        progress: whether to show a progress bar; by default if stderr is a terminal.
        self_check: also measure a randomly rescaled copy of the weights, see :func:`self_check`.
        name: what the report calls the network; by default the class of the model.

    Returns:
        the :class:`~pathspace.report.Report`; print it.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)
        ... )
        >>> data = torch.utils.data.TensorDataset(torch.randn(8, 2), torch.arange(8) % 2)
        >>> report = measure(model, torch.utils.data.DataLoader(data, batch_size=4))
        >>> int(report["samples"].value), report["path norm (p=2)"].invariant
        (8, True)
    """
    data = _reusable(data)
    network = _network(model, data, example_input, streams)
    chosen, skipped = select(measures, network, data is not None, p)
    task = _Task(network, chosen, data, loss, choice, samples)
    own = _in_float64(network.state())
    check = None
    with progress_bar("measuring", task.steps * (2 if self_check else 1), progress) as step:
        # What the self-check compares must be in float64, and is not computed a second time.
        entries = task.entries(own, step, run=own if self_check else network.state())
        if self_check:
            check = _check(task, entries, own, step)
    settings = {
        "streams": network.streams,
        "skeleton": choice if isinstance(choice, str) else "given",
        "samples": samples,
    }
    place = {one.name: k for k, one in enumerate(all_measures(p))}
    ordered = sorted([*entries, *skipped], key=lambda entry: place.get(entry.name, len(place)))
    return Report(name or type(network.model).__name__, tuple(ordered), settings, check)


def self_check(
    model: nn.Module | Network,
    data: Data | None = None,
    loss: Loss = torch.nn.functional.cross_entropy,
    *,
    spread: float = 1.0,
    seed: int = 0,
    tolerance: float = 1e-9,
    example_input: Any = None,
    streams: Streams = "pinned",
    choice: Choice | Skeleton | BasisPaths = "modulo",
    p: Sequence[float] = (1, 2, math.inf),
    samples: int | None = None,
    measures: Sequence[str | Measure] | None = None,
    progress: bool | None = None,
) -> SelfCheck:
    r"""Rescale the weights randomly, measure again, and see which numbers moved.

    The function of the network is the same for :math:`w` and for :math:`c \cdot w` with
    :math:`\log c \sim N(0, \text{spread}^2)`, so a measure that moves does not measure the
    function. Both are measured in float64, from states that are passed to the model; its own
    weights are not touched. Scales that a batch norm divides out are rescaled too, which is exact
    in eval mode.

    Args:
        model: any module, or a network that was traced already.
        data: as in :func:`measure`, as are the arguments that are not explained here.
        loss: takes outputs and targets, returns the mean loss.
        spread: standard deviation of the logarithms of the factors.
        seed: of the factors.
        tolerance: the relative change up to which a number counts as the same.
        example_input: what to trace the model with; by default the first inputs of ``data``.
        streams: see :func:`pathspace.trace`.
        choice: the skeleton of the basis-path norm.
        p: exponents of the path norms.
        samples: number of training samples in the bounds.
        measures: names to check only these.
        progress: whether to show a progress bar.

    Returns:
        a :class:`~pathspace.selfcheck.SelfCheck`; print it. ``check.ok`` says whether everything
        that claims to be invariant is.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)
        ... )
        >>> check = self_check(
        ...     model, example_input=torch.ones(1, 2), measures=["path norm (p=2)", "weight norm"]
        ... )
        >>> check.ok, [row.name for row in check.rows if row.moved]
        (True, ['weight norm (p=1)', 'weight norm (p=2)'])
    """
    data = _reusable(data)
    network = _network(model, data, example_input, streams)
    chosen, _ = select(measures, network, data is not None, p)
    task = _Task(network, chosen, data, loss, choice, samples)
    own = _in_float64(network.state())
    with progress_bar("checking", 2 * task.steps, progress) as step:
        return _check(task, task.entries(own, step), own, step, spread, seed, tolerance)


# Steps -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    """What to measure, on which network and which data."""

    network: Network
    chosen: Sequence[Measure]
    data: Any
    loss: Loss
    choice: Choice | Skeleton | BasisPaths
    samples: int | None

    @property
    def reads_data(self) -> bool:
        """Whether there are data, and something to measure that needs them."""
        return self.data is not None and any(one.needs == "data" for one in self.chosen)

    @property
    def batches(self) -> int:
        """Number of batches, as far as it is known."""
        if not self.reads_data:
            return 0
        try:
            return len(self.data)
        except TypeError:
            return 1

    @property
    def steps(self) -> int:
        """How often ``step`` is called by :meth:`entries`."""
        return self.batches + len(self.chosen)

    def entries(
        self,
        state: Mapping[str, Tensor],
        step: Step,
        *,
        run: Mapping[str, Tensor] | None = None,
        own: bool = True,
    ) -> list[Entry]:
        """Measure everything for one state in float64; ``run`` is what the data are run with."""
        run = state if run is None else run
        result = self._performance(run, state is run, step) if self.reads_data else None
        subject = Subject(
            self.network, state, self.choice, result, self.samples, own, self.data, self.loss
        )
        entries = []
        for one in self.chosen:
            step(one.name)
            entries.append(one.entry(subject))
        return entries

    def _performance(
        self, state: Mapping[str, Tensor], in_float64: bool, step: Step
    ) -> Performance:
        remaining = iter(range(1, self.batches))

        def advance() -> None:
            if next(remaining, None) is not None:
                step("data")

        step("data")
        options: Any = {"advance": advance, "dtype": torch.float64 if in_float64 else None}
        try:
            return performance(self.network, self.loss, self.data, state, **options)
        except RuntimeError as error:
            if not in_float64 or "dtype" not in str(error):
                raise
            raise PathspaceError(
                f"the self-check needs float64, which the model or the loss does not work in: "
                f"{error}; check without data, or remove conversions to other dtypes"
            ) from error


def _check(
    task: _Task,
    before: list[Entry],
    state: Mapping[str, Tensor],
    step: Step,
    spread: float = 1.0,
    seed: int = 0,
    tolerance: float = 1e-9,
) -> SelfCheck:
    """Measure again with rescaled weights."""
    network = task.network
    # In eval mode a scale in front of a batch norm is exact, if the statistics are its own.
    own = all(norm.variance is not None for norm in network.normalizations)
    generator = torch.Generator().manual_seed(seed)
    c = random_rescaling(network, spread, generator=generator, normalized=own)
    after = task.entries(rescale(network, c, state), step, own=False)
    return SelfCheck.of(before, after, spread=spread, seed=seed, tolerance=tolerance)


# What was asked for ------------------------------------------------------------------------------


def _network(model: Any, data: Any, example_input: Any, streams: Streams) -> Network:
    if isinstance(model, Network):
        return model
    if example_input is None:
        if data is None:
            raise PathspaceError(
                "measuring a model needs data or example_input, to trace it; or pass a Network"
            )
        with torch.random.fork_rng(devices=[]):  # a shuffling loader draws from torch's generator
            example_input = next((pair[0] for pair in data if isinstance(pair, tuple | list)), None)
        if example_input is None:
            raise PathspaceError("the data is empty or gives no pairs (inputs, targets)")
    return trace(model, example_input, streams=streams)


def _reusable(data: Any) -> Any:
    """The data as something that can be read more than once."""
    if isinstance(data, tuple):
        return [data]
    return list(data) if isinstance(data, Iterator) else data


def _in_float64(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.detach().double() if tensor.is_floating_point() else tensor.detach()
        for name, tensor in state.items()
    }
