r"""The step of every optimizer here: where it is taken times how.

A *space* says where: for every weight a factor :math:`s_e`, so that :math:`s_e\,\partial l/\partial
w_e` is the gradient in coordinates that rescaling does not touch. A *rule* says how: it turns these
gradients into updates u. The step is

.. math:: w_e \leftarrow b_e\,(w_e - \eta\, s_e u_e),

with b = 1 unless the coordinates are basis-path values, where changing a root's value rescales
what leaves its units.
"""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from pathspace.errors import PathspaceError
from pathspace.network import Edge, Network
from pathspace.optim.blocks import Batch, cut, uncut
from pathspace.optim.lists import is_on, settings_of
from pathspace.optim.rules import Rule, State, is_linear
from pathspace.optim.sheets import SIZE, Leaf, Sheet, lay_out
from pathspace.optim.space import Space, Step
from pathspace.optim.stepping import Kernels, Room, compiled


class InvariantOptimizer(torch.optim.Optimizer):
    """A torch optimizer whose steps do not notice a rescaling of the network.

    Parameters that the graph does not reach get the plain rule (:attr:`plain` lists them).

    Attributes:
        network: the traced network.
        skipped: number of steps that were not taken because a gradient was not finite; one number
            per network where several lie side by side.
    """

    kind: ClassVar[str]  # a wrapper may derive a class of another name: its state is the same
    rule: ClassVar[Rule]
    space_type: ClassVar[type[Space]]
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(
        cls, *, rule: type[Rule] | None = None, space: type[Space] | None = None, **kwargs: Any
    ) -> None:
        """An optimizer is a space times a rule: its signature is made of theirs."""
        super().__init_subclass__(**kwargs)
        if rule is not None and space is not None:
            cls.rule, cls.space_type, cls.kind = rule(), space, cls.__name__
            cls.__signature__ = _signature(rule, space)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = self.__signature__.bind(*args, **kwargs)
        given.apply_defaults()
        values = given.arguments
        network, nonfinite, self.fused = (values[k] for k in ("network", "nonfinite", "fused"))
        if not isinstance(network, Network):
            raise TypeError(
                f"network must be what pathspace.trace returns, not {type(network).__name__}"
            )
        if nonfinite not in ("skip", "raise"):
            raise ValueError(f'nonfinite must be "skip" or "raise", not {nonfinite!r}')
        self.network, self.nonfinite = network, nonfinite
        self.skipped: int | Tensor = 0
        self._sheets: list[Sheet] = []
        self._signature: list[Any] = []
        self._room: Room = {}
        self._make_kernels()
        settings = {name: values[name] for name in (*self.rule.settings, "maximize")}
        options = {name: values[name] for name in _options(self.space_type)}
        self.space = self.space_type(network, **options)
        super().__init__(values["params"], settings)
        self._arranged()

    def __repr__(self) -> str:
        plain = f"\nplain rule for: {', '.join(self.plain)}" if self.plain else ""
        return f"{super().__repr__()}\nspace: {self.space!r}{plain}"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in torch; its settings are checked."""
        super().add_param_group(param_group)
        try:
            for copy_number in range(self.network.copies):
                self.rule.check(settings_of(self.param_groups[-1], copy_number))
        except ValueError:
            self.param_groups.pop()
            raise

    def _make_kernels(self) -> None:
        self.kernels = compiled() if self.fused else Kernels()
        self._compiled_in: list[list[Any]] | None = None

    @property
    def plain(self) -> list[str]:
        """Parameters that get the plain rule: for the space they are just numbers."""
        leaves = [leaf for sheet in self._arranged() for leaf in sheet.leaves]
        return [leaf.name for leaf in leaves if self.space.is_plain(leaf)]

    # One step ----------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; ``closure`` evaluates the model again and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # What comes before and after depends on the numbers, so it is left out of a compiled step.
        is_compiled = torch.compiler.is_compiling()
        is_fused = is_compiled or (self.fused and self._is_steady())
        if step := (self._begin_eagerly if is_compiled else self._begin)(is_fused):
            for batch in step.batches:
                self._update(batch, step)
            (self._end_eagerly if is_compiled else self._end)(step)
        return loss

    def _begin(self, is_fused: bool) -> Step | None:
        """Collect what the step works on; nothing if it is not to be taken."""
        sheets = self._arranged()
        step = self._step_of(sheets, is_fused)
        if all(gradient is None for gradient in step.gradients):
            return None
        for sheet in sheets:
            sheet.load()
        if not (_finite(step, self.space.seen) and self.space.inspect(step)):
            if not step.rest(self.network.copies):
                self._not_finite(step)
                return None
            assert step.resting is not None
            self.skipped = self.skipped + step.resting
            self.space.inspect(step)
        self._advance(step)
        step.hold()
        self.space.prepare(step)
        return step

    def _is_steady(self) -> bool:
        """Whether the numbers that would be compiled in are those of the last step.

        A schedule of the momentum would have every step compiled anew; it gets steps in blocks.
        """
        numbers = [
            [group[name] for name in (*self.rule.settings, "maximize") if name != "lr"]
            for group in self.param_groups
        ]
        before, self._compiled_in = self._compiled_in, numbers
        return before is None or before == numbers

    def _end(self, step: Step) -> None:
        """Finish the step."""
        self.space.finish(step)
        step.release()
        for sheet in step.sheets:
            sheet.store()

    _begin_eagerly, _end_eagerly = _disable_dynamo(_begin), _disable_dynamo(_end)

    def _update(self, batch: Batch, step: Step) -> None:
        """Step the weights of one batch of blocks."""
        space = self.space
        if not step.is_complete:
            given = [block for block in batch.blocks if step.gradients[block.place] is not None]
            if not given:
                return
            if len(given) < len(batch.blocks):
                batch = Batch(batch.group, batch.dtype, given)
        weights = batch.keep("weights", batch.all_of, step.weights)
        group = self.param_groups[batch.group]
        if self.network.copies > 1:
            group = batch.settings(group, weights[0])
        states = [
            {k: v if k == "step" else block.of(v) for k, v in step.states[block.place].items()}
            for block in batch.blocks
            if not step.linear
        ]
        step.kernels.step_weights(
            weights,
            batch.all_of(step.gradients),
            states,
            batch.keep("source", batch.of, space.source),
            batch.keep("target", batch.of, space.target),
            [batch.keep(f"back {n}", batch.of, part) for n, part in enumerate(space.back)],
            space.penalty(batch),
            group["lr"],
            {name: value for name, value in group.items() if name not in ("params", "lr")},
            self.rule,
            step.linear,
            None if step.is_fused else self._room,
        )

    # Bookkeeping -------------------------------------------------------------------------------

    def _arranged(self) -> list[Sheet]:
        """The sheets, made anew when parameters came, went, moved, were frozen or left out."""
        signature: list[Any] = [
            (p.data_ptr(), p.requires_grad, p.grad is None)
            for group in self.param_groups
            for p in group["params"]
        ]
        if self.network.copies == 1:
            signature += [is_on(group["weight_decay"]) for group in self.param_groups]
        if signature != self._signature:
            self._signature = signature
            leaves = self._make_leaves()
            kinds = [self._kind(leaf) for leaf in leaves]
            self._sheets = lay_out(zip(leaves, kinds, strict=True), self.network.copies)
            self._batches, self._whole = cut(self._sheets), uncut(self._sheets)
            self.weights = [sheet.weight for sheet in self._sheets]
            self.space.arrange(self._sheets, self.param_groups)
        return self._sheets

    def _kind(self, leaf: Leaf) -> Any:
        """Leaves of one kind may share a sheet: both or none have gradients, and equal counts."""
        count = self.state.get(leaf.parameter, {}).get("step", 0.0)
        return leaf.parameter.grad is None, float(count)

    def _make_leaves(self) -> list[Leaf]:
        edges = {edge.parameter: edge for edge in self.network.edges}
        edge_of: dict[int, Edge] = {}
        name_of: dict[int, str] = {}
        for name, parameter in self.network.parameters().items():
            name_of.setdefault(id(parameter), name)
            if name in edges:
                name_of[id(parameter)] = name
                edge_of[id(parameter)] = edges[name]
        leaves, known = [], False
        for number, group in enumerate(self.param_groups):
            for place, parameter in enumerate(group["params"]):
                known |= id(parameter) in name_of
                if not parameter.requires_grad:
                    continue
                name = name_of.get(id(parameter), f"parameter {place} of group {number}")
                if not parameter.is_floating_point():
                    raise PathspaceError(
                        f"`{name}` is of {parameter.dtype}; only real weights can be stepped here, "
                        "leave it to another optimizer"
                    )
                leaves.append(Leaf(parameter, name, number, edge_of.get(id(parameter))))
        if not known:
            raise PathspaceError(
                "none of these parameters belongs to network.model; trace the model whose "
                "parameters you pass, after moving or copying it"
            )
        return leaves

    def _step_of(self, sheets: list[Sheet], is_fused: bool = False) -> Step:
        """Collect the gradients, as matrices in the dtype that steps are taken in."""
        for sheet in sheets:
            for leaf in sheet.leaves:
                if leaf.parameter.grad is not None and leaf.parameter.grad.is_sparse:
                    raise PathspaceError(
                        f"`{leaf.name}` has a sparse gradient; use sparse=False in its layer"
                    )
        linear = all(is_linear(self.rule, group) for group in self.param_groups)
        if is_fused:
            return Step(self, sheets, self._whole, linear, self.kernels, is_fused)
        return Step(self, sheets, self._batches, linear)

    def _advance(self, step: Step) -> None:
        """Collect the states of the parameters that have a gradient, and count their steps."""
        if step.linear:
            return
        for place, sheet in enumerate(step.sheets):
            if step.gradients[place] is not None:
                state = step.states[place] = self._state_of(sheet)
                # A number would be compiled in, and every step be compiled anew.
                count = state["step"]
                state["step"] = count.double() if step.is_fused else count.item()

    def _state_of(self, sheet: Sheet) -> State:
        """The state of a sheet, made at its first step: tensors as matrices, and a count.

        The states of its parameters are views of these matrices.
        """
        states = [self.state[leaf.parameter] for leaf in sheet.leaves]
        result: State = {}
        for buffer in self.rule.buffers(self.param_groups[sheet.group]):
            name = buffer.name
            if name not in states[0]:
                matrix = torch.zeros_like(sheet.weight).add_(buffer.initial)
            else:
                matrix = sheet.kept.get(name, sheet.weight)
            views = sheet.split(matrix)
            given = [state.get(name) for state in states]
            if any(
                t is not None and t.data_ptr() != v.data_ptr()
                for t, v in zip(given, views, strict=True)
            ):
                matrix = sheet.join([tensor for tensor in given if tensor is not None])
                views = sheet.split(matrix)
            sheet.kept[name] = result[name] = matrix
            for state, view in zip(states, views, strict=True):
                state[name] = view
        for state in states:
            if "step" not in state:
                state["step"] = torch.zeros((), dtype=torch.float32)
            result["step"] = state["step"].add_(1)
        return result

    def _not_finite(self, step: Step) -> None:
        self.skipped += 1
        names = [
            leaf.name
            for sheet in step.sheets
            for leaf in sheet.leaves
            if leaf.parameter.grad is not None and not bool(leaf.parameter.grad.isfinite().all())
        ]
        where = ", ".join(f"`{name}`" for name in names) or "the sum of all gradients"
        verb = "are" if len(names) > 1 else "is"
        message = f"{where} {verb} not finite; the step was not taken and no weight has changed"
        if self.nonfinite == "raise":
            raise FloatingPointError(message)
        if self.network.copies == 1 and self.skipped == 1:
            message += " (said once; `skipped` counts)"
            warnings.warn(message, RuntimeWarning, stacklevel=_caller())

    def state_dict(self) -> dict[str, Any]:
        """As in torch, with what the space remembers under ``"space"``."""
        return {
            **super().state_dict(),
            "kind": self.kind,
            "space": self.space.state_dict(),
            "skipped": self.skipped,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        kind = state_dict.get("kind", "one of torch's")
        if kind != self.kind:
            raise PathspaceError(
                f"the state is not of {self.kind}, it is of another kind of optimizer: {kind}"
            )
        super().load_state_dict({k: state_dict[k] for k in ("state", "param_groups")})
        self._copy_state(state_dict)
        self.skipped = state_dict["skipped"]
        self._arranged()
        self.space.load_state_dict(copy.deepcopy(state_dict["space"]))

    def _copy_state(self, state_dict: dict[str, Any]) -> None:
        """Undo torch's cast to the parameters' dtypes, and share no memory with what is loaded."""
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for parameter, key in zip(group["params"], saved["params"], strict=True):
                for name, value in state_dict["state"].get(key, {}).items():
                    kept = value.detach().clone()
                    if name != "step":
                        kept = kept.to(parameter.device)
                    self.state[parameter][name] = kept

    def __getstate__(self) -> dict[str, Any]:
        kept = ("network", "space", "nonfinite", "fused", "skipped")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in kept}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        remembered = state["space"].state_dict() if "space" in state else None
        super().__setstate__(state)
        if remembered is not None:
            self._sheets, self._signature, self._room = [], [], {}
            self._make_kernels()
            self._arranged()
            self.space.load_state_dict(remembered)


def _options(space: type[Space]) -> dict[str, inspect.Parameter]:
    """The options of a space: what its constructor takes besides the network."""
    parameters = dict(inspect.signature(space).parameters)
    del parameters["network"]
    return parameters


def _signature(rule: type[Rule], space: type[Space]) -> inspect.Signature:
    """``(params, <the rule's>, *, network, <the space's>, maximize, nonfinite, fused)``."""
    kind = inspect.Parameter
    positional = [kind("params", kind.POSITIONAL_OR_KEYWORD)]
    for name, value in rule.settings.items():
        positional.append(kind(name, kind.POSITIONAL_OR_KEYWORD, default=value))
    keywords = [kind("network", kind.KEYWORD_ONLY)]
    keywords += [p.replace(kind=kind.KEYWORD_ONLY) for p in _options(space).values()]
    keywords += [kind("maximize", kind.KEYWORD_ONLY, default=False)]
    keywords += [kind("nonfinite", kind.KEYWORD_ONLY, default="skip")]
    keywords += [kind("fused", kind.KEYWORD_ONLY, default=False)]
    return inspect.Signature([*positional, *keywords])


def _finite(step: Step, seen: Sequence[bool]) -> bool:
    """Whether the gradients that the space has not looked at are finite."""
    unseen = [
        gradient
        for gradient, looked_at in zip(step.gradients, seen, strict=True)
        if gradient is not None and not looked_at
    ]
    small = [gradient.reshape(-1) for gradient in unseen if gradient.numel() < SIZE]
    sums = [gradient.sum().item() for gradient in unseen if gradient.numel() >= SIZE]
    if small:
        sums.append(torch.cat(small).sum().item())
    return math.isfinite(sum(sums))  # a sum is finite only if all its terms are


def _caller() -> int:
    """How many frames ``warnings.warn`` is away from the code that called ``step``."""
    level, frame = 1, inspect.currentframe()
    while (frame := frame and frame.f_back) and _is_inside(frame.f_globals["__name__"]):
        level += 1
    return level


def _is_inside(module: str) -> bool:
    return module.partition(".")[0] in ("torch", __name__.partition(".")[0])
