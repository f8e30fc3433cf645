"""What becomes of the units of a value when an operation is applied to it.

A rule is a function ``rule(graph, *args, **kwargs)`` with the signature of the operation, tensors
replaced by :class:`~pathspace.tracing.values.Value`. It returns the value (or values) that the
operation returns. There are five kinds of operation:

* homogeneous and element by element (``relu``, ``dropout``): the units stay;
* moving data (``view``, ``cat``, ``pad``): the same operation is applied to the units;
* combining values (``add``, pooling, ``mean``): the units that are combined get one scale;
* weights (``linear``, ``conv2d``, ``embedding``): new units, and edges to them;
* everything else (``gelu``, ``softmax``): the units that meet it are pinned.

To add an operation, write its rule (or choose one of these kinds) and register it under its name;
all its spellings (function, method, in-place form, operator) are found by that name.
"""

from pathspace.tracing.rules import (
    combining,
    elementwise,
    movement,
    normalization,
    pooling,
    weights,
)
from pathspace.tracing.rules.other import opaque, unknown

__all__ = [
    "combining",
    "elementwise",
    "movement",
    "normalization",
    "opaque",
    "pooling",
    "unknown",
    "weights",
]
