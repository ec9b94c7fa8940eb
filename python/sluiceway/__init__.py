"""Fine-tunes large language models on machines whose GPU, RAM or bus is too small for them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sluiceway import errors
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
    "ChunkedLoss",
    "Corrupt",
    "CudaError",
    "Durable",
    "Error",
    "InvalidArgument",
    "IoError",
    "Link",
    "OffloadAdamW",
    "OutOfMemory",
    "Refresh",
    "StoreOptions",
    "SubspaceAdamW",
    "Timeout",
    "Unavailable",
    "ZoSgd",
    "__version__",
    "errors",
    "for_trainer",
    "fuse_linears",
    "open_streamed",
]

if TYPE_CHECKING:
    from sluiceway.config.values import Budget, Link, Refresh, StoreOptions
    from sluiceway.model.chunked_loss.of_model import ChunkedLoss
    from sluiceway.optim.for_trainer import for_trainer
    from sluiceway.optim.offload.durable import Durable
    from sluiceway.optim.offload.open_streamed import open_streamed
    from sluiceway.optim.offload.optimizer import OffloadAdamW
    from sluiceway.optim.subspace.fused.fusing import fuse_linears
    from sluiceway.optim.subspace.optimizer import SubspaceAdamW
    from sluiceway.optim.zo.optimizer import ZoSgd

# Loaded on first use, so that `sluiceway --help` starts without torch and pydantic, and so that
# the compiled module can import sluiceway.errors while the package is being imported.
_HOMES = {
    "Budget": "sluiceway.config.values",
    "ChunkedLoss": "sluiceway.model.chunked_loss.of_model",
    "Durable": "sluiceway.optim.offload.durable",
    "Link": "sluiceway.config.values",
    "OffloadAdamW": "sluiceway.optim.offload.optimizer",
    "Refresh": "sluiceway.config.values",
    "StoreOptions": "sluiceway.config.values",
    "SubspaceAdamW": "sluiceway.optim.subspace.optimizer",
    "ZoSgd": "sluiceway.optim.zo.optimizer",
    "for_trainer": "sluiceway.optim.for_trainer",
    "fuse_linears": "sluiceway.optim.subspace.fused.fusing",
    "open_streamed": "sluiceway.optim.offload.open_streamed",
}


def __getattr__(name: str) -> Any:
    if name == "_core":  # `from sluiceway import _core`, before it is loaded.
        return import_module("sluiceway.machine.software").load_compiled_module()
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'sluiceway' has no attribute {name!r}")
