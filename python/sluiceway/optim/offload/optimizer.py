"""OffloadAdamW: AdamW for every parameter, with its states in host memory or on disk."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sluiceway.config.options import refuse_unknown
from sluiceway.errors import InvalidArgument, Timeout
from sluiceway.model.targets import Selection
from sluiceway.model.weight_stream import save_streamed
from sluiceway.model.whole_weights import select_whole
from sluiceway.optim.common.documented import documents_options
from sluiceway.optim.common.engine_optimizer import EngineOptimizer
from sluiceway.optim.common.engine_weights import EngineWeights
from sluiceway.optim.common.repeated_blocks import RepeatedBlocks
from sluiceway.optim.common.state import STATE_KEY, frame_of
from sluiceway.optim.offload.arguments import (
    OffloadArguments,
    chunk_elements,
    open_engine,
    resolve_policy,
)
from sluiceway.optim.offload.cores import core_settings, target_of, whole_groups
from sluiceway.optim.offload.edited_weights import EditedWeights
from sluiceway.optim.offload.held_engine import HeldEngine
from sluiceway.optim.offload.open_streamed import ids_in_files
from sluiceway.optim.offload.state import (
    StatesToWrite,
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
from sluiceway.optim.offload.streamed_blocks import StreamedBlocks, choose_streamed

# Placeholder for a norm that was not computed yet. Clipping by it shows as a scaled gradient.
_UNKNOWN_NORM = 1e15
_NO_DISK = {"disk_read": 0, "disk_written": 0}  # A store in memory has drives, but no disk.


@documents_options(
    OffloadArguments,
    "tier", "path", "weights", "state_codec", "policy", "codec", "accumulate", "micro_batches",
    "activations", "frozen_codec", "device", "budget", "loss_scale", "seed",
)  # fmt: skip
class OffloadAdamW(EngineOptimizer):
    """Full AdamW whose moments and f32 masters are in host memory or on disk.

    Gradients leave the device during backward and are rounded to `gradients` on the way. AdamW runs
    on the host, chunk by chunk, and writes each weight before the module that reads it runs next.
    This trains every trainable parameter, also embeddings, head, norms and biases. With fp32
    gradients the numbers equal those of torch.optim.AdamW in fp32. With a `codec`, gradients of
    linear layers cross the link as cores S = P^T G Q, and AdamW trains on P S Q^T, decompressed on
    the host. Moments and masters stay whole. The device adds up the cores of all micro-batches, so
    that only their sum crosses. Gradients of all other parameters, of experts and of matrices below
    half a chunk cross whole; `uncompressed` lists the groups of these with more than 1 % of all
    elements. The gradient norm is computed from the gradients that AdamW trains on. With
    tier="disk", `path` holds the states and the gradients that wait for the update, and host memory
    holds a ring of chunks, however large the model is [MemAscend, arXiv 2505.23254]. With
    tier="host" and policy="spill", AdamW changes the states in place. Host memory then holds 12
    bytes a parameter (5 to 8 with another `state_codec`), and one gradient, of the type
    `gradients`, for each backward of a step. With policy="speculative" it holds the states twice,
    these gradients, and new weights. tier="auto" is tier="host" for as much as `budget.host` holds,
    by default half of the machine's memory; the rest is in files at `path` that have no name and
    end with the process.

    With tier="disk", a step is durable when the first gradient of the next step has come, or when
    `commit()` or `close()` has returned. After a crash at any moment the store holds the last
    durable step. The constructor opens an existing store and never overwrites it. Before you train
    on it, call `resume()` to put its last step into the model, or `load_state_dict()` for a step
    that a `state_dict()` has named. A store of other parameters raises InvalidArgument.

    A `state_dict()` with tier="disk" is a few bytes that name a step of the store. The store keeps
    that step until the next `state_dict()`, in a third slot for every chunk. A `state_dict()` with
    tier="host" or "auto" has all tensors. A state that has the tensors, also that of
    torch.optim.AdamW, loads into any tier. torch.optim.AdamW in turn loads a state that has the
    tensors; a state of tier="disk" has no moments, so torch.optim.AdamW begins without. You may
    change a weight after `step()`, one element or all, in any way, and training goes on from its
    new value. A change between backward and `step()` raises InvalidArgument.

    docs/contract.md lists on one page how this differs from torch's own optimizers. `.grad` of a
    compressed weight has the norm of the gradient and not its values. The runtime applies updates
    while the next forward runs, and every read of a weight through torch's functions waits for its
    update. With several backwards a step, the norms are read back from the store after each
    backward. With `accumulate` set to a number they are read back only after that many backwards,
    and clipping before the last one raises InvalidArgument. Open optimizers cannot share a store.

    Parameters
    ----------
    model : torch.nn.Module
        The optimizer trains its trainable parameters, which must be contiguous and of float32,
        bfloat16 or float16, and keeps hooks on it until `close()`.
    lr, betas, eps, weight_decay
        As in torch.optim.AdamW; mutable in `param_groups`.
    max_norm : float, optional
        Clip the common norm of all gradients at this value inside `step()`.
    param_groups : iterable of dict, optional
        Groups as in torch; default is one group of all trainable parameters. The optimizer does
        not touch a parameter that is in no group.
    {options}

    Raises
    ------
    InvalidArgument, OutOfMemory, Unavailable, IoError, Corrupt
        The constructor changed nothing and left nothing new on the disk.
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
        refuse_unknown(name, options, OffloadArguments.keywords())
        checked = OffloadArguments.checked(name, {"max_norm": max_norm, **options})
        adam = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(model, adam, checked, param_groups)
        if self.options.codec != "identity":
            self.uncompressed = whole_groups(self, self._why_whole)
        if not self._held:
            note_run(self)
            first_value = None if self._blocks is None else self._blocks.first_value
            tensors = self.tensors_of_engine(self.of_engine.tensors())
            self.engine.begin(tensors, self.device.compute(), first_value)
            if self.options.frozen_codec != "identity":  # It has rounded them.
                self._edited.settle_frozen()
            if self._blocks is not None:
                self._blocks.start()

    @cached_property
    def core_settings(self) -> dict[str, Any]:
        """Settings of the codec that a resumed run must share."""
        return core_settings(self)

    @property
    def _reads_files(self) -> bool:
        return self.options.weights == "streamed"

    @property
    def _micro_batches(self) -> int:
        return self.options.micro_batches

    def _select(self, model: nn.Module, wanted: Collection[int], grouped: bool) -> Selection:
        target, away = target_of(self.options), ids_in_files(model)
        selection = select_whole(self._owner, model, wanted, target, away)
        self._why_whole = selection.why_ordinary
        self._streamed, self._frozen = [], []
        if self.options.weights == "streamed":
            elements = chunk_elements(self._owner, self.options.chunk)
            self._streamed, self._frozen = choose_streamed(
                self._owner, model, selection.compressed, elements, self.options
            )
        return selection

    def _make_engine(self, model: nn.Module) -> HeldEngine:
        compute = self.device.compute()
        weights = [*self.weights, *self._frozen]
        made, self.spill = open_engine(self._owner, model, weights, self.options, compute)
        engine = HeldEngine(self._owner, made)
        _, self._held = engine.generations[0]  # Steps of a store that was not resumed yet.
        self._edited = EditedWeights(self._owner, engine, self.weights, self._frozen)
        self._blocks = None
        self._backwards = 0  # Number of backwards in the step being gathered.
        self._to_write: StatesToWrite | None = None  # During `state_to_write()`.
        self._speculates = resolve_policy(self.options) == "speculative"
        self._shared_factor = 1.0  # The user's factor on all gradients of the last step.
        self._norm_known = True
        return engine

    def _take_model(self, model: nn.Module, repeated: RepeatedBlocks) -> ExitStack:
        undo = super()._take_model(model, repeated)
        self._model = weakref.ref(model)
        if self._streamed:
            weights = [*self.weights, *self._frozen]
            of = (self._owner, self.engine, self.device, weights, self._streamed)
            self._blocks = StreamedBlocks(*of, repeated.activations, repeated.micro_batches)
            self._blocks.hooks = self._hooks
            undo.callback(self._blocks.give_back)
        return undo

    def _streamed_modules(self) -> list[nn.Module]:
        return [block for block, _ in self._streamed]

    def _activations_place(self) -> tuple[Any, ...]:
        options = self.options
        if options.activations != "disk":
            return super()._activations_place()
        return options.paths[0], options.io, options.rate_gbps or 0.0

    def tensors_of_engine(self, trained: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return all tensors of the engine: after those that it trains, those that are frozen."""
        return [*trained, *EngineWeights(self._frozen).tensors()]

    def _hypers_of_engine(self) -> list[tuple[float, ...]]:
        return [*self._hypers(), *[(0.0,) * 5] * len(self._frozen)]

    def _between_turns(self) -> AbstractContextManager[Any]:
        """Wait for a block that another thread runs, and let none run in the block."""
        return nullcontext() if self._blocks is None else self._blocks.lock

    def weight_here(self, weight: int) -> nn.Parameter:
        """Return a parameter whose own memory has its present value."""
        parameter = self.weights[weight].parameter
        if self.weights[weight].away and self._blocks.started:
            self._blocks.between.refresh(parameter)
        return parameter

    def _take_over(self) -> None:
        """Take over weights that other code has changed since the last step."""
        self._edited.take_over()
        self._take_over_streamed()

    def _take_over_streamed(self) -> None:
        if self._blocks is not None:
            with self._blocks.lock:
                self._blocks.between.take_over()

    # ---- Resuming from a store ----

    def resume(self) -> int:
        """Put the last step of the store into the model, and continue from it.

        Returns
        -------
        int
            Number of steps taken so far, without skipped ones (`skipped_steps`). A new store gives
            0 and leaves the model as it was.

        Raises
        ------
        InvalidArgument
            The optimizer has taken steps or loaded a state already, or the store's steps were
            taken with another codec, or rounded with another seed.
        """
        self._check_open()
        if not self._held:
            if self.engine.committed_steps:
                raise InvalidArgument(
                    f"{self._owner}.resume: {self.engine.committed_steps} steps were taken or "
                    "loaded already; call resume() on a new optimizer, or use load_state_dict() "
                    "to go back"
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
        if self._blocks is not None:
            self._blocks.between.forget()
            self._blocks.start()

    def _check_loaded(self) -> None:
        super()._check_loaded()
        if self._held:
            raise InvalidArgument(
                f"{self._owner}: {self.options.place} holds step {self._held} of this model; "
                "call opt.resume() or load_state_dict(), or use an empty path"
            )

    def close(self) -> None:
        """Make the last step durable, close the optimizer and release the store."""
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
        """Wait until every step is applied and durable."""
        self._check_open()
        self._check_loaded()
        self.synchronize()
        self._take_over()
        self.engine.commit()

    def set_run_state(self, run: bytes) -> None:
        """Store bytes, such as a data position, in the commit of the last step.

        These bytes become durable with the step; the commit of the next step is without them. With
        another tier, `commit()` stores them, and they end with the optimizer.

        Raises
        ------
        InvalidArgument
            `run` is too large. A commit has room for 1 MiB, less 8 bytes a parameter and one line.
        """
        self._check_open()
        note_run(self, run)

    def run_state(self) -> bytes:
        """Return the bytes that `set_run_state()` stored in the last commit, or b""."""
        self._check_open()
        return run_of_user(self)

    # ---- Calls from the model's hooks ----

    def before_forward(self, training: bool) -> None:
        """Take over streamed weights that other code has changed, beside what every engine does."""
        super().before_forward(training)
        if not self._in_flight.forked():
            self._take_over_streamed()

    def begin_backward(self) -> None:
        """Begin a backward, after taking over weights that other code has changed."""
        super().begin_backward()
        if not self.engine.has_gradient():
            self._take_over()
            if self._speculates:
                self.engine.expect(
                    self._hypers_of_engine(), self._shared_factor / self.loss_scale.value
                )
        self._backwards += 1

    def add_gradient(self, weight: int, gradient: torch.Tensor) -> None:
        """Send a gradient off the device, and keep it alive until it has left."""
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
        if not self._norm_known:  # The caller needs the norms now.
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
        self._take_over()
        with self._between_turns():
            outcome = self.engine.step(
                self._hypers_of_engine(),
                self.tensors_of_engine(weights),
                factor,
                squares,
                own_factors and [*own_factors, *[1.0] * len(self._frozen)],
                self.options.exact_norm,
                self.device.compute(),
            )
            skipped, _, _ = outcome
            if not skipped:
                self._shared_factor = factor / unscale
                if self._blocks is not None:
                    self._blocks.between.forget()
        return outcome

    def _refuse_guessed_clip(self, scaled: float) -> None:
        """Refuse a scaling of gradients by code that read a placeholder in place of the norm."""
        if math.isfinite(scaled) and abs(scaled - 1.0) > 1e-6:
            raise InvalidArgument(
                f"{self._owner}.step: gradients were scaled by {scaled:.6g} after "
                f"{self._backwards} of {self.options.accumulate} promised backwards, when their "
                "norm was not known; scale them after the last backward, use "
                "opt.clip_grad_norm_(), or set accumulate='auto'"
            )

    def _stepped(self) -> None:
        self._edited.enqueued()
        note_run(self)

    def stats(self) -> dict[str, Any]:
        """Return the numbers of the last step, including the numbers of the store."""
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
        """Return the state of every parameter, or the name of a step that the store then keeps.

        It loads under `weights_only=True`. With tier="disk" the store keeps that step until the
        next `state_dict()`, and grows by a half the first time. Before `resume()` or
        `load_state_dict()` the state names the last step of the store but does not keep it, and
        loading this state back does not resume. So Accelerate may save and load a state before it
        loads the state of a checkpoint.
        """
        self._check_open()
        if self._held and not self._progress.half_loaded:
            self._before_save()
            frame = {**frame_of(self), **self._own_state(), "held": True}
            return self._changed_by("saved", {**self._torch_state(), STATE_KEY: frame})
        self._check_loaded()
        self.synchronize()
        self._take_over()
        if self.options.tier == "disk":
            self.engine.pin()
        return super().state_dict()

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write config and weights of a model of transformers, like its own `save_pretrained`.

        Streamed weights are written one after the other, so the model is never whole in memory.

        Parameters
        ----------
        folder : str or path
            It is made if it does not exist.

        Raises
        ------
        InvalidArgument
            The folder has weights already, or the model is none of transformers.
        """
        self._check_open()
        self._check_loaded()
        self.synchronize()
        self._take_over()
        model = self._model()
        if not hasattr(model, "save_pretrained"):
            raise InvalidArgument(
                f"{self._owner}.save_pretrained: the model is a {type(model).__name__}, expected "
                "one of transformers; save model.state_dict()"
            )
        if self._blocks is None:
            model.save_pretrained(folder)
            return
        to = Path(folder)
        to.mkdir(parents=True, exist_ok=True)
        if any(to.glob("*.safetensors")):
            raise InvalidArgument(
                f"{self._owner}.save_pretrained: {to} has weights already, expected a new folder"
            )
        save_streamed(model, to, self._blocks.between.value_of)

    def state_to_write(self) -> tuple[dict[str, Any], StatesToWrite]:
        """Return `state_dict()` with tensors that have their values only while they are written.

        Write it before the next step; hooks of `state_dict()` must not copy the tensors. With
        tier="disk" it names a commit that lasts only until the next step unless pinned.
        """
        self.commit()
        self._to_write = StatesToWrite(self)
        try:
            return super().state_dict(), self._to_write
        finally:
            self._to_write = None

    def pin(self) -> None:
        """Keep the last commit until the next `pin()` or `state_dict()`.

        Raises
        ------
        InvalidArgument
            The states are in host memory and change in place.
        """
        self._check_open()
        self.engine.pin()

    @torch.compiler.disable
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a `state_dict()` of this optimizer or of torch.optim.AdamW.

        A state that names a step of this store also puts that step's weights into the model, and
        training continues bit for bit. A state with tensors continues bit for bit if the model has
        the weights that it had when the state was saved.

        Raises
        ------
        Error
            The state is broken, belongs to another store or other parameters, or names a step that
            is gone.
        KeyboardInterrupt
            You pressed Ctrl-C. If loading had begun by then, call `load_state_dict()` again first.
        """
        super().load_state_dict(state_dict)

    def _framed(self, state_dict: Any) -> Any:
        return with_frame(self, state_dict)

    def _keeps_entries(self) -> bool:
        return self.options.tier != "disk"

    def has_states(self) -> bool:
        """Return whether the store has states of this run, for `opt.state` to show."""
        return super().has_states() and not self._held

    def engine_states_of(self, weight: int) -> list[dict[str, Any]]:
        """Return a copy of a parameter's state: step, moments and master."""
        return [self.engine.tensor_state(weight)]

    def take_engine_states(self, weight: int, states: list[dict[str, Any]]) -> None:
        """Replace a parameter's state; the next commit makes it durable."""
        (state,) = states
        self.engine.load_tensor_state(weight, **state)

    def _weight_states(self) -> dict[int, dict[str, Any]]:
        if self.options.tier == "disk":
            return {}
        return tensors_of(self) if self._to_write is None else self._to_write.states()

    def _own_state(self) -> dict[str, Any]:
        own = {"tier": self.options.tier, **codec_entry(self)}
        if self.options.tier != "disk":
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
