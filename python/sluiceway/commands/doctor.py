"""`sluiceway doctor`: what this machine offers, and what each missing thing costs."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sluiceway.base.columns import columns
from sluiceway.base.json_text import json_text
from sluiceway.base.sizes import format_bytes
from sluiceway.errors import Error, IoError
from sluiceway.machine.disk import check_folder, disk_rates, has_direct

OK, SLOW, MISSING = "ok", "slow", "missing"
_IO_URING_SETUP = 425  # The same number on every architecture of Linux.
_IO_URING_PARAMS_BYTES = 120
_MEMLOCK_BYTES = 64 << 20  # Page-locked slots of a disk tier.
_SAVE_BYTES = 12  # Of a trained fp32 parameter: weight and two moments.
_LEAST_FREE = 1 << 30
_LEAST_MEMORY = 4 << 30
_SLOW_DISK_GBPS = 0.2
_SLOW_PCIE_GBPS = 6.0  # PCIe 3.0 x8, page-locked.


@dataclass(frozen=True)
class Finding:
    """One line.

    Parameters
    ----------
    verdict : str
        ok, slow or missing.
    advice : str
        What it costs, and what to do; empty where nothing is to be said.
    figures : dict
        The numbers of `found`, with units in their names.
    """

    name: str
    found: str
    verdict: str = OK
    advice: str = ""
    required: bool = False
    figures: dict[str, Any] = field(default_factory=dict)


def doctor(path: Path, quick: bool, as_json: bool) -> None:
    """Print a line for each finding, or all of them as JSON.

    Raises
    ------
    sluiceway.errors.Error
        Something without which nothing can be trained is missing.
    """
    findings = examine(path, quick)
    lacks = [f for f in findings if f.required and f.verdict == MISSING]
    if as_json:
        print(json_text({"ok": not lacks, "findings": [asdict(f) for f in findings]}))
    else:
        print(columns([[f.name, f.verdict, f.found, f.advice] for f in findings]))
    for f in lacks:
        raise Error(f"doctor: {f.name} is missing, {f.found}; {f.advice}")


def examine(path: Path, quick: bool) -> list[Finding]:
    """Look at everything.

    Parameters
    ----------
    path : Path
        Folder whose disk is looked at.
    quick : bool
        Measure no rates.
    """
    check_folder(path)
    findings = [Finding("python", platform.python_version()), *_compiled()]
    findings += [*_instructions(), *_machine(), *_disk(path, quick)]
    return findings if quick else [*findings, *_link()]


# ---- Python side ----


def _reason(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _compiled() -> Iterator[Finding]:
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


# ---- Processor and memory ----


def _instructions() -> Iterator[Finding]:
    try:
        from sluiceway.machine.placement import cpu_flags
    except ImportError:  # Without torch, which is said already.
        return
    flags = cpu_flags()
    if not flags:
        yield Finding("instruction sets", f"not told by {platform.machine()}")
        return
    emulated = "bf16 matrix products are emulated: keep model.autocast auto or null"
    for name, flag, costs in (
        ("AVX2", "avx2", "kernels take 128 bits at a time"),
        ("AVX-512", "avx512bw", "kernels take 256 bits at a time; those bound by memory lose less"),
        ("AVX512-BF16", "avx512_bf16", "" if "amx_bf16" in flags else emulated),
        ("AMX", "amx_bf16", "bf16 matrix products at AVX-512's speed"),
    ):
        if flag in flags:
            yield Finding(name, "yes")
        elif name == "AMX" and "avx512_bf16" not in flags:
            yield Finding(name, "no", SLOW, emulated)
        else:
            yield Finding(name, "no", SLOW if costs else OK, costs)


def _machine() -> Iterator[Finding]:
    usable, total = len(os.sched_getaffinity(0)), os.cpu_count()
    costs = "torch and the lanes share a core: work that could overlap takes turns"
    figures: dict[str, Any] = {"usable": usable, "total": total}
    verdict = OK if usable > 1 else SLOW
    advice = costs if usable < 2 else ""
    yield Finding("cores", f"{usable} of {total}", verdict, advice, figures=figures)
    memory, free = _memory()
    few = free < _LEAST_MEMORY
    yield Finding(
        "memory",
        f"{format_bytes(memory)}, {format_bytes(free)} of it free",
        SLOW if few else OK,
        "model, activations and moments must fit: sluiceway plan says how much" if few else "",
        figures={"total_bytes": memory, "free_bytes": free},
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    enough = soft == resource.RLIM_INFINITY or soft >= _MEMLOCK_BYTES
    limit = "unlimited" if soft == resource.RLIM_INFINITY else format_bytes(soft)
    more = hard == resource.RLIM_INFINITY or hard >= _MEMLOCK_BYTES
    how = "ulimit -l" if more else "/etc/security/limits.conf, or --ulimit memlock of a container"
    costs = f"nothing before there is a disk tier, whose slots are locked; raise it: {how}"
    yield Finding(
        "memlock",
        limit,
        OK if enough else SLOW,
        "" if enough else costs,
        figures={"bytes": None if soft == resource.RLIM_INFINITY else soft},
    )
    yield _io_uring()


def _memory() -> tuple[int, int]:
    """Bytes of the machine, and those that can be had without swapping."""
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    for line in meminfo.read_text().splitlines() if meminfo.exists() else ():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
    return total, free


def _io_uring() -> Finding:
    libc = ctypes.CDLL(None, use_errno=True)
    params = ctypes.create_string_buffer(_IO_URING_PARAMS_BYTES)
    descriptor = libc.syscall(_IO_URING_SETUP, 1, params)
    if descriptor >= 0:
        os.close(descriptor)
        return Finding("io_uring", "yes")
    why = ctypes.get_errno()
    reasons = {
        errno.ENOSYS: "this kernel has none, it came with 5.1",
        errno.EPERM: "not allowed: kernel.io_uring_disabled, or a container's seccomp profile",
    }
    costs = "nothing before there is a disk tier; then its requests need threads"
    return Finding("io_uring", reasons.get(why, os.strerror(why)), MISSING, costs)


# ---- Disk and link ----


def _disk(path: Path, quick: bool) -> Iterator[Finding]:
    if has_direct(path):
        yield Finding("O_DIRECT", f"yes, in {path}")
    else:
        costs = "a disk tier would go through the page cache, which takes memory; try another disk"
        yield Finding("O_DIRECT", f"refused in {path}", MISSING, costs)
    if not quick:
        yield from _disk_rates(path)
    free = shutil.disk_usage(path).free
    # The last save stays until the new one is complete.
    room = free / (2 * _SAVE_BYTES)
    text = f"{format_bytes(free)}: saves of up to {room / 1e9:.2g} G trained parameters"
    few = free < _LEAST_FREE
    advice = "too little for most saves: free some, or take another --out" if few else ""
    yield Finding("free space", text, MISSING if few else OK, advice, figures={"bytes": free})


def _disk_rates(path: Path) -> Iterator[Finding]:
    try:
        rates = disk_rates(path)
    except IoError as error:
        advice = "nothing can be saved here: free some space, or take another --out"
        yield Finding("disk write", str(error), MISSING, advice)
        return
    for way in ("write", "read"):
        rate = rates[f"{way}_gbps"]
        minutes = 1e9 * _SAVE_BYTES / (1e9 * rate) / 60
        costs = f"a save of 1 G parameters takes {minutes:.1f} minutes; try another disk"
        past = "" if rates["direct"] else ", through the page cache"
        slow = rate < _SLOW_DISK_GBPS
        figures = {"gbps": rate, "bytes": rates["bytes"], "direct": rates["direct"]}
        yield Finding(
            f"disk {way}",
            f"{rate:.2f} GB/s{past}",
            SLOW if slow else OK,
            costs if slow else "",
            figures=figures,
        )


def _link() -> Iterator[Finding]:
    try:
        import torch

        from sluiceway.machine.roofs import link_seconds
    except ImportError:  # Without torch, which is said already.
        return
    size = 64 << 20
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    rates = {f"{way}_gbps": size / s / 1e9 for way, s in link_seconds(size, device).items()}
    if device.type == "cpu":
        text = f"{rates['d2h_gbps']:.1f} GB/s: the host device's is a memory copy"
        yield Finding("link", text, OK, "device.link throttles it", figures=rates)
        return
    slow = min(rates.values()) < _SLOW_PCIE_GBPS
    yield Finding(
        "link",
        f"{rates['d2h_gbps']:.1f} GB/s to the host, {rates['h2d_gbps']:.1f} GB/s to the device",
        SLOW if slow else OK,
        "fewer lanes than the card has: look at the slot; sluiceway plan says what it costs"
        if slow
        else "",
        figures=rates,
    )
