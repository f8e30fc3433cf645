"""Small trials, processes that die, and what must be the same after all of it."""

import os
import random
import signal
import traceback
from pathlib import Path

import torch

from pathspace.experiments.data import Interactions
from pathspace.experiments.training import Trial

# The files of a finished trial that do not depend on when and where it ran.
SAME = (
    "config.json",
    "metrics.jsonl",
    "weights.safetensors",
    "training.safetensors",
    "result.json",
)


def small(**settings):
    """A trial of 3 epochs of 5 steps each."""
    preprocess = ("unit_interval", "subset:train=160:test=50", "flatten")
    plain = {"preprocess": preprocess, "lr": 0.05, "epochs": 3, "batch": 32}
    return Trial(**{"model": "mlp:64-12-10", "data": "digits"} | plain | settings)


def contents(folder):
    return {name: (Path(folder) / name).read_bytes() for name in SAME}


def fork(function):
    """Run a function in a child process; its process id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def end_of(pid):
    """Wait for a child: its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def few_pairs(users=30, items=40, each=6, negatives=12, seed=0):
    """Random interactions of a few users."""
    chance = random.Random(seed)
    chosen = [chance.sample(range(items), each + 1 + negatives) for _ in range(users)]
    table = torch.tensor(chosen)
    return Interactions(
        users=torch.arange(users).repeat_interleave(each),
        items=table[:, :each].flatten(),
        test_items=table[:, each],
        test_negatives=table[:, each + 1 :],
        user_ids=torch.arange(users),
        item_ids=torch.arange(items),
        name="ml-1m",
        notes=("few pairs",),
    )
