from pathspace import bounds, generalized, optim
from pathspace.balancing import balance, balance_
from pathspace.basis import BasisPaths
from pathspace.citing import citation
from pathspace.contributions import PathContributions, path_contributions
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
from pathspace.errors import (
    OutOfRange,
    PathspaceError,
    RescalingError,
    TraceError,
    UnsupportedOperation,
)
from pathspace.flatnesses import (
    Flatness,
    ball_bound,
    error_rate,
    flatness,
    pac_bayes,
    path_balance,
)
from pathspace.flow import NoPathSum, Slope, path_slopes
from pathspace.gauge import gauge_, skeleton_init_
from pathspace.losslandscape import Landscape, Towards, Trajectory, landscape, landscapes
from pathspace.measures import Measure, Reading, UnknownMeasure
from pathspace.measuring import measure, self_check
from pathspace.network import Edge, Network, Normalization, Space
from pathspace.norms import BasisPathNorm, basis_path_norm, path_norm
from pathspace.penalties import BasisPathPenalty, PathNormPenalty, Penalty
from pathspace.placement import PlacementError
from pathspace.report import Comparison, Report, compare
from pathspace.rescalings import (
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
from pathspace.selfcheck import SelfCheck
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

__version__: str

__all__ = [
    "BasisPathNorm",
    "BasisPathPenalty",
    "BasisPaths",
    "Comparison",
    "Edge",
    "Flatness",
    "Landscape",
    "Measure",
    "Network",
    "NoPathSum",
    "Normalization",
    "OutOfRange",
    "PathContributions",
    "PathNormPenalty",
    "PathspaceError",
    "Penalty",
    "PlacementError",
    "Reading",
    "Report",
    "Rescaling",
    "RescalingError",
    "SelfCheck",
    "Skeleton",
    "SkeletonError",
    "Slope",
    "Space",
    "Towards",
    "TraceError",
    "Trajectory",
    "UnknownMeasure",
    "UnsupportedOperation",
    "Verdict",
    "are_equivalent",
    "balance",
    "balance_",
    "ball_bound",
    "basis_path_norm",
    "bounds",
    "carry_gradients",
    "choose_skeleton",
    "citation",
    "compare",
    "compose",
    "count_paths",
    "error_rate",
    "flatness",
    "gauge_",
    "generalized",
    "group_norm",
    "identity",
    "inverse",
    "landscape",
    "landscapes",
    "margins",
    "max_norm",
    "measure",
    "norm_21",
    "optim",
    "output_from_paths",
    "pac_bayes",
    "path_activations",
    "path_balance",
    "path_contributions",
    "path_norm",
    "path_slopes",
    "path_values",
    "paths",
    "random_rescaling",
    "rescale",
    "rescale_",
    "rescaling",
    "self_check",
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
