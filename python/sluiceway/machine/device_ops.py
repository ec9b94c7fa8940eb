"""What an optimizer asks of its device beside tensors: the only place that knows of streams.

Work that torch enqueues on its stream, and ours on the same, is ordered by the device itself. So a
gradient may go as soon as it was handed over, and what reads a weight after `engine.wait()` sees
its update, although nobody has waited.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from sluiceway import _core
from sluiceway.errors import InvalidArgument, Unavailable


class DeviceOps(Protocol):
    """One device; no call waits for it."""

    name: str  # host or cuda:N, as a config has it.
    # It works beside Python, so that a look at a value waits for all that was enqueued.
    asynchronous: bool

    def compute(self) -> _core.Stream:
        """The stream that torch computes on at present, in the thread that asks."""

    def stream(self) -> Any:
        """The same, for `follow`."""

    def follow(self, stream: Any, value: torch.Tensor) -> None:
        """Let this thread's stream come after all that `stream` was given by now.

        The memory of `value`, which that one made, is not used again before this one is done.
        """

    def offered_bytes(self) -> int:
        """What may be held on the device where no budget says it."""

    def count_allocations(self) -> None:
        """Count what torch allocates from now on, where it is not counted anyway."""

    def allocated_bytes(self) -> int:
        """What torch holds of the device, as far as it was counted."""

    def peak_bytes(self) -> int:
        """The most that torch held."""

    def reset_peak(self) -> None:
        """The most that torch holds from now on is what `peak_bytes` says."""

    def release(self, value: torch.Tensor) -> None:
        """Its memory is not used again before torch's stream has done what it was given by now.

        Torch itself orders that only on the stream that the memory was allocated on.
        """

    def fetch(self, value: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Enqueue a copy to the host; what is returned waits for it, and for nothing behind it."""

    def mark(self) -> Any:
        """The point that torch's stream has when all that it was given by now is done."""

    def us_between(self, earlier: Any, later: Any) -> float | None:
        """Microseconds from one mark to a later one; None while the device is not there yet."""


class HostOps:
    """The host device: torch computes on the thread that calls."""

    name = "host"
    asynchronous = False

    def compute(self) -> _core.Stream:
        """Always the same."""
        return _HOST

    def stream(self) -> None:
        """There is one."""

    def follow(self, stream: None, value: torch.Tensor) -> None:
        """Do nothing: all work is done when a call returns."""

    def offered_bytes(self) -> int:
        """Half of the machine's memory: the other half is for the host."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2

    def count_allocations(self) -> None:
        """Our own count, as torch has none of the CPU."""
        _core.count_host_allocations()

    def allocated_bytes(self) -> int:
        """Since they were counted."""
        return _core.host_allocated_bytes()

    def peak_bytes(self) -> int:
        """Since they were counted."""
        return _core.host_peak_bytes()

    def reset_peak(self) -> None:
        """Of our own count."""
        _core.reset_host_peak()

    def release(self, value: torch.Tensor) -> None:
        """Do nothing: all work is done when a call returns."""

    def fetch(self, value: torch.Tensor) -> Callable[[], torch.Tensor]:
        """It is there."""
        return lambda: value

    def mark(self) -> float:
        """Now, by the trace's clock: all is done."""
        return _core.now_us()

    def us_between(self, earlier: float, later: float) -> float:
        """Known at once."""
        return later - earlier


def _native_of_torch(ordinal: int) -> int:
    return torch.cuda.current_stream(ordinal).cuda_stream


# For each weight, forward and backward ask for the stream. torch makes an object of each answer,
# which takes longer than all else that a hook does; Triton asks by the same name.
_current_native: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _native_of_torch
)


