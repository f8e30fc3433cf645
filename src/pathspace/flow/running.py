"""Runs an evaluator on the program for one sample, more carefully if values leave their range."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pathspace.flow.evaluator import Evaluator, Overflow
from pathspace.flow.program import Program
from pathspace.flow.values import Flow
from pathspace.network import Network

E = TypeVar("E", bound=Evaluator)
T = TypeVar("T")


def evaluate(
    network: Network, make: Callable[[bool], E], finish: Callable[[E, list[Flow]], T | None]
) -> T:
    """Run the program and finish with the flows of the outputs.

    Args:
        network: the traced network.
        make: makes the evaluator; told whether to look at every value.
        finish: makes the result of evaluator and flows, or says by ``None`` that not all is finite.
    """
    program = Program.of(network)
    try:
        evaluator = make(False)
        result = finish(evaluator, evaluator.run(program))
    except Overflow:
        result = None
    if result is None:
        evaluator = make(True)
        result = finish(evaluator, evaluator.run(program))
    if result is None:
        raise evaluator.out_of_range()
    return result
