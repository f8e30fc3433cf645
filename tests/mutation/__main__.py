"""Mutants of the core: `python -m mutation --mutants 400 --seed 0` in the folder of the tests."""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import pathspace
from mutation.mutants import Mutant, mutants
from mutation.running import Outcome, Tests

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCE = Path(pathspace.__file__).parent
MUTATED = """
    network rescalings basis basisgradients basismatrix squaresums native skeleton weightgraph
    enumeration norms generalized flow optim
""".split()
# The tests that are made for these modules; those that train, draw or print are left out.
TESTS = """
    rescaling skeleton basis basis_path_norm path_norm enumeration generalized slopes runs layers
    optim_exactness optim_native native optim_sides optimizer_contract optim_robustness
    optim_invariance equivalence
    trace operations penalties penalties_native regressions balance evaluation placement
    contributions numerical_edges bounds laws together optimizer_integrations
""".split()
QUIET = ["-q", "-q", "-s", "-p", "no:cacheprovider", "--tb=no"]
FATES = ("killed", "timed out", "equivalent", "survived")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=400, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of their choice")
    parser.add_argument("--seconds", type=float, default=30.0, help="of tests for one mutant")
    parser.add_argument("--only", nargs="*", default=[], help="names of mutants, instead")
    parser.add_argument("--tests", nargs="*", default=[], help="instead of all of the core's")
    parser.add_argument("--cache", type=Path, default=ROOT / ".mutation", help="a folder")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    files = [file for name in MUTATED for file in _files(name)]
    everything = [mutant for file in files for mutant in mutants(file)]
    chosen = random.Random(arguments.seed).sample(everything, len(everything))
    if arguments.only:
        chosen = [mutant for mutant in everything if mutant.name in arguments.only]
    tests = arguments.tests or [
        *(str(ROOT / "tests" / f"test_{name}.py") for name in TESTS),
        *map(str, files),
    ]
    fates: list[tuple[Mutant, str]] = []
    equivalent = _equivalent()

    def work(collected: Tests) -> None:
        reach = collected.reach(files, _keeper(arguments.cache))
        print(
            f"{len(reach.seconds)} tests that take {sum(reach.seconds.values()):.0f} s; failed: "
            f"{reach.failed or 'none'}",
            flush=True,
        )
        collected.warm_up(reach)
        for mutant in chosen:
            start = time.monotonic()
            outcome = collected.outcome(mutant, reach, arguments.seconds)
            if outcome.fate == "survived" and _text(mutant) in equivalent:
                outcome = replace(outcome, fate="equivalent")
            print(_line(mutant, outcome, time.monotonic() - start), flush=True)
            if outcome.fate != "left out":
                fates.append((mutant, outcome.fate))
            if len(fates) == arguments.mutants:
                break

    code = pytest.main([*QUIET, f"--rootdir={ROOT}", *tests], plugins=[Tests(work)])
    if code:
        return int(code)
    _report(everything, fates)
    print(f"seed {arguments.seed}, {arguments.seconds:.0f} s of tests for a mutant at most")
    return 0


def _report(everything: list[Mutant], fates: list[tuple[Mutant, str]]) -> None:
    """Counts by module, and the share that tests notice with its 95 % interval."""
    print(f"{'':16}{'mutants':>8}{'tried':>7}" + "".join(f"{fate:>12}" for fate in FATES))
    for name in (*MUTATED, "all"):
        tried = [fate for mutant, fate in fates if name in ("all", _group(mutant))]
        if not tried:
            continue
        counts = Counter(tried)
        number = sum(name in ("all", _group(mutant)) for mutant in everything)
        noticed = counts["killed"] + counts["timed out"]
        low, high = _wilson(noticed, len(tried))
        print(
            f"{name:16}{number:8d}{len(tried):7d}"
            + "".join(f"{counts[fate]:12d}" for fate in FATES)
            + f"   {noticed / len(tried):4.0%} ({low:.0%} to {high:.0%})"
        )


def _line(mutant: Mutant, outcome: Outcome, seconds: float) -> str:
    by = f" by {outcome.by}" if outcome.by else ""
    line = f"{mutant.name} {outcome.fate}{by} ({outcome.tests} tests, {seconds:.1f} s)"
    return line + f"\n    {_text(mutant)}" if outcome.fate == "survived" else line


def _text(mutant: Mutant) -> str:
    return f"{_module(mutant)}: {mutant.change}"


def _wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share."""
    share, extra = successes / trials, z * z / trials
    centre = (share + extra / 2) / (1 + extra)
    half = z * math.sqrt(share * (1 - share) / trials + extra / trials / 4) / (1 + extra)
    return centre - half, centre + half


def _equivalent() -> set[str]:
    """The mutants that were looked at and change nothing that anyone could notice."""
    table = tomllib.loads((HERE / "equivalent.toml").read_text(encoding="utf-8"))
    return {mutant for kind in table["kind"] for mutant in kind["mutants"]}


def _keeper(cache: Path) -> Callable[[Path], Path]:
    """Where to keep what the tests of a file reach, for these sources, these tests and helpers."""
    helpers = [file for file in (ROOT / "tests").glob("*.py") if not file.match("test_*")]
    common = hashlib.sha256()
    for file in sorted([*SOURCE.rglob("*.py"), *helpers]):
        common.update(file.read_bytes())
    cache.mkdir(exist_ok=True)

    def kept(file: Path) -> Path:
        digest = common.copy()
        digest.update(file.read_bytes())
        return cache / f"{file.parent.name}-{file.stem}-{digest.hexdigest()[:16]}.json"

    return kept


def _files(name: str) -> list[Path]:
    return sorted((SOURCE / name).glob("*.py")) or [SOURCE / f"{name}.py"]


def _module(mutant: Mutant) -> str:
    """Its file, seen from the package."""
    return mutant.file.relative_to(SOURCE).as_posix()


def _group(mutant: Mutant) -> str:
    return _module(mutant).partition("/")[0].removesuffix(".py")


if __name__ == "__main__":
    raise SystemExit(main())
