"""Computations: pure functions by name, whose results are kept like those of trials."""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pathspace.durable.files import canonical
from pathspace.experiments.executors.errors import JobError
from pathspace.experiments.training import Trial


@dataclass(frozen=True)
class Computation:
    """A call of a function that always gives the same, so that it is computed once.

    The function is called as ``function(outcomes, data_dir, **arguments)`` and gives a mapping of
    numbers, texts, lists and tensors, at any depth. Make one with :func:`compute`.

    Attributes:
        function: ``package.module:name``.
        arguments: as JSON knows them.
        trials: those whose outcomes the function is given; they are finished before.
        version: raised by whoever changes what the function computes.
    """

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    trials: tuple[Trial, ...] = ()
    version: int = 1

    @functools.cached_property
    def key(self) -> str:
        """SHA-256 of all that determines the result."""
        return hashlib.sha256(canonical(self.to_dict()).encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.key)

    def to_dict(self) -> dict[str, Any]:
        """The computation as data for JSON; trials by their keys."""
        return {
            "function": self.function,
            "arguments": dict(self.arguments),
            "trials": [trial.key for trial in self.trials],
            "version": self.version,
        }

    @property
    def title(self) -> str:
        """The computation in a few words."""
        plain = {k: v for k, v in self.arguments.items() if not isinstance(v, dict | list)}
        said = ", ".join(f"{name} {value}" for name, value in plain.items())
        name = self.function.partition(":")[2].replace("_", " ")
        return f"{name} ({said})" if said else name

    def resolve(self) -> Callable[..., Mapping[str, Any]]:
        """The function itself.

        Raises:
            JobError: there is none of that name.
        """
        module, _, name = self.function.partition(":")
        try:
            found: Callable[..., Mapping[str, Any]] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise JobError(f"there is no function {self.function}: {error}") from error
        return found


@dataclass(frozen=True, eq=False)
class Result:
    """What a computation came to.

    Attributes:
        computation: what was computed.
        values: what the function gave.
        seconds: how long it took.
        file: where the archive has it.
    """

    computation: Computation
    values: Mapping[str, Any]
    seconds: float = 0.0
    file: Path | None = None

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def compute(
    function: Callable[..., Mapping[str, Any]],
    trials: Sequence[Trial] = (),
    *,
    version: int = 1,
    **arguments: Any,
) -> Computation:
    """A computation from a function of a module.

    Raises:
        JobError: the function has no name that another process could import it by, or an argument
            is not JSON.

    Example:
        >>> from pathspace.experiments.executors.computation import example
        >>> job = compute(example, number=3)
        >>> job.function.partition(":")[2], job.title
        ('example', 'example (number 3)')
    """
    name = f"{function.__module__}:{function.__qualname__}"
    if "<" in name or "." in function.__qualname__ or function.__module__ == "__main__":
        raise JobError(f"{name} cannot be imported by another process; define it in a module")
    try:
        plain = json.loads(canonical(arguments))
    except (TypeError, ValueError) as error:
        raise JobError(f"the arguments of {name} are not JSON: {error}") from error
    return Computation(name, plain, tuple(trials), version)


def example(outcomes: Sequence[Any], data_dir: Any, number: int) -> dict[str, Any]:
    """The square of a number: the least that a computation can be."""
    return {"square": number**2}
