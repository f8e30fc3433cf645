"""Tensors that are neither activations nor parameters: masks, indices, buffers.

They are computed for real while the model runs, because their values matter: which entries are
zero, which places an index picks. What existed before is never written to; a copy takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from pathspace.tracing.values import leaves, map_leaves


class Constants:
    """Computes constants, and knows which memory may be written and which was.

    Attributes:
        fresh: storages that the model made in this run and that nothing recorded refers to.
        copies: for a tensor that may not be written, the copy that was written in its place.
        written: by storage, the one tensor through which it (or what it stands for) was written,
            and one on that storage, so that its address is not used again.
    """

    def __init__(self) -> None:
        self.fresh: set[int] = set()
        self.copies = WeakIdKeyDictionary()
        self.written: dict[int, tuple[Tensor, Tensor]] = {}

    def compute(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], inplace: bool
    ) -> Any:
        """Apply a function to constants; what it overwrites is copied first if it is not ours."""
        stands_for = {}
        for target in leaves((args[:1] if inplace else (), kwargs.get("out"))):
            if isinstance(target, Tensor):
                self._make_writable(target)
                stands_for[id(self.current(target))] = target
        args, kwargs = map_leaves(self.current, args), map_leaves(self.current, kwargs)
        result = func(*args, **kwargs)
        given = {_storage(leaf) for leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        made = {_storage(leaf) for leaf in leaves(result) if isinstance(leaf, Tensor)}
        self.fresh |= made - given
        return stands_for.get(id(result), result)

    def current(self, leaf: Any) -> Any:
        """The tensor that holds what this one would hold now; anything else as it is."""
        return self.copies.get(leaf, leaf) if isinstance(leaf, Tensor) else leaf

    def recorded(self, tensor: Tensor) -> Tensor:
        """The current tensor, to be referred to: from now on it is not written any more."""
        tensor = self.current(tensor)
        self.fresh.discard(_storage(tensor))
        return tensor

    def overwritten(self, tensor: Tensor) -> None:
        """Note that what a constant holds has moved elsewhere: others on its memory are stale."""
        for memory in (tensor, self.current(tensor)):
            self.written[_storage(memory)] = (tensor, memory)

    def is_stale(self, tensor: Tensor) -> bool:
        """Whether its memory would have been written through another tensor."""
        memories = (tensor, self.current(tensor)) if self.written else ()
        writers = [self.written.get(_storage(memory), (tensor,))[0] for memory in memories]
        return any(writer is not tensor for writer in writers)

    def _make_writable(self, tensor: Tensor) -> None:
        if _storage(self.current(tensor)) not in self.fresh:
            copy = self.current(tensor).clone()
            self.overwritten(tensor)
            self.fresh.add(_storage(copy))
            self.copies[tensor] = copy


def _storage(tensor: Tensor) -> int:
    """What is equal for tensors that share memory."""
    if tensor.layout != torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)
