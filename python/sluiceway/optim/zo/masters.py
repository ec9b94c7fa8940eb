"""Masters in host memory, into which each step is written [MeZO, ZO2].

When a weight arrives for a pass, the updates that it lacks are applied, and it goes back while the
forwards run. So a master is at the last step only after `flush`, which all readers outside of a
pass call first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.errors import Error, InvalidArgument
from sluiceway.optim.common.elsewhere import absent
from sluiceway.optim.common.model_hooks import NothingWhenCopied
from sluiceway.optim.zo.streamed_weights import StreamedWeights
from sluiceway.optim.zo.tier import States, Training
from sluiceway.optim.zo.weight_snapshot import WeightSnapshot
from sluiceway.optim.zo.weights import MASTER, TrainedWeight


class Masters(StreamedWeights):
    """Keeps masters in host memory, page-locked for a CUDA device.

    If a parameter is the image of its master, rounded to 16 bits, it holds NaN, without memory,
    while nothing reads it. Otherwise the master is the parameter's own data.

    Parameters
    ----------
    training : Training
    state : dict
        The optimizer's state, which holds the masters of images.

    Raises
    ------
    InvalidArgument
        The type of masters is impossible for a parameter.
    """

    is_written = True

    def __init__(self, training: Training, state: dict[Any, Any]) -> None:
        super().__init__(training)
        self._state = state
        self._masters: dict[int, torch.Tensor] = {}
        self._was_on = {id(w.parameter): w.parameter.device for w in training.weights}
        self._has_history = False  # Before the first step, a state may give weights any step.
        self._lags = False  # True once a pass has begun since `flush`: it writes at any time.
        for weight in training.weights:
            if training.options.master == "bf16" and weight.parameter.dtype is torch.float16:
                raise InvalidArgument(
                    f"{self.owner}: {weight.name} is float16, expected bfloat16 or float32 for "
                    "master='bf16'; leave master out"
                )
        self._engine = self._new_engine(
            "write_back",
            threads=torch.get_num_threads(),
            wire=training.options.narrow_wire or "",
        )

    # ---- The masters ----

    def take(self) -> None:
        """Make the masters one after the other, and let the engine hold them."""
        for weight in self._training.weights:
            p = weight.parameter
            own = not self.has_image(p)
            if self._training.device.asynchronous:
                whole = p.detach() if own else p.detach().to("cpu", torch.float32)
                master = _core.page_locked_copy(whole, self._training.device.compute())
            else:
                master = p.data if own else p.detach().to(torch.float32)
            self._masters[id(p)] = master
            if not own:
                self._state[p] = {MASTER: master}
            p.data = master if own else absent(p)
        self.get().hold(self.held())

    def put_back(self) -> None:
        """Undo `take` as far as it went; without a step in it, a master rounds back exactly."""
        for weight in self._training.weights:
            p = weight.parameter
            if (master := self._masters.pop(id(p), None)) is not None:
                p.data = master.to(self._was_on[id(p)], p.dtype)
                self._state.pop(p, None)

    def has_image(self, p: torch.Tensor) -> bool:
        """Tell whether a parameter is only the image of its master."""
        return p.dtype is not torch.float32 and self._training.options.master == "fp32"

    def held(self) -> list[tuple[str, torch.Tensor, int, torch.Tensor]]:
        """List the engine's arguments for each weight; the last has the parameter's type."""
        return [
            (
                w.name, self._masters[id(w.parameter)], w.group,
                torch.empty((), dtype=w.parameter.dtype).expand(w.parameter.shape),
            )
            for w in self._training.weights
        ]  # fmt: skip

    def kept(self, p: torch.Tensor) -> torch.Tensor:
        """Return the master of a parameter."""
        return self._masters[id(p)]

    def give(self, p: nn.Parameter, theta: torch.Tensor) -> None:
        """Put theta into a parameter that is an image; others get their own master."""
        p.data = theta if self.has_image(p) else self.kept(p)
        torch.autograd.graph.increment_version(p)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all masters."""
        return sum(master.nbytes for master in self._masters.values())

    # ---- Steps ----

    def use_of(self, weight: TrainedWeight, call: int) -> tuple[Any, ...]:
        """Describe a use by the number of the master."""
        p = weight.parameter
        return self._number[id(p)], call, p.dim() < 2

    def begin_step(self) -> None:
        """Take fresh copies of weights that are not streamed."""
        self.forget()

    def begin_pass(self) -> None:
        """Note that masters may be written from now on."""
        self._lags = True

    def commit(
        self, gradients: list[float], rates: list[tuple[float, float]], non_finite: bool
    ) -> None:
        """Let the next pass write the step."""
        self._has_history = True
        self.get().commit(gradients, rates)

    def set_gammas(self) -> None:
        """Set every gamma to 1: weight decay is applied to the weights."""
        for group in self._training.param_groups:
            group["gamma"] = 1.0

    def flush(self) -> None:
        """Bring masters to the last step; within a pass only those that it does not stream."""
        engine = self.get()
        if not engine.is_passing:
            try:
                engine.flush()
            except Error:
                self._lags = False  # A failed lane writes no more.
                raise
            self._lags = False

    # ---- Theta ----

    def refresh(self, p: nn.Parameter) -> bool:
        """Bring a master that is the parameter's own memory to the last step."""
        if self.has_image(p):
            return False
        if self.is_open:
            self.flush()
        return True

    def theta(self, p: nn.Parameter) -> torch.Tensor:
        """Compute theta of a parameter on the device."""
        self.flush()
        return super().theta(p)

    def theta_on_host(self, p: nn.Parameter) -> torch.Tensor:
        """Compute theta of a parameter in host memory.

        Raises
        ------
        InvalidArgument
            A pass is under way, so the weights have no common step.
        """
        if self.get().is_passing:
            raise InvalidArgument(
                f"{self.owner}: state_dict() or theta() was called while a step is under way; "
                "call it outside of the closure. If a step has failed, resume from a save"
            )
        self.flush()
        return super().theta_on_host(p)

    def add_hooks(self) -> None:
        """Put theta into `state_dict()`, and finish writes before weights are loaded."""
        super().add_hooks()
        for module in self._training.model.modules():
            within = [p for p in module.parameters() if self.has(p)]
            if within:  # The outermost module is asked first, before anything was copied.
                image = next((self.name_of(p) for p in within if self.has_image(p)), None)
                hook = _LoadHook(self, image)
                self._hooks.append(module.register_load_state_dict_pre_hook(hook))

    # ---- Snapshots ----

    def snapshot(self, state: dict[str, Any]) -> WeightSnapshot:
        """Return a snapshot of the last step's weights, with the state of that step.

        Raises
        ------
        InvalidArgument
            A pass is under way, or another snapshot is open.
        Error
            A lane failed.
        """
        self.check_between_steps("snapshot")
        self.settle()
        return WeightSnapshot(self.get().begin_snapshot(), state, self, self._number)

    def finish_snapshot(self, seconds: float | None) -> bool:
        """Wait until a snapshot was read, and tell whether it was; see `WeightSnapshot.finish`."""
        if not self.is_open:
            return True
        with suppress(Error):  # The engine reports the error too, also to the reader.
            self.settle()
        return self.get().finish_snapshot(seconds)

    def drop_snapshot(self) -> None:
        """Close the open snapshot, because nobody will read it."""
        if self.is_open:
            self.get().drop_snapshot()

    # ---- State ----

    def state_shapes(self, p: torch.Tensor) -> dict[str, tuple[int, ...]]:
        """Shape of the master for a parameter that is an image; others have no state."""
        return {MASTER: tuple(p.shape)} if self.has_image(p) else {}

    def before_state(self) -> None:
        """Bring the masters, which the state holds itself, to the last step."""
        self.check_between_steps("state_dict")
        self.settle()
        self.flush()

    def check_saved(
        self, frame: dict[str, Any], states: States, changed: list[TrainedWeight]
    ) -> None:
        """Check that a state has all masters, and the same step as weights that are masters.

        Raises
        ------
        InvalidArgument
            A weight does not fit; the text names it.
        """
        step = frame["committed_steps"]
        self.check_between_steps("load_state_dict")
        loaded = {weight.name for weight in changed}
        if loaded and self._lags and not self.get().is_passing:
            raise InvalidArgument(
                f"load_state_dict: {changed[0].name} was changed while steps were written into it; "
                "load weights with model.load_state_dict(), which waits for the steps"
            )
        is_whole, now = self._flushed(), self.get().next_step
        for weight in self._training.weights:
            p = weight.parameter
            if not self.has_image(p):
                is_of_step = is_whole and now == step
                if self._has_history and not is_of_step and weight.name not in loaded:
                    raise InvalidArgument(
                        f"load_state_dict: the state has step {step}, but {weight.name} has step "
                        f"{now}{'' if is_whole else ' or earlier'}; load "
                        f"the model's weights of step {step} first, or make a new optimizer of them"
                    )
            elif p not in states:
                raise InvalidArgument(
                    f"load_state_dict: the state has no master of {weight.name}, expected one"
                )
            elif states[p][MASTER].data_ptr() == self.kept(p).data_ptr():
                raise InvalidArgument(
                    f"load_state_dict: the master of {weight.name} is the optimizer's own tensor, "
                    "which later steps have changed; keep copy.deepcopy(opt.state_dict()) instead"
                )

    def _flushed(self) -> bool:
        """Bring all weights to the last step; return False if a lane has failed."""
        try:
            self.settle()
            self.flush()
        except Error:
            return False
        return True

    def load(self, frame: dict[str, Any], states: States, opened: Callable[[], None]) -> None:
        """Continue from masters of a step; masters that are parameters have that step already."""
        self._flushed()  # Otherwise pending writes would overwrite them.
        self._slots.clear()
        self.get().restart(frame["committed_steps"])
        self._has_history = True
        for p, values in states.items():
            if MASTER in values:
                self.kept(p).copy_(values[MASTER])


class _LoadHook(NothingWhenCopied):
    """Finishes writes to masters before a load; raises an error for parameters without memory."""

    def __init__(self, masters: Masters, image: str | None) -> None:
        self._masters, self._image, self._owner = weakref.ref(masters), image, masters.owner

    def __call__(self, *_: Any) -> None:
        masters = self._masters()
        if masters is None or not masters.is_open:
            return
        if self._image is not None:
            raise InvalidArgument(
                f"load_state_dict: {self._image} has no memory while {self._owner} is open and "
                "holds its float32 master. Call close() first, or load weights before you make the "
                "optimizer"
            )
        with suppress(Error):  # The result of a failed lane is not needed any more.
            masters.flush()
