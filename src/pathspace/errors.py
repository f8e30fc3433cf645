"""What pathspace raises when it cannot be exact: every error names the thing and the remedy."""


class PathspaceError(Exception):
    """Base class of the errors of this package."""


class TraceError(PathspaceError, ValueError):
    """The model or its example input cannot be traced at all."""


class UnsupportedOperation(TraceError, NotImplementedError):
    """An operation of the model is in no table, so its units cannot be followed.

    Attributes:
        operation: name of the operation, as torch calls it.
        module: path of the module whose ``forward`` called it (``""`` is the model itself).
    """

    def __init__(self, message: str, *, operation: str = "", module: str = "") -> None:
        super().__init__(message)
        self.operation = operation
        self.module = module


class RescalingError(PathspaceError, ValueError):
    """A rescaling does not fit the network: unknown layer, wrong length, factor not positive."""


class OutOfRange(PathspaceError, OverflowError):
    """Numbers leave the range of their dtype: of a path sum, or of a step, which is not taken."""
