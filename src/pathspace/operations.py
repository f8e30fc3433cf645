"""The table of operations: what becomes of the units of a value when an operation is applied.

A rule is a function ``rule(t, *args, **kwargs)`` with the signature of the operation, tensors
replaced by :class:`~pathspace.tracing.Value`; ``t`` is the tracer. It returns the value (or values)
that the operation returns. There are five kinds of operation:

* homogeneous and element by element (``relu``, ``dropout``): the units stay;
* moving data (``view``, ``cat``, ``pad``): the same operation is applied to the units;
* combining values (``add``, pooling, ``mean``): the units that are combined get one scale;
* weights (``linear``, ``conv2d``, ``embedding``): new units, and edges to them;
* everything else (``gelu``, ``softmax``): the units that meet it are pinned.

To add an operation, write its rule (or choose one of these kinds) and register it under its name;
all its spellings (function, method, in-place form, operator) are found by that name.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathspace.units import PINNED, ZERO

if TYPE_CHECKING:
    from pathspace.tracing import Tracer, Value

Rule = Callable[..., Any]


@dataclass(frozen=True)
class Operation:
    """An entry of the table: one spelling of an operation."""

    name: str
    rule: Rule
    inplace: bool = False
    inplace_at: int | None = None  # position of the argument `inplace`, if there is one

    def is_inplace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this call overwrites its first argument."""
        if self.inplace_at is None:
            return self.inplace
        given = args[self.inplace_at] if len(args) > self.inplace_at else False
        return bool(kwargs.get("inplace", given))


TABLE: dict[Any, Operation] = {}
NAMED_RESULTS: dict[str, Any] = {
    "max": getattr(torch.return_types, "max", None),
    "min": getattr(torch.return_types, "min", None),
}

_NAMESPACES = (torch, F, torch.Tensor, torch._C._nn, torch.special)
_OPERATORS = {
    "add": ("add", "radd", "iadd"),
    "sub": ("sub", "isub"),
    "rsub": ("rsub",),
    "mul": ("mul", "rmul", "imul"),
    "div": ("truediv", "div", "itruediv", "idiv"),
    "rdiv": ("rtruediv", "rdiv"),
    "matmul": ("matmul", "imatmul"),
    "rmatmul": ("rmatmul",),
    "neg": ("neg",),
    "abs": ("abs",),
    "pow": ("pow", "ipow"),
    "rpow": ("rpow",),
    "getitem": ("getitem",),
    "setitem": ("setitem",),
    "iter": ("iter",),
    "gt": ("gt",),
    "lt": ("lt",),
    "ge": ("ge",),
    "le": ("le",),
    "eq": ("eq",),
    "ne": ("ne",),
}


def register(rule: Rule, *names: str) -> Rule:
    """Enter a rule under names, in all their spellings."""
    for name in names:
        spellings = [(space, name, False) for space in _NAMESPACES]
        spellings += [(space, f"{name}_", True) for space in _NAMESPACES]
        for stem in _OPERATORS.get(name, ()):
            spellings.append((torch.Tensor, f"__{stem}__", stem[0] == "i" and stem != "iter"))
        for space, spelling, inplace in spellings:
            function = getattr(space, spelling, None)
            if inspect.isgetsetdescriptor(function) or isinstance(function, property):
                function = function.__get__
            if callable(function):
                at = _inplace_position(function)
                TABLE[function] = Operation(name, rule, inplace or spelling == "__setitem__", at)
    return rule


def operation(*names: str) -> Callable[[Rule], Rule]:
    """Decorator form of :func:`register`."""
    return lambda rule: register(rule, *names)


