"""Random networks: descriptions of all kinds of layers, nested, up to 60 deep, down to width 1.

A description prints as what makes it. Everything about a network follows from its seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from architectures import (
    Act,
    BatchNorm,
    Concat,
    Dropout,
    Flatten,
    Layer,
    LayerNorm,
    Map,
    Pool,
    Residual,
    Shape,
    Spec,
    Split,
    Upsample,
    example_input,
    random_network,
    sequence,
    shape_after,
)
from fuzz.layers import (
    JOINS,
    RAW,
    Conv,
    Embed,
    FromTable,
    Join,
    Op,
    Raw,
    Sharing,
    Tokens,
    Window,
)
from fuzz.unweighted import OPERATIONS
from operations import CASES

LARGEST = 400  # values of a sample anywhere
TABLE = [
    name
    for name, case in CASES.items()
    if getattr(case.draw, "args", ()) and case.on_unknown == "error" and case.draw.args[0] != ()
    and "no batch" not in name and "outputs:" not in name and "train mode" not in name
]  # fmt: skip
KINDS = {"mixed": 20, "deep": 1, "thin": 2, "laws": 4, "table": 4, "words": 2}  # how often
REFUSED = ["fft", "gather", "item", "branch", "renorm"]


def draw(seed: int) -> Spec:
    """The network of a seed."""
    random = Random(seed)
    kind = random.choices(list(KINDS), list(KINDS.values()))[0]
    if kind == "laws":
        return random_network(random)
    axes = random.choice([0, 0, 1, 1, 2, 2, 3])
    shape: Shape = (random.randint(1, 5), *(random.randint(1, 6 - axes) for _ in range(axes)))
    depth = random.randint(1, 6)
    begin: list[Layer] = []
    if kind == "deep":
        shape, depth = shape[:2], random.choice([20, 40, 60])
    elif kind == "thin":
        shape = (1, *shape[1:])
    elif kind == "words":
        shape = (random.randint(1, 3),)
        begin = [Embed(random.randint(1, 4), random.choice(["", "sum", "mean", "max"]))]
    elif kind == "table":
        begin = [FromTable(random.choice(TABLE))]
        depth = random.randint(0, 2)
    drawing = Drawing(random, shape, width=1 if kind == "thin" else 5, is_deep=kind == "deep")
    drawing.add(begin)
    if kind != "table":
        drawing.add_weight()
    for _ in range(depth):
        drawing.add_block()
    drawing.finish()
    return Spec(shape, tuple(drawing.layers), random.randint(0, 2**16))


def batch_of(spec: Spec, size: int = 5) -> Tensor:
    """Inputs for a network, those of a table of words among them."""
    if spec.layers and isinstance(spec.layers[0], Embed):
        generator = torch.Generator().manual_seed(spec.seed + 1)
        return torch.randint(5, (size, *spec.shape), generator=generator)
    return example_input(spec, size)


def smaller(spec: Spec) -> list[Spec]:
    """Simpler networks: a layer less, a block in place of which stands what it holds."""
    found = []
    for layers in _fewer(spec.layers):
        candidate = replace(spec, layers=layers)
        try:
            shape_after(layers, spec.shape)
            sequence(layers, spec.shape)
        except Exception:  # it does not fit together any more
            continue
        found.append(candidate)
    return found


def _fewer(layers: tuple[Layer, ...]) -> list[tuple[Layer, ...]]:
    found = []
    for size in (len(layers) // 2, 1):
        for start in range(0, len(layers), max(size, 1)):
            found.append(layers[:start] + layers[start + size :])
    for place, layer in enumerate(layers):
        inner: list[Layer | tuple[Layer, ...]] = []
        match layer:
            case Residual(body=body, projection=projection):
                inner += [body, *(Residual(b, projection) for b in _fewer(body))]
            case Concat(branches=branches) | Split(branches=branches) | Join(branches=branches):
                inner += list(branches)
                for number, branch in enumerate(branches):
                    for fewer in _fewer(branch):
                        new = (*branches[:number], fewer, *branches[number + 1 :])
                        inner.append(replace(layer, branches=new))
            case Sharing(body=body, how=how):
                inner += [body, *(Sharing(b, how) for b in _fewer(body))]
        for new in inner:
            middle = new if isinstance(new, tuple) else (new,)
            found.append(layers[:place] + middle + layers[place + 1 :])
    return [fewer for fewer in found if fewer != layers and fewer]


class Drawing:
    """A network that grows layer by layer; layers that do not fit are drawn anew."""

    def __init__(self, random: Random, shape: Shape, width: int, is_deep: bool = False) -> None:
        self.random, self.shape, self.width, self.is_deep = random, shape, width, is_deep
        self.layers: list[Layer] = []

    def add(self, layers: list[Layer] | tuple[Layer, ...]) -> bool:
        """Add layers, if they fit and the result is of moderate size."""
        try:
            after = shape_after(tuple(layers), self.shape)
        except (RuntimeError, ValueError, IndexError, AssertionError):
            return False
        if not after or math.prod(after) > LARGEST or 0 in after or len(after) > 4:
            return False
        self.layers += layers
        self.shape = after
        return True

    def one_in(self, n: int) -> bool:
        return self.random.randint(1, n) == n

    def add_block(self) -> None:
        kinds: list[Callable[[], object]] = [self.add_weight] * 4
        kinds += [self.add_residual, self.add_join, self.add_concat, self.add_shared]
        if not self.is_deep:
            kinds += [self.add_operation, self.add_operation, self.add_window, self.add_split]
            kinds += [self.add_raw, self.add_raw, self.add_old]
        self.random.choice(kinds)()

    def finish(self) -> None:
        """Often a read-out behind a flattening."""
        if self.one_in(2) and len(self.shape) > 1:
            self.add([Flatten()])
        if not self.one_in(4):
            self.add([self.weight()])

    # Pieces ------------------------------------------------------------------------------------

    def inner(self, shape: Shape | None = None) -> Drawing:
        return Drawing(self.random, shape or self.shape, self.width, self.is_deep)

    def add_weight(self) -> None:
        layers: list[Layer] = [self.weight()]
        if self.one_in(5):
            between = [Act(), Dropout(0.5), Op("double"), Op("clone")]
            layers += [self.random.choice(between)] if self.one_in(4) else []
            layers.append(BatchNorm(not self.one_in(4), not self.one_in(6)))
        if not self.one_in(6):
            layers.append(self.activation())
        if self.one_in(8):
            layers.append(Dropout(0.5, self.one_in(2)))
        self.add(layers)

    def weight(self, width: int | None = None, *, keeps: bool = False) -> Layer:
        """A Linear or a convolution; one that keeps all lengths, if asked for."""
        random, width = self.random, width or self.random.randint(1, self.width)
        if len(self.shape) == 1:
            return Map(width, random.choice([True, False]))
        if self.one_in(6) and not keeps:
            return Tokens(width, random.choice([True, False]))
        axes = len(self.shape) - 1
        common = [g for g in range(1, 6) if self.shape[0] % g == 0 and width % g == 0]
        common = common if self.one_in(2) else [1]
        bias = random.choice([True, False])
        if keeps or self.one_in(3):
            kernel = tuple(random.choice([1, 3]) for _ in range(axes))
            dilation = random.choice([1, 1, 2])
            padding: object = "same"
            if self.one_in(2):
                padding = tuple(dilation * (k // 2) for k in kernel)
            return Conv(width, kernel, 1, padding, dilation, random.choice(common), bias)
        transposed = self.one_in(5)
        stride = random.choice([1, 1, 2, 3])
        mode = (
            "zeros"
            if transposed
            else random.choice(["zeros"] * 4 + ["reflect", "replicate", "circular"])
        )
        return Conv(
            width,
            tuple(random.randint(1, 3) for _ in range(axes)),
            stride,
            random.choice([0, 0, 1, "same" if stride == 1 and not transposed else 1]),
            random.choice([1, 1, 2]),
            random.choice(common),
            bias,
            mode,
            transposed,
            random.randint(0, max(stride - 1, 0)) if transposed else 0,
        )  # fmt: skip

    def activation(self) -> Layer:
        names = ["relu"] * 5 + ["leaky", "prelu"]
        if not self.is_deep:
            names += ["sigmoid"] * self.one_in(8)
        return Act(self.random.choice(names), False)

    def body(self, width: int, depth: int = 2) -> tuple[Layer, ...]:
        """Weights and activations that keep all lengths, to some width."""
        inner = self.inner()
        for _ in range(self.random.randint(0, depth - 1)):
            inner.add([inner.weight(keeps=True)])
            if inner.one_in(5):
                inner.add([BatchNorm(not self.one_in(4))])
            inner.add([inner.activation()])
            if inner.one_in(4) and not self.is_deep:
                inner.add_block_that_keeps()
        inner.add([inner.weight(width, keeps=True)])
        if inner.one_in(4):
            inner.add([inner.activation()])
        return tuple(inner.layers)

    def add_block_that_keeps(self) -> None:
        self.random.choice([self.add_residual, self.add_join, self.add_concat])()

    def add_residual(self) -> None:
        width = self.shape[0]
        before = (Act(),) if self.one_in(2) else ()
        if self.one_in(3):
            width = self.random.randint(1, self.width)
            projection = (replace_bias(self.inner().weight(width, keeps=True), self.one_in(2)),)
        else:
            projection = ()
        residual = Residual((*before, *self.body(width)), projection)
        self.add([residual, *([Act()] if self.one_in(2) else [])])

    def add_join(self) -> None:
        width = self.random.randint(1, self.width)
        hows = [how for how in JOINS if not self.is_deep or how not in ("product", "gate")]
        self.add([Join((self.body(width), self.body(width)), self.random.choice(hows))])

    def add_concat(self) -> None:
        if self.is_deep and self.shape[0] > 4:
            return
        branches = [self.body(self.random.randint(1, 3)) for _ in range(self.random.randint(1, 2))]
        self.add([Concat((*branches, ())) if self.one_in(2) else Concat(tuple(branches))])

    def add_split(self) -> None:
        if self.shape[0] % 2 == 0:
            half = self.inner((self.shape[0] // 2, *self.shape[1:]))
            branches = (half.body(half.shape[0]), () if self.one_in(2) else half.body(2))
            self.add([Split(branches)])

    def add_shared(self) -> None:
        how = self.random.choice(["again", "cat", "add"])
        width = self.shape[0] if how == "again" else self.random.randint(1, 3)
        norm = (BatchNorm(not self.one_in(4)),) if self.one_in(4) else ()
        self.add([Sharing((*self.body(width, 1), *norm, Act()), how)])

    def add_operation(self) -> None:
        fitting = [name for name, op in OPERATIONS.items() if op.fits(self.shape)]
        fitting = [name for name in fitting if name not in REFUSED]
        fitting = REFUSED if self.one_in(12) else fitting
        common = [name for name in fitting if OPERATIONS[name].kind not in ("none", "shift")]
        if common and not self.one_in(4):
            fitting = common
        self.add([Op(self.random.choice(fitting))])

    def add_raw(self) -> None:
        self.add([Raw(self.random.choice(list(RAW)), self.random.randint(1, self.width))])
        if self.one_in(2):
            self.add([self.activation()])

    def add_window(self) -> None:
        axes, random = len(self.shape) - 1, self.random
        if not axes:
            return
        kernel = tuple(random.randint(1, 3) for _ in range(axes))
        padding = random.randint(0, min(kernel) // 2)
        is_max = self.one_in(2)
        self.add([
            Window(
                "Max" if is_max else "Avg",
                kernel,
                random.randint(1, 3),
                padding,
                random.choice([1, 1, 2]) if is_max else 1,
                self.one_in(2),
                self.one_in(2),
                random.choice([None, None, 3]) if axes > 1 and not is_max else None,
            )
        ])  # fmt: skip

    def add_old(self) -> None:
        """Layers of `architectures` that are not used elsewhere here."""
        choices: list[Layer] = [LayerNorm(self.one_in(2)), Dropout(0.5)]
        if 1 < len(self.shape) < 4:
            choices += [Pool("adaptive_avg", self.random.randint(1, 3))]
            choices += [Pool("adaptive_max", self.random.randint(1, 3))]
            choices += [Upsample(), Upsample("linear" if len(self.shape) == 2 else "bilinear")]
        self.add([self.random.choice(choices)])


def replace_bias(layer: Layer, bias: bool) -> Layer:
    return replace(layer, bias=bias) if isinstance(layer, Map | Conv) else layer
