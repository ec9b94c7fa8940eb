"""Inputs of blocks that leave the device after a forward and are back before their backward."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from sluiceway import _core
from sluiceway.errors import InvalidArgument
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
        leaving = {
            t.data_ptr(): t
            for t in tensors
            if type(t) is torch.Tensor and t.requires_grad and t.nbytes >= LEAST_BYTES
            if _is_dense(t)
        }
        with torch.autograd.graph.saved_tensors_hooks(partial(self._keep, leaving), _value):
            yield
        leaving.clear()  # The graph may keep its hooks.

    def _keep(self, leaving: dict[int, torch.Tensor], saved: torch.Tensor) -> Any:
        tensor = leaving.get(saved.data_ptr())
        if tensor is None or (tensor.shape, tensor.stride()) != (saved.shape, saved.stride()):
            return saved
        with self._lock:
            self._sweep()
            here = [one for ref in self._kept if (one := ref()) is not None and one.is_here]
            if len(here) >= _MOST_HERE:  # The link is slower than the device.
                self.core.wait_left(here[0].number)
                self._sweep()
            kept = _Kept(self, tensor)
            self._kept.append(weakref.ref(kept))
        return kept

    def value_of(self, kept: _Kept) -> torch.Tensor:
        """Return a tensor, and begin to fetch the one that the backward needs next."""
        with self._lock:
            kept.fetch()
            earlier = [one for ref in self._kept if (one := ref()) is not None]
            before = earlier[: earlier.index(kept)]
            if before:
                before[-1].fetch()
            value = kept.take()
            self._sweep()
        return value

    def drop(self, place: _Place) -> None:
        """Give a place back, once nothing copies from or to it; callable from a finalizer."""
        self._gone.append(place)

    def _sweep(self) -> None:
        """Let go of what has left the device, and of what nobody needs any more."""
        gone, self._gone = self._gone, []
        self._gone += [place for place in gone if not self.core.forget(place.id)]
        self._kept = [ref for ref in self._kept if ref() is not None]
        for ref in self._kept:
            if (kept := ref()) is not None:
                kept.let_go()


class _Place:
    """The number of a kept tensor, and what its copies read and write on the device."""

    __slots__ = ("id", "source", "target")

    def __init__(self, number: int, source: torch.Tensor) -> None:
        self.id = number
        self.source: torch.Tensor | None = source  # Until it has left.
        self.target: torch.Tensor | None = None  # While it comes back.


class _Kept:
    """A tensor that autograd saves; it is given back when autograd drops it."""

    def __init__(self, home: Activations, tensor: torch.Tensor) -> None:
        self._home, self._process = home, os.getpid()
        self._shape, self._stride = tensor.shape, tensor.stride()
        self._kind = {"dtype": tensor.dtype, "device": tensor.device}
        self._version, self._changed = tensor._version, False
        number = home.core.keep(tensor.detach(), home.device.compute())
        self._place = _Place(number, tensor)

    @property
    def number(self) -> int:
        """The number under which it waits."""
        return self._place.id

    @property
    def is_here(self) -> bool:
        """Tell whether its first memory on the device is still in use."""
        return self._place.source is not None

    def let_go(self) -> None:
        """Free the device's memory if the tensor has left it."""
        source = self._place.source
        if source is not None and self._home.core.has_left(self._place.id):
            self._changed = source._version != self._version
            self._place.source = None

    def fetch(self) -> None:
        """Begin to bring the tensor back, unless it is there or on its way."""
        place = self._place
        if place.source is None and place.target is None:
            self._refuse_fork()
            place.target = torch.empty_strided(self._shape, self._stride, **self._kind)
            self._home.core.bring(place.id, place.target, self._home.device.compute())

    def take(self) -> torch.Tensor:
        """Return the tensor after `fetch()`."""
        place = self._place
        if place.source is not None:
            value, self._changed = place.source.detach(), place.source._version != self._version
        else:
            self._home.core.await_(place.id, self._home.device.compute())
            value, place.target = place.target, None
        if self._changed:
            raise InvalidArgument(
                f"{self._home.owner}: an input of a block was changed in place after its block had "
                "read it, and the block's backward needs its former values; change a copy, or "
                "leave out activations="
            )
        return value

    def _refuse_fork(self) -> None:
        if os.getpid() != self._process:
            raise InvalidArgument(
                f"{self._home.owner}: process {os.getpid()} is a forked child and cannot fetch "
                "activations; run backward in the process that ran the forward"
            )

    def __del__(self) -> None:
        if hasattr(self, "_place"):
            self._home.drop(self._place)


def _value(saved: Any) -> torch.Tensor:
    return saved._home.value_of(saved) if isinstance(saved, _Kept) else saved


def _is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's elements fill a range of memory, each element once."""
    if tensor.layout is not torch.strided:
        return False
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
