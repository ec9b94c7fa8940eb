"""Exceptions of Sluiceway, one class for each kind of error, also for the compiled module.

`first_line` is for texts that quote any error.
"""

# ruff: noqa: N818 - the C++ exceptions have the same names.

from __future__ import annotations


class Error(Exception):
    """Base of every error that Sluiceway raises on purpose."""


class InvalidArgument(Error, ValueError):
    """A value, shape or combination that is wrong on every machine."""


class OutOfMemory(Error, MemoryError):
    """A tier's budget cannot hold the bytes that were asked for; the text has both byte counts."""


class IoError(Error, OSError):
    """A file or device refused an operation.

    Parameters
    ----------
    message : str
        The whole text, which `str()` returns.
    errno : int or None
        The operating system's error number, if there is one.
    filename : str or None
        The path of the file or device.
    """

    def __init__(self, message: str, errno: int | None = None, filename: str | None = None) -> None:
        super().__init__(errno, message, filename)
        self.message = message

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple:
        return type(self), (self.message, self.errno, self.filename)


class Corrupt(Error):
    """Bytes that were read back differ from the bytes that were written."""


class Timeout(Error, TimeoutError):
    """An event did not come within its time limit."""


class CudaError(Error):
    """A CUDA call failed."""


class Unavailable(Error):
    """A value that this version or build does not support; the text names the supported ones."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error that is not blank, or the error's type if it has none."""
    lines = filter(None, map(str.strip, str(error).splitlines()))
    return next(lines, type(error).__name__)
