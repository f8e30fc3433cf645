"""Slow and obviously right: what the fast code is compared with."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pathspace import Network
from pathspace.network import Ref, StateRef


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors in nested tuples, lists, dicts, dataclasses and other objects, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if dataclasses.is_dataclass(tree):
        tree = [getattr(tree, field.name) for field in dataclasses.fields(tree)]
    elif hasattr(tree, "things"):
        tree = tree.things
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, tuple | list):
        return [tensor for branch in tree for tensor in tensors_in(branch)]
    return []


def call(model: nn.Module, example: Any, state: dict[str, Tensor] | None = None) -> Any:
    """The model's output for an example as `trace` takes it: tensor, tuple or mapping."""
    kwargs = dict(example) if isinstance(example, dict) else {}
    args = () if kwargs else example if isinstance(example, tuple) else (example,)
    if state is None:
        return model(*args, **kwargs)
    return functional_call(model, state, args, kwargs)


def invariance_dimension(model: nn.Module, examples: Sequence[Any]) -> int:
    """The number of directions in weight space that change no output, from the Jacobian's rank.

    The model must be in float64 and in eval mode. With few examples this is an upper bound. Random
    combinations of the Jacobian's rows have its rank, so a few more than there are weights will do.
    """
    results = [tensors_in(call(model, example)) for example in examples]
    outputs = torch.cat([tensor.reshape(-1) for result in results for tensor in result])
    parameters = [p for p in model.parameters() if p.requires_grad]
    weights = sum(p.numel() for p in parameters)
    assert len(outputs) >= weights, "too few outputs to measure a rank"
    rows = []
    for _ in range(weights + 5):
        gradients = torch.autograd.grad(
            outputs,
            parameters,
            torch.randn_like(outputs),
            retain_graph=True,
            materialize_grads=True,
        )
        rows.append(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    jacobian = torch.stack(rows)
    jacobian = jacobian / jacobian.norm(dim=0).clamp_min(1e-300)  # the size of a weight is its own
    return weights - int(torch.linalg.matrix_rank(jacobian, rtol=1e-11))


def replay(network: Network, *inputs: Tensor) -> Any:
    """Run the recorded program on inputs, with the model's own state, in eval mode."""
    state = {name: tensor.detach().clone() for name, tensor in network.state().items()}
    state |= {f"input {place}": tensor.clone() for place, tensor in enumerate(inputs)}
    results: list[Any] = []
    constants: dict[int, Tensor] = {}

    def resolve(tree: Any) -> Any:
        if isinstance(tree, Ref):
            result = results[tree.node]
            return result if tree.item is None else result[tree.item]
        if isinstance(tree, StateRef):
            return state[tree.name]
        if isinstance(tree, Tensor):  # one copy per constant: the program may write into it
            return constants.setdefault(id(tree), tree.clone())
        if isinstance(tree, tuple) and hasattr(tree, "_fields"):
            return type(tree)(*map(resolve, tree))
        if isinstance(tree, tuple | list):
            return type(tree)(map(resolve, tree))
        if isinstance(tree, dict):
            return {key: resolve(branch) for key, branch in tree.items()}
        if isinstance(tree, slice):
            return slice(*map(resolve, (tree.start, tree.stop, tree.step)))
        return tree

    with torch.no_grad():
        for node in network.program:
            args = resolve(node.args)
            result = node.function(*args, **resolve(node.kwargs))
            results.append(args[0] if node.inplace else result)
        return resolve(network.outputs)
