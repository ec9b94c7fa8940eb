"""The GPU of this machine: its model, its free memory, and whether every part can use it."""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
from collections.abc import Iterator
from typing import Any

from sluiceway.base.sizes import format_bytes
from sluiceway.errors import first_line
from sluiceway.machine.finding import MISSING, OK, SLOW, Finding

NO_CARD = "none: "  # Start of the text of `gpu_finding` on a machine without a GPU.
_OLDEST = (7, 5)  # Compute capability; CUDA 13 has no code for older ones.
_LOCKED_BYTES = 64 << 20
_DRIVER_LIBRARY = "libcuda.so.1"
_COSTS = "the host device computes instead, at the processor's speed"


def card_findings(torch: Any, core: Any) -> Iterator[Finding]:
    """Yield findings on the GPU, its driver and page-locked memory.

    Parameters
    ----------
    torch : module
    core : module
        The compiled module.
    """
    yield gpu_finding(torch, core)
    if driver := _driver_and_name():
        yield Finding("driver", driver[0])
    elif torch.cuda.is_available():
        yield Finding("driver", "nvidia-smi does not tell its version, but torch can use it")
    else:
        yield Finding("driver", "nvidia-smi does not answer", MISSING, "only a GPU needs it")
    yield _page_locked(core)


def gpu_finding(torch: Any, core: Any) -> Finding:
    """Finding on the first GPU; its verdict is ok if torch and the compiled module can use it.

    Parameters
    ----------
    torch : module
    core : module
        The compiled module.
    """
    if torch.cuda.is_available():
        return _present(torch, core)
    return _absent(torch, _driver_and_name())


def _present(torch: Any, core: Any) -> Finding:
    shape, count = torch.cuda.get_device_properties(0), torch.cuda.device_count()
    figures = {"memory_bytes": shape.total_memory, "count": count}
    text = f"{shape.name}, {format_bytes(shape.total_memory)}, sm_{shape.major}{shape.minor}"
    text += f", one of {count}" if count > 1 else ""
    if (shape.major, shape.minor) < _OLDEST:
        text += f", older than sm_{_OLDEST[0]}{_OLDEST[1]}, the oldest that CUDA 13 supports"
        return Finding("gpu", text, MISSING, _COSTS, figures=figures)
    try:
        free, _ = torch.cuda.mem_get_info(0)
    except RuntimeError as error:
        return Finding("gpu", f"{text}: {first_line(error)}", MISSING, _COSTS, figures=figures)
    text += f", {format_bytes(free)} of it free"
    figures["free_bytes"] = free
    if core.cuda_device_count() > 0:
        return Finding("gpu", text, figures=figures)
    costs = "engine native alone trains on it: build the package with SLUICEWAY_CUDA=ON"
    text += ", which the compiled module cannot use"
    return Finding("gpu", text, MISSING, costs, figures=figures)


def _absent(torch: Any, driver: list[str] | None) -> Finding:
    with_cuda = bool(torch.version.cuda)
    if driver:
        if not with_cuda:
            fix = "this torch is built without CUDA: install one that is"
        elif not _has_driver_library():
            fix = (
                f"the driver's library, {_DRIVER_LIBRARY}, is not found: install it (Debian: "
                "libcuda1; a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
            )
        else:
            fix = "torch sees no device: look at CUDA_VISIBLE_DEVICES and at the driver's version"
        found = f"{driver[1]}, which torch cannot use"
        return Finding("gpu", found, MISSING, f"{_COSTS}; {fix}")
    why = "nvidia-smi does not answer"
    why += "" if with_cuda else ", and this torch is built without CUDA"
    return Finding("gpu", f"{NO_CARD}{why}", MISSING, _COSTS)


def _page_locked(core: Any) -> Finding:
    """Try to page-lock as much memory for the first GPU as a run's staging buffers may take."""
    if core.cuda_device_count() == 0:
        return Finding("page-locked", "none: the compiled module has no GPU to lock memory for")
    size = format_bytes(_LOCKED_BYTES)
    figures = {"bytes": _LOCKED_BYTES}
    if refusal := core.page_lock_refusal(0, _LOCKED_BYTES):
        costs = "copies are slower, through a buffer of the driver; raise the limit: ulimit -l"
        return Finding("page-locked", f"not {size}: {refusal}", SLOW, costs, figures=figures)
    return Finding("page-locked", f"yes, {size} tried", OK, figures=figures)


def card_memory(device: Any) -> dict[str, int]:
    """Total and free bytes of a CUDA device of this machine."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return {"memory_bytes": total, "free_bytes": free}


def _has_driver_library() -> bool:
    """Tell whether the system's loader finds the driver's library."""
    try:
        ctypes.CDLL(_DRIVER_LIBRARY)
    except OSError:
        return False
    return True


def _driver_and_name() -> list[str] | None:
    """The driver's version and the name of the first GPU; None if nvidia-smi lists no GPU."""
    answer = _nvidia_smi("driver_version,name")
    named = answer and len(answer) > 1 and re.fullmatch(r"\d+(\.\d+)+", answer[0])
    return answer if named else None


@functools.cache
def _nvidia_smi(query: str) -> list[str] | None:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, capture_output=True, check=True, timeout=10, encoding="utf-8", errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.splitlines()
    return [part.strip() for part in lines[0].split(",")] if lines else None
