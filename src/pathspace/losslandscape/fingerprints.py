"""What determines a landscape, as short hashes by name: the same in every process."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pathspace.evaluation import Batch, Objective
from pathspace.losslandscape.chart import Coordinates
from pathspace.network import Node, Ref, StateRef

Key = Mapping[str, Any]


def key_of(
    coordinates: Coordinates,
    vectors: Sequence[Tensor],
    axes: tuple[Tensor, ...],
    objective: Objective,
    batches: Sequence[Batch],
    chunk: int,
) -> Key:
    """Everything that determines the losses of a landscape, by name."""
    basis = coordinates.basis
    paths = None if basis is None else (basis.skeleton.incoming, basis.skeleton.outgoing)
    return {
        "space": coordinates.space,
        "model": program_fingerprint(objective.network.program),
        "weights": fingerprint(coordinates.state),
        "skeleton": None if paths is None else fingerprint(paths),
        "directions": fingerprint(vectors),
        "grid": fingerprint(axes),
        "data": fingerprint([(batch.args, batch.kwargs, batch.target) for batch in batches]),
        "loss": name_of(objective.loss),
        "chunk": chunk,
    }


def fingerprint(tree: Any) -> str:
    """A short hash of nested tensors, numbers, names and references; the same in every process."""
    digest = hashlib.sha256()
    _feed(digest, tree)
    return digest.hexdigest()[:16]


def program_fingerprint(program: tuple[Node, ...]) -> str:
    """A short hash of the operations of a model, so that ReLU is not taken for LeakyReLU."""
    return fingerprint([(node.operation, node.module, node.args, node.kwargs) for node in program])


def name_of(function: Any) -> str:
    """A function or module as text, the same in every process."""
    if isinstance(function, nn.Module):
        return repr(function)
    if isinstance(function, functools.partial):
        given = [*map(str, function.args), *(f"{k}={v}" for k, v in function.keywords.items())]
        return f"{name_of(function.func)}({', '.join(given)})"
    named = getattr(function, "__qualname__", type(function).__qualname__)
    return str(named)


def _feed(digest: Any, tree: Any) -> None:
    if isinstance(tree, Tensor):
        whole = tree.detach().cpu().contiguous()
        digest.update(f"{whole.dtype}{tuple(whole.shape)}".encode())
        if whole.nbytes:
            digest.update((ctypes.c_char * whole.nbytes).from_address(whole.data_ptr()))
    elif isinstance(tree, Mapping):
        for key, branch in tree.items():
            digest.update(f"{key}:".encode())
            _feed(digest, branch)
    elif isinstance(tree, tuple | list):
        digest.update(f"({len(tree)}".encode())
        for branch in tree:
            _feed(digest, branch)
    elif isinstance(tree, slice):
        _feed(digest, (tree.start, tree.stop, tree.step))
    elif tree is None or isinstance(
        tree, str | int | float | complex | torch.dtype | torch.device | Ref | StateRef
    ):
        digest.update(f"{tree!r};".encode())
    else:  # its repr might hold an address
        digest.update(f"{type(tree).__qualname__};".encode())
