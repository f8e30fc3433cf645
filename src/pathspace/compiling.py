"""Functions compiled by torch, one form each for everybody who asks."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from pathspace.errors import PathspaceError


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function compiled for the shapes that it meets, at its first call.

    Torch keeps few compiled forms of a function, so every caller gets a function of its own.

    Args:
        function: one without defaults or closure.
    """
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace()
    own = types.FunctionType(code, function.__globals__, function.__name__)
    fused: Callable[..., Any] | None = None

    def call(*args: Any) -> Any:
        nonlocal fused
        # A number would be compiled in, and every other rate be compiled anew.
        args = tuple(torch.tensor(a, dtype=torch.float64) if type(a) is float else a for a in args)
        if fused is None:  # not before: torch imports its compiler here
            fused = torch.compile(own, dynamic=False)
        try:
            return fused(*args)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            raise PathspaceError(
                "fused=True compiles by torch.compile, which did not work here; no weight and no "
                f"gradient has changed. Leave fused out, or install what is missing: {error}"
            ) from error

    return call
