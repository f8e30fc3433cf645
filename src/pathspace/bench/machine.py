"""Where something was measured: a number without its machine says little."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from pathspace.experiments.store.environment import environment


def machine(root: Path | None = None) -> dict[str, Any]:
    """Processor, memory, versions, load and date, as data.

    Args:
        root: a clone of the repository, whose commit is then told too.

    Example:
        >>> {"cpu", "cores", "threads", "torch", "date"} <= machine().keys()
        True
    """
    about = environment()
    del about["host"]  # results are for sharing
    found: dict[str, Any] = {"cpu": _processor(), "memory_gb": _memory()}
    if hasattr(os, "getloadavg"):  # more than there are cores: repeat when it is quiet
        found["load"] = round(os.getloadavg()[0], 1)
    if root is not None:
        found["commit"] = _commit(root)
    return {**found, **about}


def machine_in_words(about: dict[str, Any]) -> str:
    """The description in one line.

    Example:
        >>> machine_in_words({"cpu": "Z80", "cores": 1, "torch": "2.6", "date": "2025-01-02T03"})
        'Z80, 1 core, torch 2.6, 2025-01-02'
    """
    cores = about["cores"]
    parts = [str(about["cpu"]), f"{cores} core" + "s" * (cores != 1)]
    parts += [f"{about['memory_gb']:g} GB"] if about.get("memory_gb") else []
    parts += [f"torch {about['torch']}", str(about["date"])[:10]]
    parts += [f"commit {about['commit']}"] if about.get("commit") else []
    return ", ".join(parts)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory() -> float | None:
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)


def _commit(root: Path) -> str | None:
    """The commit, with a plus if the code has changed since."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "src", "benchmarks")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
