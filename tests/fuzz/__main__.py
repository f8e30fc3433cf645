"""Many random networks: `python -m fuzz --nets 1000 --seed 0` in the folder of the tests."""

from __future__ import annotations

import argparse
import time
import traceback
from collections import Counter

import torch

from architectures import Spec
from fuzz.drawing import draw, smaller
from fuzz.laws import check

SLOW = 10.0  # seconds: a network that takes longer is worth a look


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", type=int, default=1000, help="how many networks")
    parser.add_argument("--seed", type=int, default=0, help="of the first network")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after these")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    start, seed = time.monotonic(), arguments.seed
    failed = []
    for seed in range(arguments.seed, arguments.seed + arguments.nets):
        if time.monotonic() - start > arguments.seconds:
            break
        counts["networks"] += 1
        began = time.monotonic()
        try:
            check(draw(seed), seed, counts)
            if time.monotonic() - began > SLOW:
                print(f"seed {seed}: took {time.monotonic() - began:.0f} s", flush=True)
        except Exception as error:
            failed.append(seed)
            counts["counterexamples"] += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
            spec, last = shrink(draw(seed), seed)
            print(f"  smallest: check({spec!r}, {seed}, Counter())\n  {last}", flush=True)
    for name, number in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        print(f"{number:7d}  {name}")
    seconds = time.monotonic() - start
    print(f"seeds {arguments.seed} to {seed}, {seconds:.0f} s; failed: {failed or 'none'}")
    return 1 if failed else 0


def shrink(spec: Spec, seed: int, seconds: float = 20.0) -> tuple[Spec, str]:
    """A smaller network that fails in the same way, and how it fails."""
    last = failure(spec, seed)
    kind = last.partition(":")[0]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for candidate in smaller(spec):
            if time.monotonic() > end:
                break
            found = failure(candidate, seed)
            if found.partition(":")[0] == kind:
                spec, last = candidate, found
                break
        else:
            break
    return spec, last


def failure(spec: Spec, seed: int) -> str:
    """How a network fails, with the place; nothing if it does not."""
    try:
        check(spec, seed, Counter())
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        law = str(error).partition(":")[0]
        return f"{type(error).__name__} {law[:40]}: {error} ({place.filename}:{place.lineno})"
    return ""


if __name__ == "__main__":
    raise SystemExit(main())
