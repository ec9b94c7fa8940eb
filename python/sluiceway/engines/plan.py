"""What an engine would take, predicted from a model that has shapes but no bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn

from sluiceway.config.schema import Config
from sluiceway.machine.placement import DTYPES
from sluiceway.model.rehearsal import Rehearsal
from sluiceway.store.folder import refuse_twice

_FIRST_ORDER_BYTES = 12  # Read and written per parameter: gradient once, weight twice.
_MOMENT_BYTES = 8  # Read and written, f32.

Room = Callable[[], int | None]


class EnginePlan(Protocol):
    """Answers of one engine for one model and machine.

    Attributes
    ----------
    freed : frozenset of str
        Parameters whose gradient goes as soon as it exists.
    backward : bool
        Whether a rehearsal has one; else it is a forward without grad.
    figures : dict
        `codec`, `compressed_weights`, and where there is a choice `why`: keys of the plan that are
        the engine's to say.
    advice, on_device : str
        What makes the tiers smaller that are not the device, and what the device.
    token_flop : int
        Floating-point operations of a step, per parameter and token.
    """

    freed: frozenset[str]
    backward: bool
    figures: dict[str, Any]
    advice: str
    on_device: str
    token_flop: int

    def as_trained(self, model: nn.Module) -> nn.Module:
        """The model of a rehearsal, with what a run of this engine changes in its layers."""

    def choose(self, rehearsal: Rehearsal, speeds: dict[str, Any], room: Room) -> None:
        """Settle what the config leaves to the plan, before what follows.

        Parameters
        ----------
        speeds : dict
            Those of `model.speeds`.
        room : callable
            Bytes that the device tier may have; None: nobody knows. To be asked by who needs it.
        """

    def tiers(self, rehearsal: Rehearsal) -> dict[str, int]:
        """Most bytes by tier: device, host, pinned, and disk where there is one."""

    def links(self) -> dict[str, int]:
        """Bytes of a step by link: d2h, h2d, and those of the disk where there is one."""

    def seconds(self, rehearsal: Rehearsal, speeds: dict[str, Any]) -> float:
        """Of a whole step, all of its micro-batches; `speeds` are those of `model.speeds`."""


class DevicePlan:
    """Everything that is trained has gradient and moments on the device; nothing crosses a link.

    Parameters
    ----------
    elements : int
        Trained on the device.
    moments : int
        Numbers that the optimizer keeps per element.
    moment_bytes : int or None
        Of each of them; None: as those of a weight.
    """

    freed: frozenset[str] = frozenset()
    backward = True
    advice = "try a smaller model"
    on_device = "try model.checkpointing: true or a smaller train.micro_batch"
    token_flop = 8  # A forward, a backward, and the forward once more.

    def __init__(
        self, config: Config, elements: int, moments: int = 2, moment_bytes: int | None = None
    ) -> None:
        refuse_twice("store", config.store.paths)
        self._config = config
        self._elements = elements
        self._moments = moments
        self._moment_bytes = moment_bytes or DTYPES[config.model.dtype].itemsize
        self.figures: dict[str, Any] = {"codec": None, "compressed_weights": 0}

    def as_trained(self, model: nn.Module) -> nn.Module:
        """As it is."""
        return model

    def choose(self, rehearsal: Rehearsal, speeds: dict[str, Any], room: Room) -> None:
        """Nothing is left."""

    def tiers(self, rehearsal: Rehearsal) -> dict[str, int]:
        """Moments beside the most that a micro-batch holds."""
        moments = self._moments * self._moment_bytes * self._elements
        return {"device": rehearsal.peak_bytes + moments, "host": 0, "pinned": 0}

    def links(self) -> dict[str, int]:
        """Nothing."""
        return {"d2h": 0, "h2d": 0}

    def seconds(self, rehearsal: Rehearsal, speeds: dict[str, Any]) -> float:
        """Micro-batches one after the other, then the update."""
        forward, backward = micro_batch_seconds(rehearsal, speeds)
        return self._earlier(forward, backward) + forward + backward + self._update(speeds)

    def _earlier(self, forward: float, backward: float) -> float:
        """Seconds of the micro-batches before the last."""
        return (self._config.train.accumulate - 1) * (forward + backward)

    def _update(self, speeds: dict[str, Any]) -> float:
        count = _FIRST_ORDER_BYTES + self._moments * _MOMENT_BYTES
        return count * self._elements / (1e9 * speeds["memory_gbps"])


def micro_batch_seconds(rehearsal: Rehearsal, speeds: dict[str, Any]) -> tuple[float, float]:
    """Forward and backward of one micro-batch."""
    rate = 1e12 * speeds["tflops"]
    return rehearsal.forward_flops / rate, rehearsal.backward_flops / rate


def trained_elements(model: nn.Module) -> int:
    """Elements of the parameters that are not frozen."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
