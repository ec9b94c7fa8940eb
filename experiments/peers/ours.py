"""OffloadAdamW with states, and weights where asked, on disk or in host memory."""

from __future__ import annotations

from pathlib import Path

import sluiceway as sw
import torch
from torch import nn

from experiments.peers.trained import ADAM, weights_hash


class Ours:
    """Bf16 weights; masters, moments, and gradients on their way, in a store.

    `tuning` has options of `OffloadAdamW`, and `pinned`, the bytes of its ring. The tier is disk
    if none is given.
    """

    def __init__(self, model: nn.Module, folder: Path, tuning: dict) -> None:
        self._model = model
        options = {"tier": "disk", **tuning}
        if pinned := options.pop("pinned", None):
            options["budget"] = sw.Budget(pinned=pinned)
        if options["tier"] == "disk":
            options["path"] = folder / "store"
        self._optimizer = sw.OffloadAdamW(model, **ADAM, **options)

    def resume(self) -> int:
        """Resume from the last step of the store."""
        return self._optimizer.resume()

    def step(self, tokens: torch.Tensor) -> float:
        """Take one step; it is applied while the next one runs."""
        loss = self._model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.item()

    def settle(self) -> None:
        """Wait until every step is on the disk."""
        self._optimizer.commit()

    def save(self) -> None:
        """Do nothing: every step is a save."""

    def buffer_bytes(self) -> int:
        """Return the bytes of the page-locked ring and of small gradients."""
        return self._optimizer.stats()["peak_bytes"]["pinned"]

    def weights_hash(self) -> str:
        """Hash the trained weights; those that are streamed are read one after the other."""
        return weights_hash(self._model.parameters())
