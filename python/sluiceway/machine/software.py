"""Is torch there, and what of CUDA do it and the compiled module see?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sluiceway.machine.card import card_findings
from sluiceway.machine.finding import MISSING, Finding, first_line


def software_findings() -> Iterator[Finding]:
    """Torch, the compiled module, and the GPU with its driver."""
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
    """The first card that torch and the compiled module can use, else the host device."""
    import torch

    from sluiceway import _core

    has_card = torch.cuda.is_available() and _core.cuda_device_count() > 0
    return "cuda:0" if has_card else "host"
