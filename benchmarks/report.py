"""What benchmarks print: values, goals, and whether they are met."""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Measurement:
    """One line of the table; a smaller value is better."""

    what: str
    value: float
    unit: str
    goal: float | None = None
    forwards: float | None = None  # the same in forward passes of one example

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return "pass" if self.value <= self.goal else "falls short"

    def __str__(self) -> str:
        goal = "" if self.goal is None else f"≤ {self.goal:g} {self.unit}"
        forwards = "" if self.forwards is None else f"{self.forwards:.2f}"
        value = f"{self.value:.3f} {self.unit}"
        return f"{self.what:<48}{value:>18}{goal:>18}{forwards:>12}  {self.verdict}".rstrip()


def main(description: str | None, measure: Callable[[int], list[Measurement]]) -> None:
    """Parse the command line, measure, print, and save what was asked for."""
    first_line = (description or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=first_line)
    parser.add_argument("--repeats", type=int, default=10, help="the shortest of so many times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    arguments = parser.parse_args()
    print(first_line)
    results = measure(arguments.repeats)
    with_forwards = any(result.forwards is not None for result in results)
    forwards = f"{'forwards':>12}" if with_forwards else ""
    print(f"{'':<48}{f'min of {arguments.repeats}':>18}{'goal':>18}{forwards}")
    print(*results, sep="\n")
    about = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),  # more than there are cores: repeat when it is quiet
    }
    if with_forwards:
        print("\nforwards: how many forward passes of one example take as long")
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    if arguments.json is not None:
        rows = [asdict(result) | {"verdict": result.verdict} for result in results]
        data = about | {"repeats": arguments.repeats, "results": rows}
        arguments.json.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
