"""Runs of transformers' Trainer that go on from the last step of their store.

A commit of the store has the states of a step, and a few kilobytes that belong to it: the trainer's
counters and callbacks, its scheduler and loss scaler, and the states of random generators. The
trainer's log grows with the run, so it is in a file of the output folder.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from transformers import TrainerCallback, TrainerState
from transformers.trainer_callback import ExportableState

from sluiceway.errors import InvalidArgument
from sluiceway.optim.common.random_state import RandomState
from sluiceway.optim.offload.optimizer import OffloadAdamW

if TYPE_CHECKING:
    from transformers import Trainer

_FORMAT = 1
_FOLDER = "last-step"  # In the output folder; Trainer reads it to go on from a commit.
_LOG = "log_history.jsonl"  # In the output folder: one line for each entry of Trainer's log.


class Durable(TrainerCallback):
    """Lets a run of transformers' `Trainer`, or of TRL's trainers, go on from its last step.

    With `OffloadAdamW(tier="disk")` every step is durable: a run that is killed loses at most the
    step that it is in. This callback puts what Trainer needs to go on into each commit of the
    store. The continued run has the bits of one that was never interrupted, and needs no
    checkpoints. Trainer's log may lack the entry of the last step before a kill. Frozen parameters
    and buffers are not in the store; they are those of the model that you pass.

    Parameters
    ----------
    optimizer : OffloadAdamW, optional
        With tier="disk"; the same that you pass to Trainer. Leave it out if Trainer makes it, by
        `sw.for_trainer`.

    Raises
    ------
    InvalidArgument
        The optimizer does not commit each step.

    Examples
    --------
    >>> door = sw.for_trainer(model, kind="offload", tier="disk", path="/nvme/run")
    >>> durable = sw.Durable()
    >>> trainer = Trainer(
    ...     model, args, train_dataset=data, optimizer_cls_and_kwargs=door, callbacks=[durable]
    ... )
    >>> trainer.train(resume_from_checkpoint=durable.last_step(trainer))
    """

    def __init__(self, optimizer: OffloadAdamW | None = None) -> None:
        if optimizer is not None:
            _check_commits(optimizer)
        self._given = self._optimizer = optimizer
        self._trainer: Trainer | None = None
        self._goes_on: dict[str, Any] | None = None  # The commit that the next run continues.

    def last_step(self, trainer: Trainer) -> str | None:
        """Put the last step of the store into the model; return its `resume_from_checkpoint`.

        Returns
        -------
        str or None
            A small folder in Trainer's output folder; None for a new store.

        Raises
        ------
        InvalidArgument
            This callback is not one of the trainer's, the trainer has several processes, or the
            store's last step was made without this callback.
        """
        if self not in trainer.callback_handler.callbacks:
            raise InvalidArgument("Durable: the trainer does not have it; pass callbacks=[durable]")
        if trainer.args.world_size > 1:
            raise InvalidArgument(
                f"Durable: the trainer has {trainer.args.world_size} processes, expected one"
            )
        if trainer.state.global_step > 0:
            raise InvalidArgument(
                "Durable: this trainer has trained already; call trainer.train() to train on, or "
                "make a new Trainer to go on from the store"
            )
        folder = Path(trainer.args.output_dir) / _FOLDER
        if self._goes_on is not None and self._trainer is trainer:
            return str(folder)  # It was asked before.
        if self._given is None:
            made = trainer.create_optimizer()
            _check_commits(made)
            self._optimizer = made
        self._trainer, self._goes_on = trainer, None
        if self._optimizer.resume() == 0:
            return None
        run = _parsed(self._optimizer)
        step = run["trainer"]["global_step"]
        folder.mkdir(parents=True, exist_ok=True)
        state = run["trainer"] | {"log_history": _keep_log(folder.parent / _LOG, step)}
        (folder / "trainer_state.json").write_text(json.dumps(state))
        for name, content in (("rng_state.pth", run["random"]), ("scaler.pt", run["scaler"])):
            (folder / name).unlink(missing_ok=True)
            if content is not None:
                (folder / name).write_bytes(base64.b64decode(content))
        # Trainer demands a file of weights, and warns that it has none. They are in the model.
        save_file({}, folder / "model.safetensors")
        logging.getLogger("transformers.trainer").addFilter(_says_nothing_of_missing_weights)
        print(
            f"sluiceway: {self._optimizer.options.place}: goes on from step {step}, the last that "
            "was committed",
            file=sys.stderr,
        )
        self._goes_on = run
        return str(folder)

    # ---- Calls from Trainer ----

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **parts: Any) -> None:
        """Load what Trainer does not load from the folder, or begin a new log."""
        logging.getLogger("transformers.trainer").removeFilter(_says_nothing_of_missing_weights)
        if self._trainer is None:
            raise InvalidArgument(
                "Durable: Trainer began without it; call "
                "trainer.train(resume_from_checkpoint=durable.last_step(trainer))"
            )
        run, self._goes_on = self._goes_on, None
        if run is None:
            (Path(args.output_dir) / _LOG).unlink(missing_ok=True)
        elif state.global_step == run["trainer"]["global_step"]:
            parts["lr_scheduler"].load_state_dict(_loaded(run["scheduler"]))
            for group, lr in zip(self._optimizer.param_groups, run["lr"], strict=True):
                group["lr"] = lr

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **parts: Any) -> None:
        """Give the step's commit what belongs to it."""
        self._note(state, control, parts["lr_scheduler"])

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **parts: Any) -> None:
        """Do so again: an evaluation draws random numbers, and may change the best metric."""
        self._note(state, control, parts["lr_scheduler"])

    def on_save(self, args: Any, state: TrainerState, control: Any, **parts: Any) -> None:
        """Do so again: Trainer may have noted a best checkpoint."""
        self._note(state, control, parts["lr_scheduler"])

    def on_log(self, args: Any, state: TrainerState, control: Any, **parts: Any) -> None:
        """Append the entry to the file."""
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / _LOG).open("a") as file:
            file.write(json.dumps(state.log_history[-1]) + "\n")

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **parts: Any) -> None:
        """Make the last step durable."""
        self._note(state, control, parts["lr_scheduler"])
        self._optimizer.commit()

    def _note(self, state: TrainerState, control: Any, scheduler: Any) -> None:
        if state.global_step == 0:  # No step is in the store yet.
            return
        exported: dict[str, Any] = {}
        for callback in [*self._trainer.callback_handler.callbacks, control]:
            if isinstance(callback, ExportableState):
                exported.setdefault(type(callback).__name__, []).append(callback.state())
        counters = asdict(state) | {"log_history": [], "stateful_callbacks": exported}
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        run = {
            "format": _FORMAT,
            "trainer": counters,
            "lr": [group["lr"] for group in self._optimizer.param_groups],
            "scheduler": _saved(scheduler.state_dict()),
            "random": _saved(_random_states()),
            "scaler": None if scaler is None else _saved(scaler.state_dict()),
        }
        self._optimizer.set_run_state(json.dumps(run).encode())


