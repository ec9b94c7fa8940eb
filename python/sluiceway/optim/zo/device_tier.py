"""Tier device: weights stay on the device and are updated in place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from sluiceway.base.undisturbed import Undisturbed
from sluiceway.model.blocks import find_blocks, weights_by_block
from sluiceway.optim.common.random_state import RandomState
from sluiceway.optim.zo.device_weights import DeviceWeights, LowRankWeights
from sluiceway.optim.zo.measurement import Copies, Measured, Unit
from sluiceway.optim.zo.rates import GroupUpdate, as_float
from sluiceway.optim.zo.tier import States, Tier, Training
from sluiceway.optim.zo.weights import TrainedWeight


class DeviceTier(Tier):
    """Perturbs and updates weights on the device.

    Forward passes meet at every block. Weights that several blocks read are perturbed for the whole
    step.

    Parameters
    ----------
    training : Training
    state : dict
        The optimizer's state, which holds the masters.
    """

    def __init__(self, training: Training, state: dict[Any, Any]) -> None:
        self._training = training
        self.blocks = find_blocks(training.owner, training.model)
        block_of = {id(p): block for _, p, block in weights_by_block(training.model, self.blocks)}
        self._of_block: dict[int | None, list[TrainedWeight]] = {}
        for weight in training.weights:
            self._of_block.setdefault(block_of[id(weight.parameter)], []).append(weight)
        self._numbers = sorted(number for number in self._of_block if number is not None)
        blocks = [self.blocks.blocks[number] for number in self._numbers]
        units = [Unit(f"block {name}", block) for name, block in blocks]
        parameters = [w.parameter for w in training.weights]
        self.measured = Measured(training.owner, training.model, units, parameters)
        of_noise = LowRankWeights if training.options.noise == "lowrank" else DeviceWeights
        self._weights = of_noise(training, state)
        self._state = state
        self.committed_steps = 0

    # ---- Weights of a measurement ----

    def acquire(self, unit: int, direction: int) -> list[Copies]:
        """Make perturbed copies of a block's weights."""
        return self._perturbed(self._numbers[unit], direction)

    def throughout(self, direction: int) -> list[Copies]:
        """Make perturbed copies of weights that no block reads, or several blocks."""
        return self._perturbed(None, direction)

    def _perturbed(self, block: int | None, direction: int) -> list[Copies]:
        step, drawn = self.committed_steps, self._training.measured_directions[direction]
        return [
            Copies(w.parameter, self._weights.neighbours(w, self._gamma(w), step, drawn))
            for w in self._of_block.get(block, [])
        ]

    def _gamma(self, weight: TrainedWeight) -> float:
        return as_float(self._training.param_groups[weight.group]["gamma"])

    # ---- Steps ----

    def commit(self, gradients: list[float], updates: list[GroupUpdate], non_finite: bool) -> None:
        """Update every weight."""
        found = [(w, updates[w.group]) for w in self._training.weights]
        for weight, update in found:  # First the only part that can run out of memory.
            self._weights.prepare(weight, update.gamma)
        for weight, update in found:
            self._weights.update(
                weight, as_float(update.gamma), self.committed_steps, update.scales
            )
        for group, update in zip(self._training.param_groups, updates, strict=True):
            group["gamma"] = update.gamma
        self.committed_steps += 1

    def committing(self) -> AbstractContextManager:
        """Return a context in which Ctrl-C waits until all weights are updated."""
        return Undisturbed()

    def evaluate(self, closures: Sequence[Any]) -> list[Any]:
        """Call the closures one after the other, each from the same random state."""
        begun, found = RandomState.now(), []
        with torch.no_grad():
            for closure in closures:
                begun.restore()
                found.append(closure())
        return found

    # ---- State ----

    def state_shapes(self, p: torch.Tensor) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors in a parameter's state, if it has a state."""
        return self._weights.state_shapes(p)

    def load(self, frame: dict[str, Any], states: States) -> None:
        """Continue from masters of a step."""
        self._state.clear()
        for p, values in states.items():
            self._state[p] = {
                key: values[key].to(p.device).clone(memory_format=torch.contiguous_format)
                for key in self.state_shapes(p)
            }
        self._training.use_directions(frame["directions"])  # A log stores its own number.
        self.committed_steps = frame["committed_steps"]

    def groups_loaded(self) -> None:
        """Round loaded masters into their parameters."""
        for weight in self._training.weights:
            if weight.parameter in self._state:
                self._weights.round(weight, self._gamma(weight), self.committed_steps)
                torch.autograd.graph.increment_version(weight.parameter)

    def theta(self, p: nn.Parameter) -> torch.Tensor:
        """Return the parameter's data in host memory."""
        return p.detach().cpu()
