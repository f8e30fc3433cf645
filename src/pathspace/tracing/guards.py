"""Running a user's model and leaving no trace in it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module

_REGISTRIES = ("_parameters", "_buffers", "_modules")


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Run in eval mode without autograd; afterwards everything in the model is as it was."""
    kept = []
    for module in model.modules():
        registered = {key: dict(module.__dict__[key]) for key in _REGISTRIES}
        kept.append((module, dict(module.__dict__), registered))
    compiled = "torch._dynamo" in sys.modules  # only then can a part of the model be compiled
    eager = torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()
    try:
        for module, _, _ in kept:
            module.__dict__["training"] = False
        with torch.no_grad(), torch.random.fork_rng(devices=[]), eager:
            yield
    finally:
        for module, attributes, registered in kept:
            for name in module.__dict__.keys() - attributes.keys():
                del module.__dict__[name]
            module.__dict__.update(attributes)
            for key, entries in registered.items():
                slots = module.__dict__[key]
                slots.clear()
                slots.update(entries)


@contextlib.contextmanager
def module_paths(model: nn.Module, path: list[str]) -> Iterator[None]:
    """Keep the path of the module that is running on top of ``path``."""
    names = {id(module): name for name, module in model.named_modules()}
    thread = threading.get_ident()

    def enter(module: nn.Module, _: Any) -> None:
        if threading.get_ident() == thread:
            path.append(names.get(id(module), type(module).__name__))

    def leave(module: nn.Module, _: Any, __: Any) -> None:
        if threading.get_ident() == thread and path:
            path.pop()

    before = nn_module.register_module_forward_pre_hook(enter)
    after = nn_module.register_module_forward_hook(leave)
    try:
        yield
    finally:
        before.remove()
        after.remove()
