"""Predicts an engine's memory, traffic and time, from a model that has shapes but no bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import nn

from sluiceway.base.sizes import format_bytes
from sluiceway.config.schema import Config
from sluiceway.machine.placement import DTYPES
from sluiceway.model.chunked_loss.rehearsed import rehearse_chunked_loss
from sluiceway.model.rehearsal import Rehearsal
from sluiceway.model.speeds import link_of
from sluiceway.optim.common.activations import LEAST_BYTES
from sluiceway.optim.common.repeated_blocks import repeat_in_parts
from sluiceway.store.folder import refuse_twice

_FIRST_ORDER_BYTES = 12  # Read and written per parameter: gradient once, weight twice.
_MOMENT_BYTES = 8  # Read and written, f32.
_INPUTS_STAGED = 6  # Inputs of blocks on their way to a drive or back.

Room = Callable[[], int | None]


class EnginePlan(ABC):
    """Predictions for one engine, one model and one machine, and the lines that print them.

    Attributes
    ----------
    freed : frozenset of str
        Parameters whose gradient is freed as soon as it exists.
    backward : bool
        True if a rehearsal includes a backward; else it is a forward without gradients.
    like_native : bool
        True if a rehearsal of plain AdamW would find the same memory and operations.
    figures : dict
        `codec`, `compressed_weights`, `why` if there was a choice, and other keys of the printed
        JSON that the engine adds.
    advice : str
        Advice for a tier other than the device that is too small.
    on_device : str
        Advice for a device that is too small.
    token_flop : int
        Floating-point operations of a step, per parameter and token.
    """

    freed: frozenset[str] = frozenset()
    backward = True
    like_native = True
    figures: dict[str, Any]
    advice = "try a smaller model"
    on_device = "try model.checkpointing: true or a smaller train.micro_batch"
    token_flop = 8  # A forward, a backward, and the forward once more.

    # ---- Predictions, in this order ----

    def as_trained(self, model: nn.Module) -> nn.Module:
        """Change the layers of a rehearsal's model as a run changes them, and return the model."""
        return model

    def choose(self, rehearsal: Rehearsal, speeds: dict[str, Any], room: Room) -> None:
        """Choose values for keys that the config leaves to the plan.

        Parameters
        ----------
        speeds : dict
            The rates that `model.speeds` gives.
        room : callable
            Returns the bytes that the device tier may hold, or None if they are not known.
        """

    def note_alternatives(self, chosen: dict[str, str], found: dict[str, dict[str, Any]]) -> None:
        """Take note of the comparison that has chosen this plan.

        Parameters
        ----------
        chosen : dict
            Values of the keys that were compared.
        found : dict
            `seconds`, `device_bytes` and `fits` by the names of `EngineSection.alternatives`;
            `error` if the model cannot run so.
        """
        self.figures["alternatives"] = {"chosen": chosen, "compared": found}

    @abstractmethod
    def tiers(self, rehearsal: Rehearsal) -> dict[str, int]:
        """Peak bytes of each tier: device, host, pinned, and disk if the engine uses one."""

    @abstractmethod
    def links(self) -> dict[str, int]:
        """Bytes of a step over each link: d2h, h2d, and disk_read and disk_written."""

    @abstractmethod
    def seconds(self, rehearsal: Rehearsal, speeds: dict[str, Any]) -> float:
        """Seconds of a whole step, with all of its micro-batches."""

    def written_between_steps(self) -> float:
        """Bytes that are written to disk between steps, divided by the number of steps."""
        return 0.0

    # ---- Lines for people; the table of `sluiceway plan` has them around its own rows ----

    def layers(self) -> list[str]:
        """Lines above the table: how the engine changes layers."""
        return []

    def rows(self) -> list[tuple[str, str]]:
        """Rows of the table that only this engine has, each with a name and a value."""
        return []

    def chosen(self) -> list[str]:
        """Lines below the table, also printed as a run begins: each choice of the plan, and why."""
        choice = self.figures.get("alternatives")
        if choice is None:
            return []
        costs = [f"{name} {_cost(found)}" for name, found in choice["compared"].items()]
        keys, values = (" and ".join(part) for part in zip(*choice["chosen"].items(), strict=True))
        return [f"{keys}: {values}; {', '.join(costs)}"]

    def notes(self) -> list[str]:
        """Lines below the choices: further figures of this engine."""
        return []


