"""What goes wrong with data, in words that say which file and what to do."""

from __future__ import annotations

import importlib
from typing import Any

from pathspace.errors import PathspaceError


class DataError(PathspaceError, ValueError):
    """A data set, a file of it or a step on it is not what it has to be."""


class FormatError(DataError):
    """The content of a file is not in the format it should have."""


def require(module: str) -> Any:
    """Import a module of the ``experiments`` extra, or say how to install it.

    Example:
        >>> require("math").pi
        3.14159...
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise DataError(
            f"this needs {module.partition('.')[0]}, which is not installed; "
            "pip install 'pathspace[experiments]'"
        ) from error
