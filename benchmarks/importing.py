"""How long `import pathspace` takes, against `import torch` alone.

Each import is a Python process of its own, from start to end.
"""

import subprocess
import sys

from pathspace.bench import Measurement, interleaved


def measure(repeats: int) -> list[Measurement]:
    def process(code: str) -> None:
        subprocess.run([sys.executable, "-c", code], check=True)

    names = ("torch", "pathspace")
    tasks = {name: lambda name=name: process(f"import {name}") for name in names}
    seconds = interleaved({"nothing": lambda: process(""), **tasks}, repeats)
    ratio = seconds["pathspace"] / seconds["torch"]
    return [
        Measurement("import pathspace", ratio, "× import torch", 1.15),
        Measurement("import torch", seconds["torch"], "s"),
        Measurement("Python alone", seconds["nothing"], "s"),
    ]
