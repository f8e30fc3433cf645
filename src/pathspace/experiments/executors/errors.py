"""What goes wrong when jobs are executed."""

from __future__ import annotations

from pathspace.errors import PathspaceError


class JobError(PathspaceError, ValueError):
    """A job is not one that can be stored and repeated, or its function failed."""


class ExecutorError(PathspaceError):
    """Jobs cannot be executed as asked: unknown executor, Ray not there, too many lost nodes."""
