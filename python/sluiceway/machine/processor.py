"""Findings on processor, memory and kernel, with the cost of each missing feature."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluiceway.base.sizes import format_bytes
from sluiceway.machine.finding import MISSING, OK, SLOW, Finding

_IO_URING_SETUP = 425  # The same number on every architecture of Linux.
_IO_URING_PARAMS_BYTES = 120
_MEMLOCK_BYTES = 128 << 20  # Requests to a disk: 32 of 4 MiB in flight.
_TRANSPARENT = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MEMINFO = Path("/proc/meminfo")
_LEAST_MEMORY = 4 << 30


def _instructions() -> Iterator[Finding]:
    try:
        from sluiceway.machine.placement import cpu_flags
    except ImportError:  # No torch, which an earlier finding says.
        return
    flags = cpu_flags()
    if not flags:
        yield Finding("instruction sets", f"not listed for {platform.machine()}")
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


def processor_findings() -> Iterator[Finding]:
    """Yield findings on instruction sets, cores, memory and the kernel's limits."""
    yield from _instructions()
    usable, total = len(os.sched_getaffinity(0)), os.cpu_count()
    costs = "torch and the lanes share a core: work that could overlap takes turns"
    figures: dict[str, Any] = {"usable": usable, "total": total}
    verdict = OK if usable > 1 else SLOW
    advice = costs if usable < 2 else ""
    yield Finding("cores", f"{usable} of {total}", verdict, advice, figures=figures)
    memory, free = total_bytes(), available_bytes()
    few = free < _LEAST_MEMORY
    yield Finding(
        "memory",
        f"{format_bytes(memory)}, {format_bytes(free)} of it free",
        SLOW if few else OK,
        "model, activations and moments must fit: sluiceway plan computes their size"
        if few
        else "",
        figures={"total_bytes": memory, "free_bytes": free},
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    enough = soft == resource.RLIM_INFINITY or soft >= _MEMLOCK_BYTES
    limit = "unlimited" if soft == resource.RLIM_INFINITY else format_bytes(soft)
    more = hard == resource.RLIM_INFINITY or hard >= _MEMLOCK_BYTES
    how = "ulimit -l" if more else "/etc/security/limits.conf, or --ulimit memlock of a container"
    costs = f"the disk tier locks its memory anew for each request; raise the limit: {how}"
    yield Finding(
        "memlock",
        limit,
        OK if enough else SLOW,
        "" if enough else costs,
        figures={"bytes": None if soft == resource.RLIM_INFINITY else soft},
    )
    yield _io_uring()
    yield _huge_pages()


def total_bytes() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_bytes() -> int:
    """Memory of the machine that is available without swapping."""
    available = _meminfo().get("MemAvailable")
    if available is None:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return available << 10


def _meminfo() -> dict[str, int]:
    """Numbers in /proc/meminfo by name; empty if there is no such file."""
    lines = _MEMINFO.read_text().splitlines() if _MEMINFO.exists() else []
    return {line.partition(":")[0]: int(line.split()[1]) for line in lines}


def _huge_pages() -> Finding:
    """Finding on huge pages of 2 MiB, both transparent and reserved ones."""
    text = _TRANSPARENT.read_text() if _TRANSPARENT.exists() else ""
    mode = text.partition("[")[2].partition("]")[0] or "none"
    table = _meminfo()
    free = table.get("HugePages_Free", 0) * (table.get("Hugepagesize", 0) << 10)
    good = mode in ("always", "madvise") or free >= _MEMLOCK_BYTES
    costs = (
        "the kernel cuts requests of the disk tier into hundreds of pieces, which cost two thirds "
        f"of the rate when measured; echo madvise > {_TRANSPARENT}"
    )
    return Finding(
        "huge pages",
        f"transparent: {mode}; set aside and free: {format_bytes(free)}",
        OK if good else SLOW,
        "" if good else costs,
        figures={"transparent": mode, "free_bytes": free},
    )


def _io_uring() -> Finding:
    libc = ctypes.CDLL(None, use_errno=True)
    params = ctypes.create_string_buffer(_IO_URING_PARAMS_BYTES)
    descriptor = libc.syscall(_IO_URING_SETUP, 1, params)
    if descriptor >= 0:
        os.close(descriptor)
        return Finding("io_uring", "yes")
    why = ctypes.get_errno()
    reasons = {
        errno.ENOSYS: "this kernel does not have it, it came with Linux 5.1",
        errno.EPERM: "not allowed: kernel.io_uring_disabled, or a container's seccomp profile",
    }
    costs = (
        "the disk tier makes its requests from threads, with about four times the processor time"
    )
    return Finding("io_uring", reasons.get(why, os.strerror(why)), MISSING, costs)
