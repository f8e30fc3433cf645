"""What a rule remembers of parameters: matrices of sheets, of which torch's states are views."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pathspace.optim.rules import Buffer, State
from pathspace.optim.sheets import Sheet


def take_state(sheet: Sheet, buffers: Iterable[Buffer], states_of: dict[Tensor, Any]) -> State:
    """The state of a sheet, made at its first step: tensors as matrices, and one step more.

    The states of its parameters become views of these matrices.

    Args:
        sheet: of the parameters.
        buffers: what the rule remembers.
        states_of: torch's states by parameter.
    """
    states = [states_of[leaf.parameter] for leaf in sheet.leaves]
    result: State = {}
    for buffer in buffers:
        name = buffer.name
        if name not in states[0]:
            matrix = torch.zeros_like(sheet.weight).add_(buffer.initial)
        else:
            matrix = sheet.kept.get(name, sheet.weight)
        views = sheet.split(matrix)
        given = [state.get(name) for state in states]
        if any(
            t is not None and t.data_ptr() != v.data_ptr()
            for t, v in zip(given, views, strict=True)
        ):
            matrix = sheet.join([tensor for tensor in given if tensor is not None])
            views = sheet.split(matrix)
        sheet.kept[name] = result[name] = matrix
        for state, view in zip(states, views, strict=True):
            state[name] = view
    for state in states:
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32)
        result["step"] = state["step"].add_(1)
    return result
