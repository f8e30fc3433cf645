"""State of any nesting (weights, optimizer, random generators) as one safetensors file.

Tensors are stored by safetensors; the dicts, lists and numbers around them are JSON in the header
of the file. So nothing is unpickled, and reading a file cannot run code. A checksum of the whole
file stands in the header too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pathspace.durable.errors import Damaged, StoreError
from pathspace.experiments.data.errors import require

FIELD = "pathspace"
BLANK = "0" * 64  # stands for the checksum while the checksum is computed


def pack(state: Any) -> bytes:
    """A state as the bytes of a safetensors file.

    Args:
        state: tensors, numbers, texts and None in dicts, lists and tuples, at any depth.

    Raises:
        StoreError: there is something else in it; the message says where.

    Example:
        >>> import torch
        >>> state = {"step": 3, 0: [torch.ones(2), None], "betas": (0.9, 0.999)}
        >>> unpack(pack(state))
        {'step': 3, 0: [tensor([1., 1.]), None], 'betas': (0.9, 0.999)}
    """
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, "", tensors)
    # One field only, as the order of several would be left to chance.
    header = json.dumps({"sha256": BLANK, "tree": tree}, separators=(",", ":"))
    save = require("safetensors.torch").save
    content: bytes = save(_apart(tensors), metadata={FIELD: header})
    size = _header_size(content)
    digest = hashlib.sha256(content).hexdigest()
    header_with_digest = content[:size].replace(BLANK.encode(), digest.encode(), 1)
    return b"".join([header_with_digest, memoryview(content)[size:]])  # one copy, not two


def unpack(content: bytes) -> Any:
    """The state in the bytes that :func:`pack` gave.

    Raises:
        Damaged: they are cut off, altered, or something else.
    """
    try:
        size = _header_size(content)
        text = json.loads(content[8:size])["__metadata__"][FIELD]
        header = json.loads(text)
        digest, tree = header["sha256"], header["tree"]
        blank = content[:size].replace(digest.encode(), BLANK.encode(), 1)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"not a state that was saved here ({type(error).__name__})") from error
    found = hashlib.sha256(blank)
    found.update(memoryview(content)[size:])
    if found.hexdigest() != digest:
        raise Damaged("the content does not match its checksum")
    # Copies: the tensors of the library are parts of one buffer, aligned to nothing.
    tensors = unpack_weights(content)
    try:
        return _decode(tree, tensors)
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # with a checksum that fits
        raise Damaged(f"not a state that was saved here ({type(error).__name__})") from error


def pack_weights(weights: Mapping[str, Tensor]) -> bytes:
    """A ``state_dict`` as a plain safetensors file, which ``--weights`` of the commands reads."""
    content: bytes = require("safetensors.torch").save(_apart(weights))
    return content


def unpack_weights(content: bytes) -> dict[str, Tensor]:
    """The ``state_dict`` in a plain safetensors file."""
    try:
        tensors = require("safetensors.torch").load(content)
    except Exception as error:  # the library has a type of its own for each thing it finds
        raise Damaged(f"not a safetensors file: {error}") from error
    return {name: tensors[name].clone() for name in sorted(tensors)}  # the library has no order


# Helpers -----------------------------------------------------------------------------------------


def _header_size(content: bytes) -> int:
    """The length of the header with the eight bytes that say how long it is."""
    size = 8 + int.from_bytes(content[:8], "little")
    if not 8 < size <= len(content):
        raise ValueError("no header")
    return size


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """JSON for a value; containers become ``[kind, ...]``, tensors ``["tensor", name]``."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        name = f"{len(tensors):06d}{path}"
        tensors[name] = value
        return ["tensor", name]
    if isinstance(value, Mapping):
        items = []
        for key, item in value.items():
            if not isinstance(key, int | str):
                raise StoreError(f"the state at {path or '.'} has a key of {type(key).__name__}")
            items.append([key, _encode(item, f"{path}.{key}", tensors)])
        return ["dict", items]
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        parts = [_encode(item, f"{path}.{n}", tensors) for n, item in enumerate(value)]
        return [kind, parts]
    raise StoreError(
        f"the state at {path or '.'} is of type {type(value).__name__}, which is not stored: "
        "tensors, numbers, texts, dicts, lists and tuples are"
    )


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU; those that share memory with an earlier one are copied."""
    found: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        place = plain.untyped_storage().data_ptr()
        found[name] = plain.clone() if place in taken else plain
        taken.add(place)
    return found


def _decode(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(tree, list):
        return tree
    kind, held = tree
    if kind == "tensor":
        return tensors[held]
    if kind == "dict":
        return {key: _decode(item, tensors) for key, item in held}
    items = [_decode(item, tensors) for item in held]
    return tuple(items) if kind == "tuple" else items
