"""Fine-tuning of large language models on machines whose GPU, RAM or bus is too small for it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sluiceway import errors
from sluiceway.config.values import Budget, Link, Refresh
from sluiceway.errors import (
    Corrupt,
    CudaError,
    Error,
    InvalidArgument,
    IoError,
    OutOfMemory,
    Timeout,
    Unavailable,
)

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "Corrupt",
    "CudaError",
    "Error",
    "InvalidArgument",
    "IoError",
    "Link",
    "OutOfMemory",
    "Refresh",
    "SubspaceAdamW",
    "Timeout",
    "Unavailable",
    "__version__",
    "errors",
]

_NOT_YET = ("OffloadAdamW", "ZoSgd")


def __getattr__(name: str) -> Any:
    # Lazy, so that a command line which needs no tensor starts without loading torch, and so that
    # the compiled module can import sluiceway.errors while the package is being imported.
    if name == "SubspaceAdamW":
        return import_module("sluiceway.optim.subspace.optimizer").SubspaceAdamW
    if name in _NOT_YET:
        raise Unavailable(f"sluiceway.{name}: not in version {__version__}, it has SubspaceAdamW")
    raise AttributeError(f"module 'sluiceway' has no attribute {name!r}")
