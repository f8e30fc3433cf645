"""Operations without weights that a drawn network may use, by name.

Each has a condition on the shape of a sample and says what it is for a sum over paths: `same`
leaves it as it is, `move` moves it, `linear` has a matrix whose entries are raised to the power p,
`most` counts every entry that the result depends on, `shift` adds the power of a constant, `none`
is no sum over paths, or one that the reference does not know.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from architectures import Shape


@dataclass(frozen=True)
class Operation:
    function: Callable[[Tensor], Tensor]
    kind: str
    fits: Callable[[Shape], bool]


OPERATIONS: dict[str, Operation] = {}


def enter(
    kind: str, fits: Callable[[Shape], bool], **functions: Callable[[Tensor], Tensor]
) -> None:
    for name, function in functions.items():
        OPERATIONS[name] = Operation(function, kind, fits)


def anywhere(shape: Shape) -> bool:
    return True


def rows(shape: Shape) -> bool:
    return len(shape) == 2


def images(shape: Shape) -> bool:
    return len(shape) == 3


def spatial(shape: Shape) -> bool:
    return len(shape) > 1


def flat(shape: Shape) -> bool:
    return len(shape) == 1


def even(shape: Shape) -> bool:
    return shape[0] % 2 == 0


def long_row(shape: Shape) -> bool:
    return len(shape) == 2 and shape[1] > 2


def into(whole: Tensor, key: object, piece: Tensor) -> Tensor:
    whole[key] = piece
    return whole


def pad_last(x: Tensor, mode: str) -> Tensor:
    return F.pad(x, (1, 1), mode)


ALL = slice(None)

enter(
    "same", anywhere,
    relu=torch.relu,
    relu_copy=lambda x: F.relu(1 * x, inplace=True),
    clamp=lambda x: x.clamp(min=0),
    clamp_max=lambda x: torch.clamp_max(x, 0.0),
    threshold=lambda x: F.threshold(x, 0.0, 0.0),
    hardtanh=lambda x: F.hardtanh(x, 0.0, math.inf),
    abs=lambda x: x.abs(),
    negative=lambda x: -x,
    rrelu=lambda x: F.rrelu(x, training=False),
    clone=lambda x: x.clone().contiguous(),
    dropout=lambda x: F.dropout(x, 0.4, training=False),
    to=lambda x: x.to(x.dtype).type_as(x),
)  # fmt: skip
enter(
    "none", anywhere,
    mask=lambda x: x * (x > 0),
    where=lambda x: torch.where(x > 0, x, 0.1 * x),
    masked_fill=lambda x: x.masked_fill(x < 0, 0.0),
    sign=lambda x: x * x.sign(),
    maxout=lambda x: torch.maximum(x, -0.3 * x),
    twice=lambda x: x + x,
    difference=lambda x: x - 0.3 * x,
    alpha=lambda x: torch.add(x, x, alpha=2),
    rsub=lambda x: torch.rsub(x, 2 * x),
    plus_relu=lambda x: x + x.relu(),
    norm=lambda x: x.flatten(1).norm(dim=1, keepdim=True).view(-1, *[1] * (x.dim() - 1)) + 0 * x,
    quotient=lambda x: x / (x.abs() + 1),
    square=lambda x: 0.1 * x**2,
    tanh=torch.tanh,
    softmax=lambda x: x.flatten(1).softmax(1).view(x.shape),
    gelu=F.gelu,
    softplus=F.softplus,
    elu=F.elu,
    relu6=F.relu6,
    gate=lambda x: x * x.sigmoid(),
    normalize=lambda x: F.normalize(x, dim=1),
    standard=lambda x: F.layer_norm(x, x.shape[1:]),
    cumulated=lambda x: x.cumsum(1),
    order=lambda x: x.sort(1).values,
    # refused by name
    fft=lambda x: torch.fft.fft(x).real,
    gather=lambda x: x.gather(1, torch.zeros(x.shape, dtype=torch.long)),
    item=lambda x: x * x.sum().item(),
    branch=lambda x: x if x.sum() > 0 else -x,
    renorm=lambda x: x.renorm(2, 0, 1.0),
)  # fmt: skip
enter(
    "linear", anywhere,
    double=lambda x: 2 * x,
    third=lambda x: x / 3,
    minus_half=lambda x: x * -0.5,
    in_place=lambda x: (1 * x).mul_(2).div_(3),
    tensor=lambda x: x * torch.tensor(0.3),
    shares=lambda x: x * torch.linspace(0.5, 1.5, x.shape[-1], dtype=x.dtype),
)  # fmt: skip
enter(
    "shift", anywhere,
    plus_one=lambda x: x + 1,
    one_minus=lambda x: 1 - x,
    plus_half=lambda x: (1 * x).add_(0.5),
    plus_alpha=lambda x: torch.add(x, 1, alpha=3),
    plus_constants=lambda x: x + torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype),
)  # fmt: skip
enter(
    "move", anywhere,
    flip=lambda x: x.flip(1),
    roll=lambda x: x.roll(1, 1),
    list=lambda x: x[:, [x.shape[1] - 1, 0]],
    repeat=lambda x: x.repeat(1, 2, *[1] * (x.dim() - 2)),
    interleave=lambda x: x.repeat_interleave(2, 1),
    cat=lambda x: torch.cat([x, x], 1),
    last=lambda x: x[:, -1:],
    step=lambda x: x[:, ::2],
    split=lambda x: torch.cat(x.split(2, 1)[::-1], 1),
    unbind=lambda x: torch.stack(x.unbind(1)[::-1], 1),
    iterate=lambda x: torch.stack(list(x.transpose(0, 1)), 1),
    zeros=lambda x: into(torch.zeros(len(x), x.shape[1] + 2, *x.shape[2:], dtype=x.dtype),
                         (ALL, slice(1, -1)), x),
    zeros_like=lambda x: into(torch.zeros_like(x), (ALL, 0), x[:, -1]),
    index=lambda x: x.index_select(1, torch.arange(x.shape[1] - 1, -1, -1)),
    unsqueeze=lambda x: x.unsqueeze(1).squeeze(1),
    expand=lambda x: x[:, None].expand(-1, 2, *[-1] * (x.dim() - 1)).flatten(1, 2),
)  # fmt: skip
enter("move", even, swap=lambda x: torch.cat(x.chunk(2, 1)[::-1], 1))
enter(
    "move", even,
    shuffle=lambda x: x.view(len(x), 2, -1, *x.shape[2:]).transpose(1, 2).reshape(x.shape),
)  # fmt: skip
enter(
    "move", rows,
    transpose=lambda x: x.transpose(1, 2).contiguous(),
    replicate=lambda x: pad_last(x, "replicate"),
    zero_pad=lambda x: pad_last(x, "constant"),
    crop=lambda x: F.pad(x, (-1, 1)) if x.shape[2] > 1 else x,
    pad_channels=lambda x: F.pad(x, (0, 0, 1, 1)),
)  # fmt: skip
enter(
    "move", long_row,
    reflect=lambda x: pad_last(x, "reflect"),
    circular=lambda x: pad_last(x, "circular"),
    unfold=lambda x: x.unfold(2, 2, 1).flatten(2),
    triangle=lambda x: x.tril(1),
)  # fmt: skip
enter(
    "move", images,
    permute=lambda x: x.permute(0, 2, 3, 1).contiguous(),
    swapaxes=lambda x: x.swapaxes(2, 3),
    rot90=lambda x: torch.rot90(x, 1, (2, 3)),
    unshuffle=lambda x: F.pixel_unshuffle(x, 2) if x.shape[2] % 2 == x.shape[3] % 2 == 0 else x,
    pixels=lambda x: F.pixel_shuffle(x, 2) if x.shape[1] % 4 == 0 else x,
    nearest=lambda x: F.interpolate(x, scale_factor=1.5),
    merge=lambda x: x.flatten(2),
)  # fmt: skip
enter(
    "linear", spatial,
    mean=lambda x: x.mean(-1),
    mean_kept=lambda x: x.mean([2], keepdim=True),
    total=lambda x: torch.sum(x, dim=-1),
    channels=lambda x: x.mean(1, keepdim=True),
)  # fmt: skip
enter(
    "most", spatial,
    amax=lambda x: x.amax(-1),
    max=lambda x: x.max(2).values,
    max_kept=lambda x: torch.max(x, dim=-1, keepdim=True)[0],
    max_of_channels=lambda x: x.amax(1, keepdim=True),
)  # fmt: skip
enter(
    "none", spatial,
    std=lambda x: x.std(2, correction=0) if x.shape[2] > 1 else x.mean(2),
    norm_of_rows=lambda x: x.norm(dim=-1),
)  # fmt: skip
enter(
    "linear", rows,
    linear=lambda x: F.interpolate(x, size=4, mode="linear"),
    linear_factor=lambda x: F.interpolate(x, scale_factor=1.5, mode="linear"),
    aligned=lambda x: F.interpolate(x, 5, mode="linear", align_corners=True),
    area=lambda x: F.interpolate(x, 2, mode="area"),
)  # fmt: skip
enter(
    "linear", images,
    bilinear=lambda x: F.interpolate(x, size=(3, 4), mode="bilinear"),
    bilinear_factor=lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    bilinear_factors=lambda x: F.interpolate(x, scale_factor=(0.7, 1.3), mode="bilinear"),
    bicubic=lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
)  # fmt: skip
enter(
    "move", flat,
    unflatten=lambda x: x.unflatten(1, (-1, 2)) if x.shape[1] % 2 == 0 else x,
    as_row=lambda x: x[:, None],
    as_channels=lambda x: x[..., None],
    as_image=lambda x: x.view(len(x), 1, 1, -1),
)  # fmt: skip
enter(
    "linear", flat,
    over_units=lambda x: F.avg_pool1d(x[:, None], 2, ceil_mode=True).flatten(1),
)  # fmt: skip
enter(
    "most", flat,
    most_of_units=lambda x: F.max_pool1d(x[:, None], 2, 1, 1).flatten(1),
)  # fmt: skip
