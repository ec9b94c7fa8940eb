"""Device operations beyond tensors that an optimizer needs; no other Python file handles streams.

torch and we enqueue work on the same stream, so the device itself keeps it in order. A gradient may
therefore be freed as soon as it is handed over, and work that reads a weight after `engine.wait()`
sees its update, although no thread has waited for the device.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType
from typing import Any, Protocol

import torch

from sluiceway import _core
from sluiceway.errors import InvalidArgument, Unavailable

_NEWEST_ALLOCATOR = (2, 15)  # torch whose c10::Allocator has the functions that ours replaces.


class DeviceOps(Protocol):
    """Operations of one device; no call waits for the device."""

    name: str  # host or cuda:N, as in a config.
    # The device runs beside Python, so reading a value waits for all enqueued work.
    asynchronous: bool

    def compute(self) -> _core.Stream:
        """Return the stream that torch computes on at present in the calling thread."""

    def stream(self) -> Any:
        """Return the same stream in the form that `follow` takes."""

    def follow(self, stream: Any, value: torch.Tensor) -> None:
        """Let the calling thread's stream wait for all work enqueued on `stream` so far.

        `stream` made `value`. Its memory is not reused before the calling thread's stream has
        finished with it.
        """

    def offered_bytes(self) -> int:
        """Bytes that may be held on the device if no budget is set."""

    def count_allocations(self) -> None:
        """Count torch's allocations from now on, on a device where torch does not."""

    def allocated_bytes(self) -> int:
        """Bytes of the device that torch holds, as far as they were counted."""

    def peak_bytes(self) -> int:
        """Largest number of bytes that torch has held since the last `reset_peak`."""

    def reset_peak(self) -> None:
        """Restart the maximum that `peak_bytes` returns."""

    def release(self, value: torch.Tensor) -> None:
        """Keep the memory of `value` until torch's stream has done all work enqueued so far.

        Torch itself guarantees that only for the stream on which the memory was allocated.
        """

    def fetch(self, value: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Enqueue a copy to the host, and return a function that waits for this copy alone."""

    def mark(self) -> Any:
        """Mark the end of all work that is enqueued on torch's stream so far."""

    def us_between(self, earlier: Any, later: Any) -> float | None:
        """Microseconds from one mark to a later one; None until the device has reached both."""


class HostOps:
    """The host device: torch computes on the thread that calls."""

    name = "host"
    asynchronous = False

    def compute(self) -> _core.Stream:
        """Return the host's only stream."""
        return _HOST

    def stream(self) -> None:
        """Return None: the host has one stream."""

    def follow(self, stream: None, value: torch.Tensor) -> None:
        """Do nothing: all work is done when a call returns."""

    def offered_bytes(self) -> int:
        """Return half of the machine's memory; the other half is left to the host."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2

    def count_allocations(self) -> None:
        """Start our own count, since torch does not count CPU memory."""
        if allocator := _allocator():
            allocator.count()

    def allocated_bytes(self) -> int:
        """Bytes that torch has allocated since counting began and still holds."""
        return allocator.allocated_bytes() if (allocator := _allocator()) else 0

    def peak_bytes(self) -> int:
        """Largest number of bytes that torch has held since counting began, or the last reset."""
        return allocator.peak_bytes() if (allocator := _allocator()) else 0

    def reset_peak(self) -> None:
        """Restart the maximum of our own count."""
        if allocator := _allocator():
            allocator.reset_peak()

    def release(self, value: torch.Tensor) -> None:
        """Do nothing: all work is done when a call returns."""

    def fetch(self, value: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Return a function that returns `value` itself, which is on the host already."""
        return lambda: value

    def mark(self) -> float:
        """Return the present time of the trace's clock, as no work is still enqueued."""
        return _core.now_us()

    def us_between(self, earlier: float, later: float) -> float:
        """Microseconds from one mark to a later one; never None."""
        return later - earlier


@cache
def _allocator() -> ModuleType | None:
    """Return the module that counts; None, with a warning, if this torch is newer than it knows.

    It replaces torch's allocator in C++, whose functions may change with any minor version.
    """
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if (major, minor) > _NEWEST_ALLOCATOR:
        warnings.warn(
            f"memory of the host device is reported as 0: torch {torch.__version__} is newer than "
            f"{'.'.join(map(str, _NEWEST_ALLOCATOR))}, the last version whose allocator is known",
            RuntimeWarning,
            stacklevel=3,
        )
        return None
    from sluiceway import _host_allocator

    return _host_allocator


def _native_of_torch(ordinal: int) -> int:
    return torch.cuda.current_stream(ordinal).cuda_stream


# Forward and backward ask for the stream once per weight. torch's public function creates an
# object each time, which takes longer than the rest of a hook. Triton uses this name too.
_current_native: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _native_of_torch
)


