"""OffloadAdamW: AdamW of every parameter, its states in host memory or on disk."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import Any

import torch
from torch import nn

from sluiceway.config.options import refuse_unknown
from sluiceway.errors import InvalidArgument, Timeout
from sluiceway.model.targets import Selection
from sluiceway.model.whole_weights import select_whole
from sluiceway.optim.common.documented import documents_options
from sluiceway.optim.common.engine_optimizer import EngineOptimizer
from sluiceway.optim.common.state import STATE_KEY, frame_of
from sluiceway.optim.offload.arguments import OffloadArguments, open_engine, resolve_policy
from sluiceway.optim.offload.cores import core_settings, target_of, whole_groups
from sluiceway.optim.offload.edited_weights import EditedWeights
from sluiceway.optim.offload.held_engine import HeldEngine
from sluiceway.optim.offload.state import (
    check_states,
    codec_entry,
    note_run,
    restore_states,
    run_of_commit,
    run_of_user,
    take_masters,
    take_up_run,
    tensors_of,
    with_frame,
)

# What stands for the norm of a sum that was not asked for: whoever clips by it, scales by it.
_UNKNOWN_NORM = 1e15
_NO_DISK = {"disk_read": 0, "disk_written": 0}  # A store in memory has drives, but no disk.


@documents_options(OffloadArguments)
class OffloadAdamW(EngineOptimizer):
    """Full AdamW whose moments and f32 masters are in host memory or on disk.

    Gradients leave the device during backward and are rounded to `gradients` on the way; AdamW
    runs on the host, chunk by chunk, and each weight is written to before the module that reads it
    runs next. Every trainable parameter is trained so, embeddings, head, norms and biases too; with
    gradients of fp32 the numbers are those of torch.optim.AdamW in fp32. With a `codec` gradients
    of linear layers cross as cores S = P^T G Q, and what AdamW trains is P S Q^T, decompressed on
    the host: moments and masters are whole, and micro-batches are summed on the device, where they
    cost neither link nor disk. Gradients of all other parameters, of experts and of matrices below
    half a chunk cross whole; `uncompressed` says what of these is more than 1 % of all. The norm is
    that of what is trained. With tier="disk" states, and gradients on their way, are in `path`, and
    host memory holds a ring of chunks, however large the model is [MemAscend, arXiv 2505.23254].

    A step is durable when the first gradient of the next one has come, or when `commit()` or
    `close()` has returned. After a crash at any moment the store is at the last step that was. The
    constructor opens a store that is there and never overwrites it: `resume()` puts its last step
    into the model, `load_state_dict()` one that a `state_dict()` has named; nothing is trained
    before. A store of other parameters is refused. A `state_dict()` of tier="disk" is a few bytes
    that name a step of the store, which stays until the next `state_dict()`, in a third slot for
    every chunk; one of tier="host" has all tensors. Each loads into a store of any tier that has
    the tensors, as does that of torch.optim.AdamW, which takes one of tier="host" in its turn: one
    of tier="disk" has no moments to give it, and it begins without. A weight that is changed after
    `step()`, one element or all, by whatever way, goes on from what it is then; one that is changed
    between backward and `step()` is refused.

    docs/contract.md says on one page where this differs from torch's own optimizers. `.grad` of a
    compressed weight has the norm of the gradient and not its values. Updates are applied while the
    next forward runs, and every read of a weight through torch's functions waits for its update.
    With several backwards a step the norms are read back from the store after each of them; with a
    number as `accumulate` after the last of as many, and clipping before that is refused. An open
    optimizer shares no store with another one.

    Parameters
    ----------
    model : torch.nn.Module
        Its trainable parameters are taken, contiguous ones of float32, bfloat16 or float16; hooks
        are registered on it until `close()`.
    lr, betas, eps, weight_decay
        As in torch.optim.AdamW; mutable in `param_groups`.
    max_norm : float, optional
        Clip the common norm of all gradients at this value inside `step()`.
    param_groups : iterable of dict, optional
        As torch's; default is one group of all trainable parameters. What stands in none is left
        to others as it is.
    {options}

    Raises
    ------
    InvalidArgument, OutOfMemory, Unavailable, IoError, Corrupt
        Nothing was changed, and nothing new is on the disk.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        max_norm: float | None = None,
        *,
        param_groups: Iterable[dict[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        name = type(self).__name__
        refuse_unknown(name, options, inspect.signature(OffloadAdamW.__init__).parameters)
        checked = OffloadArguments.checked(name, {"max_norm": max_norm, **options})
        adam = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(model, adam, checked, param_groups)
        if self.options.codec != "identity":
            self.uncompressed = whole_groups(self, self._why_whole)
        if not self._held:
            note_run(self)
            self.engine.begin(self.of_engine.tensors(), self.device.compute())

    @cached_property
    def core_settings(self) -> dict[str, Any]:
        """Settings of the codec that a run cannot go on without."""
        return core_settings(self)

    def _select(self, model: nn.Module, wanted: Collection[int], grouped: bool) -> Selection:
        selection = select_whole(self._owner, model, wanted, target_of(self.options))
        self._why_whole = selection.why_ordinary
        return selection

    def _make_engine(self, model: nn.Module) -> HeldEngine:
        compute = self.device.compute()
        made, self.spill = open_engine(self._owner, model, self.weights, self.options, compute)
        engine = HeldEngine(self._owner, made)
        _, self._held = engine.generations[0]  # Steps of a store that nobody has taken up yet.
        self._edited = EditedWeights(self._owner, engine, self.weights)
        self._backwards = 0  # Of the step that is gathered.
        self._speculates = resolve_policy(self.options) == "speculative"
        self._shared_factor = 1.0  # Of the last step: what others multiplied its gradients with.
        self._norm_known = True
        return engine

    # ---- Taking up a store ----

    def resume(self) -> int:
        """Put the last step that the store holds into the model, and go on from it.

        Returns
        -------
        int
            How many steps it has had, skipped ones not counted (`skipped_steps`); 0 where the
            store is new, and the model as it was.

        Raises
        ------
        InvalidArgument
            Steps were taken, or a state was loaded, since the optimizer was made; or they were
            taken with another codec.
        """
        self._check_open()
        if not self._held:
            if self.engine.committed_steps:
                raise InvalidArgument(
                    f"{self._owner}.resume: {self.engine.committed_steps} steps were taken or "
                    "loaded already, expected a new optimizer; use load_state_dict() to go back"
                )
            return 0
        run = run_of_commit(self)
        self._progress.half_loaded = True
        take_masters(self)
        take_up_run(self, run)
        self._taken_up()
        self._progress.half_loaded = False
        return self.engine.committed_steps

    def _taken_up(self) -> None:
        self._held = 0
        self._edited.settle()

    def _check_loaded(self) -> None:
        super()._check_loaded()
        if self._held:
            raise InvalidArgument(
                f"{self._owner}: {self.options.place} holds step {self._held} of this model, "
                "expected load_state_dict() or opt.resume(), or an empty path"
            )

    def close(self) -> None:
        """Close the optimizer; what was trained is on the medium, and the store is let go."""
        try:
            super().close()
        except Timeout:  # A lane still uses the engine.
            raise
        except BaseException:
            if not self._is_open():
                self.engine.free()
            raise
        self.engine.free()

    def commit(self) -> None:
        """Wait until every step is applied, and on the medium with all that it needs."""
        self._check_open()
        self._check_loaded()
        self.synchronize()
        self._edited.take_over()
        self.engine.commit()

    def set_run_state(self, run: bytes) -> None:
        """Let the commit of the last step carry `run`: where its data was, random generators.

        It is durable when the step is; the next `step()` begins with none.

        Raises
        ------
        InvalidArgument
            It is too large: a commit has room for a MiB, less 8 bytes a parameter and a line.
        """
        self._check_open()
        note_run(self, run)

    def run_state(self) -> bytes:
        """Return what `set_run_state()` gave to the last commit; empty without."""
        self._check_open()
        return run_of_user(self)

    # ---- What the hooks of the model tell ----

    def begin_backward(self) -> None:
        """Begin a backward, from the weights as others have left them."""
        super().begin_backward()
        if not self.engine.has_gradient():
            self._edited.take_over()
            if self._speculates:
                self.engine.expect(self._hypers(), self._shared_factor / self.loss_scale.value)
        self._backwards += 1

    def add_gradient(self, weight: int, gradient: torch.Tensor) -> None:
        """Let it leave the device; it lives until it has."""
        self._progress.given.add(weight)
        (row,) = self.weights[weight].matrices(gradient.contiguous())
        self.engine.add_gradient(weight, row, self.device.compute())

    def _end_gathering(self) -> None:
        promised = self.options.accumulate
        whole = promised == "auto" or self._backwards >= promised
        norm, finite = self.engine.end_backward(self.options.exact_norm and whole)
        self._norm_known = not (finite and math.isnan(norm))

    def _norms_later(self) -> Callable[[], list[float]]:
        if self._norm_known:
            return super()._norms_later()
        count = len(self.weights)
        return lambda: [_UNKNOWN_NORM] * count

    def _sizes(self) -> list[tuple[float, float]]:
        if not self._norm_known:  # Whoever asks now needs them.
            for factor in self.carrier.factors().values():
                self._refuse_guessed_clip(factor)
            self.engine.end_backward(True)
            self._norm_known = True
            self.carrier.tell_again(self._norms_later())
        return super()._sizes()

    def _drop(self) -> None:
        super()._drop()
        self._backwards = 0

    def _use_up(self) -> None:
        super()._use_up()
        self._backwards = 0

    # ---- EngineOptimizer ----

    def _landed(self) -> Callable[[int], None]:
        return self._edited.landed

    def _enqueue(
        self,
        weights: list[torch.Tensor],
        factor: float,
        own_factors: list[float],
        unscale: float,
        squares: float,
    ) -> tuple[bool, float, float]:
        if not self._norm_known and self.options.exact_norm:
            for own in own_factors or [1.0]:
                self._refuse_guessed_clip(factor / unscale * own)
        self._edited.take_over()
        outcome = self.engine.step(
            self._hypers(),
            weights,
            factor,
            squares,
            own_factors,
            self.options.exact_norm,
            self.device.compute(),
        )
        skipped, _, _ = outcome
        if not skipped:
            self._shared_factor = factor / unscale
        return outcome

    def _refuse_guessed_clip(self, scaled: float) -> None:
        """Refuse a scaling by somebody who has seen a norm that is none."""
        if math.isfinite(scaled) and abs(scaled - 1.0) > 1e-6:
            raise InvalidArgument(
                f"{self._owner}.step: gradients were scaled by {scaled:.6g} after "
                f"{self._backwards} of {self.options.accumulate} promised backwards, when their "
                "norm was not known, expected all of them before it; use opt.clip_grad_norm_(), or "
                "accumulate='auto'"
            )

    def _stepped(self) -> None:
        self._edited.enqueued()
        note_run(self)

    def stats(self) -> dict[str, Any]:
        """Numbers of the last step: as of every engine, and of the store."""
        raw, common = self._clock.raw, super().stats()
        norm = common["grad_norm"]
        names = ("fetch_seconds", "store_seconds", "spill_seconds", "decompress_seconds",
                 "commits", "commit_seconds", "speculative_steps", "redone_steps",
                 "fallen_back_steps")  # fmt: skip
        return {
            **common,
            "bytes": {**common["bytes"], **(_NO_DISK if self.options.tier == "host" else {})},
            "grad_norm": None if math.isnan(norm) and not common["skipped"] else norm,
            "peak_bytes": {**common["peak_bytes"], "disk": raw["peak_bytes"]["disk"]},
            "offload": {name: raw[name] for name in names},
        }

    # ---- State ----

    @torch.compiler.disable
    def state_dict(self) -> dict[str, Any]:
        """State of every parameter, or the name of the step that the store then keeps.

        It loads under `weights_only=True`. Of tier="disk" the step stays until the next one is
        taken, and the store grows by a half the first time. Before a store is taken up the state
        names its last step, keeps nothing, and takes nothing up when it is loaded back: so
        Accelerate may ask for it, and load it, before it loads that of a checkpoint.
        """
        self._check_open()
        if self._held and not self._progress.half_loaded:
            self._before_save()
            frame = {**frame_of(self), **self._own_state(), "held": True}
            return self._changed_by("saved", {**self._torch_state(), STATE_KEY: frame})
        self._check_loaded()
        self.synchronize()
        self._edited.take_over()
        if self.options.tier == "disk":
            self.engine.pin()
        return super().state_dict()

    def unpinned_state(self) -> dict[str, Any]:
        """Return `state_dict()` of a commit that stays only until the next step, or `pin()`."""
        self.commit()
        return super().state_dict()

    def pin(self) -> None:
        """Let the last commit stay until the next `pin()` or `state_dict()`."""
        self._check_open()
        self.engine.pin()

    @torch.compiler.disable
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()`, or one of torch.optim.AdamW.

        One that names a step of this store puts the weights of that step into the model, too, and
        training goes on bit for bit; so it does from tensors where the model has the weights that
        it had.

        Raises
        ------
        Error
            It is broken, of another store or other parameters, or names a step that is gone.
        KeyboardInterrupt
            Ctrl-C; if something was put back by then, nothing but another load is taken.
        """
        super().load_state_dict(state_dict)

    def _framed(self, state_dict: Any) -> Any:
        return with_frame(self, state_dict)

    def _keeps_entries(self) -> bool:
        return self.options.tier == "host"

    def has_states(self) -> bool:
        """Return whether the store has states of this run, that others may see."""
        return super().has_states() and not self._held

    def engine_states_of(self, weight: int) -> list[dict[str, Any]]:
        """Copy the state of a parameter: step, moments and master."""
        return [self.engine.tensor_state(weight)]

    def take_engine_states(self, weight: int, states: list[dict[str, Any]]) -> None:
        """Put another state in the place of that; the next commit makes it durable."""
        (state,) = states
        self.engine.load_tensor_state(weight, **state)

    def _weight_states(self) -> dict[int, dict[str, Any]]:
        return {} if self.options.tier == "disk" else tensors_of(self)

    def _own_state(self) -> dict[str, Any]:
        own = {"tier": self.options.tier, **codec_entry(self)}
        if self.options.tier == "host":
            return own
        generation, _ = self.engine.generations[0]
        return {**own, "store": {"id": self.engine.store_id, "generation": generation}}

    def _check_own_state(self, state_dict: dict[str, Any]) -> None:
        check_states(self, state_dict)

    def _restore_own_state(self, state_dict: dict[str, Any]) -> None:
        if self._held and state_dict[STATE_KEY].get("held"):
            return
        restore_states(self, state_dict)
        self._taken_up()
