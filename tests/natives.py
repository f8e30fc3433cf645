"""With and without the passes in C."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from pathspace import native

needs_compiler = pytest.mark.skipif(
    native.library() is None,
    reason="there is no C compiler; install gcc or clang, and leave PATHSPACE_NATIVE=0 out",
)


@contextlib.contextmanager
def torch_only(is_so: bool = True) -> Iterator[None]:
    """Do everything by torch's operations, as where there is no C compiler."""
    if is_so:
        with mock.patch.object(native, "library", return_value=None):
            yield
    else:
        yield


def said(script: str, **environment: str) -> str:
    """What a new process prints."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()
