"""pathspace: the positively scale-invariant geometry of ReLU networks, for PyTorch.

A name is imported when it is first used, so that a program pays for the parts it works with.
`__init__.pyi` says the same to type checkers and editors.
"""

import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MODULES = ("bounds", "generalized", "optim")
_NAMES = {
    "balancing": "balance balance_",
    "basis": "BasisPaths",
    "citing": "citation",
    "contributions": "PathContributions path_contributions",
    "enumeration": """count_paths output_from_paths path_activations path_values paths
        structure_matrix structure_rank""",
    "equivalence": "Verdict are_equivalent",
    "errors": "OutOfRange PathspaceError RescalingError TraceError UnsupportedOperation",
    "flatnesses": "Flatness ball_bound error_rate flatness pac_bayes path_balance",
    "flow": "NoPathSum Slope path_slopes",
    "gauge": "gauge_ skeleton_init_",
    "losslandscape": "Landscape Towards Trajectory landscape landscapes",
    "measures": "Measure Reading UnknownMeasure",
    "measuring": "measure self_check",
    "network": "Edge Network Normalization Space",
    "norms": "BasisPathNorm basis_path_norm path_norm",
    "penalties": "BasisPathPenalty PathNormPenalty Penalty",
    "placement": "PlacementError",
    "report": "Comparison Report compare",
    "rescalings": """Rescaling carry_gradients compose identity inverse random_rescaling rescale
        rescale_ rescaling unbalanced_rescaling""",
    "selfcheck": "SelfCheck",
    "skeleton": "Skeleton SkeletonError choose_skeleton",
    "spectral": "spectral_complexity spectral_norm spectral_norms",
    "tracing": "trace",
    "weightnorms": "group_norm margins max_norm norm_21 weight_norm",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted([*_MODULES, *_HOMES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value  # found without this function from now on
        return value
    # With both, Python asks "Did you mean?".
    message, module = f"module {__name__!r} has no attribute {name!r}", sys.modules[__name__]
    raise AttributeError(message, name=name, obj=module)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
