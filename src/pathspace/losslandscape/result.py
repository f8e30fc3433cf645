"""What a landscape is once it is computed: losses on a grid, what they belong to, pictures."""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathspace.durable.errors import Damaged, explained
from pathspace.durable.files import sealed, unsealed, write_file
from pathspace.errors import PathspaceError
from pathspace.losslandscape.chart import Space

ARRAYS, ABOUT = "landscape.npz", "landscape.json"
FORMAT = 2
UNSEALED = 1  # the first format, without checksums


@dataclass(frozen=True, eq=False)
class Landscape:
    """The loss on a line or a plane through a model.

    Attributes:
        axes: the values of t, one vector per direction.
        losses: (n1,) or (n1, n2) float64; NaN where the chart has ended.
        outside: where that is: a root of the skeleton has reached zero on the way there.
        center: the loss of the model itself, at t = 0.
        name: what the model is called.
        space: ``"paths"`` or ``"weights"``.
        labels: what one unit of each axis means.
        loss: the name of the loss.
        marks: where other models lie, by name.
        trail: where the checkpoints of a run lie, in order.
        about: what determines the losses: hashes of weights, data and directions, the seed, the
            number of samples, ...
    """

    axes: tuple[Tensor, ...]
    losses: Tensor
    outside: Tensor
    center: float
    name: str
    space: Space
    labels: tuple[str, ...]
    loss: str
    marks: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    trail: tuple[tuple[float, ...], ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dims(self) -> int:
        """1 for a line, 2 for a plane."""
        return len(self.axes)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest finite loss, that of the model included."""
        finite = self.losses[self.losses.isfinite()].tolist()
        known = [*finite, *([self.center] if math.isfinite(self.center) else [])]
        return min(known, default=math.nan), max(known, default=math.nan)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the picture should know: gaps, tiny directions, losses not finite."""
        found = []
        gaps, total = int(self.outside.sum()), self.losses.numel()
        if gaps:
            reach = self.about.get("reach")  # none if roots are too small for their dtype
            fit = f"; with directions {reach:.2g} times as long all of them fit" if reach else ""
            found.append(
                f"{gaps} of {total} points are left out: on the way there a root of the skeleton "
                f"reaches zero, where basis-path values no longer determine the weights{fit}"
            )
        scale, published = self.about.get("scale"), self.about.get("published scale")
        fits = math.inf if not scale else scale * (self.about.get("reach") or math.inf)
        if published and fits < published and not gaps:
            found.append(
                f"the directions have scale {scale:.2g}: at the published {published:g} roots of "
                "the skeleton would go through zero (filter-normalized directions suit small roots "
                "better than random ones)"
            )
        wild = int((~self.losses.isfinite() & ~self.outside).sum())
        if wild:
            found.append(f"at {wild} of {total} points the loss is not finite")
        return tuple(found)

    def __repr__(self) -> str:
        size = "×".join(str(len(axis)) for axis in self.axes)
        low, high = self.range
        gaps = f", {int(self.outside.sum())} gaps" if bool(self.outside.any()) else ""
        return (
            f"<Landscape {self.name!r}: {size} in the space of {self.space}, "
            f"loss {self.center:.4g} at the model, {low:.4g} to {high:.4g}{gaps}>"
        )

    # Files -------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write ``landscape.npz`` (arrays) and ``landscape.json`` (everything else) to a folder.

        Needs numpy, which the ``plot`` extra brings.

        Raises:
            PathspaceError: a file cannot be written, with the reason and the remedy.
        """
        numpy = _numpy()
        folder = Path(folder)
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        arrays = {f"t{k + 1}": axis.numpy() for k, axis in enumerate(self.axes)}
        content = io.BytesIO()
        arrays |= {"losses": self.losses.numpy(), "outside": self.outside.numpy()}
        numpy.savez(content, **arrays, center=numpy.float64(self.center))
        about = {
            "format": FORMAT,
            "name": self.name,
            "space": self.space,
            "center": self.center,
            "loss": self.loss,
            "labels": self.labels,
            "notes": self.notes,
            "marks": dict(self.marks),
            "trail": self.trail,
            "about": dict(self.about),
            "arrays": hashlib.sha256(content.getvalue()).hexdigest(),
        }
        about = json.loads(json.dumps(about), parse_constant=lambda _: None)  # JSON has no NaN
        write_file(folder / ARRAYS, content.getvalue())
        # Last, because it says that the landscape is complete.
        write_file(folder / ABOUT, sealed(about))
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Landscape:
        """Read what :meth:`save` wrote; nothing in the files is run.

        Raises:
            PathspaceError: there is none, or a file is damaged, or of a later version.
        """
        numpy, folder = _numpy(), Path(folder)
        if not (folder / ABOUT).exists():
            raise PathspaceError(f"there is no landscape in {folder}: {ABOUT} is missing")
        try:
            content = (folder / ABOUT).read_bytes()
            about = json.loads(content)
            found = about.get("format")
            about = unsealed(content) if found == FORMAT else about
        except (OSError, ValueError, AttributeError, RecursionError, Damaged) as error:
            raise Damaged(f"{folder / ABOUT} is damaged: {error}") from error
        if found not in (FORMAT, UNSEALED):
            raise PathspaceError(
                f"{folder / ABOUT} has format {found!r}; this version reads {FORMAT}"
            )
        try:
            content = (folder / ARRAYS).read_bytes()
            arrays = numpy.load(io.BytesIO(content), allow_pickle=False)
            held = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
            if found == FORMAT and hashlib.sha256(content).hexdigest() != about["arrays"]:
                raise ValueError(f"it does not match its checksum in {ABOUT}")
        except (
            OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, NotImplementedError,
            RuntimeError, zipfile.BadZipFile
        ) as error:  # fmt: skip
            raise Damaged(f"{folder / ARRAYS} is damaged: {error}") from error
        try:
            return cls._of(about, held)
        except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise Damaged(
                f"{folder / ABOUT} is damaged, or {ARRAYS} is: {type(error).__name__}: {error}"
            ) from error

    @classmethod
    def _of(cls, about: Mapping[str, Any], held: Mapping[str, Tensor]) -> Landscape:
        return cls(
            axes=tuple(held[f"t{k + 1}"] for k in range(len(about["labels"]))),
            losses=held["losses"],
            outside=held["outside"],
            center=float(held["center"]),
            name=about["name"],
            space=about["space"],
            labels=tuple(about["labels"]),
            loss=about["loss"],
            marks={name: tuple(place) for name, place in about["marks"].items()},
            trail=tuple(tuple(place) for place in about["trail"]),
            about=about["about"],
        )

    # Pictures ----------------------------------------------------------------------------------

    def plot(self, ax: Any = None, *, log: bool = False) -> Any:
        """A surface in three dimensions, or a curve; :func:`pathspace.plot.landscape.draw`."""
        from pathspace.plot.landscape import draw

        return draw(self, ax, log=log)

    def contour(self, ax: Any = None, *, log: bool = False) -> Any:
        """A contour map; :func:`pathspace.plot.landscape.draw_contour`."""
        from pathspace.plot.landscape import draw_contour

        return draw_contour(self, ax, log=log)

    def surface(self, *, log: bool = False) -> Any:
        """A surface to turn, as a plotly figure; :func:`pathspace.plot.surfaces.surface`."""
        from pathspace.plot.surfaces import surface

        return surface([self], log=log)

    def to_html(self, path: str | Path, *, log: bool = False) -> Path:
        """Write the surface to turn into one HTML file that needs no network."""
        from pathspace.plot.pages import write_html

        return write_html([self], path, log=log)


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise ImportError("landscape files need numpy: pip install 'pathspace[plot]'") from error
    return numpy
