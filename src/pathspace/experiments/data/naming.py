"""Steps and augmentations by name, for configurations and the command line.

``name``, ``name:7`` or ``name:0.1:seed=3:last=true``: the name of a builder, then its arguments,
those in front by position.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

from pathspace.experiments.data import sampling, steps
from pathspace.experiments.data.augmentation import crop_and_flip
from pathspace.experiments.data.dataset import Augment
from pathspace.experiments.data.errors import DataError
from pathspace.experiments.data.steps import Step

STEPS: dict[str, Callable[..., Step]] = {
    "unit_interval": steps.unit_interval,
    "standardize": steps.standardize,
    "downsample": steps.downsample,
    "average_pool": steps.average_pool,
    "flatten": steps.flatten,
    "corrupt_labels": sampling.corrupt_labels,
    "validation_split": sampling.validation_split,
    "subset": sampling.subset,
}

AUGMENTATIONS: dict[str, Callable[..., Augment]] = {"crop_and_flip": crop_and_flip}


def parse_steps(names: str | Sequence[str]) -> tuple[Step, ...]:
    """The steps of these names, in this order.

    Args:
        names: a list of names with arguments, or one text with commas between them.

    Raises:
        DataError: an unknown name (with the nearest one) or arguments that do not fit.

    Example:
        >>> parsed = parse_steps("average_pool:4, unit_interval, flatten")
        >>> [step.name for step in parsed]
        ['average_pool:4', 'unit_interval', 'flatten']
        >>> parse_steps(["averagepool:7"])
        Traceback (most recent call last):
        pathspace.experiments.data.errors.DataError: unknown step 'averagepool'; did you mean ...
    """
    parts = names.split(",") if isinstance(names, str) else names
    return tuple(_build("step", part.strip(), STEPS) for part in parts if part.strip())


def parse_augmentation(name: str) -> Augment:
    """The augmentation of this name.

    Example:
        >>> augment = parse_augmentation("crop_and_flip:4")
    """
    built: Augment = _build("augmentation", name.strip(), AUGMENTATIONS)
    return built


def _build(kind: str, text: str, builders: Mapping[str, Callable[..., Any]]) -> Any:
    name, *arguments = text.split(":")
    if name not in builders:
        close = difflib.get_close_matches(name.lower(), builders, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise DataError(f"unknown {kind} {name!r}; {hint}known are {', '.join(builders)}")
    builder = builders[name]
    signature = inspect.signature(builder)
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals:
            keywords[key.strip()] = _value(text, value)
        else:
            positional.append(_value(text, argument))
    try:
        bound = signature.bind(*positional, **keywords)
    except TypeError as error:
        usage = ", ".join(signature.parameters) or "no arguments"
        raise DataError(f"{kind} {text!r}: {error}; {name} takes {usage}") from error
    types = get_type_hints(builder)
    for key, value in bound.arguments.items():
        wanted = types[key]
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            expected = getattr(wanted, "__name__", None) or str(wanted)
            raise DataError(f"{kind} {text!r}: {key} should be {expected}, not {value!r}")
    return builder(*positional, **keywords)


def _value(text: str, value: str) -> int | float | bool:
    value = value.strip()
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            continue
    raise DataError(f"{text!r}: {value!r} should be a number, true or false")
