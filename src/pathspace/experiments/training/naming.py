"""Things with arguments by one text: ``steps:32000:48000:factor=0.1``.

The name of a builder, then its arguments, those in front by position: the spelling that
preprocessing steps have.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import GenericAlias
from typing import Any, TypeVar, get_type_hints

from pathspace.experiments.training.checking import as_type, type_name
from pathspace.experiments.training.errors import TrialError, unknown

Built = TypeVar("Built")


def build(kind: str, text: str, builders: Mapping[str, Callable[..., Built]]) -> Built:
    """Call the builder that a text names with the arguments that it gives.

    Args:
        kind: what it is, for messages.
        text: ``name``, ``name:7`` or ``name:0.1:key=value``.
        builders: functions or classes by name; their annotations say what arguments may be.

    Raises:
        TrialError: an unknown name, with the nearest one, or arguments that do not fit.

    Example:
        >>> def power(base: float, exponent: int = 2) -> float:
        ...     return base**exponent
        >>> build("number", "power:1.5:exponent=3", {"power": power})
        3.375
        >>> build("number", "power:1.5:exponent=x", {"power": power})
        Traceback (most recent call last):
        pathspace.experiments.training.errors.TrialError: number 'power:1.5:exponent=x': ...
    """
    name, *arguments = (part.strip() for part in text.split(":"))
    if name not in builders:
        raise unknown(kind, name, builders)
    builder = builders[name]
    signature = inspect.signature(builder)
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals:
            keywords[key.strip()] = literal(value)
        else:
            positional.append(literal(argument))
    try:
        bound = signature.bind(*positional, **keywords)
    except TypeError as error:
        usage = ", ".join(signature.parameters) or "no arguments"
        raise TrialError(f"{kind} {text!r}: {error}; {name} takes {usage}") from error
    owner = builder.__init__ if inspect.isclass(builder) else builder
    hints = get_type_hints(owner)
    for key, value in bound.arguments.items():
        several = signature.parameters[key].kind is inspect.Parameter.VAR_POSITIONAL
        wanted = GenericAlias(tuple, (hints[key], ...)) if several else hints[key]
        try:
            bound.arguments[key] = as_type(value, wanted)
        except TypeError:
            raise TrialError(
                f"{kind} {text!r}: {key} should be {type_name(wanted)}, not {value!r}"
            ) from None
    try:
        return builder(*bound.args, **bound.kwargs)
    except ValueError as error:
        raise TrialError(f"{kind} {text!r}: {error}") from error


def literal(text: str) -> bool | int | float | str:
    """What a text on the command line means: a truth value, a number, or a text.

    Example:
        >>> [literal(text) for text in ("true", "3", "1e-3", "paper")]
        [True, 3, 0.001, 'paper']
    """
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
