"""Running a user's model and leaving no trace in it."""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_CONTAINERS = (list, dict, set, collections.OrderedDict, collections.defaultdict)


@contextlib.contextmanager
def unchanged(model: nn.Module, training: bool) -> Iterator[None]:
    """Run in train or eval mode, without autograd; afterwards the model is as it was.

    That is: attributes and what lists, dicts and sets among them hold (so parameters, buffers,
    submodules and hooks too), and which parameters require a gradient.
    """
    kept = []
    for module in model.modules():
        held = [(x, x.copy()) for x in module.__dict__.values() if type(x) in _CONTAINERS]
        kept.append((module, dict(module.__dict__), held))
    learnt = [(p, p.requires_grad) for p in model.parameters()]
    compiled = "torch._dynamo" in sys.modules  # only then can a part of the model be compiled
    eager = torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()
    try:
        for module, _, _ in kept:
            module.__dict__["training"] = training
        with torch.no_grad(), torch.random.fork_rng(devices=[]), eager:
            yield
    finally:
        for module, attributes, held in kept:
            for name in module.__dict__.keys() - attributes.keys():
                del module.__dict__[name]
            module.__dict__.update(attributes)
            for container, before in held:
                container.clear()
                add = container.extend if isinstance(container, list) else container.update
                add(before)
        for parameter, required in learnt:
            parameter.requires_grad_(required)


@contextlib.contextmanager
def module_paths(model: nn.Module, path: list[str]) -> Iterator[None]:
    """Keep the path of the module that is running on top of ``path``; it stays after an error."""

    def enter(name: str, *_: Any) -> None:
        path.append(name)

    def leave(name: str, *_: Any) -> None:
        while path.pop() != name:  # modules whose error was caught did not leave
            pass

    handles = []
    for name, module in model.named_modules():
        before, after = functools.partial(enter, name), functools.partial(leave, name)
        handles.append(module.register_forward_pre_hook(before, prepend=True))
        handles.append(module.register_forward_hook(after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def looks_at_mode(model: nn.Module) -> bool:
    """Whether any code of the model, apart from torch's own, mentions ``training``.

    Only then can train mode have another graph than eval mode: dropout and batch norm, which do
    look at it, have the same units in both. Code is that of the modules' classes, of functions
    they hold or were hooked on, and of functions that these call by name.
    """
    seen: set[Any] = set()
    for module in model.modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        entries = [*module.__dict__.values(), *hooks]
        if type(module) not in seen:
            seen.add(type(module))
            own = [base for base in type(module).__mro__ if not _is_torch(base)]
            entries += [entry for base in own for entry in vars(base).values()]
        if any(_mentions_training(entry, seen) for entry in entries):
            return True
    return False


def _is_torch(thing: Any) -> bool:
    return getattr(thing, "__module__", "").partition(".")[0] in ("torch", "builtins")


def _mentions_training(entry: Any, seen: set[Any]) -> bool:
    """Whether a function (or what wraps one), or one that it calls, mentions ``training``."""
    for attribute in ("__func__", "fget", "func", "__wrapped__"):
        entry = getattr(entry, attribute, None) or entry
    if not isinstance(entry, types.FunctionType) or _is_torch(entry) or entry in seen:
        return False
    seen.add(entry)
    codes = [entry.__code__]
    for code in codes:  # grows while it is walked: functions inside functions
        if "training" in code.co_names or "training" in code.co_consts:
            return True
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    called = {entry.__globals__.get(name) for code in codes for name in code.co_names
              if isinstance(entry.__globals__.get(name), types.FunctionType)}  # fmt: skip
    return any(_mentions_training(function, seen) for function in called)
