"""Torch and the compiled module: whether they load together, and which GPU they can use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

from sluiceway.errors import first_line
from sluiceway.machine.card import card_findings
from sluiceway.machine.finding import MISSING, Finding


def software_findings() -> Iterator[Finding]:
    """Yield findings on torch, the compiled module, and the GPU with its driver."""
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding("torch", first_line(error), MISSING, "pip install torch", required=True)
        return
    cuda = f", CUDA {torch.version.cuda}" if torch.version.cuda else ", without CUDA"
    yield Finding("torch", torch.__version__.partition("+")[0] + cuda, required=True)
    try:
        from sluiceway import _core
    except ImportError as error:
        said = first_line(error).removeprefix("sluiceway: ")
        yield Finding("compiled module", said, MISSING, "nothing trains without it", required=True)
        return
    yield Finding("compiled module", Path(_core.__file__).name)
    yield from card_findings(torch, _core)


def trial_device() -> str:
    """Return the first GPU if torch and the compiled module can use it, else the host device."""
    import torch

    from sluiceway import _core

    has_card = torch.cuda.is_available() and _core.cuda_device_count() > 0
    return "cuda:0" if has_card else "host"


def load_compiled_module() -> ModuleType:
    """Import `sluiceway._core`.

    Raises
    ------
    ImportError
        The installed torch lacks CUDA libraries that the module is linked with.
    """
    import torch  # A module with CUDA finds its libraries where torch has loaded them.

    try:
        return import_module("sluiceway._core")
    except ImportError as error:
        if not re.match(r"libcu\w+\.so", str(error)):
            raise
        raise ImportError(
            f"sluiceway: this build uses CUDA, but torch {torch.__version__} brings no "
            f"{str(error).partition(':')[0]}; install a torch that is built for CUDA, or build "
            "sluiceway again from its source: pip install --no-build-isolation ."
        ) from error
