"""What holds for every network, or else it is refused by name.

`check` puts one network to all laws and says which of them applied. How far two numbers that are
equal in theory may lie apart is measured: by as much as a change of the weights in the eleventh
digit moves them, which is 10,000 times the rounding.
"""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

import pathspace as ps
from architectures import Spec, build
from fuzz.drawing import batch_of
from fuzz.pathsums import NotKnown, path_sum
from pathspace.balancing import balance_weights
from pathspace.skeleton import SkeletonError
from pathspace.units import PINNED
from test_optim_exactness import Explicit, InTrainMode

EPS = 1e-11
FEW_PATHS = 3000
State = dict[str, Tensor]


class Broken(AssertionError):
    """A law does not hold."""


def expect(holds: bool | Tensor, law: str, detail: object = "") -> None:
    if not bool(holds):
        raise Broken(f"{law}: {detail}")


@dataclass
class Setting:
    """One network with everything that the laws look at."""

    spec: Spec
    model: nn.Module
    network: ps.Network
    x: Tensor
    seed: int
    counts: Counter[str]
    train_mode: bool  # whether train mode was traced

    def generator(self, more: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + more)

    def state(self) -> State:
        return {name: tensor.detach() for name, tensor in self.network.state().items()}

    def copy(self) -> nn.Module:
        """A model of its own; what has a gradient, as a pruned weight or a buffer, has no copy."""
        self.output(self.state())
        for module in self.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = buffer.detach()
        return copy.deepcopy(self.model)

    def output(self, state: Mapping[str, Tensor], *, train: bool = False) -> Tensor:
        """The output for a state, with the same dropout masks each time."""
        return output(self.model, state, self.x, train=train)

    def rescaling(self, more: int = 0, *, normalized: bool = False) -> ps.Rescaling:
        return ps.random_rescaling(
            self.network, 1.0, generator=self.generator(more), normalized=normalized
        )


def check(spec: Spec, seed: int, counts: Counter[str]) -> None:
    """Put a network to all laws; `counts` takes notice of what applied.

    Raises:
        Broken: where a law does not hold.
    """
    random = Random(seed)
    model, x = build(spec), batch_of(spec)
    streams = random.choice(["pinned", "shared"])
    try:
        network, train_mode = _traced(model, x, streams)
    except ps.PathspaceError as error:
        expect(_is_named(error), "a refusal names a layer and a reason", error)
        counts[f"refused: {_reason(error)}"] += 1
        return
    counts["traced"] += 1
    setting = Setting(spec, model, network, x, seed, counts, train_mode)
    if not setting.output(setting.state()).isfinite().all():  # a variance of one value, say
        counts["traced, but not finite"] += 1
        return
    for law in (function_is_kept, powers_of_two_change_no_bit, balanced, norms, basis, steps):
        law(setting)