class CudaOps:
    """A CUDA device.

    Parameters
    ----------
    ordinal : int
        Number of the device, as torch counts.
    """

    asynchronous = True

    def __init__(self, ordinal: int) -> None:
        self.name = f"cuda:{ordinal}"
        self._ordinal = ordinal
        self._known: dict[int, _core.Stream] = {}

    def compute(self) -> _core.Stream:
        """Return the calling thread's stream, always the same object for one stream.

        During a backward, autograd makes the stream of the forward current.
        """
        native = _current_native(self._ordinal)
        known = self._known.get(native)
        if known is None:
            known = self._known[native] = _core.Stream.cuda(self._ordinal, native)
        return known

    def stream(self) -> int:
        """Return the cudaStream_t that is current in the calling thread."""
        return _current_native(self._ordinal)

    def follow(self, stream: int, value: torch.Tensor) -> None:
        """Let the current stream wait for an event on `stream`, unless both are the same."""
        if self.stream() != stream:
            here = torch.cuda.current_stream(self._ordinal)
            here.wait_stream(torch.cuda.ExternalStream(stream, self._ordinal))
            value.record_stream(here)

    def offered_bytes(self) -> int:
        """Return all memory of the card."""
        return torch.cuda.get_device_properties(self._ordinal).total_memory

    def count_allocations(self) -> None:
        """Do nothing: torch always counts its allocations on a GPU."""

    def allocated_bytes(self) -> int:
        """Bytes that torch holds on this GPU, by torch's own count."""
        return torch.cuda.memory_allocated(self._ordinal)

    def peak_bytes(self) -> int:
        """Largest number of bytes that torch has held on this GPU, by torch's own count."""
        return torch.cuda.max_memory_allocated(self._ordinal)

    def reset_peak(self) -> None:
        """Restart the maximum of torch's own count."""
        torch.cuda.reset_peak_memory_stats(self._ordinal)

    def release(self, value: torch.Tensor) -> None:
        """Tell torch's allocator that the current stream still uses the memory of `value`."""
        value.record_stream(torch.cuda.current_stream(self._ordinal))

    def fetch(self, value: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Enqueue a copy into page-locked memory, which torch's allocator reuses later."""
        here = torch.empty_like(value, device="cpu", pin_memory=True)
        here.copy_(value, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(self._ordinal))

        def waited() -> torch.Tensor:
            arrived.synchronize()
            return here

        return waited

    def mark(self) -> torch.cuda.Event:
        """Record an event; the device takes its time stamp."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._ordinal))
        return event

    def us_between(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float | None:
        """Microseconds between two events; None, without waiting, until both have passed."""
        if not (earlier.query() and later.query()):
            return None
        return 1e3 * earlier.elapsed_time(later)


_HOST = _core.Stream.host()


def ops_on(device: torch.device) -> DeviceOps:
    """Operations of the host device, or of a CUDA device of this machine."""
    return CudaOps(device.index or 0) if device.type == "cuda" else HostOps()


class Made:
    """A tensor that the calling thread's stream makes and that another stream may read.

    Autograd runs each part of a backward on the stream of its forward, and orders the gradients
    that it passes between streams. Other tensors that pass between forward, backward and step are
    wrapped in this class.
    """

    __slots__ = ("_ops", "_stream", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._ops = tensor, ops_on(tensor.device)
        self._stream = self._ops.stream()

    def take(self) -> torch.Tensor:
        """Return the tensor, ready for later work on the calling thread's stream."""
        self._ops.follow(self._stream, self._tensor)
        return self._tensor


def device_ops(owner: str, asked: str, parameters: Iterable[tuple[str, torch.Tensor]]) -> DeviceOps:
    """Operations of the device that a model is on.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    asked : str
        auto, host, cuda or cuda:N.
    parameters : iterable of (str, torch.Tensor)
        All parameters that are trained.

    Raises
    ------
    InvalidArgument
        The parameters are on several devices, or on another one than `asked`.
    Unavailable
        The parameters are on a device that this build or machine does not have.
    """
    found: dict[torch.device, str] = {}
    for name, parameter in parameters:
        found.setdefault(parameter.device, name)
    if len(found) > 1:
        where = " and ".join(f"{name} on {device}" for device, name in list(found.items())[:2])
        raise InvalidArgument(
            f"{owner}: {where}, expected all trained parameters on one device; call "
            "model.to(device)"
        )
    device = next(iter(found), torch.device("cpu"))
    ops = _ops_of(owner, device)
    wanted = "cuda:0" if asked == "cuda" else asked
    if wanted not in ("auto", ops.name):
        _check_known(owner, wanted)
        raise InvalidArgument(
            f"{owner}: device is {asked!r}, but the model is on {ops.name}; call "
            f"model.to({'cpu' if wanted == 'host' else wanted!r}), or leave device= out"
        )
    return ops


def _ops_of(owner: str, device: torch.device) -> DeviceOps:
    is_there = device.type == "cuda" and device.index < _core.cuda_device_count()
    if device.type == "cpu" or is_there:
        return ops_on(device)
    raise Unavailable(
        f"{owner}: the model is on {device}, but this build and machine have {_known()}; move the "
        "model to one of them"
    )


def _check_known(owner: str, wanted: str) -> None:
    names = ["host", *(f"cuda:{i}" for i in range(_core.cuda_device_count()))]
    if wanted not in names:
        raise Unavailable(
            f"{owner}: this build and machine have no device {wanted!r}, they have {_known()}; "
            "leave device= out"
        )


def _known() -> str:
    count = _core.cuda_device_count()
    return "'host'" + "".join(f", 'cuda:{i}'" for i in range(count))
