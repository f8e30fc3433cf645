"""Where a trial ran: versions, machine and threads, for whoever has to explain a difference."""

from __future__ import annotations

import datetime
import os
import platform
from typing import Any

import torch
import torch.distributed

import pathspace


def environment() -> dict[str, Any]:
    """Versions and machine, as data.

    Example:
        >>> sorted(environment())[:3]
        ['accelerators', 'cores', 'date']
    """
    cuda = torch.cuda.is_available()
    names = (
        [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())] if cuda else []
    )
    return {
        "pathspace": pathspace.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": _processes(),
        "accelerators": names,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _processes() -> int:
    """How many train together."""
    group = torch.distributed
    return group.get_world_size() if group.is_available() and group.is_initialized() else 1
