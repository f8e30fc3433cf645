"""Basis-path values as coordinates: the skeleton, the metric, and where each weight finds its own.

What a step needs is laid out here, whenever parameters or the skeleton have changed; the step
itself is in :mod:`pathspace.optim.basis`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pathspace.basis import fixed_points
from pathspace.native import Apart
from pathspace.network import Network
from pathspace.optim.entries import Entries
from pathspace.optim.lists import Group, is_on
from pathspace.optim.moves import Moves
from pathspace.optim.passes import Passes, is_one_pass
from pathspace.optim.representative import HE, he_scales
from pathspace.optim.scaletables import Table, by_end
from pathspace.optim.sheets import SIDES, Sheet
from pathspace.optim.sides import entered
from pathspace.optim.skeleton import skeleton_of, training_skeleton
from pathspace.optim.space import Space, log_largest
from pathspace.skeleton import Choice, Skeleton
from pathspace.weightgraph import WeightGraph, relabelled

Metric = Literal["normalized", "diagonal", "paper"]
Roots = Literal["multiplicative", "additive"]
Start = Literal["as_is", "skeleton_init"]
MARGIN = 12.0  # of logarithms: what steps between two looks may add, and weights and gradients


class Coordinates(Space):
    """Basis-path values and a metric that measures them: everything but the step.

    Attributes:
        is_free_moving: whether free weights have steps of their own.
        skeleton: the skeleton of the units that have one.
        log_source: (H+1,) log ρ.
        log_target: (H+1,) log σ.
        rechosen: how many units got another in-edge so far.
        limited: how many steps of roots were limited so far.
    """

    def __init__(
        self,
        network: Network,
        skeleton: Choice = "modulo",
        metric: Metric = "normalized",
        roots: Roots = "multiplicative",
        start: Start = "as_is",
        bp_decay: float | tuple[float | Tensor, float | Tensor] = 0.0,
    ) -> None:
        super().__init__(network)
        for name, value, allowed in (
            ("skeleton", skeleton, get_args(Choice)),
            ("metric", metric, get_args(Metric)),
            ("roots", roots, get_args(Roots)),
            ("start", start, get_args(Start)),
        ):
            if value not in allowed:
                known = " or ".join(f'"{one}"' for one in allowed)
                raise ValueError(f"{name} must be {known}, not {value!r}")
        pair = bp_decay if isinstance(bp_decay, tuple) else (bp_decay, bp_decay)
        if network.copies == 1:
            pair = (float(pair[0]), float(pair[1]))
        if not all(bool(torch.as_tensor(value >= 0).all()) for value in pair):
            raise ValueError(f"bp_decay must be a number ≥ 0 or two of them, not {bp_decay}")
        self.choice, self.metric, self.roots, self.start = skeleton, metric, roots, start
        self.is_free_moving = metric == "normalized"
        self.decay = pair
        self.decays = tuple(is_on(value) for value in pair)
        self.taken = 0
        self.rechosen: int | Tensor = 0
        self.limited: int | Tensor = 0
        self.skeleton: Skeleton
        self.log_source = self.log_target = torch.zeros(0)
        self._trained: frozenset[str] | None = None
        self._entered: Tensor | None = None
        self._overwritten: tuple[Entries, Tensor, list[int]] | None = None

    def __repr__(self) -> str:
        return (
            f"basis-path values (skeleton {self.choice!r}, metric {self.metric!r}, "
            f"roots {self.roots!r}, start {self.start!r}, bp_decay {self.decay})\n"
            f"in-edges chosen anew: {self.rechosen}, root steps limited: {self.limited}"
        )

    # Arranging ---------------------------------------------------------------------------------

    def arrange(self, sheets: Sequence[Sheet], groups: Sequence[Group]) -> None:
        """Choose a skeleton and a metric, unless the same parameters have just moved."""
        self.sheets, self._log_largest = sheets, log_largest(sheets)
        # Weight decay depends on the representative, and so would on how units are moved.
        self._is_decayed = any(is_on(group["weight_decay"]) for group in groups)
        self._entered = None
        self.device = sheets[0].device if sheets else torch.device("cpu")
        leaves = [leaf for sheet in sheets for leaf in sheet.leaves]
        relabel = self._relabel()
        for leaf in leaves:
            if leaf.edge is not None:
                leaf.edge = relabelled(leaf.edge, relabel)
        trained = frozenset(leaf.name for leaf in leaves)
        if trained != self._trained:
            first, self._trained = self._trained is None, trained
            self._begin(relabel)
            if first and self.start == "skeleton_init":
                self._set_skeleton()
                self._begin(relabel)
        self._sources, self._targets = by_end(sheets, "source"), by_end(sheets, "target")
        self._incoming = self._incoming_weights() if self.network.normalizations else []
        self._follow_skeleton()

    def _on_paths(self) -> list[Tensor | None]:
        """The targets of all weights; H + 1 where nothing is to be added.

        That is for weights on no path, and for the skeleton as far as it has its own places.
        """
        found: list[Tensor | None] = []
        for sheet in self.sheets:
            parts = []
            for leaf in sheet.leaves:
                off = leaf.edge is None or leaf.edge.is_fixed
                scales = leaf.scales("target")
                parts.append(torch.full_like(scales, self.network.H + 1) if off else scales)
            found.append(parts[0] if sheet.single else sheet.spread(parts))
        for place, _, where in self._entries.parts:
            whole = found[place]
            if whole is not None and not self.sheets[place].single:
                whole.view(-1)[where.cpu()] = self.network.H + 1
        return found

    def _incoming_weights(self) -> list[Tensor]:
        """The targets of all weights; 0 for those of batch norms that are looked through."""
        norms = {name for n in self.network.normalizations for name in (n.weight, n.bias)}
        found = []
        for sheet in self.sheets:
            parts = [
                leaf.scales("target") * (self.metric != "paper" or leaf.name not in norms)
                for leaf in sheet.leaves
            ]
            found.append((parts[0] if sheet.single else sheet.spread(parts)).to(self.device))
        return found

    def _relabel(self) -> Tensor:
        """The published algorithm looks through batch norms; else every unit is itself."""
        relabel = torch.arange(self.network.H + 1)
        if self.metric == "paper":
            for norm in self.network.normalizations:
                before, behind = norm.input_scale.reshape(-1), self.network.scale[norm.output]
                relabel[behind] = torch.where(behind > 0, before, 0)
        return relabel

    def _begin(self, relabel: Tensor) -> None:
        """A skeleton and a metric for the weights as they are."""
        network, size = self.network, self.network.H + 1
        weights = {name: tensor.detach() for name, tensor in network.state().items()}
        for edge in network.edges:
            if edge.parameter not in (self._trained or ()):  # what must not move holds its units
                for side in SIDES:
                    relabel = torch.where(torch.isin(relabel, edge.scale(side)), 0, relabel)
        self.skeleton = training_skeleton(network, weights, relabel, self.choice)
        logs = torch.zeros(size, dtype=torch.float64)
        if self.metric != "paper":
            logs = he_scales(network.edges, weights, size)
        self.log_source = logs.to(self.device)
        self.log_target = -self.log_source
        self._largest_logs = (float(logs.abs().max()),) * 2
        self._check_range(*self._largest_logs)

    def _check_range(self, log: float, either: float) -> None:
        """Refuse factors whose squares leave the range of a dtype, or will before the next look.

        Args:
            log: of the largest factor that steps are multiplied by.
            either: the size of the logarithm that is farthest from 0: where factors of steps have
                become small, weights have become large.
        """
        if self.network.copies == 1:  # networks side by side must not end each other
            of_steps, of_weights = self._log_largest
            if not 2 * log < of_steps - MARGIN:
                raise self.out_of_range()
            self.is_wide = 2 * (4 * either) > of_weights  # the squares of two factors

    def _set_skeleton(self) -> None:
        """Set all skeleton weights to 1, those of batch norms apart; this changes the function."""
        numbers = torch.cat([self.skeleton.incoming, self.skeleton.outgoing])
        norms = {norm.weight for norm in self.network.normalizations}
        for k, edge in enumerate(self.skeleton.graph.edges):
            if edge.parameter in norms:
                start, stop = self.skeleton.graph.start[k : k + 2].tolist()
                numbers[(numbers >= start) & (numbers < stop)] = -1
        entries = Entries(self.skeleton.graph, self.sheets, numbers)
        weights = [sheet.weight for sheet in self.sheets]
        before = entries.take(weights)
        entries.put_(weights, torch.ones_like(before))
        for sheet in self.sheets:
            sheet.store()
        self._overwritten = entries, before, self._versions()

    def _versions(self) -> list[int]:
        return [leaf.parameter._version for sheet in self.sheets for leaf in sheet.leaves]

    def _undo_start(self) -> None:
        """Give the skeleton the weights it had: they were those of a checkpoint, loaded before."""
        if self._overwritten is not None and self._overwritten[2] == self._versions():
            entries, before, _ = self._overwritten
            entries.put_([sheet.weight for sheet in self.sheets], before)
            for sheet in self.sheets:
                sheet.store()
        self._overwritten = None

    def _follow_skeleton(self) -> None:
        """Prepare what the skeleton determines.

        In a sheet of several leaves every weight has its own place in the tables, so that roots
        and free weights get there what is theirs: their own factor, and no step of their own or
        one of their own length. In the matrix of a large leaf factors belong to rows and columns,
        so its skeleton weights are taken out before and put back after a step.
        """
        skeleton, device, size = self.skeleton, self.device, self.network.H + 1
        has = skeleton.outgoing >= 0
        free = torch.isin(skeleton.incoming, skeleton.outgoing) & has
        step = torch.where(free, skeleton.parent, torch.arange(size))
        owner = torch.where(has, fixed_points(step), 0)
        self.has, self.owner, self.is_root = (t.to(device) for t in (has, owner, has & ~free))
        self.parent = skeleton.parent.to(device)
        whole = WeightGraph(self.network, folded=False, relabel=self._relabel())
        self.child = whole.places(skeleton.outgoing).ends()[1].to(device)
        self._read = torch.zeros(size, dtype=torch.bool, device=device)
        for norm in self.network.normalizations:
            self._read[norm.input_scale.reshape(-1)] = True
        self._read[0] = False
        dtypes = {sheet.dtype for sheet in self.sheets}
        dtype = dtypes.pop() if len(dtypes) == 1 else torch.float64
        self._slopes = torch.zeros(size + 1, dtype=dtype, device=device)
        self._he = self.is_root.double() / HE
        self._choose_sides(has)
        assert self._entered is not None
        self._moves = Moves(self.owner, self.parent, self.child, self._entered.to(dtype))
        self._exponentials, slots = self._moves.exponentials, self._moves.slots
        self._own = self._exponentials[slots.roots : slots.source]
        self._own_scale = torch.zeros_like(self._own)  # roots have no steps but in their factors
        self.own = self._own, self._own_scale
        both = torch.cat([skeleton.incoming, skeleton.outgoing])
        self._skeleton = Entries(skeleton.graph, self.sheets, both)
        both[:size].masked_fill_(~(has & ~free), -1)
        self._entries = Entries(skeleton.graph, self.sheets, both)
        self._large = self._entries.only(self.sheets, [sheet.single for sheet in self.sheets])
        self.apart = {}
        for place, rows, where in self._large.parts:
            sheet = self.sheets[place]
            entries = Apart.at(where.cpu(), (sheet.rows, sheet.columns))
            self.apart[place] = entries, rows.cpu()[entries.order]
        self._passes: Passes | None = None
        self._group = torch.zeros(2 * size, dtype=torch.long, device=device)
        for place, rows, _ in self._entries.parts:
            self._group[rows] = self.sheets[place].group
        if self.decays[0]:
            self._inner = Table(self.sheets, self._sources)
            self._outer = Table(self.sheets, self._on_paths())
        self._make_tables(owner, size)
        self._power = 0.0
        self._rates_used: list[float | Tensor] = []

    def _choose_sides(self, has: Tensor) -> None:
        """Which units are moved by what enters them, when the sheets have changed."""
        if self._entered is not None:
            return
        allowed = torch.zeros_like(has)
        if self.metric != "paper" and not self._is_decayed:
            # A batch norm would notice that a unit it reads is rescaled: it keeps a running mean.
            allowed = ~self._read.cpu()
        found = entered(self.sheets, has, allowed)
        self._entered, self._is_any_entered = found.to(self.device), bool(found.any())

    def _make_tables(self, owner: Tensor, size: int) -> None:
        """Where each weight finds its factors, and which slopes its product with δ belongs to.

        Slots of factors are those of :class:`Moves`. Slots of slopes: units, and one for what
        belongs to none.
        """
        assert self._entered is not None
        is_in, none = self._entered.cpu(), torch.full((), size)
        slots = self._moves.slots
        one = torch.full((), slots.one)
        units = torch.arange(size)
        moved_out = torch.where(is_in, one, units)
        moved_in = torch.where(is_in, units, one)
        flow_out, flow_in = torch.where(is_in, none, owner), torch.where(is_in, owner, none)
        backs: list[list[Tensor | None]] = [[], []]
        flows: list[list[Tensor | None]] = [[], []]
        sources: list[Tensor | None] = []
        targets: list[Tensor | None] = []
        for sheet, source, target in zip(self.sheets, self._sources, self._targets, strict=True):
            sources.append(None if source is None else source + slots.source)
            if sheet.single:
                backs[0].append(_slots_of(source, moved_out, int(one)))
                backs[1].append(_slots_of(target, moved_in, int(one)))
                flows[0].append(_slots_of(source, flow_out, size))
                flows[1].append(_slots_of(target, flow_in, size))
                targets.append(target)
                continue
            zero = torch.zeros(sheet.rows, sheet.columns, dtype=torch.long)
            source, target = (zero if t is None else t for t in (source, target))
            from_unit = (source != 0) & ~is_in[source]
            back = torch.where(from_unit, moved_out[source], moved_in[target])
            flow = torch.where(from_unit, flow_out[source], flow_in[target])
            own = target.clone()
            for at, rows, where in self._entries.parts:
                if self.sheets[at] is sheet:
                    rows, where = rows.cpu(), where.cpu()
                    is_free, lengths = rows >= size, sources[-1]
                    moving = where[is_free & self.is_free_moving]
                    own.view(-1)[where] = size  # no step of its own
                    if lengths is not None:
                        own.view(-1)[moving] = target.view(-1)[moving]
                        lengths.view(-1)[moving] += slots.free_source - slots.source
                    back.view(-1)[where] = slots.roots + rows
                    flow.view(-1)[where[is_free]] = size
            backs[0].append(back)
            flows[0].append(flow)
            targets.append(own)
            backs[1].append(None)
            flows[1].append(None)
        # One table for all factors that change: it is filled in one go.
        self._factors = Table([*self.sheets] * 3, [*backs[0], *backs[1], *sources])
        count, parts = len(self.sheets), self._factors.parts
        self.back = tuple(
            part for part in (parts[:count], parts[count : 2 * count]) if any(map(_is_there, part))
        )
        self.source = parts[2 * count :]
        behind = [None if target is None else target + slots.target for target in targets]
        self._target = Table(self.sheets, behind)
        self.target = self._target.parts
        self._flow = Table([*self.sheets] * 2, [*flows[0], *flows[1]])
        flow_parts = self._flow.parts
        self._flows = list(zip(flow_parts[:count], flow_parts[count:], strict=True))
        self.seen = [any(map(_is_there, pair)) for pair in self._flows]
        self.is_native = len({sheet.dtype for sheet in self.sheets}) == 1 and all(
            is_one_pass(sheet.weight, pair)
            for sheet, pair in zip(self.sheets, self._flows, strict=True)
        )
        self._small: list[tuple[torch.dtype, Tensor, Tensor]] = []
        for place, rows, where in self._entries.parts:
            if not self.sheets[place].single:
                start = self._flow.starts[place]
                # Products of free weights count where their unit is moved by what enters it.
                is_root = rows < size
                unit = torch.where(is_root, rows, rows - size)
                counts = is_root | self._entered[unit]
                unit, where = self.owner[unit[counts]], where[counts]
                self._small.append((self.sheets[place].dtype, unit, where + start))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_passes": None}

    # Memory ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Metric, skeleton and counters."""
        return {
            "log_source": self.log_source,
            "log_target": self.log_target,
            "incoming": self.skeleton.incoming,
            "outgoing": self.skeleton.outgoing,
            "taken": self.taken,
            "rechosen": self.rechosen,
            "limited": self.limited,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        if state["taken"]:
            self._undo_start()
        self.log_source = state["log_source"].to(self.device)
        self.log_target = state["log_target"].to(self.device)
        self.taken, self.rechosen, self.limited = (
            state[name] for name in ("taken", "rechosen", "limited")
        )
        edges = (state[name].cpu() for name in ("incoming", "outgoing"))
        self.skeleton = skeleton_of(self.skeleton.graph, *edges)
        self._follow_skeleton()


def _slots_of(scales: Tensor | None, slots: Tensor, idle: int) -> Tensor | None:
    """The slots of scales; nothing if all of them are idle or belong to pinned scales."""
    if scales is None:
        return None
    found = slots[scales]
    return None if bool(((found == idle) | (scales == 0)).all()) else found


def _is_there(part: Tensor | None) -> bool:
    return part is not None
