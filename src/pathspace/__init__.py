"""pathspace: the positively scale-invariant geometry of ReLU networks, for PyTorch."""

from pathspace.balancing import balance, balance_
from pathspace.errors import PathspaceError, RescalingError, TraceError, UnsupportedOperation
from pathspace.network import Edge, Network, Normalization, Space
from pathspace.rescaling import (
    Rescaling,
    carry_gradients,
    compose,
    identity,
    inverse,
    random_rescaling,
    rescale,
    rescale_,
    rescaling,
    unbalanced_rescaling,
)
from pathspace.tracing import trace

__version__ = "0.1.0"

__all__ = [
    "Edge",
    "Network",
    "Normalization",
    "PathspaceError",
    "Rescaling",
    "RescalingError",
    "Space",
    "TraceError",
    "UnsupportedOperation",
    "balance",
    "balance_",
    "carry_gradients",
    "compose",
    "identity",
    "inverse",
    "random_rescaling",
    "rescale",
    "rescale_",
    "rescaling",
    "trace",
    "unbalanced_rescaling",
]
