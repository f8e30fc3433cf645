"""Models by name: ``build("resnet18")``, and the catalogue that the command line lists.

A name is either fixed (``unet-small``) or belongs to a family whose members a pattern describes
(``mlp:<width>-<width>...``, ``resnet<depth>[-thin][-nobn][-imagenet][-small]``). Either way it
resolves to an `Entry`: what to call, and what the model eats.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from pathspace.experiments.models.chains import mlp, ncf, vgg
from pathspace.experiments.models.concatenating import densenet, inception, unet
from pathspace.experiments.models.residual import resnet
from pathspace.experiments.models.separable import mobilenet, shufflenet


@dataclass(frozen=True)
class Input:
    """One argument of a model: shape without the batch axis, and for indices how many there are."""

    shape: tuple[int, ...]
    categories: int | None = None


@dataclass(frozen=True)
class Entry:
    """A model that can be built by name.

    Attributes:
        name: The name itself, such as ``resnet18``.
        pattern: The names of its family, such as ``resnet<depth>[-thin][-nobn][-imagenet]...``.
        builder: Called with ``generator=`` and further keywords of the underlying builder.
        inputs: What the model is called with.
        description: One line.
    """

    name: str
    pattern: str
    builder: Callable[..., nn.Module]
    inputs: tuple[Input, ...]
    description: str


def build(spec: str, generator: torch.Generator | None = None, **options: Any) -> nn.Module:
    """Build a model by name.

    Args:
        spec: A name, see `catalogue`.
        generator: Source of the weights, see `initialize_`. The global random state stays as it is.
        **options: Further keywords of the builder, for what a name does not say: ``classes=100``.

    Returns:
        A freshly initialised model in training mode.

    Raises:
        ValueError: Unknown name or ill-formed argument; the message says what is expected.

    Example:
        >>> build("mlp:4-3-2")
        Sequential(
          (0): Flatten(start_dim=1, end_dim=-1)
          (1): Linear(in_features=4, out_features=3, bias=True)
          (2): ReLU()
          (3): Linear(in_features=3, out_features=2, bias=True)
        )
        >>> build("mlp:4-x-2")
        Traceback (most recent call last):
        ValueError: ill-formed model 'mlp:4-x-2': expected at least two positive widths joined ...
    """
    entry = resolve(spec)
    try:
        return entry.builder(generator=generator, **options)
    except ValueError as error:
        raise ValueError(f"{spec}: {error}") from error


def example_input(
    model: str | Entry, batch: int = 1, generator: torch.Generator | None = None
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """An input that the model accepts: normal noise, or uniform indices.

    Args:
        model: A name or an entry.
        batch: Examples in the batch.
        generator: Source of the numbers; ``None`` gives the same input each time.

    Returns:
        The tensor, or a tuple of them if the model takes more than one.

    Example:
        >>> example_input("resnet18", batch=2).shape
        torch.Size([2, 3, 32, 32])
        >>> user, item = example_input("ncf:8")
    """
    entry = resolve(model) if isinstance(model, str) else model
    if generator is None:
        generator = torch.Generator("cpu").manual_seed(0)
    tensors = tuple(_draw(item, batch, generator) for item in entry.inputs)
    return tensors[0] if len(tensors) == 1 else tensors


def catalogue() -> tuple[Entry, ...]:
    """One entry for each fixed name, and a few members of each family.

    Returns:
        The entries, families first.

    Example:
        >>> next(entry.description for entry in catalogue() if entry.name == "plainnet20-nobn")
        'plain convolutional net of 20 layers, no batch norm'
    """
    return tuple(resolve(name) for name in MEMBERS) + SMALL


def resolve(spec: str) -> Entry:
    """The entry that a name stands for.

    Args:
        spec: A name, see `catalogue`.

    Returns:
        The entry.

    Raises:
        ValueError: Unknown name or ill-formed argument; the message says what is expected.

    Example:
        >>> resolve("mlp:784-64-10").inputs
        (Input(shape=(784,), categories=None),)
    """
    for entry in SMALL:
        if entry.name == spec:
            return entry
    for names, family in FAMILIES.items():
        if match := re.fullmatch(names, spec):
            return family(match)
    known = [*MEMBERS, *(entry.name for entry in SMALL)]
    close = difflib.get_close_matches(spec.lower(), known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"unknown model {spec!r}; {hint}known are {', '.join(known)}")


def _perceptron(match: re.Match[str]) -> Entry:
    batch_norm, bias = match["batch_norm"] is not None, match["no_bias"] is None
    widths = _integers(match["argument"] or "")
    if len(widths) < 2:
        family = match[0].partition(":")[0]
        raise ValueError(
            f"ill-formed model {match[0]!r}: expected at least two positive widths joined by '-', "
            f"as in {family}:784-64-64-10"
        )
    return Entry(
        name=match[0],
        pattern="mlp[-bn][-nobias]:<width>-<width>[-<width>...]",
        builder=partial(mlp, widths, batch_norm=batch_norm, bias=bias),
        inputs=(Input((widths[0],)),),
        description=f"perceptron of {len(widths) - 1} layers"
        + ", batch norm" * batch_norm
        + ", no biases" * (not bias),
    )


# what a suffix changes in the builder, and how it is described
SUFFIXES: dict[str, tuple[dict[str, Any], str]] = {
    "thin": ({"width": 1 / 4}, "a quarter of the channels"),
    "nobn": ({"batch_norm": False}, "no batch norm"),
    "imagenet": ({"imagenet": True}, "for ImageNet"),
    "small": ({}, "for images of 16×16 pixels"),
}
SIDES = {"imagenet": 224, "small": 16}  # pixels, where it is not 32


def _residual(match: re.Match[str]) -> Entry:
    residual = match["kind"] == "resnet"
    options: dict[str, Any] = {"residual": residual}
    described = "residual" if residual else "plain"
    described += f" convolutional net of {match['depth']} layers"
    suffixes = match["suffixes"].split("-")[1:]
    for suffix in suffixes:
        if suffix not in SUFFIXES or suffixes.count(suffix) > 1:
            allowed = ", ".join(f"-{known}" for known in SUFFIXES)
            raise ValueError(
                f"ill-formed model {match[0]!r}: expected suffixes among {allowed}, each at most "
                f"once, not '-{suffix}'"
            )
        change, words = SUFFIXES[suffix]
        options |= change
        described += f", {words}"
    sides = [SIDES[suffix] for suffix in suffixes if suffix in SIDES]
    if len(sides) > 1:
        raise ValueError(f"ill-formed model {match[0]!r}: -imagenet and -small are two sizes")
    side = sides[0] if sides else 32
    return Entry(
        name=match[0],
        pattern=f"{match['kind']}<depth>" + "".join(f"[-{suffix}]" for suffix in SUFFIXES),
        builder=partial(resnet, int(match["depth"]), **options),
        inputs=(Input((3, side, side)),),
        description=described,
    )


def _collaborative(match: re.Match[str]) -> Entry:
    factors = _integers(match["argument"] or "")
    if len(factors) != 1:
        raise ValueError(
            f"ill-formed model {match[0]!r}: expected one positive number of factors, as in ncf:8"
        )
    users, items = 64, 96
    return Entry(
        name=match[0],
        pattern="ncf:<factors>",
        builder=partial(ncf, *factors, users=users, items=items),
        inputs=(Input((), users), Input((), items)),
        description=f"neural collaborative filtering, perceptron with {factors[0]} factors",
    )


def _image_model(name: str, builder: Callable[..., nn.Module], description: str) -> Entry:
    return Entry(name, name, builder, (Input((3, 32, 32)),), description)


FAMILIES: dict[str, Callable[[re.Match[str]], Entry]] = {
    r"mlp(?P<batch_norm>-bn)?(?P<no_bias>-nobias)?(:(?P<argument>.*))?": _perceptron,
    r"(?P<kind>plainnet|resnet)(?P<depth>\d+)(?P<suffixes>(-.*)?)": _residual,
    r"ncf(:(?P<argument>.*))?": _collaborative,
}

MEMBERS = (
    "mlp:784-64-64-10",
    "mlp-bn:784-64-64-10",
    "mlp-nobias:784-64-64-10",
    "plainnet8-thin",
    "plainnet20-nobn",
    "plainnet34",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet152-imagenet",
    "ncf:8",
)

SMALL = (
    _image_model("vgg-small", vgg, "convolutions and max-pooling, then a perceptron on the pixels"),
    _image_model("densenet-small", densenet, "dense blocks: every layer reads all earlier ones"),
    _image_model("mobilenet-small", mobilenet, "depthwise separable, inverted residuals, ReLU"),
    _image_model("inception-small", inception, "four parallel branches, concatenated"),
    _image_model("shufflenet-small", shufflenet, "channel split, concatenation, channel shuffle"),
    _image_model("unet-small", unet, "segmentation: transposed convolutions, concatenated skips"),
    _image_model(
        "senet-small",
        partial(resnet, 8, squeeze_excitation=True),
        "residual net with sigmoid gates (squeeze and excitation)",
    ),
    _image_model(
        "preact-resnet-small",
        partial(resnet, 8, preactivation=True),
        "residual net with batch norm and ReLU before each convolution",
    ),
)


def _integers(text: str) -> tuple[int, ...]:
    """The positive integers joined by '-', or none if the text is anything else."""
    parts = text.split("-")
    well_formed = all(part.isdecimal() and int(part) > 0 for part in parts)
    return tuple(map(int, parts)) if well_formed else ()


def _draw(item: Input, batch: int, generator: torch.Generator) -> torch.Tensor:
    shape, device = (batch, *item.shape), generator.device
    if item.categories is None:
        drawn = torch.randn(shape, generator=generator, device=device)
    else:
        drawn = torch.randint(item.categories, shape, generator=generator, device=device)
    return drawn.to(torch.get_default_device())
