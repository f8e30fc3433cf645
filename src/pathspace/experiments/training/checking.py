"""Values of configurations against the types that they should have."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def as_type(value: Any, wanted: Any) -> Any:
    """The value as the type wants it: lists become tuples, whole numbers floats.

    Nothing else is converted: ``"3"`` is no number, and ``true`` is not 1.

    Raises:
        TypeError: it is not of this type.

    Example:
        >>> as_type(1, float), as_type(["a"], tuple[str, ...]), as_type(None, int | None)
        (1.0, ('a',), None)
        >>> as_type(True, int)
        Traceback (most recent call last):
        TypeError: True is not a whole number
    """
    origin, arguments = get_origin(wanted), get_args(wanted)
    if wanted is Any:
        return value
    if origin in (Union, types.UnionType):
        for kind in sorted(arguments, key=lambda kind: not _is_exactly(value, kind)):
            try:
                return as_type(value, kind)
            except TypeError:
                continue
    elif origin is Literal:
        if value in arguments and type(value) in map(type, arguments):
            return value
    elif origin is tuple:
        if isinstance(value, list | tuple):
            kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
            if len(kinds) == len(value):
                return tuple(as_type(item, kind) for item, kind in zip(value, kinds, strict=True))
    elif origin is dict:
        if isinstance(value, dict):
            return {as_type(k, arguments[0]): as_type(v, arguments[1]) for k, v in value.items()}
    elif wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif isinstance(value, wanted) and not (isinstance(value, bool) and wanted is not bool):
        return value
    raise TypeError(f"{value!r} is not {type_name(wanted)}")


def type_name(wanted: Any) -> str:
    """A type in words.

    Example:
        >>> type_name(float | None), type_name(tuple[str, ...]), type_name(Literal["a", "b"])
        ('a number or nothing', 'a list, each a text', "'a' or 'b'")
    """
    origin, arguments = get_origin(wanted), get_args(wanted)
    if wanted is types.NoneType:
        return "nothing"
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(kind) for kind in arguments)
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin is tuple and arguments[-1] is ...:
        return f"a list, each {type_name(arguments[0])}"
    if origin is tuple:
        return f"a list of {len(arguments)}"
    if origin is dict:
        return "a table"
    return NAMES.get(wanted) or str(getattr(wanted, "__name__", wanted))


def _is_exactly(value: Any, kind: Any) -> bool:
    return type(value) is kind
