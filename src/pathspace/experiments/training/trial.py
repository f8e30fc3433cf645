"""A trial: everything that determines a training, as one frozen value."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pathspace.durable.files import canonical
from pathspace.experiments import data as sets
from pathspace.experiments.loading import is_import
from pathspace.experiments.training.checking import as_type, type_name
from pathspace.experiments.training.consistency import check
from pathspace.experiments.training.errors import TrialError, unknown
from pathspace.experiments.training.loading import RANKING
from pathspace.experiments.training.optimizers import check_options, find_optimizer
from pathspace.experiments.training.step import Mixed
from pathspace.network import Streams
from pathspace.tracing.graph import OnUnknown

EPOCHS = 10  # if nothing is said about the length


@dataclass(frozen=True)
class Trial:
    """The configuration of one training.

    Values are checked when a trial is made, and what was left open is filled in, so that a trial
    always says all. Two trials are the same if their keys are.

    Attributes:
        model: a built-in name, or ``package.module:callable``, whose code is run.
        data: name of the data set; ``ml-1m`` is ranked, the others are classified.
        preprocess: steps, see :func:`pathspace.experiments.data.parse_steps`; without any, inputs
            are scaled to [0, 1] and fitted to the model's shape.
        augment: augmentation of the training images.
        init: see :data:`INITIALISATIONS`; ``he`` for built-in models, else ``as-built``.
        optimizer: see :data:`OPTIMIZERS`.
        lr: learning rate; by default that of the optimizer.
        options: further options of the optimizer.
        schedule: see :data:`SCHEDULES`.
        loss: see :data:`LOSSES`; by default the cross-entropy that suits the data.
        weight_decay: of the optimizer.
        penalties: see :data:`PENALTIES`.
        dropout: probability of dropping a unit behind each ReLU.
        batch: examples per step.
        drop_last: leave out a last batch that is not full.
        negatives: drawn per positive example, where items are ranked.
        epochs: length of the training.
        iterations: the same in steps; one of the two, or 10 epochs.
        stop: a rule to stop earlier, see :data:`RULES`.
        evaluate_every: epochs between evaluations; there is one before and one after training.
        evaluate_on: splits.
        seed: of initial weights, order of the data, augmentation and dropout.
        dtype: of weights and inputs.
        mixed: a shorter type for the forward pass.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        deterministic: use only operations that give the same numbers each time.
        streams: what a sum means to the traced network, see :func:`pathspace.trace`.
        on_unknown: what an unknown operation means to it.

    Example:
        >>> trial = Trial("mlp:64-16-10", "digits", optimizer="gsgd", lr=0.1, epochs=3)
        >>> trial.loss, trial.init, trial.key[:8]
        ('cross-entropy', 'he', '...')
        >>> Trial.from_dict({"model": "mlp:64-16-10", "data": "digits", "optimiser": "sgd"})
        Traceback (most recent call last):
        pathspace.experiments.training.errors.TrialError: unknown setting 'optimiser'; did you ...
    """

    model: str
    data: str
    preprocess: tuple[str, ...] = ()
    augment: str | None = None
    init: str | None = None
    optimizer: str = "sgd"
    lr: float | None = None
    options: dict[str, Any] = field(default_factory=dict)
    schedule: str = "constant"
    loss: str | None = None
    weight_decay: float = 0.0
    penalties: tuple[str, ...] = ()
    dropout: float = 0.0
    batch: int = 64
    drop_last: bool = False
    negatives: int = 4
    epochs: int | None = None
    iterations: int | None = None
    stop: str = "never"
    evaluate_every: int = 1
    evaluate_on: tuple[Literal["train", "validation", "test"], ...] = (
        "train",
        "validation",
        "test",
    )
    seed: int = 0
    dtype: Literal["float32", "float64"] = "float32"
    mixed: Mixed = "off"
    device: str = "cpu"
    deterministic: bool = True
    streams: Streams = "pinned"
    on_unknown: OnUnknown = "error"

    def __post_init__(self) -> None:
        types = _types()
        for name, wanted in types.items():
            value = getattr(self, name)
            try:
                self._set(name, as_type(value, wanted))
            except TypeError:
                raise TrialError(f"{name} should be {type_name(wanted)}, not {value!r}") from None
        self._fill_in()
        check(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Trial:
        """A trial from settings by name.

        Raises:
            TrialError: an unknown name, with the nearest one, or a value of the wrong type.
        """
        known = [entry.name for entry in dataclasses.fields(cls)]
        for name in settings:
            if name not in known:
                raise unknown("setting", name, known)
        for name in ("model", "data"):
            if name not in settings:
                raise TrialError(f"{name} is missing: a trial needs a model and data")
        return cls(**settings)

    @staticmethod
    def read(path: str | Path) -> dict[str, Any]:
        """The settings in a TOML file, for :meth:`from_dict`.

        Raises:
            TrialError: it cannot be read.
        """
        try:
            return tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise TrialError(f"{path} cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise TrialError(f"{path} is not TOML: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """All settings, as they are in JSON."""
        plain = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return {name: _plain(value) for name, value in plain.items()}

    @functools.cached_property
    def key(self) -> str:
        """SHA-256 of the settings that are not at their defaults.

        Neither the order of the fields nor a new field with a default changes it. The store
        compares all settings besides, so that a changed default is noticed.
        """
        defaults = {
            entry.name: _plain(entry.default)
            for entry in dataclasses.fields(self)
            if entry.default is not dataclasses.MISSING
        } | {"options": {}}
        given = {k: v for k, v in self.to_dict().items() if k not in defaults or v != defaults[k]}
        return hashlib.sha256(canonical(given).encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def title(self) -> str:
        """The trial in a few words."""
        return f"{self.model} on {self.data}, {self.optimizer}, lr {self.lr:g}, seed {self.seed}"

    # Filling in ----------------------------------------------------------------------------------

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _fill_in(self) -> None:
        """Say what was left open."""
        self._set("preprocess", tuple(step.name for step in sets.parse_steps(self.preprocess)))
        self._set("options", check_options(self.optimizer, self.options))
        if self.lr is None:
            self._set("lr", find_optimizer(self.optimizer).lr)
        if self.init is None:
            self._set("init", "as-built" if is_import(self.model) else "he")
        if self.loss is None:
            ranking = self.data in RANKING
            self._set("loss", "binary-cross-entropy" if ranking else "cross-entropy")
        if self.epochs is None and self.iterations is None:
            self._set("epochs", EPOCHS)


@functools.cache
def _types() -> dict[str, Any]:
    return get_type_hints(Trial)


def _plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return (
        dict(sorted((k, _plain(v)) for k, v in value.items())) if isinstance(value, dict) else value
    )