class DevicePlan(EnginePlan):
    """A plan for gradients and moments that are on the device.

    Parameters
    ----------
    elements : int
        Number of elements that are trained on the device.
    moments : int
        Numbers that the optimizer keeps per element.
    moment_bytes : int or None
        Size of such a number; None: the size of a weight's element.
    """

    def __init__(
        self, config: Config, elements: int, moments: int = 2, moment_bytes: int | None = None
    ) -> None:
        refuse_twice("store", config.store.paths)
        self._config = config
        self._elements = elements
        self._moments = moments
        self._moment_bytes = moment_bytes or DTYPES[config.model.dtype].itemsize
        self._place = getattr(config.engine, "activations", "device")
        self._inputs: list[int] = []  # Bytes of those inputs of blocks that leave the device.
        self._slices = config.train.loss == "sliced"
        if config.parts > 1 or self._slices:
            self.like_native = False
        self.figures: dict[str, Any] = {"codec": None, "compressed_weights": 0}

    def as_trained(self, model: nn.Module) -> nn.Module:
        """Let the model compute its loss in slices, and its blocks the parts of a batch."""
        if self._slices:
            rehearse_chunked_loss(model, graph=True)
        if self._config.parts > 1:
            repeat_in_parts(model, self._config.parts)
        return model

    def choose(self, rehearsal: Rehearsal, speeds: dict[str, Any], room: Room) -> None:
        """Note which inputs of blocks leave the device."""
        if self._place != "device":
            self._inputs = [size for size in rehearsal.block_inputs if size >= LEAST_BYTES]

    def tiers(self, rehearsal: Rehearsal) -> dict[str, int]:
        """Add the moments to the peak of a micro-batch, and move inputs of blocks elsewhere."""
        moments = self._moments * self._moment_bytes * self._elements
        device = self._peak_of(rehearsal) + moments
        return {"device": device, "host": 0, "pinned": self._tiers_of_inputs()["pinned"]}

    def links(self) -> dict[str, int]:
        """Count inputs of blocks that leave the device and come back.

        The last one is still there when the backward begins.
        """
        count, away = self._config.backwards, sum(self._inputs)
        back = away - (self._inputs[-1] if self._inputs else 0)
        links = {"d2h": count * away, "h2d": count * back}
        if self._place != "disk":
            return links
        return links | {"disk_read": count * back, "disk_written": count * away}

    def _peak_of(self, rehearsal: Rehearsal) -> int:
        return rehearsal.peak_without_inputs if self._inputs else rehearsal.peak_bytes

    def _tiers_of_inputs(self) -> dict[str, int]:
        """Bytes that inputs of blocks take outside of the device."""
        away = sum(self._inputs)
        if self._place != "disk":
            return {"pinned": away, "disk": 0}
        staged = _INPUTS_STAGED * max(self._inputs, default=0)
        return {"pinned": min(away, staged), "disk": away}

    def _least_seconds(self, speeds: dict[str, Any]) -> float:
        """Seconds that all bytes of a step take on the link, or on the drive, that is busiest."""
        links, link = self.links(), link_of(self._config, speeds)
        seconds = [links[way] / (1e9 * getattr(link, f"{way}_gbps")) for way in ("d2h", "h2d")]
        if gbps := speeds.get("disk_gbps"):
            seconds.append((links["disk_read"] + links["disk_written"]) / (1e9 * gbps))
        return max(seconds)

    def seconds(self, rehearsal: Rehearsal, speeds: dict[str, Any]) -> float:
        """Add up the micro-batches and the update."""
        forward, backward = pass_seconds(rehearsal, speeds)
        return self._earlier(forward, backward) + forward + backward + self._update(speeds)

    def _earlier(self, forward: float, backward: float) -> float:
        """Seconds of the backwards before the last, with their forwards."""
        return (self._config.backwards - 1) * (forward + backward)

    def _update(self, speeds: dict[str, Any]) -> float:
        count = _FIRST_ORDER_BYTES + self._moments * _MOMENT_BYTES
        return count * self._elements / (1e9 * speeds["memory_gbps"])


def pass_seconds(
    rehearsal: Rehearsal, speeds: dict[str, Any], hooked: int = 0
) -> tuple[float, float]:
    """Seconds of a forward, and of its backward: of their products, or of launching all kernels.

    Parameters
    ----------
    hooked : int
        Weights whose gradients the engine takes during the backward.
    """
    rate = 1e12 * speeds["tflops"]
    launch, hook = (1e-6 * speeds.get(key, 0.0) for key in ("launch_us", "hook_us"))
    return (
        max(rehearsal.forward_flops / rate, rehearsal.forward_launches * launch),
        max(rehearsal.backward_flops / rate, rehearsal.backward_launches * launch + hooked * hook),
    )


def trained_elements(model: nn.Module) -> int:
    """Number of elements in the parameters that are not frozen."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _cost(found: dict[str, Any]) -> str:
    """Say what an alternative costs, or why it cannot be."""
    if "error" in found:
        return f"is not possible: {found['error']}"
    over = "" if found["fits"] else ", which exceeds a budget"
    return (
        f"takes {found['seconds']:.3g} s a step and {format_bytes(found['device_bytes'])} of the "
        f"device{over}"
    )
