"""What can go wrong, one class a kind; the compiled module raises exactly these."""

# ruff: noqa: N818 - the names are those of the C++ exceptions.

from __future__ import annotations


class Error(Exception):
    """Base of every error that Sluiceway raises on purpose."""


class InvalidArgument(Error, ValueError):
    """A value, shape or combination that cannot be right, whatever the machine."""


class OutOfMemory(Error, MemoryError):
    """A tier's budget cannot hold what was asked of it; the text has both byte counts."""


class IoError(Error, OSError):
    """A file or device refused.

    Parameters
    ----------
    message : str
        The whole text, as `str()` shows it.
    errno : int or None
        The operating system's number, when there is one.
    filename : str or None
        The path concerned.
    """

    def __init__(self, message: str, errno: int | None = None, filename: str | None = None) -> None:
        super().__init__(errno, message, filename)
        self.message = message

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple:
        return type(self), (self.message, self.errno, self.filename)


class Corrupt(Error):
    """Bytes that were read back are not those that were written."""


class Timeout(Error, TimeoutError):
    """Something did not come within the time it was given."""


class CudaError(Error):
    """A CUDA call failed."""


class Unavailable(Error):
    """A value that this version or build does not have; the text names those it has."""
