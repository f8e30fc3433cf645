"""How processes that were launched together find each other, and how they part."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from pathspace.errors import PathspaceError
from pathspace.experiments.training.distributed import ALONE, Group, Ranks
from pathspace.experiments.training.errors import RankError, TrialError

TIMEOUT = 300.0  # seconds after which a rank that does not answer counts as gone
REST = 0.1  # seconds before the connections are closed
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets
FAILURES = ("gloo", "nccl", "connection", "pair closure", "socket", "timed out")


@contextlib.contextmanager
def joined(device: str = "cpu", *, timeout: float = TIMEOUT) -> Iterator[Ranks]:
    """Find the other processes that ``torchrun`` (or its like) launched with this one.

    Messages about tensors on the CPU go by gloo, about those on GPUs by NCCL.

    Args:
        device: ``cpu``, or ``cuda`` for one GPU per process, that of its local rank.
        timeout: seconds after which a rank that does not answer counts as gone.

    Raises:
        TrialError: the device cannot be shared out.
        RankError: another rank is gone, or does not answer.

    Example:
        >>> with joined() as ranks:  # a process by itself
        ...     ranks.size
        1
    """
    if not all(name in os.environ for name in LAUNCHED) or os.environ["WORLD_SIZE"] == "1":
        yield ALONE
        return
    if not dist.is_available():
        raise TrialError("this torch is built without torch.distributed: train in one process")
    backend = _backend(device)
    answered = True
    try:
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
        yield Group()
    except RuntimeError as error:
        if isinstance(error, PathspaceError) or not _is_of_communication(error):
            raise
        answered = False
        said = str(error).splitlines()[0].partition("] ")
        raise RankError(
            f"rank {os.environ['RANK']}: another rank is gone, or does not answer "
            f"({(said[2] or said[0]).partition('. ')[0]}); the same command goes on from the last "
            "checkpoint"
        ) from error
    finally:
        if answered and dist.is_initialized():  # else the end of the process ends it
            # The threads that sent the last message may need the interpreter once more to let go
            # of it; whoever ends them while holding the interpreter would wait for ever.
            time.sleep(REST)
            dist.destroy_process_group()


# Helpers -----------------------------------------------------------------------------------------


def _backend(device: str) -> str:
    """What to speak by; a process that uses a GPU takes its own."""
    kind, is_numbered, _ = device.partition(":")
    if kind == "cpu":
        return "gloo"
    if kind != "cuda":
        raise TrialError(f"device: ranks train on cpu or cuda, not on {device}")
    if is_numbered:
        raise TrialError(
            f"device: {device} is one device, but each rank takes its own; write cuda instead"
        )
    local = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
    if local >= torch.cuda.device_count():
        raise TrialError(
            f"device: there are {torch.cuda.device_count()} GPUs on this machine, and no cuda:"
            f"{local} for local rank {local}; launch fewer processes per machine"
        )
    torch.cuda.set_device(local)
    return "cpu:gloo,cuda:nccl"


def _is_of_communication(error: RuntimeError) -> bool:
    """Whether it is of a message to other ranks; gloo has no type of its own for that."""
    if isinstance(error, dist.DistError):
        return True
    return type(error) is RuntimeError and any(word in str(error).lower() for word in FAILURES)