def _traced(model: nn.Module, x: Tensor, streams: Any) -> tuple[ps.Network, bool]:
    """Trace, and see that the model and the source of randomness are as they were."""
    before = copy.deepcopy((model.state_dict(), model.training, torch.get_rng_state()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        network = ps.trace(model, x, streams=streams)
    after = (model.state_dict(), model.training, torch.get_rng_state())
    same = all(torch.equal(before[0][name], after[0][name]) for name in after[0])
    expect(same and before[1] == after[1], "tracing leaves the model as it is")
    expect(torch.equal(before[2], after[2]), "tracing draws no random numbers")
    return network, not any("train mode was not looked at" in str(w.message) for w in caught)


def _is_named(error: Exception) -> bool:
    return type(error) is not ps.PathspaceError and bool(re.search(r"`[^`]+`", str(error)))


def _reason(error: Exception) -> str:
    """The kind of a refusal, without what belongs to one network."""
    return re.sub(r"`[^`]*`( \([^)]*\))?", "…", str(error))[:90]


def output(model: nn.Module, state: Mapping[str, Tensor], x: Any, *, train: bool = False) -> Tensor:
    copies = {name: tensor.detach().clone() for name, tensor in state.items()}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model.train(train)
        y = functional_call(model, copies, (x,), tie_weights=False)
        model.eval()
    return y


def largest(tensor: Tensor) -> float:
    """The largest size; 0 where there is nothing."""
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0


# How far apart -----------------------------------------------------------------------------------


def shaken(setting: Setting, state: State, number: int) -> State:
    """The weights, changed in the eleventh digit."""
    generator = setting.generator(1000 + number)
    return {
        name: tensor
        * (1 + EPS * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
        if tensor.is_floating_point()
        else tensor
        for name, tensor in state.items()
    }


def same(
    setting: Setting, law: str, one: Tensor, other: Tensor, control: Callable[[State], Tensor]
) -> None:
    """Two results are equal, as far as small changes of the weights leave them equal."""
    size = largest(one)
    if not math.isfinite(size):
        setting.counts[f"too large to compare: {law}"] += 1
        return
    apart = largest(one - other)
    if apart <= 1e-10 * size:
        return
    state = setting.state()
    moved = [float((control(shaken(setting, state, k)) - one).abs().max()) for k in range(3)]
    moves = max(moved)
    if not moves < 1e-3 * size:
        setting.counts[f"too sensitive to compare: {law}"] += 1
        return
    allowed = max(3 * moves, 1e-12 * size)
    expect(apart <= allowed, law, f"apart {apart:.3g}, allowed {allowed:.3g}, size {size:.3g}")


# The laws ----------------------------------------------------------------------------------------


def function_is_kept(setting: Setting) -> None:
    """f(c·w) = f(w), in eval mode for all scales, in train mode for the exact ones."""
    network = setting.network
    statistics = all(norm.mean is not None for norm in network.normalizations)
    for train in (False, True)[: 1 + setting.train_mode]:
        c = setting.rescaling(1, normalized=statistics and not train)
        state = ps.rescale(network, c)
        moved = any(
            not torch.equal(state[name], tensor) for name, tensor in network.state().items()
        )
        expect(moved == bool(c.log.any()), "every scale moves weights")
        same(
            setting,
            f"a rescaling keeps the function, train={train}",
            setting.output(setting.state(), train=train),
            setting.output(state, train=train),
            lambda state, train=train: setting.output(state, train=train),
        )
    setting.counts["function kept"] += 1


def powers_of_two_change_no_bit(setting: Setting) -> None:
    """In any dtype, factors that are powers of two give the very same output."""
    if setting.network.normalizations:  # their variances are not rounded alike
        return
    dtype = Random(setting.seed).choice([torch.float32, torch.float16, torch.bfloat16])
    model = setting.copy().to(dtype)
    x = setting.x.to(dtype) if setting.x.is_floating_point() else setting.x
    try:
        y = output(model, dict(model.state_dict()), x)
    except RuntimeError:  # torch has no such operation in this dtype
        return
    network = ps.trace(model, x, streams=setting.network.streams)
    expect(network.H == setting.network.H, "the dtype does not change the scales")
    factors = torch.randint(-2, 3, (network.H,), generator=setting.generator(2))
    state = ps.rescale(network, 2.0 ** factors.double())
    small = torch.finfo(dtype).tiny * 64  # behind the point the last digits of such are lost
    weights = [tensor for tensor in state.values() if tensor.is_floating_point()]
    if dtype == torch.float16 and any(bool(((w != 0) & (w.abs() < small)).any()) for w in weights):
        return
    other = output(model, state, x)
    if y.isfinite().all() and other.isfinite().all():
        tolerance = 0.0 if dtype != torch.float16 else 1e-2
        apart = largest(y.double() - other.double())
        size = largest(y.double())
        if dtype == torch.float16 and size < small:
            return
        expect(
            apart <= tolerance * size, "powers of two change no bit", f"{dtype}: {apart} of {size}"
        )
        setting.counts[f"same in {str(dtype)[6:]}"] += 1


def balanced(setting: Setting) -> None:
    """The balanced representative is the same one from any scaling, and keeps the function."""
    network = setting.network
    c, other = ps.balance(network), setting.rescaling(7)
    movable = torch.cat([torch.tensor([False]), network.exact])
    found = balance_weights(network.edges, ps.rescale(network, other), movable)
    apart = largest(torch.where(found == 0, 0.0, found + other.log) - c.log)  # 0: it does not move
    expect(apart <= 1e-9 * (1 + largest(c.log)), "balancing does not depend on the scaling", apart)
    same(
        setting,
        "balancing keeps the function",
        setting.output(setting.state()),
        setting.output(ps.rescale(network, c)),
        setting.output,
    )
    setting.counts["balanced"] += 1


def norms(setting: Setting) -> None:
    """The path norm is the reference's and that of all paths, and invariant."""
    network = setting.network
    p = Random(setting.seed).choice([1.0, 1.5, 2.0, 3.0])
    try:
        found = ps.path_norm(network, p, log=True)
    except ps.PathspaceError as error:
        expect(_is_named(error), "a refusal names a layer and a reason", error)
        setting.counts["no path sum"] += 1
        return
    rescaled = ps.rescale(network, setting.rescaling(3, normalized=True))
    again = ps.path_norm(network, p, log=True, state=rescaled)
    kept = found == again or abs(found - again) < 1e-9  # both may be the logarithm of 0
    expect(kept, "the path norm is invariant", (found, again))
    try:
        with torch.no_grad():
            total = path_sum(setting.spec, setting.model, p)[0]
    except NotKnown:
        setting.counts["path norm: invariance only"] += 1
    else:
        expected = total.log() / p
        close = expected == found or abs(expected - found) < 1e-9
        expect(close, "the path norm is that of the reference", (p, found.exp(), expected.exp()))
        setting.counts["path norm = reference"] += 1
    if network.coarse is None and _is_dense(setting.spec) and not network.normalizations:
        whole = ps.trace(setting.model, setting.x, streams="shared")
        if whole.coarse is None and ps.count_paths(whole) <= FEW_PATHS:
            _enumerate(setting, whole, p, float(found))


def _enumerate(setting: Setting, network: ps.Network, p: float, found: float) -> None:
    """Only where every weight is used at one place, and nothing else has a size."""
    if not all(type(layer).__name__ in _PLAIN for layer in setting.spec.layers):
        return
    inside = network.scale == 0  # listed paths end at pinned units, those of the norm at outputs
    inside[: PINNED + 1] = False
    for space in network.spaces:
        if space.operation == "input":
            inside[space.units] = False
    if any(bool(inside[edge.source].any()) for edge in network.edges):
        return
    nothing = setting.copy()
    with torch.no_grad():
        for parameter in nothing.parameters():
            parameter.zero_()
        weightless = path_sum(setting.spec, nothing, p)[0]  # straight from an input to an output
    values = ps.path_values(network) if ps.count_paths(network) else torch.zeros(0)
    expected = float((values.abs().pow(p).sum() + weightless).log() / p)
    expect(expected == found or abs(expected - found) < 1e-9, "the path norm is that of all paths")
    setting.counts["path norm = enumeration"] += 1


_PLAIN = {"Map", "Residual", "Concat", "Split", "Flatten", "Dropout", "Act", "Shuffle"}


def _is_dense(spec: Spec) -> bool:
    return len(spec.shape) == 1 and "prelu" not in repr(spec) and "leaky" not in repr(spec)


def basis(setting: Setting) -> None:
    """Values are invariant, products of named weights, and a bijection."""
    network, state = setting.network, setting.state()
    choice = Random(setting.seed).choice(["modulo", "largest", "random"])
    try:
        paths = ps.BasisPaths(network, choice)
    except ps.PathspaceError as error:
        expect("`" in str(error) or "[" in str(error), "a refusal names the unit", error)
        kind = "no skeleton" if isinstance(error, SkeletonError) else "no basis"
        setting.counts[f"{kind}: {_reason(error)[:60]}"] += 1
        return
    values = paths.values(state)
    flat = paths.flat(values)
    if not flat.isfinite().all() or bool((flat[paths.roots] == 0).any()):
        setting.counts["basis values out of range"] += 1
        return
    rescaled = ps.rescale(network, setting.rescaling(4, normalized=True))
    again = paths.flat(paths.values(rescaled))
    expect(_close(flat, again, 1e-9), "basis values are invariant", largest(flat - again))
    back = paths.weights(values, free=paths.free(), state=state)
    for name, tensor in back.items():
        expect(_close(tensor, state[name], 1e-9), "weights follow from values", name)
    moved = flat * (1 + 0.3 * torch.rand(flat.shape, generator=setting.generator(5)).to(flat))
    try:
        there = paths.flat(paths.values(paths.weights(moved, state=state)))
    except ps.PathspaceError as error:
        expect("batch norm without weight" in str(error), "any values have weights", error)
        setting.counts["basis: a gain that is no parameter"] += 1
    else:
        expect(_close(there, moved, 1e-8), "any values have weights", largest(there - moved))
    _follow_names(setting, paths, state, flat)
    if ps.choose_skeleton(network, choice, state=rescaled).outgoing.equal(paths.skeleton.outgoing):
        setting.counts["same skeleton when rescaled"] += 1
    else:
        expect(choice == "modulo", "the skeleton does not depend on the scaling", choice)
    setting.counts["basis: a bijection"] += 1


def _follow_names(setting: Setting, paths: ps.BasisPaths, state: State, flat: Tensor) -> None:
    """The value of a basis path is the product of the weights that it names."""
    weights = paths.graph.weights(state)
    for number in torch.randint(max(len(flat), 1), (5,), generator=setting.generator(6)).tolist():
        if not len(flat):
            return
        value = torch.ones((), dtype=torch.float64)
        for name in paths.path(number):
            parameter, _, index = name.partition("[")
            place = tuple(int(i) for i in index.rstrip("]").split(",")) if index else ()
            value = value * weights[parameter].double()[place]
        expect(_close(value, flat[number], 1e-9), "a value is the product along its path", number)


def _close(one: Tensor, other: Tensor, tolerance: float) -> Tensor:
    """Equal up to a part of each entry, or of the smallest sizes that count."""
    bound = tolerance * torch.maximum(one.abs(), other.abs()) + 1e-290
    return ((one.double() - other.double()).abs() <= bound).all()


# Steps -------------------------------------------------------------------------------------------


def steps(setting: Setting) -> None:
    """One step is that of autograd on explicit coordinates, and the same from w and c·w."""
    if not any(p.requires_grad for p in setting.model.parameters()) or not setting.network.edges:
        return
    try:
        _gradients(setting, setting.model, False)
    except RuntimeError as error:
        if "derivative for" not in str(error):
            raise
        setting.counts["no gradient"] += 1
        return
    path_step(setting)
    basis_step(setting)


def _gradients(setting: Setting, model: nn.Module, train: bool) -> dict[str, Tensor]:
    """Of a loss, by name; dropout masks are the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.train(train)
        model.zero_grad()
        y = model(setting.x)
        target = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        (y / y.detach().abs().max().clamp_min(1e-30) - target).square().mean().backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def _stepped(setting: Setting, kind: Any, settings: dict[str, Any], state: State) -> State:
    """The state after one step of an optimizer from a state; statistics as they were."""
    model = setting.copy()
    model.load_state_dict(state)
    train = bool(setting.network.normalizations)
    network = ps.trace(model, setting.x, streams=setting.network.streams)
    optimizer = kind(model.parameters(), **settings, network=network)
    _gradients(setting, model, train)
    optimizer.step()
    expect(optimizer.skipped == 0, f"{kind.__name__} takes the step")
    stepped = {n: t.detach().clone() for n, t in model.named_parameters(remove_duplicate=False)}
    return {name: stepped.get(name, state[name]) for name in state}


def _invariant(setting: Setting, kind: Any, settings: dict[str, Any]) -> None:
    """The function after a step does not depend on the scaling before it."""
    train = bool(setting.network.normalizations)
    if train and not setting.train_mode:
        return

    def after(state: State) -> Tensor:
        return setting.output(_stepped(setting, kind, settings, state), train=train)

    state = setting.state()
    rescaled = ps.rescale(setting.network, setting.rescaling(7))
    same(
        setting,
        f"{kind.__name__} steps to the same function from w and c·w {settings}",
        after(state),
        after(rescaled),
        after,
    )
    setting.counts[f"{kind.__name__}: w and c·w"] += 1


def path_step(setting: Setting) -> None:
    """w − η δ/γ, with γ from the reference's sum over paths."""
    model = setting.model
    p = Random(setting.seed + 1).choice([1.0, 2.0, 3.0])
    try:
        ps.path_norm(setting.network, p)
    except ps.PathspaceError:
        return
    gradients = _gradients(setting, setting.copy(), False)
    try:
        total, powers = path_sum(setting.spec, model, p)
    except NotKnown:
        total = None
    rate = 0.05
    if total is not None and not setting.network.normalizations:
        names = [name for name in powers if name in gradients]
        slopes = torch.autograd.grad(
            total, [powers[n] for n in names], allow_unused=True, materialize_grads=True
        ) if total.requires_grad else []  # fmt: skip
        gamma = {n: s.pow(2 / p) for n, s in zip(names, slopes, strict=False)}
        plain = _plain(setting.network)
        squares = [
            ((gradients[n] ** 2 / g)[g > 0].sum(), (model.get_parameter(n) ** 2 * g).sum())
            for n, g in gamma.items()
            if n not in plain
        ]
        there, size = (sum(float(pair[k].detach()) for pair in squares) for k in (0, 1))
        rate = 0.05 * math.sqrt(size / there) if 0 < there < math.inf and size > 0 else rate
        if math.isfinite(rate) and 1e-200 < rate < 1e200 and gamma:
            stepped = _stepped(setting, ps.optim.PathSGD, {"lr": rate, "p": p}, setting.state())
            for name, gradient in gradients.items():
                factor = torch.where(gamma[name] > 0, 1 / gamma[name], 0.0)
                factor = torch.ones_like(gradient) if name in plain else factor
                before = model.get_parameter(name).detach()
                change = -rate * factor * gradient
                error = (stepped[name] - before - change).abs()
                bound = 1e-9 * change.abs() + 1e-14 * before.abs() + 1e-13 * change.abs().max()
                expect((error <= bound).all(), f"PathSGD is w − η δ/γ, p={p}", (name, error.max()))
            setting.counts["PathSGD = reference"] += 1
        else:
            return
    _invariant(setting, ps.optim.PathSGD, {"lr": rate, "p": p})


def _plain(network: ps.Network) -> set[str]:
    """Parameters that no path runs along."""
    names = network.names()
    bends = [node for node in network.program if node.operation == "prelu"]
    slopes = {n for node in bends for n in names[node.args[1].name]}
    return slopes | set(network.unreached)


def basis_step(setting: Setting) -> None:
    """The step of torch's SGD on explicit basis-path values."""
    random = Random(setting.seed + 2)
    choice = random.choice(["modulo", "largest"])
    roots = random.choice(["multiplicative", "multiplicative", "additive"])
    metric = random.choice(["normalized", "normalized", "diagonal"])
    settings = {"lr": 1e-3, "skeleton": choice, "metric": metric, "roots": roots}
    network = setting.network
    gradients = _gradients(setting, setting.copy(), bool(network.normalizations))
    if any(edge.parameter not in gradients for edge in network.edges):
        setting.counts["GSGD: a weight without gradient"] += 1  # its units rest
    elif not network.normalizations or setting.train_mode:
        try:
            explicit = (
                InTrainMode(network, choice, metric, roots)
                if network.normalizations
                else Explicit(network, choice, metric, roots)
            )
        except ps.PathspaceError:
            setting.counts["GSGD: no explicit coordinates"] += 1
        else:
            _compare_basis_step(setting, explicit, settings)
    _invariant(setting, ps.optim.GSGD, settings)


def _compare_basis_step(
    setting: Setting, explicit: Explicit | InTrainMode, settings: dict[str, Any]
) -> None:
    train = bool(setting.network.normalizations)
    if not bool(explicit.x.isfinite().all()):
        setting.counts["basis values out of range"] += 1
        return

    def stepped_to(x: Tensor) -> tuple[Tensor, State] | None:
        """The change of a step with the slope at x, and the state that it leads to."""
        slope = _slope(setting, explicit, x, train)
        if slope is None:
            return None
        change = -settings["lr"] * slope
        with torch.no_grad():
            explicit.x.copy_(before + change)
            return change, {name: tensor.detach() for name, tensor in explicit().items()}

    before = explicit.x.detach().clone()
    found = stepped_to(before)
    if found is None:
        return
    change, expected = found
    size = change.abs() if settings["roots"] == "multiplicative" else (change / before).abs()
    if bool((size[explicit.roots] > 0.5).any()) or not bool(change.isfinite().all()):
        setting.counts["GSGD: a root's step too long"] += 1
        return
    close = expected
    if train:  # batches of few values, one behind the other, magnify rounding errors
        noise = torch.randn(before.shape, generator=setting.generator(8), dtype=torch.float64)
        close = (stepped_to(before * (1 + EPS * noise)) or found)[1]
    stepped = _stepped(setting, ps.optim.GSGD, settings, setting.state())
    for name in {edge.parameter for edge in setting.network.edges}:
        error = (stepped[name] - expected[name]).abs()
        moved = (expected[name] - explicit.state[name]).abs()
        bound = 1e-8 * moved + 1e-12 * expected[name].abs() + 1e-12 * moved.max()
        sensitive = (close[name] - expected[name]).abs().max()
        if train and sensitive > 1e-3 * moved.max():
            setting.counts["too sensitive to compare: GSGD in train mode"] += 1
            return
        expect(
            (error <= bound + 3 * sensitive).all(),
            f"GSGD steps explicit values {settings}",
            (name, error.max(), sensitive),
        )
    setting.counts[f"GSGD = reference{', train mode' if train else ''}"] += 1


def _slope(
    setting: Setting, explicit: Explicit | InTrainMode, place: Tensor, train: bool
) -> Tensor | None:
    """The gradient of a loss by explicit coordinates; none if it does not depend on them."""
    with torch.no_grad():
        explicit.x.copy_(place)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        y = functional_call(setting.model.train(train), explicit(), (setting.x,))
        setting.model.eval()
    target = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    loss = (y / y.detach().abs().max().clamp_min(1e-30) - target).square().mean()
    if not loss.requires_grad:
        return None
    return torch.autograd.grad(loss, [explicit.x], materialize_grads=True)[0]
