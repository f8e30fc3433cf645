"""`trace`: follow a model's units by running it once on tensors that have a shape but no data.

A torch-function mode sees every operation of the model's ``forward``: of leaf modules, functional
calls, tensor methods, hooks and parametrizations alike, with the user's own parameters as
arguments. So parameters are matched by identity, not by name, and nothing is hidden in a module
that is treated as a leaf. Beside every activation the tracer carries an integer tensor of the same
shape, the unit that each value belongs to (stride 0 along axes on which it is constant, so that it
costs nothing). :mod:`pathspace.tracing.rules` says for each operation what becomes of the units.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pathspace.errors import TraceError
from pathspace.network import InputSpec, Network, Streams
from pathspace.placement import check_placement, check_wrappers
from pathspace.tracing.graph import Graph, OnUnknown
from pathspace.tracing.guards import mode_readers
from pathspace.tracing.tracer import Tracer
from pathspace.tracing.values import leaves, map_leaves, opened


def trace(
    model: nn.Module,
    example_input: Any,
    *,
    streams: Streams = "pinned",
    on_unknown: OnUnknown = "error",
) -> Network:
    r"""Find the units of a model, the weights between them, and which scales are free.

    For one scale :math:`c_v > 0` per unit, the weights :math:`w_{uv} \leftarrow w_{uv} c_v / c_u`
    give the same function, provided that every unit meets positively homogeneous operations only.
    ``trace`` finds scales of this kind (one per group of tied units). The model is run without
    data: nothing is computed and the model is left as it was. The graph is that of eval mode; what
    train mode uses in another way (a branch of its own, a hidden layer that it returns) is pinned.

    Args:
        model: any module. Wrappers (DataParallel, DistributedDataParallel, torch.compile) are
            unwrapped.
        example_input: a tensor, a tuple of positional arguments, or a mapping of keyword
            arguments, of the shapes that the model takes. Only shapes and dtypes matter.
        streams: what a sum does. ``"pinned"``: units that are added are pinned (the papers' group,
            block by block). ``"shared"``: they share one scale, so a residual stream is scaled as
            a whole (the full group).
        on_unknown: ``"error"`` raises :class:`UnsupportedOperation` for an operation that is in no
            table; ``"pin"`` pins the units that meet it and goes on.

    Returns:
        the :class:`Network`; print it to see layers, units, m, H and what is pinned and why.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
        ... )
        >>> print(ps.trace(model, torch.randn(1, 3)))
        layer  operation  weights  units  scales
        ─────  ─────────  ───────  ─────  ──────
        input  input      -            3  3 pinned: input
        0      linear     4×3 + 4      4  4 free
        2      linear     2×4 + 2      2  2 pinned: output
        <BLANKLINE>
        m = 26 weights, H = 4 free scales, H/m = 0.1538, streams pinned

    Reference: Neyshabur et al. 2017, section 3; Meng et al. 2019, section 3.1.
    """
    if streams not in ("pinned", "shared"):
        raise ValueError(f'streams must be "pinned" or "shared", not {streams!r}')
    if on_unknown not in ("error", "pin"):
        raise ValueError(f'on_unknown must be "error" or "pin", not {on_unknown!r}')
    model = unwrap(model)
    _check_parameters(model)
    args, kwargs = _arguments(model, example_input)
    tracer = Tracer(model, streams, on_unknown)
    with mode_readers(model) as readers:
        outputs = tracer.run(args, kwargs, training=False)
    if readers:
        tracer.graph.agree_with(_train_mode(Tracer(model, streams, on_unknown), args, kwargs))
    return tracer.graph.finish(map_leaves(_spec, (args, kwargs)), outputs)


def _train_mode(tracer: Tracer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """The graph of the model in train mode, as far as it can be run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eval mode has said it already
        try:
            tracer.run(args, kwargs, training=True)
            return tracer.graph
        except TraceError as error:
            reason = str(error)
    warnings.warn(
        f"train mode was not looked at, so rescaling may change what the model computes there: "
        f"{reason}",
        stacklevel=3,
    )
    return tracer.graph


def _spec(leaf: Any) -> Any:
    """What is remembered of an argument of the model."""
    return InputSpec(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf


def unwrap(model: Any) -> nn.Module:
    """The module inside DataParallel, DistributedDataParallel and torch.compile."""
    if not isinstance(model, nn.Module):
        hint = "; call it to make one" if isinstance(model, type) else ""
        raise TraceError(f"model must be a torch.nn.Module, not {type(model).__name__}{hint}")
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif type(model).__name__ == "OptimizedModule" and hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            break
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                f"`{name or type(module).__name__}` is a TorchScript module, whose operations "
                "cannot be seen; pass the original torch.nn.Module"
            )
    return model


def _check_parameters(model: nn.Module) -> None:
    """Every parameter must be whole, have a shape, and memory of its own."""
    check_wrappers(model)
    check_placement(dict(model.named_parameters()))
    by_storage: dict[int, list[tuple[str, Tensor]]] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise TraceError(
                f"`{name}` has no shape yet (a lazy layer); run the model once, then trace it"
            )
        if isinstance(tensor, nn.Parameter) and tensor.layout == torch.strided:
            by_storage.setdefault(tensor.untyped_storage()._cdata, []).append((name, tensor))
    for sharing in by_storage.values():
        sharing.sort(key=lambda entry: entry[1].storage_offset())
        for (name, one), (other, two) in itertools.pairwise(sharing):
            if _overlap(one, two):
                raise TraceError(
                    f"`{name}` and `{other}` are two parameters in the same memory; make them one "
                    f"parameter under two names, e.g. model.{other} = model.{name}"
                )


def _overlap(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors of one storage, given in its order, have an entry in common."""
    gap = two.storage_offset() - one.storage_offset()
    if gap >= _extent(one):
        return False
    taken = torch.zeros(max(_extent(one), gap + _extent(two)), dtype=torch.bool)
    taken.as_strided(one.shape, one.stride()).fill_(True)
    return bool(taken.as_strided(two.shape, two.stride(), gap).any())


def _extent(tensor: Tensor) -> int:
    """How far a tensor reaches in memory, in entries."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps) if tensor.numel() else 0


def _arguments(model: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Split the example into positional and keyword arguments and check the tensors in it."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(example, Mapping):
        kwargs = dict(example)
    elif isinstance(example, tuple | list):
        args = tuple(example)
    else:
        args = (example,)
    tensors = [t for t in leaves((args, kwargs)) if isinstance(t, Tensor)]
    for leaf in leaves((args, kwargs)):
        inside = opened(leaf)
        if inside is not leaf and any(isinstance(x, Tensor) for x in leaves(inside)):
            raise TraceError(
                f"example_input holds tensors inside a {type(leaf).__name__}, where they are not "
                "looked for; pass them in tuples, lists or dicts"
            )
    if not tensors:
        raise TraceError(
            f"example_input must hold at least one tensor, not {type(example).__name__}; pass a "
            "tensor, a tuple of arguments or a dict of keyword arguments"
        )
    devices = {p.device for p in model.parameters()} | {b.device for b in model.buffers()}
    for tensor in tensors:
        if tensor.numel() == 0:
            raise TraceError(
                f"example_input has the empty shape {tuple(tensor.shape)}; pass at least one sample"
            )
        if devices and tensor.device not in devices:
            found = ", ".join(sorted(map(str, devices)))
            raise TraceError(
                f"example_input is on {tensor.device} but the model is on {found}; "
                f"move one of them, e.g. example_input.to({sorted(map(str, devices))[0]!r})"
            )
    return args, kwargs
