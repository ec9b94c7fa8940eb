"""Placement of a run: device, threads, cores, and the precision of its matrix products."""

from __future__ import annotations

import contextlib
import os
import platform
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from sluiceway import _core
from sluiceway.config.schema import Config
from sluiceway.errors import InvalidArgument, Unavailable
from sluiceway.machine.card import NO_CARD, gpu_finding
from sluiceway.machine.finding import OK

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_FAST_BF16 = {"avx512_bf16", "amx_bf16"}


@dataclass(frozen=True)
class Placement:
    """Device and precision on this machine, chosen from `device` and `model.autocast`."""

    device: torch.device
    name: str  # host or cuda:N, as optimizers take it.
    autocast: str | None  # bf16, fp16 or None.
    autocast_reason: str
    device_cpu: int | None = None  # Number of the core; None unless pinned.
    lane_cpu: int | None = None

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """Type of matrix products; None means the type of the weights."""
        return DTYPES[self.autocast] if self.autocast else None

    def cast(self) -> contextlib.AbstractContextManager:
        """Context in which a forward runs."""
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast_dtype)


def choose_placement(config: Config, of_plan: bool = False) -> Placement:
    """Choose device and precision, without changing any setting yet.

    Parameters
    ----------
    of_plan : bool
        Accept a GPU that this machine does not have, to plan for another machine.

    Raises
    ------
    sluiceway.errors.Unavailable
        The config names a GPU that this machine does not have.
    sluiceway.errors.InvalidArgument
        The config asks for pinning on one core, or for more threads than there are cores.
    """
    if said := too_many_threads(config):
        raise InvalidArgument(said)
    name = _device_name(config.device.name)
    if not of_plan and not is_here(name):
        raise Unavailable(f"device.name: this machine has no {name}, it has {_devices()}")
    autocast, reason = _autocast(config.model.autocast, name)
    device = torch.device("cpu" if name == "host" else name)
    if not config.device.pin:
        return Placement(device, name, autocast, reason)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise InvalidArgument(
            f"device.pin: this process may use {len(cores)} core, but pinning needs 2 (one for "
            "torch, one for the lanes); set device.pin: false"
        )
    return Placement(device, name, autocast, reason, cores[0], cores[1])


def too_many_threads(config: Config) -> str | None:
    """Error text if `device.threads` exceeds this machine's cores; None if they are enough."""
    threads, cores = config.device.threads or 1, len(os.sched_getaffinity(0))
    if threads <= cores:
        return None
    return (
        f"device.threads: {threads} threads on {cores} cores that this process may use, expected "
        f"at most {cores}; leave it out to let torch choose"
    )


def with_threads_of_this_machine(config: Config) -> Config:
    """Return the config with at most as many threads as cores, for commands that do not train."""
    if too_many_threads(config) is None:
        return config
    device = config.device.model_copy(update={"threads": len(os.sched_getaffinity(0))})
    return config.model_copy(update={"device": device})


def unpinned(config: Config) -> Config:
    """Return the config without pinning and thread count, for commands that do not train."""
    device = config.device.model_copy(update={"pin": False, "threads": None})
    return config.model_copy(update={"device": device})


def enter_placement(config: Config, placement: Placement) -> None:
    """Set the number of threads, the core of the calling thread, and the current GPU."""
    if config.device.threads is not None:
        torch.set_num_threads(config.device.threads)
    if placement.device_cpu is not None:
        os.sched_setaffinity(0, {placement.device_cpu})
    if placement.device.type == "cuda":
        torch.cuda.set_device(placement.device)


@contextlib.contextmanager
def denormals(config: Config, placement: Placement) -> Iterator[None]:
    """Flush denormal numbers on the host device if the config says so, until the block ends."""
    if placement.device.type != "cpu":
        yield
        return
    before = _core.flush_denormals(config.device.flush_denormals)
    try:
        yield
    finally:
        _core.flush_denormals(before)


def is_here(name: str) -> bool:
    """Tell whether this machine has the device, host or cuda:N."""
    return name == "host" or int(name.split(":")[1]) < torch.cuda.device_count()


def auto_device() -> str:
    """Return the first GPU if torch and the compiled module can use it, else the host device.

    Warns, with the reason, if there is a GPU that cannot be used.
    """
    gpu = gpu_finding(torch, _core)
    if gpu.verdict == OK:
        return "cuda:0"
    if not gpu.found.startswith(NO_CARD):
        text = f"device.name: auto is the host device here; gpu: {gpu.found}; {gpu.advice}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return "host"


def _devices() -> str:
    return ", ".join(["host", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))])


def _device_name(name: str) -> str:
    if name == "auto":
        return auto_device()
    return name if name == "host" or ":" in name else f"{name}:0"


def _autocast(asked: str | None, device: str) -> tuple[str | None, str]:
    if asked != "auto":
        return asked, "as the config says"
    if device != "host":
        return "bf16", "auto: a GPU"
    flags = _FAST_BF16 & cpu_flags()
    if flags:
        return "bf16", f"auto: this processor has {' and '.join(sorted(flags))}"
    return None, "auto: off, this processor has neither avx512_bf16 nor amx_bf16"


def processor_name() -> str:
    """Name of the processor in /proc/cpuinfo, or else the architecture."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_flags() -> set[str]:
    """Instruction sets of this processor by Linux's names; empty if Linux does not list them."""
    return set(_cpuinfo("flags").split())


def _cpuinfo(key: str) -> str:
    """Value of a key for the first core in /proc/cpuinfo; empty if it is missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
