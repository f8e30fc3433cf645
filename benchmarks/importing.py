"""How long pathspace takes to import, against `import torch` alone.

Each import is a Python process of its own, from start to end. Names are imported when they are
first used, so that `import pathspace` by itself says little: the goal is for the core, which is
tracing, rescaling, path norms and optimizers.
"""

import subprocess
import sys

from pathspace.bench import Measurement, interleaved

USES = {
    "import torch": "import torch",
    "import pathspace": "import torch, pathspace",
    "the core": "import torch; from pathspace import optim, path_norm, rescale_, trace",
    "every name": "import torch; from pathspace import *",
}


def measure(repeats: int) -> list[Measurement]:
    def process(code: str) -> None:
        subprocess.run([sys.executable, "-c", code], check=True)

    codes = {"Python alone": "", **USES}
    seconds = interleaved(
        {name: lambda code=code: process(code) for name, code in codes.items()}, repeats
    )
    torch = seconds["import torch"]
    return [
        *(
            Measurement(
                name, seconds[name] / torch, "× import torch", 1.15 if name == "the core" else None
            )
            for name in list(USES)[1:]
        ),
        Measurement("import torch", torch, "s"),
        Measurement("Python alone", seconds["Python alone"], "s"),
    ]
