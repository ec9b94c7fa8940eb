"""List the optimizers under comparison, and the links that they run over."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import sluiceway as sw
import torch
from sluiceway.machine.device_ops import ops_on

from experiments.quickstart.link_rate import CARD_FLOP_PER_S, CARD_LINK_GBPS
from experiments.step.step_order import BY_RATIO, DESKTOP_LINK, NATIVE, UNTHROTTLED, WHOLE


def hooks(ratio: float, **more: object) -> dict[str, Any]:
    """Options of the way that forms every gradient, and also trains what a core leaves out."""
    return {"codec": "block_random", "ratio": ratio, "residual": "factored", **more}


def fused(ratio: float, residual: str = "none", **more: object) -> dict[str, Any]:
    """Return options of the way that forms no gradients except those of a residual in turns."""
    shared = {"fused": True, "share_inputs": True}
    return {"codec": "block_random", "ratio": ratio, "residual": residual, **shared, **more}


# All of them train the same weights, with one backward a step.
MAIN_WAYS = {
    NATIVE: None,
    # Every whole gradient goes to the host. AdamW begins when all gradients are there, and the next
    # forward begins when all updates are back.
    WHOLE: {"codec": "identity", "schedule": "barrier"},
    "Sluiceway, hooks": hooks(0.25),
    "Sluiceway, fused": fused(0.5),
}


def rolling(ratio: float, every: int | None) -> str:
    """Name of the way with a residual of a weight every `every` steps, or none."""
    return f"f = {ratio:g}, residual {f'every {every}' if every else 'none'}"


# The ways above, and residuals in turns; a residual in each step needs every gradient.
WAYS = {
    **MAIN_WAYS,
    **{
        rolling(ratio, every): fused(ratio, "factored", residual_every=every)
        for ratio in (0.25, 0.5)
        for every in (2, 4, 8)
    },
    **{rolling(ratio, 1): hooks(ratio) for ratio in (0.25, 0.5)},
    **{rolling(ratio, None): fused(ratio) for ratio in (0.25, 0.5)},
}
_LATENCY_US = 10.0
_DESKTOP_FLOP_PER_S = 82.6e12  # As in configs/desktop_7b.yaml.
# GB/s each way of page-locked copies, and flop/s of the card on that link.
_PACED = {
    "PCIe 3.0 x8": (CARD_LINK_GBPS / 2, CARD_FLOP_PER_S),
    "PCIe 4.0 x8": (CARD_LINK_GBPS, CARD_FLOP_PER_S),
    DESKTOP_LINK: (2 * CARD_LINK_GBPS, _DESKTOP_FLOP_PER_S),
}
LINKS = (UNTHROTTLED, *_PACED)
_COPIED_BYTES = 256 << 20


@dataclass(frozen=True)
class Pace:
    """Rate of a link: as named, or in the ratio of copies to products on its usual card.

    Parameters
    ----------
    flop_per_s : float
        Rate that this device reached with native AdamW.
    real_gbps : float
        Rate of the device's own link, which no pacing exceeds; infinity if the link is a copy in
        memory.
    """

    flop_per_s: float
    real_gbps: float

    def gbps(self, link: str | None, pacing: str | None) -> float | None:
        """Rate of a link in each direction; None if it is not throttled."""
        if link is None or link == UNTHROTTLED:
            return None
        rate, card = _PACED[link]
        if pacing == BY_RATIO:
            return min(self.real_gbps, rate * self.flop_per_s / card)
        return rate


def real_link_gbps(device: torch.device) -> float:
    """Return GB/s of the slower copy direction between a card and page-locked memory."""
    if device.type != "cuda":
        return float("inf")
    here = torch.empty(_COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(here, device=device)
    slowest = 0.0
    for target, source in ((here, there), (there, here)):
        for _ in range(3):  # The last copy counts.
            laps = Laps(device)
            laps.mark()
            target.copy_(source, non_blocking=True)
            laps.mark()
        slowest = max(slowest, *laps.seconds())
    return _COPIED_BYTES / slowest / 1e9


class Resident(torch.optim.AdamW):
    """torch's fused AdamW with everything on the device, plus the methods that the loop needs."""

    def stats(self) -> dict[str, Any]:
        """Return nothing: no bytes cross a link."""
        return {}

    def synchronize(self) -> None:
        """Return at once, as a step runs on the model's own stream."""

    def close(self) -> None:
        """Do nothing, as it holds nothing of the model."""


def make_optimizer(
    model: torch.nn.Module,
    options: dict[str, Any] | None,
    gbps: float | None,
    device: str,
    **more: object,
) -> Resident | sw.SubspaceAdamW:
    """Make a way's optimizer, over a link of `gbps` each way or unthrottled; None: native's."""
    if options is None:
        return Resident([p for p in model.parameters() if p.requires_grad], fused=True)
    link = None if gbps is None else sw.Link(gbps, gbps, _LATENCY_US)
    return sw.SubspaceAdamW(model, device=device, link=link, accumulate=1, **options, **more)


class Laps:
    """Seconds between marks: by events of the device on a card, by the clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._ops = device, ops_on(device)
        self._marks: list[Any] = []

    def mark(self) -> None:
        """End one lap and begin the next, without waiting for the device."""
        self._marks.append(self._ops.mark())

    def seconds(self) -> list[float]:
        """Seconds of every lap; waits for the last one."""
        if self._device.type == "cuda":
            self._marks[-1].synchronize()
        return [1e-6 * self._ops.us_between(*lap) for lap in pairwise(self._marks)]
