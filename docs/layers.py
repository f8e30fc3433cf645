"""The layers of the package, read from its imports: the picture and lists of `architecture.md`.

`LAYERS` is the only place where the layers are written down. The test of the arrows reads it too.
An import counts wherever it runs, at the top of a module or inside a function; what is imported for
type checkers alone does not, nor does the version, which is written in the package itself.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from html import escape
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "pathspace"


@dataclass(frozen=True)
class Layer:
    """Modules and packages at one height; a name stands for all that is inside and not named."""

    title: str
    about: str
    parts: tuple[str, ...]


LAYERS = (
    Layer("Commands", "what a person types", ("__main__", "cli", "bench")),
    Layer(
        "Experiments",
        "the papers' figures, the demo",
        ("experiments.reproduce", "experiments.demo", "summary"),
    ),
    Layer(
        "Trials",
        "data, models, training, results",
        (
            "experiments.executors",
            "experiments.together",
            "experiments.training",
            "experiments.store",
            "experiments.fitting",
            "experiments.loading",
            "experiments.data",
            "experiments.models",
            "experiments",
        ),
    ),
    Layer(
        "Reports",
        "all numbers of a model; the public names",
        ("pathspace", "measuring", "measures", "report", "selfcheck"),
    ),
    Layer(
        "Gradients",
        "what needs data or a loss",
        ("optim", "flatnesses", "losslandscape", "performance", "evaluation"),
    ),
    Layer(
        "Weights",
        "what needs weights only",
        (
            "bounds",
            "penalties",
            "penalty",
            "squaresums",
            "basisgradients",
            "basismatrix",
            "foldedbias",
            "contributions",
            "norms",
            "spectral",
            "weightnorms",
            "flow",
            "generalized",
        ),
    ),
    Layer(
        "Paths",
        "values ↔ weights",
        ("equivalence", "gauge", "basis", "skeleton", "enumeration", "signedlogs"),
    ),
    Layer(
        "Rescaling",
        "the group and its action",
        (
            "balancing",
            "perron",
            "scaleloops",
            "scalelinear",
            "scaleflow",
            "rescalings",
            "weightgraph",
            "absorption",
        ),
    ),
    Layer("Network", "a model becomes a graph", ("tracing", "network", "units", "placement")),
    Layer(
        "Ground",
        "knows no network",
        (
            "plot",
            "page",
            "entries",
            "tables",
            "progress",
            "citing",
            "durable",
            "native",
            "compiling",
            "errors",
        ),
    ),
)

HEIGHT = {part: -depth for depth, layer in enumerate(LAYERS) for part in layer.parts}


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """All modules by their full names; a package goes by its own."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def part_of(module: str) -> str:
    """The part of `LAYERS` that a module belongs to: the longest name that begins its own."""
    name = module.removeprefix("pathspace.")
    candidates = [part for part in HEIGHT if f"{name}.".startswith(f"{part}.")]
    if not candidates:
        raise LookupError(f"{module} is in no layer; add it to LAYERS in docs/layers.py")
    return max(candidates, key=len)


