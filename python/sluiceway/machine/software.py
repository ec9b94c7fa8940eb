"""Is torch there, and does it see a GPU?"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluiceway.base.sizes import format_bytes
from sluiceway.machine.finding import MISSING, Finding


def _reason(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def software_findings() -> Iterator[Finding]:
    """Torch, the compiled module, GPU and driver."""
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding("torch", _reason(error), MISSING, "pip install torch", required=True)
        return
    cuda = f", CUDA {torch.version.cuda}" if torch.version.cuda else ", without CUDA"
    yield Finding("torch", torch.__version__.partition("+")[0] + cuda, required=True)
    from sluiceway import _core

    yield Finding("compiled module", Path(_core.__file__).name)
    yield from _gpu(torch)


def _gpu(torch: Any) -> Iterator[Finding]:
    driver = _nvidia_smi("driver_version,name")
    costs = "the host device computes instead, at the processor's speed"
    if torch.cuda.is_available():
        shape = torch.cuda.get_device_properties(0)
        count = torch.cuda.device_count()
        text = f"{shape.name}, {format_bytes(shape.total_memory)}, sm_{shape.major}{shape.minor}"
        text += f", one of {count}" if count > 1 else ""
        figures = {"memory_bytes": shape.total_memory, "count": count}
        yield Finding("gpu", text, figures=figures)
    elif driver and not torch.version.cuda:
        fix = "this torch is built without CUDA: install one that is"
        yield Finding("gpu", f"{driver[1]}, which torch cannot use", MISSING, f"{costs}; {fix}")
    elif driver:
        fix = "torch sees no device: look at CUDA_VISIBLE_DEVICES and at the driver's version"
        yield Finding("gpu", f"{driver[1]}, which torch cannot use", MISSING, f"{costs}; {fix}")
    else:
        yield Finding("gpu", "none", MISSING, costs)
    if driver:
        yield Finding("driver", driver[0])
    else:
        yield Finding("driver", "no nvidia-smi that answers", MISSING, "needed for a GPU alone")


def _nvidia_smi(query: str) -> list[str] | None:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.splitlines()
    return [part.strip() for part in lines[0].split(",")] if lines else None
