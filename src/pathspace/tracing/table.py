"""The table of operations: every spelling of an operation, and the rule that it follows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Rule = Callable[..., Any]


_NAMESPACES: dict[str, Any] = {
    "torch": torch,
    "torch.nn.functional": F,
    "torch.Tensor": torch.Tensor,
    "torch._C._nn": torch._C._nn,
    "torch.special": torch.special,
}


@dataclass(frozen=True)
class Spelling:
    """A function of torch by its place, because not all of them can be copied or pickled."""

    owner: str
    name: str

    @functools.cached_property
    def function(self) -> Any:
        """The function itself (of a property, its getter); ``None`` if torch has none."""
        found: Any = getattr(_NAMESPACES[self.owner], self.name, None)
        is_property = inspect.isgetsetdescriptor(found) or isinstance(found, property)
        return found.__get__ if is_property else found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[type[Spelling], tuple[str, str]]:
        return Spelling, (self.owner, self.name)


@dataclass(frozen=True)
class Operation:
    """An entry of the table: one spelling of an operation."""

    name: str
    rule: Rule
    spelling: Spelling
    inplace: bool = False
    inplace_at: int | None = None  # position of the argument `inplace`, if there is one

    def is_inplace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this call overwrites its first argument."""
        if self.inplace_at is None:
            return self.inplace
        given = args[self.inplace_at] if len(args) > self.inplace_at else False
        return bool(kwargs.get("inplace", given))


TABLE: dict[Any, Operation] = {}

_OPERATORS = {
    "add": "add radd iadd",
    "sub": "sub isub",
    "rsub": "rsub",
    "mul": "mul rmul imul",
    "div": "truediv div itruediv idiv",
    "rdiv": "rtruediv rdiv",
    "matmul": "matmul imatmul",
    "rmatmul": "rmatmul",
    "pow": "pow ipow",
    "rpow": "rpow",
    "floor_divide": "floordiv ifloordiv rfloordiv",
    "remainder": "mod imod rmod",
    "bitwise_and": "and iand rand",
    "bitwise_or": "or ior ror",
    "bitwise_xor": "xor ixor rxor",
    "bitwise_not": "invert",
} | {name: name for name in "neg abs getitem setitem gt lt ge le eq ne".split()}
_INPLACE_OPERATORS = frozenset(
    "iadd isub imul itruediv idiv imatmul ipow ifloordiv imod iand ior ixor setitem".split()
)


def operation(names: str) -> Callable[[Rule], Rule]:
    """Enter a rule under names (separated by blanks), in all their spellings.

    A name stands for the function in ``torch``, in ``torch.nn.functional``, the method or property
    of a tensor, their in-place forms, and the operators of Python.
    """

    def register(rule: Rule) -> Rule:
        for name in names.split():
            spellings = [(Spelling(owner, name), False) for owner in _NAMESPACES]
            spellings += [(Spelling(owner, f"{name}_"), True) for owner in _NAMESPACES]
            for stem in _OPERATORS.get(name, "").split():
                operator = Spelling("torch.Tensor", f"__{stem}__")
                spellings.append((operator, stem in _INPLACE_OPERATORS))
            for spelling, inplace in spellings:
                if callable(spelling.function):
                    at = _inplace_position(spelling.function)
                    TABLE[spelling.function] = Operation(name, rule, spelling, inplace, at)
        return rule

    return register


def _inplace_position(function: Any) -> int | None:
    code = getattr(function, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code else ()
    return names.index("inplace") if "inplace" in names else None


# What reads a tensor without computing on it.
_INSPECTIONS = frozenset(
    """
    shape dtype device ndim layout names name requires_grad requires_grad_ is_leaf grad grad_fn
    itemsize nbytes size dim numel nelement ndimension stride storage_offset element_size
    is_contiguous is_floating_point is_complex is_signed is_cuda is_cpu is_meta is_mps is_xpu
    is_xla is_ipu is_mtia is_maia is_vulkan is_sparse is_sparse_csr is_quantized is_nested
    is_mkldnn is_inference is_conj is_neg is_same_size is_tensor is_shared is_pinned
    is_distributed is_coalesced get_device data_ptr _version __len__ __repr__ __str__ __format__
    __hash__ __dir__ output_nr retains_grad retain_grad register_hook untyped_storage _base
    _is_view has_names dense_dim sparse_dim _is_zerotensor result_type _backward_hooks
    """.split()
)


def function_name(function: Callable[..., Any]) -> str:
    """The name of a torch function; a property's getter has the name of the property."""
    name = getattr(function, "__name__", type(function).__name__)
    if name in ("__get__", "__set__"):
        name = getattr(getattr(function, "__self__", None), "__name__", name)
    return str(name)


def is_inspection(function: Callable[..., Any]) -> bool:
    """Whether a function reads only what is known without data (shape, dtype, ...)."""
    return function_name(function) in _INSPECTIONS


def overwrites(function: Callable[..., Any]) -> bool:
    """Whether a function overwrites its first argument, judged by its name."""
    name = function_name(function)
    if name.startswith("__"):
        return name.strip("_") in _INPLACE_OPERATORS
    return name.endswith("_")
