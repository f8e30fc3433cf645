"""Where parameters are: whole, and on one device. Anything else is refused by name.

Path sums and basis paths run through all layers, so every parameter is needed whole, and the
factors that are computed from one layer are used in the next. A parameter of which this process
holds a part would give a number that looks like any other.
"""

from __future__ import annotations

import sys

from torch import Tensor, nn

from pathspace.errors import TraceError


class PlacementError(TraceError):
    """A parameter is sharded over processes, or parameters are on several devices."""


def check_placement(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Refuse parameters that are sharded (DTensor, FSDP) or spread over several devices.

    Args:
        parameters: the parameters of a model by name.

    Returns:
        the same parameters.

    Example:
        >>> import torch
        >>> layers = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta")
        >>> check_placement({f"{k}.weight": layer.weight for k, layer in enumerate(layers)})
        Traceback (most recent call last):
        pathspace.placement.PlacementError: `0.weight` is on cpu but `1.weight` is on meta; ...
    """
    first: tuple[str, Tensor] | None = None
    for name, parameter in parameters.items():
        if type(parameter) is not nn.Parameter or hasattr(parameter, "_is_flat_param"):
            _check_whole(name, parameter)
        if first is None:
            first = name, parameter
        elif parameter.device != first[1].device:
            raise PlacementError(
                f"`{first[0]}` is on {first[1].device} but `{name}` is on {parameter.device}; "
                "paths run through all layers, so put the whole model on one device, e.g. "
                f"model.to({str(first[1].device)!r})"
            )
    return parameters


def check_wrappers(model: nn.Module) -> None:
    """Refuse a model in which a part is wrapped by FullyShardedDataParallel (FSDP1)."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # else nothing can be wrapped by it
    if fsdp is None:
        return
    for name, module in model.named_modules():
        if isinstance(module, fsdp.FullyShardedDataParallel):
            what = f"`{name}`" if name else "the model"
            raise PlacementError(
                f"{what} is wrapped by FullyShardedDataParallel, which shards parameters; {_REMEDY}"
            )


_REMEDY = (
    "trace, measure and step the model before it is sharded, or a whole copy of it (its weights: "
    "torch.distributed.checkpoint.state_dict.get_model_state_dict with full_state_dict=True); "
    "DistributedDataParallel keeps parameters whole"
)


def _check_whole(name: str, parameter: Tensor) -> None:
    if getattr(parameter, "_is_flat_param", False):
        raise PlacementError(
            f"`{name}` is a FlatParameter of FullyShardedDataParallel: several weights in one "
            f"vector, of which each process holds a part; {_REMEDY}"
        )
    for module, kind in _SHARDED:
        # A kind whose module nobody has imported has no tensors.
        found = getattr(sys.modules.get(module), kind, None)
        if found is not None and isinstance(parameter, found):
            raise PlacementError(
                f"`{name}` is a {kind} (fully_shard, FSDP2, or tensor parallel): each process "
                f"holds a part of it, and paths need all of it; {_REMEDY}"
            )


_SHARDED = (
    ("torch.distributed.tensor", "DTensor"),
    ("torch.distributed._shard.sharded_tensor", "ShardedTensor"),
)
