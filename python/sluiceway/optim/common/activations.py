"""Inputs of blocks that leave the device after a forward and are back before their backward."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

from sluiceway import _core
from sluiceway.errors import Error, InvalidArgument, OutOfMemory
from sluiceway.machine.device_ops import DeviceOps

LEAST_BYTES = 64 << 10  # A smaller tensor stays: its way takes longer than it is worth.
_MOST_HERE = 2  # Tensors that are on their way out and still take memory of the device.


class Activations:
    """Keeps tensors that autograd saves in host memory, or on a drive.

    Autograd says when a tensor is needed and when it is not any more, so a graph that is retained
    keeps its tensors. A tensor stays on the device if other code may share its memory in a way that
    a copy would not (not dense, a subclass), or if it is small.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    core : _core.Activations
    device : DeviceOps
    """

    def __init__(self, owner: str, core: _core.Activations, device: DeviceOps) -> None:
        self.owner, self.core, self.device = owner, core, device
        self._lock = threading.RLock()
        self._kept: list[weakref.ref[_Kept]] = []  # In the order of the forward.
        self._gone: list[_Place] = []  # Of tensors that nobody needs any more.

    @contextmanager
    def saving(self, tensors: list[torch.Tensor]) -> Iterator[None]:
        """Let those of some tensors leave the device that autograd saves inside the block."""
        leaving = {t.data_ptr(): t for t in tensors if self._leaves(t)}
        with torch.autograd.graph.saved_tensors_hooks(partial(self._keep, leaving), _value):
            yield
        leaving.clear()  # The graph may keep its hooks.

    def _leaves(self, tensor: torch.Tensor) -> bool:
        return (
            type(tensor) is torch.Tensor
            and tensor.requires_grad
            and tensor.layout is torch.strided
            and tensor.nbytes >= LEAST_BYTES
            and ("host" if tensor.is_cpu else str(tensor.device)) == self.device.name
            and not (tensor.is_conj() or tensor.is_neg())
            and _is_dense(tensor)
        )

    def _keep(self, leaving: dict[int, torch.Tensor], saved: torch.Tensor) -> Any:
        if saved.layout is not torch.strided:
            return saved
        tensor = leaving.get(saved.data_ptr())
        if tensor is None or _form(tensor) != _form(saved):
            return saved
        with self._lock:
            self._sweep()
            alive = self._alive()
            for kept in alive:  # Several blocks may read one tensor.
                if kept.is_of(tensor):
                    return kept
            here = [kept for kept in alive if kept.is_here]
            if len(here) >= _MOST_HERE:  # The link is slower than the device.
                self.core.wait_left(here[0].place.number)
                self._sweep()
            kept = _Kept(self, tensor)
            self._kept.append(weakref.ref(kept))
        return kept

    def _alive(self) -> list[_Kept]:
        return [kept for ref in self._kept if (kept := ref()) is not None]

    def value_of(self, kept: _Kept) -> torch.Tensor:
        """Return a tensor, and begin to fetch the one that the backward needs next."""
        with self._lock:
            kept.fetch()
            alive = self._alive()
            earlier = [one for one in alive[: alive.index(kept)] if one.is_away]
            if earlier:
                with suppress(OutOfMemory, torch.OutOfMemoryError):  # Its own turn says so.
                    earlier[-1].fetch()
            value = kept.take()
            self._sweep()
        return value

    def drop(self, place: _Place) -> None:
        """Give a place back, once nothing copies from or to it; callable from a finalizer."""
        self._gone.append(place)

    def _sweep(self) -> None:
        """Let go of what has left the device, and of what nobody needs any more."""
        for place in list(self._gone):
            if self.core.forget(place.ids):
                self._gone.remove(place)
            else:
                place.let_go(self.core)
        self._kept = [ref for ref in self._kept if ref() is not None]
        for kept in self._alive():
            kept.let_go()


class _Place:
    """The number of a kept tensor, and what its copies read and write on the device."""

    __slots__ = ("ids", "source", "target")

    def __init__(self, source: torch.Tensor) -> None:
        self.ids: list[int] = []  # Its number, while it has one.
        self.source: torch.Tensor | None = source  # Until it has left.
        self.target: torch.Tensor | None = None  # While it comes back.

    @property
    def number(self) -> int:
        return self.ids[0]

    def let_go(self, core: _core.Activations) -> bool:
        """Free the device's memory if the tensor has left it, and tell so."""
        if self.source is None or not core.has_left(self.number):
            return False
        self.source = None
        return True


class _Kept:
    """A tensor that autograd saves; it is given back when autograd drops it."""

    def __init__(self, home: Activations, tensor: torch.Tensor) -> None:
        self._home, self._process = home, os.getpid()
        self._shape, self._stride = tensor.shape, tensor.stride()
        self._kind = {"dtype": tensor.dtype, "device": tensor.device}
        self._tensor, self._version = weakref.ref(tensor), tensor._version
        self._changed = self._taken = False
        self._stream: Any = None  # On which the target was allocated.
        self.place = _Place(tensor.detach())  # With its version, and without its graph.
        home.core.keep(self.place.source, home.device.compute(), self.place.ids)

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Tell whether it keeps the present value of a tensor."""
        return self._tensor() is tensor and self._version == tensor._version

    @property
    def is_here(self) -> bool:
        """Tell whether its first memory on the device is still in use."""
        return self.place.source is not None

    @property
    def is_away(self) -> bool:
        """Tell whether it has left, was not needed yet, and is not on its way back."""
        return not self._taken and self.place.source is None and self.place.target is None

    def let_go(self) -> None:
        """Free the device's memory if the tensor has left it."""
        source = self.place.source
        if self.place.let_go(self._home.core):
            self._changed = source._version != self._version

    def fetch(self) -> None:
        """Begin to bring the tensor back, unless it is there or on its way."""
        place, device = self.place, self._home.device
        if place.source is not None or place.target is not None:
            return
        if os.getpid() != self._process:
            raise InvalidArgument(
                f"{self._home.owner}: process {os.getpid()} is a forked child and cannot fetch "
                "activations; run backward in the process that ran the forward"
            )
        place.target = torch.empty_strided(self._shape, self._stride, **self._kind)
        self._stream = device.stream()
        try:
            self._home.core.bring(place.number, place.target, device.compute())
        except Error:
            place.target = None
            raise

    def take(self) -> torch.Tensor:
        """Return the tensor after `fetch()`."""
        place, device = self.place, self._home.device
        self._taken = True
        if place.source is not None:
            value, self._changed = place.source, place.source._version != self._version
        else:
            self._home.core.await_(place.number, device.compute())
            value, place.target = place.target, None
            if device.stream() != self._stream:  # torch knows only the other stream.
                device.release(value)
        if self._changed:
            raise InvalidArgument(
                f"{self._home.owner}: an input of a block was changed in place after its block had "
                "read it, and the block's backward needs its former values; change a copy, or "
                "leave out activations="
            )
        return value

    def __del__(self) -> None:
        if hasattr(self, "place"):
            self._home.drop(self.place)


def _value(saved: Any) -> torch.Tensor:
    return saved._home.value_of(saved) if isinstance(saved, _Kept) else saved


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's elements fill a range of memory, each element once."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
