"""A host device that says it works beside Python, and a list of who looked at values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sluiceway.engines import gradient
from sluiceway.machine.device_ops import HostOps
from sluiceway.optim.common import engine_optimizer

# What copies values to the host where a tensor is on a device.
READS = ("cpu", "item", "tolist", "numpy", "__bool__", "__float__", "__int__")


class LateOps(HostOps):
    asynchronous = True


def use(monkeypatch: pytest.MonkeyPatch, ops: type[LateOps] = LateOps) -> None:
    """Optimizers and runs that are made from now on are on such a device."""
    monkeypatch.setattr(engine_optimizer, "device_ops", lambda *_: ops())
    monkeypatch.setattr(gradient, "ops_on", lambda _: ops())


def record_reads(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    """Write down every call that may wait for a device."""

    def recorded(name: str) -> Callable[..., object]:
        read = getattr(torch.Tensor, name)

        def call(tensor: torch.Tensor, *arguments: object) -> object:
            told.append(name)
            return read(tensor, *arguments)

        return call

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, recorded(name))
