"""The benchmarks of the repository: where they are, what they are called, and running one.

They are not part of the installed package: their goals belong to a state of the code, and some need
what only a clone has. A benchmark is a module of the folder ``benchmarks`` with a function
``measure(repeats)`` that returns rows. It may also set

- ``THREADS``: how many threads torch uses while it runs (by default as many as torch likes),
- ``ON_REQUEST``: why it runs only when it is called by name.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import pathspace
from pathspace.bench.measurement import Benchmark
from pathspace.errors import PathspaceError

FOLDER = "benchmarks"


class BenchmarkError(PathspaceError):
    """A benchmark cannot be found or did not end well."""


@dataclass(frozen=True)
class Listing:
    """What is known of a benchmark without running it."""

    name: str
    title: str
    on_request: str = ""


def find_repository(start: Path | None = None) -> Path:
    """The clone of the repository: around the current folder, or what is installed in place."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents, Path(pathspace.__file__).parents[2]):
        if (folder / FOLDER).is_dir() and (folder / "src" / "pathspace").is_dir():
            return folder
    raise BenchmarkError(
        "the benchmarks of the repository are not part of the installed package; run this in a "
        "clone of it, or run `pathspace bench scaling`, which needs none"
    )


def listings(root: Path) -> dict[str, Listing]:
    """The benchmarks of a clone by name, read from their source without importing anything."""
    found = {}
    for path in sorted((root / FOLDER).glob("*.py")):
        module = ast.parse(path.read_text())
        names = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
        if "measure" not in names:
            continue
        title = (ast.get_docstring(module) or path.stem).partition("\n")[0].rstrip(".")
        found[path.stem] = Listing(path.stem, title, _constant(module, "ON_REQUEST"))
    return found


def run_benchmark(root: Path, listing: Listing, repeats: int) -> Benchmark:
    """Run a benchmark in a process of its own, so that none finds what another one left.

    Raises:
        BenchmarkError: with the last lines that it said, if it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        code = "import sys; from pathspace.bench.repository import _child; _child(*sys.argv[1:])"
        command = [sys.executable, "-c", code, listing.name, str(repeats), str(result)]
        # -c puts the current folder on the path, where `benchmarks` is found.
        ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if ended.returncode or not result.exists():
            said = "\n".join(ended.stderr.strip().splitlines()[-12:])
            raise BenchmarkError(f"benchmark `{listing.name}` failed:\n{said}")
        return Benchmark.from_dict(json.loads(result.read_text()))


def _child(name: str, repeats: str, result: str) -> None:
    """Inside the process: measure, and write down what was found."""
    module = importlib.import_module(f"{FOLDER}.{name}")
    if threads := getattr(module, "THREADS", None):
        torch.set_num_threads(threads)
    start = time.perf_counter()
    rows = tuple(module.measure(int(repeats)))
    title = (module.__doc__ or name).partition("\n")[0].rstrip(".")
    used, seconds = torch.get_num_threads(), round(time.perf_counter() - start, 1)
    done = Benchmark(name, title, rows, int(repeats), used, seconds)
    Path(result).write_text(json.dumps(done.to_dict()))


def _constant(module: ast.Module, name: str) -> str:
    """A text that a module assigns to a name."""
    for node in module.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            with contextlib.suppress(ValueError):
                return str(ast.literal_eval(node.value))
    return ""