def imports(source: Path = SOURCE) -> set[tuple[str, str]]:
    """Pairs (module, what it imports of the package), type checkers' imports apart."""
    known = modules(source)
    package = source.name
    found = set()
    for name, path in known.items():
        for statement in _running_imports(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(statement, ast.Import):
                targets = [alias.name for alias in statement.names]
            else:
                base = statement.module or ""
                inner = [f"{base}.{alias.name}" for alias in statement.names]
                if inner == [f"{package}.__version__"]:
                    continue
                targets = [one if one in known else base for one in inner]
            found |= {(name, target) for target in targets if target.split(".")[0] == package}
    return {(name, target) for name, target in found if name != target}


def upward(pairs: set[tuple[str, str]]) -> list[str]:
    """The imports that point upwards, in words."""
    return [
        f"{name} imports {target}, which is above it"
        for name, target in sorted(pairs)
        if HEIGHT[part_of(target)] > HEIGHT[part_of(name)]
    ]


def circle(pairs: set[tuple[str, str]]) -> list[str]:
    """Parts that import each other in a circle; nothing if there is none."""
    targets: dict[str, set[str]] = defaultdict(set)
    for name, target in pairs:
        if part_of(name) != part_of(target):
            targets[part_of(name)].add(part_of(target))
    finished: set[str] = set()

    def walk(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name not in finished:
            for target in sorted(targets[name]):
                if found := walk(target, [*way, name]):
                    return found
            finished.add(name)
        return []

    return next((found for name in sorted(targets) if (found := walk(name, []))), [])


def _running_imports(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    found: list[ast.Import | ast.ImportFrom] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        found += _running_imports(node)
    return found


# Showing ---------------------------------------------------------------------------------------


def write(directory: Path) -> None:
    """Write the picture and the lists for the page."""
    directory.mkdir(exist_ok=True)
    pairs = imports()
    for name, text in (("layers.svg", picture(pairs)), ("modules.md", lists(pairs))):
        path = directory / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # else a new build
            path.write_text(text, encoding="utf-8")


def lists(pairs: set[tuple[str, str]]) -> str:
    """One list per layer: its parts, the first sentence of each, and what it imports."""
    used: dict[str, set[str]] = defaultdict(set)
    for name, target in pairs:
        if part_of(name) != part_of(target):
            used[part_of(name)].add(part_of(target))
    known = modules()
    lines = []
    for layer in LAYERS:
        lines += [f"## {layer.title}: {layer.about}", ""]
        for part in layer.parts:
            path = known["pathspace" if part == "pathspace" else f"pathspace.{part}"]
            names = sorted(used[part], key=lambda name: (-HEIGHT[name], name))
            below = ", ".join(f"`{name}`" for name in names) or "nothing"
            lines += [f"`{part}`", f": {_first_sentence(path)}", "", f"  Imports {below}.", ""]
    return "\n".join(lines)


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    sentence = re.split(r"(?<!\bal)\.(?=\s|$)", text, maxsplit=1)[0]
    sentence = re.sub(r"``([^`]*)``", r"`\1`", sentence)
    sentence = re.sub(r":math:`([^`]*)`", r"$\1$", sentence)
    return " ".join(re.sub(r":\w+:`~?([^`]*)`", r"`\1`", sentence).split()) + "."


WIDTH, LEFT, RIGHT, ROW, CHARACTER = 980, 200, 190, 30, 7.3


def picture(pairs: set[tuple[str, str]]) -> str:
    """Layers as bands, parts as boxes; on the right, arrows from layer to layer."""
    body, bands, top = [], [], 12.0
    for layer in LAYERS:
        boxes, x, y = [], float(LEFT), top + 8
        for part in layer.parts:
            name = part.removeprefix("experiments.")
            width = len(name) * CHARACTER + 16
            if x + width > WIDTH - RIGHT:
                x, y = float(LEFT), y + ROW
            boxes.append(
                f'<rect class="box" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="22" '
                f'rx="4"/><text class="code" x="{x + width / 2:.0f}" y="{y + 15:.0f}">{name}</text>'
            )
            x += width + 8
        about = _wrapped(layer.about)
        height = max(y + ROW - top, 34 + 12 * len(about))
        body.append(
            f'<rect class="band" x="8" y="{top:.0f}" width="{WIDTH - RIGHT}" height="{height:.0f}" '
            f'rx="6"/><text class="title" x="20" y="{top + 22:.0f}">{escape(layer.title)}</text>'
        )
        body += [
            f'<text class="about" x="20" y="{top + 36 + 12 * k:.0f}">{escape(line)}</text>'
            for k, line in enumerate(about)
        ]
        body += boxes
        bands.append((top, height))
        top += height + 12
    style = (
        "text{font-family:system-ui,sans-serif;fill:#1b2733}.title{font-size:14px;font-weight:600}"
        ".about{font-size:10.5px;fill:#5a6875}.code{font:12px ui-monospace,monospace;"
        "text-anchor:middle}.band{fill:#eef3f8}.box{fill:#fff;stroke:#9fb3c8}"
        ".arc{fill:none;stroke:#2a6db0;stroke-opacity:.45}.up{stroke:#c02020}.head{fill:#2a6db0}"
        ".count{font-size:10px;fill:#2a6db0}"
    )
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'markerUnits="userSpaceOnUse" orient="auto"><path class="head" d="M0 0 8 4 0 8z"/></marker>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:.0f}" role="img" '
        f'width="{WIDTH}" height="{top:.0f}"><title>Layers of pathspace, and what imports what'
        f"</title><defs><style>{style}</style>{head}</defs>"
        f'<rect width="{WIDTH}" height="{top:.0f}" fill="#fff"/>'
        f"{''.join(body)}{''.join(_arcs(pairs, bands))}</svg>\n"
    )


def _arcs(pairs: set[tuple[str, str]], bands: list[tuple[float, float]]) -> list[str]:
    """An arrow for every pair of layers, the wider the more imports; leaving low, arriving high."""
    counts = Counter((-HEIGHT[part_of(a)], -HEIGHT[part_of(b)]) for a, b in pairs)
    edge, arcs = WIDTH - RIGHT + 8, []
    for (start, end), count in sorted(counts.items()):
        if start == end:
            continue
        (y0, h0), (y1, h1) = bands[start], bands[end]
        reach = abs(end - start)
        a = y0 + h0 / 2 + (h0 / 2 - 4) * (1 - reach / len(bands))
        b = y1 + h1 / 2 - (h1 / 2 - 4) * (1 - reach / len(bands))
        bulge = edge + 26 + 24 * reach
        kind = "arc" if end > start else "arc up"
        arcs.append(
            f'<path class="{kind}" stroke-width="{0.7 + math.log2(count) * 0.6:.1f}" '
            f'marker-end="url(#head)" d="M{edge} {a:.0f}C{bulge} {a:.0f} {bulge} {b:.0f} '
            f'{edge + 2} {b:.0f}"><title>{LAYERS[start].title} → {LAYERS[end].title}: '
            f"{count} imports</title></path>"
        )
    return arcs


def _wrapped(text: str, width: int = 28) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
