"""Computes theta of parameters from masters into which each step is written."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.errors import Error, InvalidArgument
from sluiceway.optim.common.model_hooks import NothingWhenCopied
from sluiceway.optim.zo.base_weights import BaseWeights
from sluiceway.optim.zo.master_base import MasterBase
from sluiceway.optim.zo.tier import Training
from sluiceway.optim.zo.weights import TrainedWeight
from sluiceway.optim.zo.written_engine import WrittenEngine


class MasterWeights(BaseWeights):
    """Brings masters to the last step before they are read or loaded.

    Parameters
    ----------
    training : Training
    engine : WrittenEngine
    base : MasterBase
    """

    def __init__(self, training: Training, engine: WrittenEngine, base: MasterBase) -> None:
        super().__init__(training, engine, base)
        self._written, self._masters = engine, base
        for module in training.model.modules():
            within = [p for p in module.parameters() if self.has(p)]
            if within:  # The outermost module is asked first, before anything was copied.
                image = next((self._weight_of[id(p)] for p in within if base.has_image(p)), None)
                hook = _LoadHook(training.owner, engine, image.name if image else None)
                self._hooks.append(module.register_load_state_dict_pre_hook(hook))

    def settle(self, p: nn.Parameter) -> bool:
        """Bring a master that is the parameter's own memory to the last step."""
        if self._masters.has_image(p):
            return False
        if self._written.is_open:
            self._written.flush()
        return True

    def theta(self, p: nn.Parameter) -> torch.Tensor:
        """Compute theta of a parameter on the device."""
        self._written.flush()
        return super().theta(p)

    def theta_on_host(self, p: nn.Parameter) -> torch.Tensor:
        """Compute theta of a parameter in host memory.

        Raises
        ------
        InvalidArgument
            A pass is under way, so the weights have no common step.
        """
        if self._written.get().is_passing:
            raise InvalidArgument(
                f"{self._of.owner}: state_dict() or theta() was called while a step is under way; "
                "call it outside of the closure. If a step has failed, resume from a save"
            )
        self._written.flush()
        return self.made(p, self._base.of(p))

    def neighbours(
        self, weight: TrainedWeight, direction: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute theta + eps z and theta - eps z of the present step on the device."""
        p, options = weight.parameter, self._of.options
        master = self._on_device.get(id(p))
        if master is None:
            master = self._on_device[id(p)] = self._brought(p)
        plus, minus = (torch.empty_like(master, dtype=p.dtype) for _ in range(2))
        _core.perturb(
            master, plus, minus, [], 1.0, options.eps, options.family, options.seed,
            self._written.get().next_step, weight.tensor, direction,
            compute=self._of.device.compute(),
        )  # fmt: skip
        return plus, minus

    def _brought(self, p: nn.Parameter) -> torch.Tensor:
        # Wait for the copy: the caller may begin a pass, which writes to the master.
        master = self._base.of(p)
        return master.to(self._of.device.name) if self._of.device.asynchronous else master

    def made(self, p: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        """Compute theta, in the parameter's type, from a master that is up to date."""
        out = torch.empty_like(base, dtype=p.dtype)
        compute = self._of.device.compute() if base.is_cuda else _core.Stream.host()
        _core.materialise(base, out, [], 1.0, self._of.options.family, compute=compute)
        return out


class _LoadHook(NothingWhenCopied):
    """Finishes writes to masters before a load; raises an error for parameters without memory."""

    def __init__(self, owner: str, engine: WrittenEngine, image: str | None) -> None:
        self._owner, self._engine, self._image = owner, weakref.ref(engine), image

    def __call__(self, *_: Any) -> None:
        engine = self._engine()
        if engine is None or not engine.is_open:
            return
        if self._image is not None:
            raise InvalidArgument(
                f"load_state_dict: {self._image} has no memory while {self._owner} is open and "
                "holds its float32 master. Call close() first, or load weights before you make the "
                "optimizer"
            )
        with suppress(Error):  # The result of a failed lane is not needed any more.
            engine.flush()
