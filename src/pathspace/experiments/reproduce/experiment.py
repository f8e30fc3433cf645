"""An experiment: what a paper shows, the presets, and the plan that leads from jobs to findings."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar, get_type_hints

from pathspace.errors import PathspaceError
from pathspace.experiments.executors import Job
from pathspace.experiments.reproduce.findings import Findings
from pathspace.experiments.reproduce.papers import PAPERS, Paper
from pathspace.experiments.training.checking import as_type, type_name
from pathspace.page.downloads import file_stem

Settings = TypeVar("Settings")
Found = TypeVar("Found")
Key = TypeVar("Key", bound=Hashable)

# Yields jobs, receives their outcomes and results in the same order, returns what was found.
Plan: TypeAlias = Generator[Sequence[Job], list[Any], Found]
PresetName: TypeAlias = str  # "quick", "paper", or what an experiment has in between


class ExperimentError(PathspaceError, ValueError):
    """An experiment is unknown, or is not what an experiment has to be."""


@dataclass(frozen=True)
class Preset(Generic[Settings]):
    """One size of an experiment.

    Attributes:
        settings: what the plan gets.
        jobs: how many trials and computations it takes at most (a best rate may turn out to be the
            common one); a test compares it with a rehearsal.
        time: how long that takes, and on what, in words.
        rehearsal: settings that ask for as many jobs of less work, for rehearsals; None for the
            same. Trainings are short in rehearsals anyway, computations are not.
        changes: what somebody has set other than the preset does, as ``name=value``.
    """

    settings: Settings
    jobs: int
    time: str
    rehearsal: Settings | None = None
    changes: tuple[str, ...] = ()

    def changed(self, changes: Sequence[str]) -> Preset[Settings]:
        """The preset with other settings.

        Args:
            changes: ``name=value`` each, the value as in TOML; words need no quotation marks.

        Raises:
            ExperimentError: an unknown setting, or a value of the wrong type.

        Example:
            >>> from pathspace.experiments.reproduce import find_experiment
            >>> preset = find_experiment("meng2019 fig4").quick.changed(["widths=[8, 16]"])
            >>> preset.settings.widths
            (8, 16)
        """
        types: dict[str, Any] = get_type_hints(type(self.settings))
        values: dict[str, Any] = {}
        for change in changes:
            name, _, text = change.partition("=")
            if name not in types:
                raise ExperimentError(
                    f"--set {change}: unknown setting {name!r}; known are {', '.join(types)}"
                )
            try:
                values[name] = as_type(_value(text), types[name])
            except TypeError as error:
                raise ExperimentError(
                    f"--set {change}: {name} should be {type_name(types[name])}, written as in "
                    f"TOML ({error})"
                ) from error
        settings = replace(self.settings, **values)  # type: ignore[type-var]
        return replace(self, settings=settings, changes=(*self.changes, *changes))


@dataclass(frozen=True)
class Experiment(Generic[Settings]):
    """A table or figure of a paper.

    Attributes:
        name: ``<paper> <figure or table>``, as one types it.
        title: in a few words.
        where: figures, tables and sections of the paper.
        shows: what the paper shows, in plain words.
        plan: from settings to findings, see :mod:`pathspace.experiments.reproduce`.
        quick: minutes on two cores, on real data.
        paper: the published setting.
        also: further names of it, where it shows several tables or figures.
        between: presets of other sizes, by name.
    """

    name: str
    title: str
    where: str
    shows: str
    plan: Callable[[Settings], Plan[Findings]]
    quick: Preset[Settings]
    paper: Preset[Settings]
    also: tuple[str, ...] = ()
    between: Mapping[str, Preset[Settings]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name.partition(" ")[0] not in PAPERS:
            raise ExperimentError(
                f"{self.name!r} should begin with one of {', '.join(PAPERS)} and a space"
            )

    @property
    def source(self) -> Paper:
        """The paper."""
        return PAPERS[self.name.partition(" ")[0]]

    @property
    def slug(self) -> str:
        """The name as the name of a folder."""
        return file_stem(self.name)

    @property
    def presets(self) -> dict[PresetName, Preset[Settings]]:
        """All presets by name, the largest one last."""
        return {"quick": self.quick, **self.between, "paper": self.paper}

    def preset(self, name: PresetName) -> Preset[Settings]:
        """The preset of that name.

        Raises:
            ExperimentError: there is none.
        """
        if name not in self.presets:
            known = ", ".join(self.presets)
            raise ExperimentError(f"{self.name} has no preset {name!r}; it has {known}")
        return self.presets[name]

    def changed(self, name: PresetName, changes: Sequence[str]) -> Experiment[Settings]:
        """The experiment with a changed preset, see :meth:`Preset.changed`."""
        preset = self.preset(name).changed(changes)
        if name in self.between:
            return replace(self, between={**self.between, name: preset})
        return replace(self, quick=preset) if name == "quick" else replace(self, paper=preset)

    def command(self, name: PresetName) -> str:
        """What runs it."""
        changes = "".join(f" --set '{change}'" for change in self.preset(name).changes)
        return f"pathspace reproduce {self.name} --preset {name}{changes}"


def _value(text: str) -> Any:
    """What a text means in TOML; the text itself if it means nothing there."""
    try:
        return tomllib.loads(f"it = {text}")["it"]
    except tomllib.TOMLDecodeError:
        return text


def natural_order(name: str) -> list[tuple[int, str]]:
    """Key by which names with numbers sort in the order of the numbers.

    Example:
        >>> sorted(["table1", "fig10", "fig2"], key=natural_order)
        ['fig2', 'fig10', 'table1']
    """
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def side_by_side(plans: Mapping[Key, Plan[Found]]) -> Plan[dict[Key, Found]]:
    """Several plans as one: what each yields first is yielded together, and so on.

    Example:
        >>> def count(up_to):
        ...     answers = yield list(range(up_to))
        ...     more = yield [up_to]
        ...     return answers + more
        >>> both = side_by_side({"a": count(1), "b": count(2)})
        >>> next(both), both.send(["0", "0", "1"])
        ([0, 0, 1], [1, 2])
        >>> try:
        ...     both.send(["1", "2"])
        ... except StopIteration as end:
        ...     print(end.value)
        {'a': ['0', '1'], 'b': ['0', '1', '2']}
    """
    found: dict[Key, Found] = {}
    asked: dict[Key, Sequence[Job]] = {}

    def advance(key: Key, answers: list[Any] | None) -> None:
        plan = plans[key]
        try:
            asked[key] = next(plan) if answers is None else plan.send(answers)
        except StopIteration as end:
            asked.pop(key, None)
            found[key] = end.value

    for key in plans:
        advance(key, None)
    while asked:
        answers = yield [job for jobs in asked.values() for job in jobs]
        for key, jobs in list(asked.items()):
            mine, answers = answers[: len(jobs)], answers[len(jobs) :]
            advance(key, mine)
    return {key: found[key] for key in plans}