def _check_commits(optimizer: Any) -> None:
    if not isinstance(optimizer, OffloadAdamW) or optimizer.options.tier != "disk":
        raise InvalidArgument(
            "Durable: the optimizer does not commit each step, expected OffloadAdamW with "
            "tier='disk'; with another one, use Trainer's own checkpoints (save_steps)"
        )


def _random_states() -> dict[str, Any]:
    """Return the states of the generators, as Trainer saves them."""
    now = RandomState.now()
    states = {"python": now.python, "numpy": now.numpy, "cpu": now.torch_cpu}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.random.get_rng_state()
    return states


def _saved(value: Any) -> str:
    file = io.BytesIO()
    torch.save(value, file)
    return base64.b64encode(file.getvalue()).decode()


def _loaded(text: str) -> Any:
    return torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)


def _parsed(optimizer: OffloadAdamW) -> dict[str, Any]:
    """Return what `_note` gave to the last commit."""
    try:
        run = json.loads(optimizer.run_state())
        if run["format"] == _FORMAT:
            return run
    except (ValueError, KeyError, TypeError):
        pass
    raise InvalidArgument(
        f"Durable: the last step in {optimizer.options.place} was not made by a Trainer with this "
        "callback, or by one of another version; go on with it in the same way, or use an empty "
        "path"
    )


def _keep_log(path: Path, step: int) -> list[dict[str, Any]]:
    """Return the entries up to a step, and drop later ones, which will be made again."""
    entries = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:  # The process ended while it wrote this line.
            continue
        if entry.get("step", 0) <= step:
            entries.append(entry)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return entries


def _says_nothing_of_missing_weights(record: logging.LogRecord) -> bool:
    return "missing keys in the checkpoint model" not in record.getMessage()