class CudaOps:
    """A CUDA device.

    Parameters
    ----------
    ordinal : int
        As torch counts them.
    """

    asynchronous = True

    def __init__(self, ordinal: int) -> None:
        self.name = f"cuda:{ordinal}"
        self._ordinal = ordinal
        self._known: dict[int, _core.Stream] = {}

    def compute(self) -> _core.Stream:
        """Return the calling thread's stream, one object a stream; autograd sets the forward's."""
        native = _current_native(self._ordinal)
        known = self._known.get(native)
        if known is None:
            known = self._known[native] = _core.Stream.cuda(self._ordinal, native)
        return known

    def stream(self) -> int:
        """Return the cudaStream_t that is current in the calling thread."""
        return _current_native(self._ordinal)

    def follow(self, stream: int, value: torch.Tensor) -> None:
        """Order the current stream behind `stream` by an event, unless they are one."""
        if self.stream() != stream:
            here = torch.cuda.current_stream(self._ordinal)
            here.wait_stream(torch.cuda.ExternalStream(stream, self._ordinal))
            value.record_stream(here)

    def offered_bytes(self) -> int:
        """All memory of the card."""
        return torch.cuda.get_device_properties(self._ordinal).total_memory

    def count_allocations(self) -> None:
        """Torch counts them."""

    def allocated_bytes(self) -> int:
        """As torch counts."""
        return torch.cuda.memory_allocated(self._ordinal)

    def peak_bytes(self) -> int:
        """As torch counts."""
        return torch.cuda.max_memory_allocated(self._ordinal)

    def reset_peak(self) -> None:
        """Of torch's count."""
        torch.cuda.reset_peak_memory_stats(self._ordinal)

    def release(self, value: torch.Tensor) -> None:
        """Torch's allocator waits for the stream, where it is another than that of the memory."""
        value.record_stream(torch.cuda.current_stream(self._ordinal))

    def fetch(self, value: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Into page-locked memory, which torch keeps for the next one."""
        here = torch.empty_like(value, device="cpu", pin_memory=True)
        here.copy_(value, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(self._ordinal))

        def waited() -> torch.Tensor:
            arrived.synchronize()
            return here

        return waited

    def mark(self) -> torch.cuda.Event:
        """An event; the device takes the time."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._ordinal))
        return event

    def us_between(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float | None:
        """Asks for both, and does not wait."""
        if not (earlier.query() and later.query()):
            return None
        return 1e3 * earlier.elapsed_time(later)


_HOST = _core.Stream.host()


def ops_on(device: torch.device) -> DeviceOps:
    """Of the host device or a CUDA device that is there."""
    return CudaOps(device.index or 0) if device.type == "cuda" else HostOps()


class Made:
    """A tensor that this thread's stream makes, and that is read on another one perhaps.

    Autograd runs a part of a backward on the stream of its forward, and orders the gradients that
    it carries from one stream to another. What else passes between forward, backward and step does
    so in here.
    """

    __slots__ = ("_ops", "_stream", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._ops = tensor, ops_on(tensor.device)
        self._stream = self._ops.stream()

    def take(self) -> torch.Tensor:
        """The tensor, which is there for what this thread's stream does from now on."""
        self._ops.follow(self._stream, self._tensor)
        return self._tensor


def device_ops(owner: str, asked: str, parameters: Iterable[tuple[str, torch.Tensor]]) -> DeviceOps:
    """The device of a model.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    asked : str
        auto, host, cuda or cuda:N.
    parameters : iterable of (str, torch.Tensor)
        Everything that is trained.

    Raises
    ------
    InvalidArgument
        Parameters are on several devices, or on another one than was asked for.
    Unavailable
        They are where this build or machine has no device.
    """
    found: dict[torch.device, str] = {}
    for name, parameter in parameters:
        found.setdefault(parameter.device, name)
    if len(found) > 1:
        where = " and ".join(f"{name} on {device}" for device, name in list(found.items())[:2])
        raise InvalidArgument(
            f"{owner}: {where}, expected all that is trained on one device; call model.to(device)"
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
        f"{owner}: the model is on {device}, this build and machine have {_known()}; move the "
        "model there"
    )


def _check_known(owner: str, wanted: str) -> None:
    names = ["host", *(f"cuda:{i}" for i in range(_core.cuda_device_count()))]
    if wanted not in names:
        raise Unavailable(
            f"{owner}: device {wanted!r} is not in this build and machine, they have {_known()}; "
            "leave device= out"
        )


def _known() -> str:
    count = _core.cuda_device_count()
    return "'host'" + "".join(f", 'cuda:{i}'" for i in range(count))
