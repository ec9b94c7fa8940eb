"""A base that no step writes to, and the log of the steps from which theta is computed.

theta = float(Gamma) (base + sum of c z)

With low-rank noise the engine has summed the updates in factors on the device, and computes theta.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.base.atomic import replace_file
from sluiceway.errors import Corrupt, InvalidArgument
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.state import check_entries
from sluiceway.optim.zo.log_folder import LOG, LogFolder
from sluiceway.optim.zo.streamed_weights import StreamedWeights
from sluiceway.optim.zo.tier import States, Training
from sluiceway.optim.zo.weights import TrainedWeight


class LogAndBase(StreamedWeights):
    """Keeps the base in the parameters' own data, page-locked for a CUDA device.

    Parameters
    ----------
    training : Training

    Raises
    ------
    InvalidArgument, IoError, Corrupt, Unavailable
        The log belongs to another base or other options, or the file is not a log.
    """

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._base: dict[int, torch.Tensor] = {}
        self._identify()
        self._folder = LogFolder(training.options.path)
        self._engine = self._open()

    def _open(self) -> _core.ZoEngine:
        if self._training.may_change_directions and self._folder.log.exists():
            self._training.use_directions(_core.zo_log_directions(os.fspath(self._folder.log)))
        return self._new_engine(
            "log",
            log=os.fspath(self._folder.log),
            **self._base_arguments(),
            **self._low_rank(),
        )

    def _low_rank(self) -> dict[str, Any]:
        options = self._training.options
        if not self._is_low_rank:
            return {"rank": 0, "period": 0, "trained": []}
        trained = []
        with torch_private.asking_no_class():
            for w in self._training.weights:  # For a matrix the engine needs the shape alone.
                p = w.parameter
                trained.append((w.name, p.detach() if p.dim() >= 2 else self.kept(p), w.group))
        return {"rank": options.rank, "period": options.period, "trained": trained}

    def close(self) -> None:
        """Close engine and log, and delete a temporary log."""
        super().close()
        self._folder.close()

    # ---- The base ----

    def _identify(self) -> None:
        self._hash = _hash_of(self._training.weights)

    def _base_arguments(self) -> dict[str, Any]:
        """Return the engine's arguments that identify the base."""
        return {"base_hash": self._hash}

    def take(self) -> None:
        """Move the parameters to the base one after the other."""
        for weight in self._training.weights:
            p = weight.parameter
            if self._training.device.asynchronous:
                p.data = _core.page_locked_copy(p.detach(), self._training.device.compute())
            self._base[id(p)] = p.data

    def kept(self, p: nn.Parameter) -> torch.Tensor:
        """Return the base itself; before `take`, the parameter's own data."""
        return self._base[id(p)] if id(p) in self._base else p.detach()

    def give(self, p: nn.Parameter, theta: torch.Tensor) -> None:
        """Overwrite the base with theta, and make it the parameter's data."""
        p.data = self.kept(p)  # Two interrupts may have left other data there.
        p.copy_(theta)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of the whole base."""
        return sum(base.nbytes for base in self._base.values())

    @property
    def base_step(self) -> int:
        """Step whose weights the base holds."""
        return 0

    # ---- Steps ----

    def use_of(self, weight: TrainedWeight, call: int) -> tuple[Any, ...]:
        """Describe a use by the base that arrives for it."""
        p = weight.parameter
        with torch_private.asking_no_class():
            return weight.name, self.kept(p), weight.group, call, p.dim() < 2, -1

    def commit(
        self, gradients: list[float], rates: list[tuple[float, float]], non_finite: bool
    ) -> None:
        """Write the step to the log."""
        self.get().commit(gradients, rates, non_finite)

    def set_gammas(self) -> None:
        """Copy the engine's gammas into the parameter groups."""
        for group, gamma in zip(self._training.param_groups, self.get().gammas, strict=True):
            group["gamma"] = gamma

    # ---- Theta ----

    @property
    def _is_low_rank(self) -> bool:
        return self._training.options.noise == "lowrank"

    def theta_on_host(self, p: nn.Parameter) -> torch.Tensor:
        """Compute theta of a parameter in host memory."""
        return self.theta(p).cpu() if self._is_low_rank else super().theta_on_host(p)

    def made(self, p: nn.Parameter, kept: torch.Tensor) -> torch.Tensor:
        """Compute theta of the last step where `kept` lies."""
        if not self._is_low_rank:
            return super().made(p, kept)
        out = torch.empty_like(kept)
        compute = self._training.device.compute() if kept.is_cuda else _core.Stream.host()
        self.get().low_rank_theta(self.name_of(p), kept, out, compute)
        return out

    def _perturb(
        self, weight: TrainedWeight, direction: int, kept: torch.Tensor, plus: torch.Tensor,
        minus: torch.Tensor,
    ) -> None:  # fmt: skip
        if not self._is_low_rank:
            return super()._perturb(weight, direction, kept, plus, minus)
        self.get().low_rank_neighbours(
            weight.name, direction, kept, plus, minus, self._training.device.compute()
        )

    def _pending(self, weight: TrainedWeight) -> tuple[list[tuple], float]:
        updates, gamma = self.get().pending(weight.group)
        tensor = weight.tensor
        return [(seed, step, tensor, d, scale) for seed, step, d, scale in updates], gamma

    # ---- The log ----

    def rollback(self, step: int) -> None:
        """Continue from theta of an older step."""
        self.check_between_steps("rollback")
        self.get().rollback(step)
        self.set_gammas()

    def branch(self, step: int, path: str | os.PathLike) -> None:
        """Write a new log for the same base, with the steps up to `step`."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        self.get().branch(step, os.fspath(folder / LOG))

    def saved(self) -> dict[str, Any]:
        """Return everything that a new optimizer with the same base needs."""
        engine = self.get()
        engine.sync()
        log = {
            **self._identity(),
            "step": engine.next_step,
            "log_id": engine.log_id,
            "log": self._folder.log.read_bytes(),
            "entries": engine.entries,
        }
        return {"log": log}

    def _identity(self) -> dict[str, Any]:
        """Return the entries of a saved log that identify the base."""
        return {"base": self._hash.hex()}

    def _check_identity(self, log: dict[str, Any]) -> None:
        """Check that a saved log belongs to this base."""
        if log["base"] != self._hash.hex():
            raise InvalidArgument(
                f"load_state_dict: the state has the base {log['base']}, expected the model's, "
                f"{self._hash.hex()}; load the weights that the state's run began with"
            )

    def check_saved(
        self, frame: dict[str, Any], states: States, changed: list[TrainedWeight]
    ) -> None:
        """Check that a state belongs to this base, and to this log or to an empty one.

        Raises
        ------
        InvalidArgument
            It belongs to another base or log; the text names both.
        """
        log, engine = frame.get("log"), self.get()
        check_entries("its log", log, ("base", "log_id", "log", "entries"))
        self._check_identity(log)
        same = log["log_id"] == engine.log_id
        if same and not self._is_of_one_history(log["log"]):
            raise InvalidArgument(
                f"load_state_dict: the state's log and the log in {self._folder.path} begin alike "
                "but continue differently; make the optimizer with an empty folder as path"
            )
        if engine.entries and not same:
            raise InvalidArgument(
                f"load_state_dict: the state has log {log['log_id']}, but {self._folder.path} "
                f"has log {engine.log_id} with {engine.entries} entries; make the optimizer with "
                "an empty folder as path"
            )

    def _is_of_one_history(self, log: bytes) -> bool:
        self.get().sync()
        here = self._folder.log.read_bytes()
        both = min(len(here), len(log))
        return here[:both] == log[:both]

    def load(self, frame: dict[str, Any], states: States, opened: Callable[[], None]) -> None:
        """Continue from a checked state; `opened` is called if the engine was replaced.

        Raises
        ------
        Corrupt
            The state's log is incomplete; nothing was changed.
        """
        self.check_between_steps("load_state_dict")
        log, engine = frame["log"], self.get()
        if engine.log_id != log["log_id"] or engine.entries < log["entries"]:
            del engine
            self._replace(log, opened)
        if self.get().entries != log["entries"]:
            self.get().restore(log["entries"])

    def _replace(self, log: dict[str, Any], opened: Callable[[], None]) -> None:
        path = self._folder.log
        before, self._engine = path.read_bytes(), None  # Closes the file.
        try:
            replace_file(path, log["log"])  # The old log is empty, or the beginning of this one.
            self._engine = self._open()
            if (found := self._engine.entries) < log["entries"]:
                raise Corrupt(f"{found} whole entries")
        except BaseException as error:
            self._engine = None
            replace_file(path, before)
            self._engine = self._open()
            opened()
            if isinstance(error, Corrupt):
                raise Corrupt(
                    f"load_state_dict: the state's log is damaged, expected {log['entries']} "
                    f"entries up to step {log['step']} ({error}); load another copy of the state"
                ) from None
            raise
        opened()


def _hash_of(weights: list[TrainedWeight]) -> bytes:
    """Return the 16-byte hash that identifies a base."""
    digest = hashlib.blake2b(digest_size=16)
    for weight in weights:
        p = weight.parameter.detach().cpu()
        digest.update(f"{weight.name} {p.dtype} {tuple(p.shape)} ".encode())
        digest.update(_core.bits_checksum(p).to_bytes(8, "little"))
    return digest.digest()