def _inplace_position(function: Any) -> int | None:
    code = getattr(function, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code else ()
    return names.index("inplace") if "inplace" in names else None


# Reading a tensor without computing on it ------------------------------------------------------

_INSPECTIONS = frozenset(
    "shape dtype device ndim layout names requires_grad is_leaf grad grad_fn itemsize nbytes size "
    "dim numel nelement ndimension stride storage_offset element_size is_contiguous "
    "is_floating_point is_complex is_nonzero_ is_cuda is_cpu is_meta is_mps is_xpu is_sparse "
    "is_quantized is_nested is_mkldnn is_inference is_conj is_neg is_same_size get_device type_ "
    "data_ptr _version __len__ __repr__ __str__ __format__ __hash__ __dir__ __reduce_ex__ "
    "is_tensor output_nr retains_grad is_shared is_pinned untyped_storage _base _is_view "
    "requires_grad_ _set_grad_enabled is_distributed is_vulkan is_ipu is_maia is_xla is_mtia "
    "is_sparse_csr is_coalesced has_names dense_dim sparse_dim _is_zerotensor is_signed "
    "result_type get_default_dtype volatile name _backward_hooks _grad _grad_fn "
    "register_hook retain_grad".split()
)


def is_inspection(func: Callable[..., Any]) -> bool:
    """Whether a function reads only what is known without data (shape, dtype, ...)."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    return name in _INSPECTIONS


def writes(name: str) -> bool:
    """Whether a function of this name overwrites its first argument."""
    inplace = name.endswith("_") and not name.endswith("__")
    return inplace or name == "__setitem__" or name in ("__iadd__", "__isub__", "__imul__")


@operation(
    "item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "nonzero", "masked_select",
    "unique", "bincount", "multinomial", "__bool__", "__float__", "__int__", "__index__",
    "__contains__", "__complex__", "__array__",
)  # fmt: skip
def data_dependent(t: Tracer, *args: Any, **kwargs: Any) -> Any:
    """Values decide what is computed: no graph could be right for all inputs."""
    t.refuse(
        "its result depends on the data (control flow or shapes computed from values), so one "
        "graph cannot describe the model; move the decision out of forward, or trace the part of "
        "the model that has a fixed structure"
    )


def unknown(t: Tracer, *args: Any, **kwargs: Any) -> Any:
    """An operation in no table: refuse by name, or pin what meets it."""
    if t.on_unknown == "pin":
        return opaque(t, *args, **kwargs)
    weights = [v.weight.name for v in _values((args, kwargs)) if v.weight is not None]
    only = weights and all(v.weight is not None for v in _values((args, kwargs)))
    if only:
        t.refuse(
            f"the parameter `{weights[0]}` is transformed by `{t.operation}` before it is used as "
            "a weight (a parametrization?); remove it first, e.g. with torch.nn.utils.parametrize."
            'remove_parametrizations, or pass on_unknown="pin"'
        )
    t.refuse(
        f"`{t.operation}` is in no table of operations; register a rule for it in "
        'pathspace.operations, or pass on_unknown="pin" to pin the units that meet it'
    )


# Helpers of the rules --------------------------------------------------------------------------


def _values(tree: Any) -> list[Value]:
    """All traced values in nested arguments."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, tuple | list):
        return [value for branch in tree for value in _values(branch)]
    return [tree] if hasattr(tree, "units") and hasattr(tree, "weight") else []


def _value(t: Tracer, units: Tensor, like: Value, dtype: torch.dtype | None = None) -> Value:
    return type(like)(units, dtype or like.dtype)


def _like(x: Value, dtype: torch.dtype | None = None) -> Value:
    """The same units or the same weight, as the result of an operation."""
    return type(x)(x.units, dtype or x.dtype, weight=x.weight, shape=x.shape)


def _move(t: Tracer, x: Value, function: Callable[[Tensor], Tensor], alias: bool = True) -> Value:
    """Apply a movement of data to the units, or to the positions in a parameter."""
    if x.units is None:
        assert x.weight is not None
        positions = x.weight.positions
        if positions is None:
            positions = torch.arange(x.shape.numel()).view(x.shape)
        moved = function(positions)
        weight = type(x.weight)(x.weight.name, moved)
        return type(x)(None, x.dtype, weight=weight, shape=moved.shape)
    result = type(x)(function(x.units), x.dtype)
    if alias:
        result.aliases = x.aliases
        result.aliases.add(result)
    return result


def _batchwise(units: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a movement that leaves axis 0 alone to one row, if all rows are alike."""
    rows = units.shape[0]
    if units.stride(0) == 0 and rows > 1:
        row = function(units[:1])
        return row.expand(rows, *row.shape[1:])
    return function(units)


def _reshape(units: Tensor, shape: Sequence[int]) -> Tensor:
    shape = torch.Size(shape)
    if units.dim() and len(shape) and units.shape[0] == shape[0]:
        units = _batchwise(units, lambda row: row.reshape(row.shape[0], *shape[1:]))
        return _squeeze_constant(units)
    return _squeeze_constant(units.reshape(shape))


def _squeeze_constant(units: Tensor) -> Tensor:
    """Give stride 0 to the axes on which materialised units turn out to be constant."""
    for dim, (size, stride) in enumerate(zip(units.shape, units.stride(), strict=True)):
        if size > 1 and stride != 0:
            first = units.narrow(dim, 0, 1)
            if bool((units == first).all()):
                units = first.expand(units.shape)
    return units


def _ints(values: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes given as several arguments or as one sequence."""
    if len(values) == 1 and isinstance(values[0], tuple | list):
        return tuple(values[0])
    return values


# Homogeneous, element by element ---------------------------------------------------------------


@operation(
    "relu", "leaky_relu", "rrelu", "abs", "absolute", "neg", "negative", "positive", "contiguous",
    "clone", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "hardshrink_zero",
    "conj", "resolve_conj", "resolve_neg", "nan_to_num_zero", "requires_grad",
)  # fmt: skip
def keep(t: Tracer, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Positively homogeneous and element by element: every value keeps its unit."""
    return _like(input)


@operation("detach", "data", "alias", "view_as_real_")
def same_storage(t: Tracer, input: Value) -> Value:
    """The same tensor under another name."""
    return _move(t, input, lambda units: units)


@operation("to", "type", "float", "double", "half", "bfloat16", "cpu", "cuda", "type_as")
def cast(t: Tracer, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Another dtype or device."""
    named = {"float": torch.float32, "double": torch.float64, "half": torch.float16,
             "bfloat16": torch.bfloat16}  # fmt: skip
    dtype = named.get(t.operation, input.dtype)
    for argument in [*args, *kwargs.values()]:
        if isinstance(argument, torch.dtype):
            dtype = argument
        elif _values(argument):
            dtype = argument.dtype
    return _like(input, dtype)


@operation("prelu")
def prelu(t: Tracer, input: Value, weight: Value) -> Value:
    """PReLU: homogeneous in its input; its slopes carry no scale."""
    t.fix(weight)
    return _like(input)


@operation("threshold")
def threshold(
    t: Tracer, input: Value, threshold: float, value: float, inplace: bool = False
) -> Value:
    """Homogeneous only if it is the ReLU."""
    return _like(input) if threshold == 0 and value == 0 else opaque(t, input)


@operation("clamp", "clip", "clamp_min", "clamp_max", "hardtanh")
def clamp(
    t: Tracer,
    input: Value,
    min: Any = None,
    max: Any = None,
    inplace: bool = False,
    *,
    min_val: Any = None,
    max_val: Any = None,
) -> Value:
    """Homogeneous if the bounds are 0 or infinite."""
    if t.operation == "hardtanh":
        min, max = [given if given is not None else default
                    for given, default in ((min_val or min, -1.0), (max_val or max, 1.0))]  # fmt: skip
    bounds = [b for b in (min, max) if b is not None]
    harmless = all(isinstance(b, int | float) and (b == 0 or math.isinf(b)) for b in bounds)
    return _like(input) if harmless else opaque(t, input, *bounds)


@operation("gt", "lt", "ge", "le", "eq", "ne", "greater", "less", "greater_equal", "less_equal",
           "not_equal", "sign", "sgn", "isnan", "isinf", "isfinite", "signbit", "logical_not")  # fmt: skip
def compare(t: Tracer, input: Any, other: Any = 0) -> Value:
    """Comparisons with zero or with the same unit do not depend on scales; others pin."""
    x, y = t.units(input), t.units(other)
    same = torch.equal(*torch.broadcast_tensors(t.partition.find(x), t.partition.find(y)))
    if not same and not bool((y == ZERO).all()) and not bool((x == ZERO).all()):
        for units in (x, y):
            t.pin(units, f"compared with another value in {t.where()}")
    like = _values((input, other))[0]
    shape = torch.broadcast_shapes(x.shape, y.shape)
    dtype = like.dtype if t.operation in ("sign", "sgn") else torch.bool
    return _value(t, torch.tensor(PINNED).expand(shape), like, dtype)


@operation("where")
def where(t: Tracer, condition: Value, input: Any, other: Any) -> Value:
    """Each value is one of the two, so they must have one scale."""
    t.pin(t.units(condition), f"decides in {t.where()}")
    units = t.join(t.units(input), t.units(other))
    shape = torch.broadcast_shapes(units.shape, condition.shape)
    return _value(t, units.expand(shape), _values((input, other, condition))[0])


@operation("masked_fill")
def masked_fill(t: Tracer, input: Value, mask: Value, value: Any) -> Value:
    """Zero (and infinity) agree with every scale."""
    t.pin(t.units(mask), f"decides in {t.where()}")
    infinite = isinstance(value, float) and math.isinf(value)
    return _value(t, t.join(t.units(input), t.units(0 if infinite else value)), input)


@operation("zeros_like", "new_zeros")
def zeros(t: Tracer, input: Value, *size: Any, dtype: Any = None, **kwargs: Any) -> Value:
    """Zeros agree with every scale."""
    shape = _ints(size) if t.operation == "new_zeros" else input.shape
    return _value(t, torch.tensor(ZERO).expand(shape), input, dtype)


@operation("ones_like", "full_like", "rand_like", "randn_like", "empty_like", "new_ones",
           "new_full", "new_tensor", "new_empty", "bernoulli", "randint_like")  # fmt: skip
def constant(t: Tracer, input: Value, *args: Any, dtype: Any = None, **kwargs: Any) -> Value:
    """Values that do not depend on the input's values."""
    sized = t.operation in ("new_ones", "new_full", "new_empty")
    size = args[0] if sized and t.operation == "new_full" else args
    shape = _ints(tuple(size) if isinstance(size, tuple | list) else (size,)) if sized else None
    return _value(t, torch.tensor(PINNED).expand(input.shape if shape is None else shape), input)


# Moving data -----------------------------------------------------------------------------------


@operation("view", "reshape", "view_as", "reshape_as")
def reshape(t: Tracer, input: Value, *shape: Any, **kwargs: Any) -> Value:
    """Another shape, the same values in the same order."""
    sizes = kwargs.get("shape", kwargs.get("size", _ints(shape)))
    if len(sizes) == 1 and isinstance(sizes[0], torch.dtype):
        t.refuse("a view as another dtype reinterprets the bits of the values")
    if len(sizes) == 1 and _values(sizes[0]):
        sizes = sizes[0].shape
    target = torch.empty(input.shape, device="meta").reshape(tuple(sizes)).shape
    return _move(t, input, lambda units: _reshape(units, target))


@operation("flatten", "unflatten", "ravel")
def reshape_by_dims(t: Tracer, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Flatten and unflatten: a reshape whose target the operation itself computes."""
    shape = torch.empty(input.shape, device="meta")
    target = getattr(shape, t.operation)(*args, **kwargs).shape
    return _move(t, input, lambda units: _reshape(units, target))


@operation(
    "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "T", "mT", "H",
    "adjoint", "squeeze", "unsqueeze", "expand", "expand_as", "broadcast_to", "narrow", "select",
    "flip", "fliplr", "flipud", "diagonal", "swapaxes_", "unfold_",
)  # fmt: skip
def move(t: Tracer, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Pure movement: the same operation on the units."""
    args = tuple(_shape_like(a) for a in args)
    return _move(t, input, lambda units: t.function(units, *args, **kwargs))


def _shape_like(argument: Any) -> Any:
    """A stand-in of the right shape for an argument of which only the shape matters."""
    return torch.empty(1).expand(argument.shape) if _values(argument) else argument


@operation("repeat", "tile", "roll", "repeat_interleave", "rot90", "pixel_shuffle",
           "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", "tril", "triu",
           "take_along_dim", "index_select")  # fmt: skip
def rearrange(t: Tracer, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Movement that copies; ``tril`` and ``triu`` put zeros, which agree with every scale."""
    if any(isinstance(v.ref, Tensor) is False for v in _values((args, kwargs))):
        return unknown(t, input, *args, **kwargs)
    args = tuple(a.ref if _values(a) else a for a in args)
    kwargs = {key: a.ref if _values(a) else a for key, a in kwargs.items()}
    moved = _move(t, input, lambda units: t.function(units, *args, **kwargs), alias=False)
    if moved.units is not None:
        moved.units = _squeeze_constant(moved.units)
    return moved


@operation("chunk", "split", "tensor_split", "unbind", "unsafe_chunk", "unsafe_split",
           "split_with_sizes", "hsplit", "vsplit", "dsplit")  # fmt: skip
def divide(t: Tracer, input: Value, *args: Any, **kwargs: Any) -> list[Value]:
    """Movement into several tensors."""
    base = input.units
    if base is None:
        assert input.weight is not None
        base = input.weight.positions
        if base is None:
            base = torch.arange(input.shape.numel()).view(input.shape)
    parts = t.function(base, *args, **kwargs)
    return [_move(t, input, lambda _, part=part: part) for part in parts]  # type: ignore[misc]


@operation("iter")
def iterate(t: Tracer, input: Value) -> Any:
    """Iterating over a tensor."""
    t.refuse("a tensor is iterated over; use .unbind(0)")


@operation("getitem")
def index(t: Tracer, input: Value, key: Any) -> Value:
    """Indexing with integers, slices, None, Ellipsis and constant tensors."""
    keys = key if isinstance(key, tuple) else (key,)
    if any(not isinstance(v.ref, Tensor) and v.ref is not None and not _is_state(v)
           for v in _values(list(keys))):  # fmt: skip
        return unknown(t, input, *keys)
    keys = tuple(_constant_of(t, k) for k in keys)
    if keys and keys[0] == slice(None) and not isinstance(keys[0], Tensor) and input.ndim:
        return _move(t, input, lambda units: _batchwise(units, lambda row: row[keys]))
    return _move(t, input, lambda units: units[keys])


def _is_state(value: Value) -> bool:
    return hasattr(value.ref, "name")


def _constant_of(t: Tracer, key: Any) -> Any:
    if isinstance(key, list):
        return [_constant_of(t, k) for k in key]
    if not _values(key):
        return key
    if _is_state(key):
        return dict(t.model.named_buffers(remove_duplicate=False))[key.ref.name].cpu()
    return key.ref.cpu()


@operation("setitem")
def assign(t: Tracer, input: Value, key: Any, value: Any) -> Value:
    """Writing into a part of a tensor."""
    if len(input.aliases) > 1:
        t.refuse("values are assigned into a tensor that another tensor shares; use torch.cat")
    keys = tuple(_constant_of(t, k) for k in (key if isinstance(key, tuple) else (key,)))
    units = t.units(input).contiguous().clone()
    units[keys] = t.units(value)
    return _value(t, units, input)


@operation("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack")
def concatenate(t: Tracer, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Value:
    """Joining tensors side by side."""
    units = [t.units(x) for x in tensors]
    if t.operation in ("hstack", "vstack", "dstack"):
        return _value(t, _squeeze_constant(t.function(units)), _values(tensors)[0])
    dim = kwargs.get("dim", kwargs.get("axis", args[0] if args else 0))
    rank = max(x.dim() for x in units)
    units = [x for x in units if x.dim() == rank]  # torch.cat passes over empty 1-D tensors
    if rank and dim % (rank + (t.operation == "stack")) != 0:
        rows = units[0].shape[0]
        if rows > 1 and all(x.stride(0) == 0 for x in units):
            joined = t.function([x[:1] for x in units], dim)
            return _value(
                t, _squeeze_constant(joined.expand(rows, *joined.shape[1:])), _values(tensors)[0]
            )
    return _value(t, _squeeze_constant(t.function(units, dim)), _values(tensors)[0])


@operation("pad")
def pad(t: Tracer, input: Value, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Value:  # fmt: skip
    """Padding; zeros agree with every scale, and copies of a constant row keep its unit."""
    units = t.units(input)
    for axis in range(len(pad) // 2):
        before, after = pad[2 * axis], pad[2 * axis + 1]
        dim = units.dim() - 1 - axis
        size = units.shape[dim] + before + after
        harmless = mode != "constant" or not value
        if (before, after) == (0, 0):
            continue
        if harmless and (units.stride(dim) == 0 or units.shape[dim] == 1):
            shape = [*units.shape[:dim], size, *units.shape[dim + 1 :]]
            units = units.narrow(dim, 0, 1).expand(shape)
        elif mode == "constant":
            fill = ZERO if harmless else PINNED
            amounts = [0, 0] * axis + [before, after]
            units = _batchwise(units, lambda row, a=amounts, f=fill: F.pad(row, a, value=f)) if dim else F.pad(units, amounts, value=fill)  # type: ignore[misc]  # fmt: skip
        else:
            shape = [*units.shape[:dim], size, *units.shape[dim + 1 :]]
            units = t.constant_over(units, [d for d in range(units.dim()) if d != dim]).expand(shape)
    return _value(t, units, input)


# Combining values ------------------------------------------------------------------------------


@operation("add")
def add(t: Tracer, input: Any, other: Any, *, alpha: Any = 1) -> Value:
    """A sum: one scale for both. A parameter that is added is a bias."""
    weights = [v for v in _values((input, other)) if v.units is None]
    data = [v for v in (input, other) if v not in weights]
    like = _values((*data, *weights))[0]
    if len(weights) == 2 or (weights and not _values(data)):
        return unknown(t, input, other)
    if not weights:
        return _value(t, t.join(t.units(input), t.units(other)), like)
    return _value(t, _bias(t, weights[0], t.units(data[0])), like)


@operation("sub", "subtract")
def subtract(t: Tracer, input: Any, other: Any, *, alpha: Any = 1) -> Value:
    """A difference is a sum, as far as scales go."""
    return add(t, input, other)  # type: ignore[no-any-return]


@operation("rsub", "maximum", "minimum", "fmax", "fmin")
def reversed_subtract(t: Tracer, input: Any, other: Any, alpha: Any = 1) -> Value:
    """Other minus input, and the larger or smaller of two."""
    return add(t, other, input)  # type: ignore[no-any-return]


def _bias(t: Tracer, weight: Value, units: Tensor) -> Tensor:
    """Add a parameter to values: it becomes edges from the constant to their units."""
    shape = torch.broadcast_shapes(units.shape, weight.shape)
    units = units.expand(shape)
    if bool((t.partition.find(units) == ZERO).any()):
        return t.join(units, t.units(weight).expand(shape))
    skipped = len(shape) - weight.ndim
    keep = [skipped + dim for dim, size in enumerate(weight.shape) if size > 1]
    target = t.constant_over(units, keep)
    t.connect(weight, target.reshape(target.shape[skipped:]), PINNED)
    return units


@operation("mul", "multiply")
def multiply(t: Tracer, input: Any, other: Any) -> Value:
    """A product keeps the scale of one factor if the other carries none."""
    pair = (input, other)
    weights = [v for v in _values(pair) if v.units is None]
    data = [v for v in pair if v not in weights]
    if len(weights) == 2:
        return unknown(t, *pair)
    if weights:
        factor = data[0]
        if not _values(factor) or (t.is_pinned(t.units(factor)) and _is_constant(factor)):
            shape = torch.broadcast_shapes(weights[0].shape, t.units(factor).shape)
            return _move(t, weights[0], lambda positions: positions.expand(shape))
        return _gain(t, weights[0], factor)
    units = [t.units(v) for v in pair]
    like = _values(pair)[0]
    shape = torch.broadcast_shapes(units[0].shape, units[1].shape)
    for scaled, plain in (units, units[::-1]):
        if t.is_pinned(plain):
            return _value(t, scaled.expand(shape), like)
    return opaque(t, *pair)


def _is_constant(value: Value) -> bool:
    """Whether a value is a constant of the model (not computed from its input)."""
    return isinstance(value.ref, Tensor) or _is_state(value)


def _gain(t: Tracer, weight: Value, x: Value) -> Value:
    """Multiply values by a parameter, element by element."""
    units = t.units(x)
    shape = torch.broadcast_shapes(units.shape, weight.shape)
    skipped = len(shape) - weight.ndim
    keep = [skipped + dim for dim, size in enumerate(weight.shape) if size > 1]
    flat = t.partition.find(units.expand(shape).narrow(0, 0, 1) if shape else units)
    others = [dim for dim in range(len(shape)) if dim not in keep]
    varies = others and not torch.equal(flat.amax(others), flat.amin(others))
    if varies:  # one gain for several scales: it cannot move without moving them all
        t.fix(weight)
        return _value(t, units.expand(shape), x)
    source = t.constant_over(units.expand(shape), keep)
    source = source.reshape(source.shape[skipped:])
    target = t.emit(t.layer(weight), weight.shape.numel()).view(weight.shape)
    t.connect(weight, target, source)
    return _value(t, target.expand(shape), x)


@operation("div", "divide", "true_divide")
def divide_by(t: Tracer, input: Any, other: Any, *, rounding_mode: str | None = None) -> Value:
    """Division by a constant keeps the scale; by an activation it pins."""
    if rounding_mode is None and _values(input) and input.units is not None:
        if not _values(other):
            return _like(input)
        if other.units is not None and t.is_pinned(other.units):
            shape = torch.broadcast_shapes(input.shape, other.shape)
            return _value(t, input.units.expand(shape), input)
    if rounding_mode is None and _values(input) and not _values(other):
        return _like(input)  # a weight divided by a number
    return opaque(t, input, other)


@operation("sum", "mean", "nanmean", "nansum", "amax", "amin", "nanmedian", "norm", "std",
           "logical_or_")  # fmt: skip
def reduce(t: Tracer, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Homogeneous reductions over axes: what is combined gets one scale."""
    dim = kwargs.get("dim", kwargs.get("axis"))
    keepdim = kwargs.get("keepdim", False)
    names = ["p", "dim", "keepdim"] if t.operation == "norm" else ["dim", "keepdim"]
    if t.operation == "std":
        names = ["dim", "unbiased", "keepdim"]
    for name, argument in zip(names, args, strict=False):
        if name == "dim":
            dim = argument
        elif name == "keepdim":
            keepdim = argument
    return _value(t, _reduce(t, t.units(input), dim, bool(keepdim)), input)


def _reduce(t: Tracer, units: Tensor, dim: Any, keepdim: bool) -> Tensor:
    rank = units.dim()
    dims = range(rank) if dim is None or dim == () or dim == [] else dim
    dims = [d % rank for d in ([dims] if isinstance(dims, int) else dims)]
    shape = [1 if d in dims else size for d, size in enumerate(units.shape)]
    units = t.constant_over(units, [d for d in range(rank) if d not in dims]) if rank else units
    units = units.expand(shape)
    if keepdim:
        return units
    return units.reshape([size for d, size in enumerate(shape) if d not in dims])


@operation("max", "min")
def extremum(t: Tracer, input: Value, *args: Any, **kwargs: Any) -> Any:
    """Largest value of all, along an axis (with its index), or of two tensors."""
    other = kwargs.get("other", args[0] if args else None)
    if _values(other):
        return add(t, input, other)
    dim = kwargs.get("dim", other)
    if dim is None:
        return _value(t, _reduce(t, t.units(input), None, False), input)
    keepdim = kwargs.get("keepdim", args[1] if len(args) > 1 else False)
    units = _reduce(t, t.units(input), dim, keepdim)
    where = torch.tensor(PINNED).expand(units.shape)
    return [_value(t, units, input), _value(t, where, input, torch.long)]


@operation("cumsum", "cummax", "cummin", "flip_cumsum_")
def accumulate(t: Tracer, input: Value, dim: int, **kwargs: Any) -> Value:
    """Running sums along an axis."""
    if t.operation != "cumsum":
        return unknown(t, input)
    units = t.units(input)
    kept = t.constant_over(units, [d for d in range(units.dim()) if d != dim % units.dim()])
    return _value(t, kept.expand(units.shape), input)


def _pool(t: Tracer, input: Value, spatial: int, largest: Callable[[Tensor], Tensor]) -> Value:
    """Pooling: where a window holds one unit it keeps it, else the units are tied."""
    units = t.units(input)
    lead = units.dim() - spatial
    sample = torch.zeros(1, 1, *units.shape[lead:])
    size = largest(sample).shape[2:]
    dims = range(lead, units.dim())
    if all(units.stride(d) == 0 or units.shape[d] == 1 for d in dims):
        for dim in dims:
            units = units.narrow(dim, 0, 1)
        return _value(t, units.expand(*units.shape[:lead], *size), input)

    def windows(x: Tensor) -> Tensor:
        flat = x.reshape(1, -1, *x.shape[lead:]).double()
        return largest(flat).long().view(*x.shape[:lead], *size)

    return _value(t, t.windows(units, windows), input)


def _max_pool(spatial: int) -> Rule:
    function = getattr(F, f"max_pool{spatial}d")

    def max_pool(
        t: Tracer,
        input: Value,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        def largest(x: Tensor) -> Tensor:
            result: Tensor = function(
                x, kernel_size, stride or None, padding, dilation, ceil_mode
            )
            return result

        pooled = _pool(t, input, spatial, largest)
        if not return_indices and "with_indices" not in getattr(t.function, "__name__", ""):
            return pooled
        where = torch.tensor(PINNED).expand(pooled.shape)
        return [pooled, _value(t, where, input, torch.long)]

    return max_pool


def _avg_pool(spatial: int) -> Rule:
    function = getattr(F, f"max_pool{spatial}d")

    def avg_pool(
        t: Tracer,
        input: Value,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> Value:
        def largest(x: Tensor) -> Tensor:
            result: Tensor = function(x, kernel_size, stride or None, padding, 1, ceil_mode)
            return result

        return _pool(t, input, spatial, largest)

    return avg_pool


def _adaptive_pool(spatial: int) -> Rule:
    function = getattr(F, f"adaptive_max_pool{spatial}d")

    def adaptive_pool(
        t: Tracer, input: Value, output_size: Any, return_indices: bool = False
    ) -> Any:
        sizes = [output_size] * spatial if isinstance(output_size, int) else list(output_size)
        own = input.shape[-spatial:]
        wanted = [o if size is None else size for size, o in zip(sizes, own, strict=True)]
        pooled = _pool(t, input, spatial, lambda x: function(x, wanted))
        if not return_indices:
            return pooled
        where = torch.tensor(PINNED).expand(pooled.shape)
        return [pooled, _value(t, where, input, torch.long)]

    return adaptive_pool


for _n in (1, 2, 3):
    register(_max_pool(_n), f"max_pool{_n}d", f"max_pool{_n}d_with_indices")
    register(_avg_pool(_n), f"avg_pool{_n}d", f"lp_pool{_n}d_")
    register(_adaptive_pool(_n), f"adaptive_avg_pool{_n}d", f"adaptive_max_pool{_n}d")


@operation("interpolate", "upsample", "upsample_nearest", "upsample_bilinear")
def interpolate(t: Tracer, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Upsampling per channel."""
    units = t.units(input)
    size = t.function(torch.zeros(1, 1, *units.shape[2:]), *args, **kwargs).shape[2:]
    units = t.constant_over(units, [0, 1])
    return _value(t, units.expand(input.shape[0], input.shape[1], *size), input)


# Weights ---------------------------------------------------------------------------------------


def _contract(
    t: Tracer, weight: Value, weight_axes: str, x: Value, x_axes: str, out_axes: str
) -> Value:
    """A product of a parameter and values, summed over the axes that are not in ``out_axes``.

    Axes are letters, as in ``einsum``. A unit is written for each place of the parameter's axes
    that are kept; an entry of the parameter runs from the unit at its place in the values.
    """
    sizes = dict(zip(x_axes, x.shape, strict=True)) | dict(
        zip(weight_axes, weight.shape, strict=True)
    )
    shape = [sizes[axis] for axis in out_axes]
    source = t.constant_over(t.units(x), [i for i, axis in enumerate(x_axes) if axis in weight_axes])
    source = _arrange(source, x_axes, weight_axes)
    if weight.units is not None:
        return _fixed_map(t, weight, x, shape)
    written = [axis for axis in weight_axes if axis in out_axes]
    count = math.prod(sizes[axis] for axis in written)
    units = t.emit(t.layer(weight), count)
    target = units.view([sizes[a] if a in written else 1 for a in weight_axes])
    t.connect(weight, target, source)
    return _value(t, _arrange(target, weight_axes, out_axes).expand(shape), x)


def _arrange(units: Tensor, axes: str, wanted: str) -> Tensor:
    """Bring named axes into another order; axes that are missing get size 1."""
    kept = [axes.index(axis) for axis in wanted if axis in axes]
    dropped = [i for i in range(len(axes)) if i not in kept]
    units = units.permute(*kept, *dropped).reshape([units.shape[i] for i in kept])
    for place, axis in enumerate(wanted):
        if axis not in axes:
            units = units.unsqueeze(place)
    return units


def _fixed_map(t: Tracer, weight: Value, x: Value, shape: Sequence[int]) -> Value:
    """A linear map that is no parameter: all that it combines gets one scale."""
    if not t.is_pinned(t.units(weight)):
        if t.is_pinned(t.units(x)):
            return _fixed_map(t, x, weight, shape)
        for value in (weight, x):
            t.pin(t.units(value), f"multiplied by another activation in {t.where()}")
        return _value(t, torch.tensor(PINNED).expand(shape), x)
    one = t.constant_over(t.units(x), [])
    return _value(t, one.reshape(()).expand(shape), x)


@operation("linear")
def linear(t: Tracer, input: Value, weight: Value, bias: Value | None = None) -> Value:
    """y = x Wᵀ + b."""
    lead = "abcdefghijklmn"[: input.ndim - 1]
    if weight.ndim == 1:
        result = _contract(t, weight, "z", input, lead + "z", lead)
    else:
        result = _contract(t, weight, "yz", input, lead + "z", lead + "y")
    return result if bias is None else add(t, result, bias)  # type: ignore[no-any-return]


@operation("matmul", "mm", "bmm", "mv", "dot", "inner_")
def matmul(t: Tracer, input: Value, other: Value) -> Value:
    """A matrix product of which one factor may be a parameter."""
    weights = [v for v in (input, other) if v.units is None]
    if len(weights) == 2:
        return unknown(t, input, other)
    left = "abcdefghijkl"[: input.ndim - 1] + "z" if input.ndim > 1 else "z"
    if other.ndim == 1:
        right = "z"
    elif other.ndim == 2 or not weights:
        right = "ABCDEFGHIJKL"[: other.ndim - 2] + "zy"
    else:
        right = "zy"
    if weights and input.units is None and input.ndim == 2 and other.ndim > 2:
        right = "ABCDEFGHIJKL"[: other.ndim - 2] + "zy"
        return _contract(t, input, "xz", other, right, right[:-2] + "xy")
    if weights and max(weights[0].ndim, 0) <= 2:
        out = left.replace("z", "") + right.replace("z", "")
        if input.units is None:
            return _contract(t, input, left, other, right, out)
        return _contract(t, other, right, input, left, out)
    if weights:
        return unknown(t, input, other)
    batch = torch.broadcast_shapes(input.shape[:-2], other.shape[:-2])
    rows = input.shape[-2:-1] if input.ndim > 1 else ()
    columns = other.shape[-1:] if other.ndim > 1 else ()
    return _fixed_map(t, other, input, [*batch, *rows, *columns])


@operation("rmatmul")
def rmatmul(t: Tracer, input: Value, other: Value) -> Value:
    """The reversed operator."""
    return matmul(t, other, input)  # type: ignore[no-any-return]


@operation("addmm", "baddbmm", "addmv")
def addmm(t: Tracer, input: Value, mat1: Value, mat2: Value, **kwargs: Any) -> Value:
    """input + mat1 @ mat2."""
    if any(factor != 1 for factor in kwargs.values()):
        return unknown(t, input, mat1, mat2)
    return add(t, matmul(t, mat1, mat2), input)  # type: ignore[no-any-return]


@operation("einsum")
def einsum(t: Tracer, equation: str, *operands: Any) -> Value:
    """Two operands, one of them a parameter; no ellipsis and no repeated letters."""
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = tuple(operands[0])
    weights = [v for v in operands if v.units is None]
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    axes = inputs.split(",")
    plain = arrow and "." not in equation and all(len(set(a)) == len(a) for a in axes)
    if len(operands) != 2 or len(weights) != 1 or not plain:
        return unknown(t, *operands)
    w = operands.index(weights[0])
    return _contract(t, operands[w], axes[w], operands[1 - w], axes[1 - w], out)


def _convolution(spatial: int, transposed: bool) -> Rule:
    def convolution(
        t: Tracer,
        input: Value,
        weight: Value,
        bias: Value | None = None,
        stride: Any = 1,
        padding: Any = 0,
        *rest: Any,
        **kwargs: Any,
    ) -> Value:
        names = ["output_padding", "groups", "dilation"] if transposed else ["dilation", "groups"]
        given = dict(zip(names, rest, strict=False)) | kwargs
        groups = given.get("groups", 1)
        dilation = _tuple(given.get("dilation", 1), spatial)
        units = t.units(input)
        channel = units.dim() - spatial - 1
        source = t.constant_over(units, [channel]).reshape(-1)
        channels = weight.shape[1] * groups if transposed else weight.shape[0]
        if units.shape[channel] != (weight.shape[0] if transposed else weight.shape[1] * groups):
            raise RuntimeError(
                f"expected {weight.shape[0] if transposed else weight.shape[1] * groups} input "
                f"channels, got an input of shape {tuple(input.shape)}"
            )
        source = source.expand(units.shape[channel])
        if weight.units is None:
            out = t.emit(t.layer(weight), channels)
            into, from_ = out, source
            if groups > 1:  # (group, output or input within the group)
                into, from_ = into.view(groups, -1), from_.view(groups, -1)
            if transposed:  # weight (input, output within the group, *kernel)
                target = into[None] if groups == 1 else into.repeat_interleave(
                    weight.shape[0] // groups, 0)  # fmt: skip
                t.connect(weight, _kernel(target, spatial), _kernel(source[:, None], spatial))
            else:  # weight (output, input within the group, *kernel)
                origin = from_[None] if groups == 1 else from_.repeat_interleave(
                    channels // groups, 0)  # fmt: skip
                t.connect(weight, _kernel(out[:, None], spatial), _kernel(origin, spatial))
        elif t.is_pinned(weight.units):
            one = t.windows(source.view(groups, -1), lambda x: x.amax(1, keepdim=True))
            out = one.expand(groups, channels // groups).reshape(-1)
        else:
            return opaque(t, input, weight)
        kernel = weight.shape[2:]
        sizes = []
        for axis in range(spatial):
            extent = dilation[axis] * (kernel[axis] - 1) + 1
            step = _tuple(stride, spatial)[axis]
            length = input.shape[channel + 1 + axis]
            if transposed:
                extra = _tuple(given.get("output_padding", 0), spatial)[axis]
                edge = _tuple(padding, spatial)[axis]
                sizes.append((length - 1) * step - 2 * edge + extent + extra)
            elif padding == "same":
                sizes.append(length)
            else:
                edge = 0 if padding == "valid" else _tuple(padding, spatial)[axis]
                sizes.append((length + 2 * edge - extent) // step + 1)
        if min(sizes) < 1:
            raise RuntimeError(f"the kernel {tuple(kernel)} is larger than its padded input")
        shape = [*input.shape[:channel], channels, *sizes]
        result = _value(t, _kernel(out, spatial).expand(shape), input)
        if bias is None:
            return result
        if bias.units is None:
            t.connect(bias, out, PINNED)
            return result
        return _value(t, t.join(t.units(result), _kernel(bias.units, spatial)), input)

    return convolution


def _kernel(units: Tensor, spatial: int) -> Tensor:
    """Append axes of size 1 for the kernel."""
    return units[(..., *(None,) * spatial)]


def _tuple(value: Any, length: int) -> tuple[int, ...]:
    if isinstance(value, tuple | list):
        return tuple(value) if len(value) == length else tuple(value) * length
    return (value,) * length


for _n in (1, 2, 3):
    register(_convolution(_n, False), f"conv{_n}d")
    register(_convolution(_n, True), f"conv_transpose{_n}d")


@operation("embedding")
def embedding(
    t: Tracer,
    input: Value,
    weight: Value,
    padding_idx: Any = None,
    max_norm: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Value:
    """Rows of a table: the columns are units, written from one-hot inputs."""
    if max_norm is not None:
        t.refuse("max_norm rewrites the embedding during the forward pass; set max_norm=None")
    if weight.units is not None:
        t.pin(weight.units, f"indexed in {t.where()}")
        return _value(t, torch.tensor(PINNED).expand(*input.shape, weight.shape[-1]), weight)
    units = t.emit(t.layer(weight), weight.shape[-1])
    t.connect(weight, units[None], PINNED)
    return _value(t, units.expand(*input.shape, len(units)), weight)


@operation("embedding_bag")
def embedding_bag(
    t: Tracer, input: Value, weight: Value, offsets: Value | None = None, *args: Any, **kwargs: Any
) -> Value:
    """Sums, means or maxima of rows of a table."""
    if kwargs.get("max_norm") is not None or (args and args[0] is not None):
        t.refuse("max_norm rewrites the embedding during the forward pass; set max_norm=None")
    rows = embedding(t, input, weight)
    bags = input.shape[:1] if input.ndim == 2 else offsets.shape if offsets else (1,)
    assert rows.units is not None
    one = rows.units.reshape(-1, rows.shape[-1])[0]
    return _value(t, one.expand(*bags, len(one)), rows)


# Normalisation ---------------------------------------------------------------------------------


@operation("batch_norm")
def batch_norm(
    t: Tracer,
    input: Value,
    running_mean: Value | None = None,
    running_var: Value | None = None,
    weight: Value | None = None,
    bias: Value | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Value:
    """Batch norm divides the scale of its input out; weight and bias give its output a new one."""
    from pathspace.network import Normalization

    if not training and running_mean is not None and not _is_constant(running_mean):
        return opaque(t, input, running_mean, running_var, weight, bias)
    channels = input.shape[1]
    before = t.constant_over(t.units(input), [1]).reshape(-1).expand(channels)
    own = [v for v in (weight, bias) if v is not None and v.units is None]
    if weight is not None and own:
        after = t.emit(t.layer(weight) if weight.units is None else t.module, channels)
        for value in (weight, bias):
            if value is not None and value.units is None:
                t.connect(value, after, PINNED)
            elif value is not None:
                t.pin(after, f"{t.where()} has a weight or bias that is no parameter")
    else:
        after = t.emit(t.module or "batch_norm", channels)
        t.pin(after, "batch norm without weight and bias")

    def name(value: Value | None) -> str | None:
        return getattr(value.ref, "name", None) if value is not None else None

    names = [name(v) for v in (weight, bias, running_mean, running_var)]
    for known in t.normalizations:  # one layer used twice has one set of statistics
        if known.mean is not None and known.mean == names[2]:
            t.merge(known.input, before, f"batch norm `{t.module}` used more than once")
    t.normalizations.append(Normalization(t.module, before, after, before, *names, eps))
    shape = [1, channels] + [1] * (input.ndim - 2)
    return _value(t, after.view(shape).expand(input.shape), input)


@operation("layer_norm")
def layer_norm(
    t: Tracer,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    *args: Any,
    **kwargs: Any,
) -> Value:
    """Pins its input; its weight and bias write new units."""
    return _affine(t, opaque(t, input), weight, bias, trailing=0)


@operation("rms_norm")
def rms_norm(
    t: Tracer, input: Value, normalized_shape: Sequence[int], weight: Value | None = None,
    *args: Any, **kwargs: Any,
) -> Value:  # fmt: skip
    """Pins its input; its weight writes new units."""
    return _affine(t, opaque(t, input), weight, None, trailing=0)


@operation("group_norm")
def group_norm(
    t: Tracer, input: Value, num_groups: int, weight: Value | None = None,
    bias: Value | None = None, *args: Any, **kwargs: Any,
) -> Value:  # fmt: skip
    """Pins its input; its weight and bias write new units."""
    return _affine(t, opaque(t, input), weight, bias, trailing=input.ndim - 2)


@operation("instance_norm")
def instance_norm(
    t: Tracer, input: Value, running_mean: Any = None, running_var: Any = None,
    weight: Value | None = None, bias: Value | None = None, *args: Any, **kwargs: Any,
) -> Value:  # fmt: skip
    """Pins its input; its weight and bias write new units."""
    return _affine(t, opaque(t, input), weight, bias, trailing=input.ndim - 2)


def _affine(
    t: Tracer, x: Value, weight: Value | None, bias: Value | None, trailing: int
) -> Value:
    """x * weight + bias, with ``trailing`` axes of x behind those of the parameters."""
    units = t.units(x)
    if weight is not None and weight.units is None:
        written = t.emit(t.layer(weight), weight.shape.numel()).view(weight.shape)
        t.connect(weight, written, PINNED)
        units = _kernel(written, trailing).expand(x.shape)
    if bias is not None and bias.units is None:
        rank = len(bias.shape) + trailing
        lead = len(x.shape) - rank
        target = t.constant_over(units, list(range(lead, lead + len(bias.shape))))
        t.connect(bias, target.reshape([target.shape[lead + d] for d in range(bias.ndim)]), PINNED)
    return _value(t, units, x)


# Everything else -------------------------------------------------------------------------------

_SAME_SHAPE = frozenset(
    "gelu silu mish sigmoid tanh relu6 hardsigmoid hardswish elu selu celu softplus softsign "
    "tanhshrink softshrink hardshrink logsigmoid softmax log_softmax softmin gumbel_softmax exp "
    "exp2 log log2 log10 log1p expm1 sqrt rsqrt square sin cos tan asin acos atan sinh cosh erf "
    "erfc erfinv reciprocal round floor ceil trunc frac alpha_dropout feature_alpha_dropout "
    "local_response_norm normalize logit expit sinc nan_to_num layer_norm rms_norm group_norm "
    "instance_norm clamp clip clamp_min clamp_max hardtanh threshold logical_not".split()
)
_OTHER_SHAPE = (
    "pow rpow fmod remainder rdiv atan2 lerp prod var var_mean std_mean logsumexp cosine_similarity "
    "scaled_dot_product_attention multi_head_attention_forward lstm gru rnn_tanh rnn_relu lstm_cell "
    "gru_cell rnn_tanh_cell rnn_relu_cell bilinear cdist pairwise_distance cross_entropy nll_loss "
    "mse_loss l1_loss smooth_l1_loss binary_cross_entropy binary_cross_entropy_with_logits "
    "kl_div argmax argmin topk sort argsort median mode any all logical_and logical_or one_hot "
    "glu outer cross floor_divide count_nonzero heaviside hypot softmax_backward log_sigmoid "
    "conv_tbc".split()
)


@operation(*_SAME_SHAPE, *_OTHER_SHAPE)
def opaque(t: Tracer, *args: Any, **kwargs: Any) -> Any:
    """Not positively homogeneous (or not known to be): whatever meets it is pinned."""
    values = _values((args, kwargs))
    for value in values:
        if value.units is None:
            t.fix(value)
        else:
            t.pin(value.units, f"meets {t.where()}, which is not positively homogeneous")
    like = next((v for v in values if v.units is not None), values[0])
    if t.operation in _SAME_SHAPE:
        return _value(t, torch.tensor(PINNED).expand(like.shape), like)

    def stand_in(leaf: Any) -> Any:
        if isinstance(leaf, tuple | list):
            return type(leaf)(stand_in(branch) for branch in leaf)
        if isinstance(leaf, dict):
            return {key: stand_in(branch) for key, branch in leaf.items()}
        if not _values(leaf):
            return leaf
        return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")

    result = t.function(*stand_in(args), **stand_in(kwargs))
    single = isinstance(result, Tensor)
    tensors = [result] if single else [leaf for leaf in result if isinstance(leaf, Tensor)]
    if not single and len(tensors) != len(result):
        t.refuse(f"it returns {type(result).__name__}, not only tensors")
    made = [_value(t, torch.tensor(PINNED).expand(x.shape), like, x.dtype) for x in tensors]
    return made[0] if single else made
