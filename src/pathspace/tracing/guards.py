"""Running a user's model and leaving no trace in it."""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_CONTAINERS = (list, dict, set, collections.OrderedDict, collections.defaultdict)
_ONE_AT_A_TIME = threading.RLock()


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


@contextlib.contextmanager
def mode_readers(model: nn.Module) -> Iterator[set[str]]:
    """Collect who reads the ``training`` flag of a module, torch's own code apart.

    If nobody does, train mode has the graph of eval mode: dropout and batch norm, which do look at
    the flag, have the same units in both. The flag is made a property for as long as this lasts,
    because a search of the code would not find every way to it.
    """
    modules = {id(module) for module in model.modules()}
    readers: set[str] = set()

    def read(module: nn.Module) -> Any:
        if "training" not in module.__dict__:
            raise AttributeError("training")
        reader = str(sys._getframe(1).f_globals.get("__name__"))
        if id(module) in modules and reader.partition(".")[0] != "torch":
            readers.add(reader)
        return module.__dict__["training"]

    def write(module: nn.Module, value: Any) -> None:
        module.__dict__["training"] = value

    with _ONE_AT_A_TIME:
        before = nn.Module.__dict__.get("training")
        type.__setattr__(nn.Module, "training", property(read, write))
        try:
            yield readers
        finally:
            type.__delattr__(nn.Module, "training")
            if before is not None:  # a model that traces another one
                type.__setattr__(nn.Module, "training", before)
