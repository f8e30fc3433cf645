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
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from pathspace import native
from pathspace.errors import PathspaceError
from pathspace.flow.products import Later
from pathspace.network import Network
from pathspace.optim.blocks import Batch, cut, uncut
from pathspace.optim.finite import report
from pathspace.optim.leaves import make_leaves
from pathspace.optim.lists import is_on, settings_of
from pathspace.optim.rules import Rule, is_linear
from pathspace.optim.sheets import Leaf, Sheet, lay_out
from pathspace.optim.space import Space, Step
from pathspace.optim.states import take_state
from pathspace.optim.stepping import Kernels, Room, compiled_kernels


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
        self.kernels = compiled_kernels() if self.fused else Kernels()
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
        begin = self._begin_eagerly if is_compiled else self._begin
        if step := begin(is_fused, not is_compiled):
            for batch in step.batches:
                if not step.is_native:
                    self._update(batch, step)
                    continue
                for part, later in self.space.parts(batch):
                    self._update_natively(part, step, later)
            (self._end_eagerly if is_compiled else self._end)(step)
        return loss

    def _begin(self, is_fused: bool, may_be_native: bool) -> Step | None:
        """Collect what the step works on; nothing if it is not to be taken."""
        sheets = self._arranged()
        step = self._step_of(sheets, is_fused, may_be_native)
        if all(gradient is None for gradient in step.gradients):
            return None
        for sheet in sheets:
            sheet.load()
        if not self.space.inspect(step):
            if not step.rest(self.network.copies):
                self.skipped += 1
                first = self.network.copies == 1 and bool(self.skipped == 1)
                report(step, raises=self.nonfinite == "raise", warns=first)
                return None
            assert step.resting is not None
            self.skipped = self.skipped + step.resting
            self.space.inspect(step)
        self._advance(step)
        step.hold()
        before = copy.deepcopy(self.space.state_dict()) if self.space.is_wide else None
        self.space.prepare(step)
        if self.space.is_wide:
            step.keep(before)
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
        if not step.is_in_range():
            self._undo(step)

    def _undo(self, step: Step) -> None:
        """Take back a step that left the range of a dtype.

        Raises:
            PathspaceError: always; it says so.
        """
        for place, sheet in enumerate(step.sheets):
            for leaf in sheet.leaves:
                if step.states[place]:
                    self.state[leaf.parameter]["step"].sub_(1)
        step.undo()
        if step.space_before is not None:
            self.space.load_state_dict(step.space_before)
        raise self.space.out_of_range()

    _begin_eagerly, _end_eagerly = _disable_dynamo(_begin), _disable_dynamo(_end)

    def _update(self, batch: Batch, step: Step) -> None:
        """Step the weights of one batch of blocks."""
        space = self.space
        if not step.is_complete:
            batch = batch.given(step.gradients)
            if not batch.blocks:
                return
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

    def _update_natively(self, batch: Batch, step: Step, later: Later | None) -> None:
        """The same for a linear rule, in one pass in C."""
        if not step.is_complete:
            batch = batch.given(step.gradients)
            if not batch.blocks:
                return
        space, group = self.space, self.param_groups[batch.group]
        factors = space.back if later else (space.source, space.target, *space.back)
        taken = batch.keep_all("native", lambda: self._pass_over(batch, step), factors)
        sign, decay = -1.0 if group["maximize"] else 1.0, float(group["weight_decay"])
        settings = float(group["lr"]), sign, decay
        taken.run(batch.all_of(step.gradients), *settings, None if later is None else later.step)

    def _pass_over(self, batch: Batch, step: Step) -> native.Steps:
        space = self.space
        scale, back = (
            [_contiguous(batch.of(part)) for part in parts]
            for parts in ((space.target, space.source), space.back)
        )
        return native.Steps(
            batch.all_of(step.weights),
            scale,
            space.penalty(batch),
            back,
            [space.apart.get(block.place) for block in batch.blocks],
            space.own,
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
            leaves = make_leaves(self.network, self.param_groups)
            kinds = [self._kind(leaf) for leaf in leaves]
            self._sheets = lay_out(zip(leaves, kinds, strict=True), self.network.copies)
            self._batches, self._whole = cut(self._sheets), uncut(self._sheets)
            self._is_native = self.network.copies == 1 and all(
                native.fits(sheet.weight) for sheet in self._sheets
            )
            self.weights = [sheet.weight for sheet in self._sheets]
            self.space.arrange(self._sheets, self.param_groups)
        return self._sheets

    def _kind(self, leaf: Leaf) -> Any:
        """Leaves of one kind may share a sheet: both or none have gradients, and equal counts."""
        count = self.state.get(leaf.parameter, {}).get("step", 0.0)
        return leaf.parameter.grad is None, float(count)

    def _step_of(
        self, sheets: list[Sheet], is_fused: bool = False, may_be_native: bool = False
    ) -> Step:
        """Collect the gradients, as matrices in the dtype that steps are taken in."""
        linear = all(is_linear(self.rule, group) for group in self.param_groups)
        may_be_native = may_be_native and linear and self._is_native and self.space.is_native
        if may_be_native and native.is_available():
            return Step(self, sheets, self._whole, linear, is_native=True)
        if is_fused:
            return Step(self, sheets, self._whole, linear, self.kernels, is_fused)
        return Step(self, sheets, self._batches, linear)

    def _advance(self, step: Step) -> None:
        """Collect the states of the parameters that have a gradient, and count their steps."""
        if step.linear:
            return
        for place, sheet in enumerate(step.sheets):
            if step.gradients[place] is not None:
                buffers = self.rule.buffers(self.param_groups[sheet.group])
                state = step.states[place] = take_state(sheet, buffers, self.state)
                # A number would be compiled in, and every step be compiled anew.
                count = state["step"]
                state["step"] = count.double() if step.is_fused else count.item()

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


def _contiguous(factors: list[Tensor] | None) -> list[Tensor] | None:
    return None if factors is None else [factor.contiguous() for factor in factors]


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
