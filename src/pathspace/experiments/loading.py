"""Models by reference: what a person types for MODEL and ``--weights`` becomes a module.

A reference is a built-in name (``resnet18``, ``mlp:784-64-10``) or ``package.module:name``, the
spelling of entry points. The two cannot be confused: what follows the colon of a built-in name
starts with a digit, and no Python name does. Weights are read without running code from the file.
"""

from __future__ import annotations

import difflib
import importlib
import os
import pickle
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pathspace.errors import PathspaceError
from pathspace.experiments import models

IMPORT = re.compile(r"(?P<module>[^\W\d][\w.]*):(?P<name>[^\W\d][\w.]*)")
WRAPPERS = ("module.", "_orig_mod.")  # what DistributedDataParallel and torch.compile put in front


class LoadingError(PathspaceError, ValueError):
    """A model or its weights cannot be loaded: unknown name, failing import, keys that differ."""


class LoadedModel(NamedTuple):
    """A model and an input that it accepts (a tuple of them if it takes several)."""

    model: nn.Module
    example: Tensor | tuple[Tensor, ...]


def load_model(
    reference: str,
    weights: str | Path | None = None,
    *,
    input_shapes: Sequence[Sequence[int]] = (),
    input_dtypes: Sequence[torch.dtype] = (),
    batch: int = 1,
    generator: torch.Generator | None = None,
) -> LoadedModel:
    """Build a model by reference, fill in its weights, and make an input for it.

    Args:
        reference: a built-in name, or ``package.module:name`` for a module or for something that
            returns one when it is called without arguments. The current directory is put in front
            of Python's path, and stays there, as with ``python -m``.
        weights: a file for :func:`load_weights`.
        input_shapes: one shape per argument, batch axis included; needed unless the model is
            built in.
        input_dtypes: one dtype per shape, or one for all; float32 if there is none.
        batch: examples in the input of a built-in model whose shape is not given.
        generator: source of the weights of a built-in model, see :func:`models.build`.

    Raises:
        LoadingError: with what was found and what was expected.

    Example:
        >>> model, example = load_model("mlp:4-3-2", batch=5)
        >>> model(example).shape
        torch.Size([5, 2])
        >>> load_model("torch.nn:ReLU", input_shapes=[(1, 3)]).model
        ReLU()
    """
    own = is_import(reference)
    if own and not input_shapes:
        raise LoadingError(f"{reference!r} is no built-in model: the shape of its input is needed")
    model = _import(reference) if own else _build(reference, generator)
    if weights is not None:
        load_weights(model, weights)
    if not input_shapes:
        return LoadedModel(model, models.example_input(reference, batch))
    tensors = [*model.parameters(), *model.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    return LoadedModel(model, _example(input_shapes, input_dtypes, device))


def is_import(reference: str) -> bool:
    """Whether a reference names something to import, rather than a built-in model.

    Example:
        >>> [is_import(text) for text in ("mlp:8-8", "mlp:build", "my.zoo:Net", "resnet18")]
        [False, True, True, False]
    """
    return IMPORT.fullmatch(reference) is not None


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load all parameters and buffers of a model from a file; the keys must be the model's own.

    The prefixes that wrappers put in front of every key (``module.``, ``_orig_mod.``) are removed.
    A tensor that the model has under several names may be in the file under one of them.

    Args:
        model: its tensors are overwritten.
        path: ``.safetensors``, or ``.pt`` or ``.pth`` with a ``state_dict``. The latter two are
            pickles; one that holds anything but tensors and containers is refused.

    Raises:
        LoadingError: no such file, not a file of weights, or keys and shapes that differ.
    """
    path = Path(path)
    expected = model.state_dict(keep_vars=True)
    state = _without_wrappers(_read(path), expected)
    differing = [
        f"{name} ({_shape(state[name])} in the file, {_shape(tensor)} in the model)"
        for name, tensor in expected.items()
        if name in state and not _same_shape(state[name], tensor)
    ]
    missing: list[str] = []
    unexpected: list[str] = []
    if not differing:
        try:
            missing, unexpected = model.load_state_dict(state, strict=False)
        except RuntimeError as error:
            raise LoadingError(f"the weights in {path} do not fit the model: {error}") from error
        given = {id(expected[name]) for name in state if name in expected}
        missing = [name for name in missing if id(expected.get(name)) not in given]
    problems = [
        f"{kind} {_first(names)}"
        for kind, names in (
            ("shapes differ:", differing),
            ("missing from the file:", missing),
            ("not in the model:", unexpected),
        )
        if names
    ]
    if problems:
        raise LoadingError(
            f"the weights in {path} do not fit the model; {'; '.join(problems)}. "
            "Is it the state_dict of the same architecture?"
        )


# Models ------------------------------------------------------------------------------------------


def _build(name: str, generator: torch.Generator | None) -> nn.Module:
    try:
        return models.build(name, generator)
    except ValueError as error:
        own = "; a model of your own is written package.module:callable"
        raise LoadingError(f"{error}{own if 'unknown' in str(error) else ''}") from None


def _import(reference: str) -> nn.Module:
    """The module that ``package.module:name`` is, or returns when called."""
    match = IMPORT.fullmatch(reference)
    assert match is not None
    found = _attribute(_module(match["module"]), match["name"], reference)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise LoadingError(
            f"{reference!r} is of type {type(found).__name__}; expected a torch.nn.Module or "
            "something that returns one when it is called without arguments"
        )
    try:
        model = found()
    except Exception as error:
        raise LoadingError(
            f"calling {reference!r} failed: {type(error).__name__}: {error}; it is called without "
            "arguments, so wrap what needs some in a function that needs none"
        ) from error
    if not isinstance(model, nn.Module):
        raise LoadingError(f"{reference!r} returned {type(model).__name__}, not a torch.nn.Module")
    return model


def _module(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise LoadingError(
                f"there is no Python module {error.name!r} in {here} or on Python's path; a model "
                "of your own is written package.module:callable, a built-in one as in "
                "mlp:784-64-64-10"
            ) from None
        raise LoadingError(f"importing {name!r} failed: {type(error).__name__}: {error}") from error


def _attribute(module: Any, path: str, reference: str) -> Any:
    found = module
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            known = [known for known in vars(found) if not known.startswith("_")]
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise LoadingError(f"{reference!r}: there is no {name!r} there{hint}") from None
    return found


def _example(
    shapes: Sequence[Sequence[int]], dtypes: Sequence[torch.dtype], device: torch.device
) -> Tensor | tuple[Tensor, ...]:
    """Normal noise, and zeros for integers, which are an index into anything."""
    dtypes = dtypes or (torch.float32,)
    if len(dtypes) == 1:
        dtypes = tuple(dtypes) * len(shapes)
    if len(dtypes) != len(shapes):
        raise LoadingError(f"{len(shapes)} input shapes but {len(dtypes)} input dtypes")
    generator = torch.Generator().manual_seed(0)
    tensors = tuple(
        torch.randn(*shape, generator=generator).to(device, dtype)
        if dtype.is_floating_point
        else torch.zeros(*shape, dtype=dtype, device=device)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    )
    return tensors[0] if len(tensors) == 1 else tensors


# Weights -----------------------------------------------------------------------------------------


def _read(path: Path) -> Mapping[str, Any]:
    """The state in a file, on the CPU."""
    if not path.is_file():
        raise LoadingError(f"there is no file {path}")
    if path.suffix not in (".safetensors", ".pt", ".pth"):
        raise LoadingError(f"{path}: weights are read from .safetensors, .pt and .pth files")
    try:
        state = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    except LoadingError:
        raise
    except OSError as error:
        raise LoadingError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # torch and safetensors raise a kind of their own for every damage
        size = path.stat().st_size
        raise LoadingError(
            f"{path} ({size:,} bytes) is empty, cut off, damaged or no file of weights; copy it "
            "again, or save it again with torch.save(model.state_dict(), path) or safetensors' "
            f"save_file. The reader says: {type(error).__name__} {_sentence(error)}"
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
        raise LoadingError(f"{path} holds {type(state).__name__}; expected a state_dict")
    if not any(isinstance(value, Tensor) for value in state.values()):
        held = _first([repr(key) for key in state]) or "nothing"
        raise LoadingError(
            f"{path} holds {held}, none of which is a tensor; save the state_dict by itself"
        )
    return state


def _read_safetensors(path: Path) -> Any:
    try:
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise LoadingError(
            f"{path}: reading .safetensors needs safetensors; pip install 'pathspace[cli]'"
        ) from error
    return load_file(path)


def _read_pickle(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise LoadingError(
            f"{path} is refused: it is damaged, or holds more than tensors, and unpickling that "
            "could run code; save model.state_dict() alone, or use .safetensors"
        ) from error


def _sentence(error: Exception) -> str:
    """What an error says first; torch's go on for long."""
    return str(error).partition(". ")[0]


def _without_wrappers(
    state: Mapping[str, Any], expected: Mapping[str, Tensor]
) -> Mapping[str, Any]:
    """The state without the prefix of a wrapper, if more of its keys are then the model's."""
    for prefix in WRAPPERS:
        if all(name.startswith(prefix) for name in state):
            bare = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
            bare = dict(_without_wrappers(bare, expected))
            if len(bare.keys() & expected.keys()) > len(state.keys() & expected.keys()):
                return bare
    return state


def _same_shape(a: Any, b: Any) -> bool:
    """Whether the shapes agree, as far as there are any: extra state and lazy tensors have none."""
    tensors = all(isinstance(x, Tensor) and not is_lazy(x) for x in (a, b))
    return not tensors or a.shape == b.shape


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "scalar"


def _first(names: Sequence[str], count: int = 4) -> str:
    rest = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + rest
