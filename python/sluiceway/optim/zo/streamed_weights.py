"""Weights that are streamed to the device by a compiled engine.

Their values have two sources. `LogAndBase` computes them from a base that no step writes to, and
from a log of the steps. `Masters` lie in host memory, and each step is written into them.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.errors import InvalidArgument
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.elsewhere import absent
from sluiceway.optim.common.model_hooks import NothingWhenCopied
from sluiceway.optim.common.tier_limits import tier_limits
from sluiceway.optim.zo.measurement import Copies
from sluiceway.optim.zo.tier import States, Training
from sluiceway.optim.zo.weights import TrainedWeight

Use = tuple[int, nn.Parameter]


class StreamedWeights:
    """Owns the engine, computes theta of parameters, and puts it into `state_dict()` of the model.

    Parameters
    ----------
    training : Training

    Attributes
    ----------
    is_written : bool
        True if each step is written into the weights.
    in_step : bool
        True while forward passes run, so that the weights have no common step.
    """

    is_written = False
    fills_state_dict = True

    def __init__(self, training: Training) -> None:
        self._training = training
        self._engine: Any = None
        self._weight_of = {id(w.parameter): w for w in training.weights}
        self._number = {id(w.parameter): i for i, w in enumerate(training.weights)}
        self._on_device: dict[int, torch.Tensor] = {}  # Weights that are perturbed in each step.
        self._tied: tuple[Any, dict[int, torch.Tensor]] = (lambda: None, {})
        self._given: set[int] = set()  # Parameters that hold theta, if giving was interrupted.
        self._hooks: list[Any] = []
        self._slots: dict[Any, list[Use]] = {}
        self.in_step = False

    @property
    def owner(self) -> str:
        """The optimizer's name, for errors."""
        return self._training.owner

    def has(self, p: torch.Tensor | None) -> bool:
        """Tell whether a parameter is one of the streamed ones."""
        return id(p) in self._weight_of

    def name_of(self, p: nn.Parameter) -> str:
        """The parameter's name in the model."""
        return self._weight_of[id(p)].name

    # ---- The place of the weights ----

    def take(self) -> None:
        """Move the weights to their place, and put parameters into their state between steps."""

    def put_back(self) -> None:
        """Undo `take`, if it did more than move tensors: the optimizer could not be made."""

    def kept(self, p: nn.Parameter) -> torch.Tensor:
        """Return the tensor in host memory from which theta of a parameter is computed."""

    def give(self, p: nn.Parameter, theta: torch.Tensor) -> None:
        """Put theta into a parameter for good."""

    @property
    def tensor_bytes(self) -> int:
        """Bytes of tensors in host memory."""

    def memory(self) -> dict[str, int]:
        """Peak bytes by tier, beside those of the engine."""
        return {"pinned" if self._training.device.asynchronous else "host": self.tensor_bytes}

    # ---- The engine ----

    def _new_engine(self, mode: str, **arguments: Any) -> _core.ZoEngine:
        """Make the engine of a mode, with `arguments` of its own, and begin its trace."""
        training, options = self._training, self._training.options
        link, pin = options.link, options.pin or (-1, -1)
        engine = _core.ZoEngine(
            **options.keywords_for("engine"),
            mode=mode,
            compute=training.device.compute(),
            link=(link.d2h_gbps, link.h2d_gbps, link.latency_us) if link else (0.0, 0.0, 0.0),
            limits=tier_limits(options.budget, training.device),
            resident_bytes=bytes_beside(training),
            resident_room=options.resident,
            family=options.family,
            seed=options.seed,
            groups=len(training.param_groups),
            device_cpu=pin[0],
            lane_cpu=pin[1],
            **arguments,
        )
        engine.trace.enable(options.trace is not None, os.fspath(options.trace or ""))
        return engine

    @property
    def is_open(self) -> bool:
        """Tell whether the engine is open."""
        return self._engine is not None

    def get(self) -> Any:
        """Return the engine.

        Raises
        ------
        InvalidArgument
            The engine is closed.
        """
        if self._engine is None:
            raise InvalidArgument(f"{self.owner}: the optimizer is closed; make a new one")
        return self._engine

    def close(self) -> None:
        """Close the engine."""
        self._engine = None

    def use_of(self, weight: TrainedWeight, call: int) -> tuple[Any, ...]:
        """Describe for the engine the use of a weight by the module that runs as number `call`."""

    def check_between_steps(self, function: str) -> None:
        """Check that no step is under way, for functions that a closure must not call.

        Raises
        ------
        InvalidArgument
            A step is under way.
        """
        if self.in_step:
            raise InvalidArgument(
                f"{self.owner}.{function}: a step is under way; call it between steps, outside "
                "of the closure"
            )

    def begin_step(self) -> None:
        """Prepare a step, before the forward is watched."""

    def begin_pass(self) -> None:
        """Note that the weights are about to be streamed."""

    def acquire(
        self, key: Any, uses: list[Use], direction: int, sides: tuple[bool, ...]
    ) -> list[Copies]:
        """Return slots of the ring with weights on sides of a direction; True is the minus side."""
        engine, compute = self.get(), self._training.device.compute()
        copies, held = [], self._slots.setdefault((key, direction), [])
        for use, p in uses:
            found = []
            for side in sides:
                found.append(engine.acquire(use, direction, side, compute))
                if not side:
                    held.append((use, p))
            copies.append(Copies(p, tuple(found)))
        return copies

    def release(self, key: Any, direction: int) -> None:
        """Give slots back to the ring."""
        compute = self._training.device.compute()
        for use, _ in self._slots.pop((key, direction), []):
            self.get().release(use, direction, compute)

    def commit(
        self, gradients: list[float], rates: list[tuple[float, float]], non_finite: bool
    ) -> None:
        """Make the step."""

    def settle(self) -> None:
        """End a pass, also one whose end was interrupted."""
        for key, direction in list(self._slots):
            self.release(key, direction)
        self.get().finish()
        self.set_gammas()

    def flush(self) -> None:
        """Bring weights into which steps are written to the last step."""

    def set_gammas(self) -> None:
        """Write gamma into the parameter groups."""

    def consolidated(self) -> dict[str, int]:
        """Bytes of new bases before the last step, if there can be any."""
        return {}

    # ---- State ----

    def state_shapes(self, p: torch.Tensor) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors in a parameter's optimizer state, if it has a state."""
        return {}

    def before_state(self) -> None:
        """Bring the optimizer's state to the last step, before it is saved between steps."""

    def saved(self) -> dict[str, Any]:
        """Return what a saved state has beside the optimizer's own entries."""
        return {}

    def check_saved(
        self, frame: dict[str, Any], states: States, changed: list[TrainedWeight]
    ) -> None:
        """Check that a state belongs to these weights; see `Tier.check_saved`."""

    def load(self, frame: dict[str, Any], states: States, opened: Callable[[], None]) -> None:
        """Continue from a checked state; `opened` is called if the engine was replaced."""

    # ---- Theta ----

    def refresh(self, p: nn.Parameter) -> bool:
        """Bring the parameter's own memory up to date if possible; tell whether it is."""
        return False

    def theta(self, p: nn.Parameter) -> torch.Tensor:
        """Compute theta of a parameter on the device."""
        return self.made(p, self._brought(p))

    def theta_on_host(self, p: nn.Parameter) -> torch.Tensor:
        """Compute theta of a parameter in host memory."""
        return self.made(p, self.kept(p))

    def made(self, p: nn.Parameter, kept: torch.Tensor) -> torch.Tensor:
        """Compute theta of the last step where `kept` lies."""
        out = torch.empty_like(kept, dtype=p.dtype)
        compute = self._training.device.compute() if kept.is_cuda else _core.Stream.host()
        pending, gamma = self._pending(self._weight_of[id(p)])
        _core.materialise(kept, out, pending, gamma, self._training.options.family, compute=compute)
        return out

    def neighbours(
        self, weight: TrainedWeight, direction: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute theta + eps z and theta - eps z of the next step on the device."""
        p = weight.parameter
        kept = self._on_device.get(id(p))
        if kept is None:
            kept = self._on_device[id(p)] = self._brought(p)
        plus, minus = (torch.empty_like(kept, dtype=p.dtype) for _ in range(2))
        self._perturb(weight, direction, kept, plus, minus)
        return plus, minus

    def _perturb(
        self, weight: TrainedWeight, direction: int, kept: torch.Tensor, plus: torch.Tensor,
        minus: torch.Tensor,
    ) -> None:  # fmt: skip
        options = self._training.options
        pending, gamma = self._pending(weight)
        _core.perturb(
            kept, plus, minus, pending, gamma, options.eps, options.family, options.seed,
            self.get().next_step, weight.tensor, direction, compute=self._training.device.compute(),
        )  # fmt: skip

    def _pending(self, weight: TrainedWeight) -> tuple[list[tuple], float]:
        """Return the updates that the kept weight lacks, and its gamma."""
        return [], 1.0

    def _brought(self, p: nn.Parameter) -> torch.Tensor:
        if not self._training.device.asynchronous:
            return self.kept(p)
        return self.kept(p).to(self._training.device.name, non_blocking=not self.is_written)

    def forget(self) -> None:
        """Drop copies of kept weights, since these have changed."""
        self._on_device = {}

    def absent(self) -> dict[int, torch.Tensor]:
        """NaN for parameters that no module reads at present, so that nothing passes for theta."""
        device = "cpu" if self._training.device.name == "host" else self._training.device.name
        return {key: absent(w.parameter, device) for key, w in self._weight_of.items()}

    def give_theta(self) -> None:
        """Put theta into the parameters themselves."""
        with torch.no_grad():
            for weight in self._training.weights:
                p = weight.parameter
                if id(p) not in self._given:
                    theta = self.theta_on_host(p)
                    self._given.add(id(p))
                    self.give(p, theta)

    # ---- state_dict() of the model ----

    def add_hooks(self) -> None:
        """Put theta into `state_dict()` of the model and of its modules."""
        for module in self._training.model.modules():
            if any(map(self.has, torch_private.held_parameters(module).values())):
                hook = module.register_state_dict_post_hook(_StateHook(self, module))
                self._hooks.append(hook)

    def remove_hooks(self) -> None:
        """Let `state_dict()` show the parameters' own data."""
        for handle in self._hooks:
            handle.remove()

    def theta_in(self, state: dict[str, Any], p: nn.Parameter) -> torch.Tensor:
        """Return `theta_on_host`, once for all names of a parameter in one `state_dict()`."""
        if len(self._weight_of[id(p)].modules) == 1:
            return self.theta_on_host(p)
        made_for, made = self._tied
        if made_for() is not state:
            made = {}
            with contextlib.suppress(TypeError):  # The caller passed a plain dict.
                self._tied = (weakref.ref(state, lambda _: made.clear()), made)
        if id(p) not in made:
            made[id(p)] = self.theta_on_host(p)
        return made[id(p)]


class _StateHook(NothingWhenCopied):
    """Puts theta into `state_dict()` of a module; does nothing for a copy of the module."""

    def __init__(self, weights: StreamedWeights, module: nn.Module) -> None:
        self._weights, self._module = weakref.ref(weights), weakref.ref(module)

    def __call__(self, called: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        weights = self._weights()
        if weights is None or called is not self._module():
            return
        for name, p in torch_private.held_parameters(called).items():
            if weights.has(p) and prefix + name in state:
                state[prefix + name] = weights.theta_in(state, p)


def bytes_beside(training: Training) -> int:
    """Bytes of the model on the device beside the streamed weights."""
    trained = {id(w.parameter) for w in training.weights}
    others = [p for p in training.model.parameters() if id(p) not in trained]
    return sum(t.nbytes for t in (*others, *training.model.buffers()))
