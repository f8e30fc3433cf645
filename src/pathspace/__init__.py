"""pathspace: the positively scale-invariant geometry of ReLU networks, for PyTorch."""

from pathspace import bounds, generalized
from pathspace.balancing import balance, balance_
from pathspace.basis import BasisPaths
from pathspace.enumeration import (
    count_paths,
    output_from_paths,
    path_activations,
    path_values,
    paths,
    structure_matrix,
    structure_rank,
)
from pathspace.equivalence import Verdict, are_equivalent
from pathspace.errors import PathspaceError, RescalingError, TraceError, UnsupportedOperation
from pathspace.flow import NoPathSum
from pathspace.gauge import gauge_, skeleton_init_
from pathspace.network import Edge, Network, Normalization, Space
from pathspace.norms import BasisPathNorm, basis_path_norm, path_norm
from pathspace.penalties import BasisPathPenalty
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
from pathspace.skeleton import Skeleton, SkeletonError, choose_skeleton
from pathspace.spectral import spectral_complexity, spectral_norm, spectral_norms
from pathspace.tracing import trace
from pathspace.weightnorms import (
    group_norm,
    margins,
    max_norm,
    norm_21,
    weight_norm,
)

__version__ = "0.1.0"

__all__ = [
    "BasisPathNorm",
    "BasisPathPenalty",
    "BasisPaths",
    "Edge",
    "Network",
    "NoPathSum",
    "Normalization",
    "PathspaceError",
    "Rescaling",
    "RescalingError",
    "Skeleton",
    "SkeletonError",
    "Space",
    "TraceError",
    "UnsupportedOperation",
    "Verdict",
    "are_equivalent",
    "balance",
    "balance_",
    "basis_path_norm",
    "bounds",
    "carry_gradients",
    "choose_skeleton",
    "compose",
    "count_paths",
    "gauge_",
    "generalized",
    "group_norm",
    "identity",
    "inverse",
    "margins",
    "max_norm",
    "norm_21",
    "output_from_paths",
    "path_activations",
    "path_norm",
    "path_values",
    "paths",
    "random_rescaling",
    "rescale",
    "rescale_",
    "rescaling",
    "skeleton_init_",
    "spectral_complexity",
    "spectral_norm",
    "spectral_norms",
    "structure_matrix",
    "structure_rank",
    "trace",
    "unbalanced_rescaling",
    "weight_norm",
]
