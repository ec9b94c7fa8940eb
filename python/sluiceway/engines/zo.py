"""The engine that trains from losses alone, without a backward and without gradients."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sluiceway.config.engines.zo import ZoOptions, ZoSection
from sluiceway.engines.engine import Ranges, Update
from sluiceway.engines.plan import trained_elements
from sluiceway.engines.resident import OPTIMIZER_FILE, ResidentEngine
from sluiceway.engines.state_file import read_state
from sluiceway.engines.weights import CopiedWeights
from sluiceway.engines.zo_plan import ZoPlan
from sluiceway.engines.zo_saves import LoggedWeights, WriteBackSave
from sluiceway.errors import InvalidArgument
from sluiceway.machine.placement import (
    DTYPES,
    Placement,
    choose_placement,
    denormals,
    unpinned,
)
from sluiceway.model.chunked_loss.of_model import ChunkedLoss
from sluiceway.model.folder import load_model
from sluiceway.model.loss import inputs_on, loss_of
from sluiceway.model.weight_stream import save_streamed
from sluiceway.optim.common.state import STATE_KEY
from sluiceway.optim.zo.optimizer import ZoSgd
from sluiceway.text.batches import Batch

_LINKS = ("d2h", "h2d", "disk_read", "disk_written")


class Zo(ResidentEngine):
    """The engine of `kind: zo`."""

    section = ZoSection

    def plan(self, model: torch.nn.Module) -> ZoPlan:
        """Predict memory, traffic and time of a run."""
        return ZoPlan(self.config, model)

    def open(self, folder: Path, placement: Placement, trace: Path | None) -> None:
        """Open like every engine."""
        super().open(folder, placement, trace)
        self._loss_of = self.loss_on(self.model, placement)
        self._evaluation_bytes: dict[str, int] = {}

    def loss_on(
        self, model: torch.nn.Module, placement: Placement
    ) -> Callable[[Batch], torch.Tensor]:
        """Return the model's loss in f32, as 16 bits would round away differences of losses."""
        if DTYPES[self.config.model.dtype] is torch.float32:
            return partial(loss_of, model, placement)
        chunked = ChunkedLoss(model)
        return lambda batch: chunked(**inputs_on(placement, batch), use_cache=False)

    def make_optimizer(self, model: torch.nn.Module, trace: Path | None, **further: Any) -> ZoSgd:
        """Make the optimizer over every parameter, with the tier of the config."""
        config, placement = self.config, self.placement
        arguments: dict[str, Any] = {
            name: getattr(config.engine, name) for name in ZoOptions.model_fields
        }
        if self._streams:
            for p in model.parameters():
                if not p.requires_grad:
                    p.data = p.data.to(placement.device)  # Nothing streams what is not trained.
            arguments |= {"link": config.device.link, "budget": config.budget}
            if placement.device_cpu is not None:
                arguments["_pin"] = (placement.device_cpu, placement.lane_cpu)
        if self._on_disk:
            arguments["store"] = config.store
        return ZoSgd(
            model,
            lr=config.train.lr,
            weight_decay=config.train.weight_decay,
            device=placement.name,
            seed=config.train.seed,
            **arguments,
            **further,
        )

    @property
    def _streams(self) -> bool:
        return self.config.engine.tier != "device"

    @property
    def _on_disk(self) -> bool:
        return self.config.engine.tier == "disk"

    @property
    def _logs(self) -> bool:
        return self._streams and self.config.engine.mode == "log"

    def weights_folder(self, folder: Path) -> Path:
        """Return the folder of the base: if weights are streamed, that is the initial model.

        A save has the trained weights, for evaluation and export, and the log of steps, from which
        a resume recomputes them. In mode write_back a save has the weights and their masters.
        """
        return Path(self.config.model.path) if self._logs else folder

    @property
    def weights_device(self) -> torch.device:
        """Host memory if weights are streamed, else the device."""
        return torch.device("cpu") if self._streams else super().weights_device

    def load_model(self, folder: Path) -> torch.nn.Module:
        """Load the model; with tier disk leave it in the files, for the store to copy."""
        if self._on_disk:
            return load_model(folder, DTYPES[self.config.model.dtype], mapped=True)
        return super().load_model(folder)

    def begin_save(self) -> WriteBackSave | None:
        """Begin a save that is written while steps run; return None unless mode is write_back."""
        if self.config.engine.mode != "write_back":
            return None
        return WriteBackSave(self.model, self.optimizer)

    def save(self, folder: Path) -> None:
        """Save like every engine; in mode write_back weight by weight."""
        if (begun := self.begin_save()) is None:
            return super().save(folder)
        with contextlib.closing(begun):
            begun.finish(0)  # Every weight is there.
            return begun.write(folder)

    @contextlib.contextmanager
    def weights_of_step(self, save: Path, step: int) -> Iterator[CopiedWeights]:
        """Yield weights computed on the host device from the base and the log in the save."""
        if not self._logs:
            what = "mode write_back" if self.config.engine.mode == "write_back" else "tier device"
            raise InvalidArgument(
                f"--step: is {step}, but the run is of {what}, which keeps no weights but those of "
                "its saves; leave --step out. Tiers host and disk log all steps in mode log"
            )
        state = read_state(save / OPTIMIZER_FILE)
        if step == state[STATE_KEY]["committed_steps"]:
            yield self.weights(save)
            return
        placement = choose_placement(unpinned(self.config), of_plan=True)
        self.placement = Placement(torch.device("cpu"), "host", None, "nothing is computed")
        with (
            denormals(self.config, placement),  # As when a save of the run is written.
            contextlib.closing(self._base_of(save)) as weights,
        ):
            weights.go_to(step, state)
            yield weights

    def _base_of(self, save: Path) -> LoggedWeights:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # They concern training.
            dtype = DTYPES[self.config.model.dtype]
            model = self.prepare(load_model(self.weights_folder(save), dtype, mapped=True))
            return LoggedWeights(model, self.make_optimizer(model, None, _opens=True))

    def save_model(self, folder: Path) -> None:
        """Write the model; weight by weight with tier disk."""
        if self._on_disk:
            return save_streamed(self.model, folder, self.optimizer.theta)
        return super().save_model(folder)

    def load(self, folder: Path) -> None:
        """Load like every engine; keep the config's weight decay, which a resume may change."""
        decays = [group["weight_decay"] for group in self.optimizer.param_groups]
        super().load(folder)
        for group, decay in zip(self.optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay
        if self._on_disk:
            self.note_run(b"")  # A resume at this step starts from the save, not from the base.

    def note_run(self, run: bytes) -> None:
        """Store the bytes `run` in the next new base, if it is made from the last step."""
        self.optimizer.set_run_state(run)

    def committed_run(self, save: Path | None) -> bytes | None:
        """Return the bytes that are stored in the base, if its step is later than the save's."""
        if save is not None:
            saved = read_state(save / OPTIMIZER_FILE)[STATE_KEY]["committed_steps"]
            if self.optimizer.committed_steps <= saved:
                return None
        return self.optimizer.run_state() or None

    def take_commit(self) -> None:
        """Do nothing, as the optimizer has begun with the base, which is the last commit."""

    def update(self, batches: Sequence[Batch], ranges: Ranges) -> Update:
        """Measure both losses of every direction and make the step; dropout is off.

        A direction whose loss is not finite trains nothing, and the step then counts as skipped.
        """
        self.model.eval()
        with ranges.range("forwards and update"):
            loss = self.optimizer.step(self._losses_of(batches))
        return Update(loss.item(), skipped=self.optimizer.overflowed)

    def check_new(self) -> None:
        """Refuse a store with the weights of another run."""
        if self._on_disk and not self.optimizer.has_new_store:
            raise InvalidArgument(
                f"store.path: {self.config.store.place} has the weights of another run; choose "
                "another path, or resume that run"
            )

    @property
    def evaluated_at_once(self) -> int:
        """Number of batches that share one pass over streamed weights."""
        return self.config.engine.evaluated_at_once(self.config)

    def losses(self, batches: Sequence[Batch]) -> list[float]:
        """Evaluate each batch in a closure; the closures share weights that are streamed once."""
        found = [math.nan] * len(batches)

        def closure(number: int) -> torch.Tensor:
            loss = self._loss_of(batches[number])
            found[number] = loss.item()
            return loss

        self.optimizer.evaluate([partial(closure, n) for n in range(len(batches))])
        crossed = self.optimizer.stats().get("bytes", {})
        for link in _LINKS if crossed else ():
            self._evaluation_bytes[link] = self._evaluation_bytes.get(link, 0) + crossed[link]
        return found

    def take_evaluation_bytes(self) -> dict[str, int]:
        """Return the bytes that evaluations moved since the last call; empty with tier device."""
        taken, self._evaluation_bytes = self._evaluation_bytes, {}
        return taken

    def _losses_of(self, batches: Sequence[Batch]) -> list[Callable[[], torch.Tensor]]:
        """Make a closure per micro-batch; their mean is the loss over all learned tokens."""
        learned = sum(batch.learned for batch in batches)

        def closure(batch: Batch) -> torch.Tensor:
            return self._loss_of(batch) * (batch.learned * len(batches) / learned)

        return [partial(closure, batch) for batch in batches]

    def description(self) -> list[str]:
        """Say how much is trained, how losses are measured, and where the weights are."""
        engine = self.config.engine
        trained = trained_elements(self.model)
        everything = sum(p.numel() for p in self.model.parameters())
        count = engine.direction_count
        directions = f"{count} direction{'s' * (count > 1)}"
        return [
            *super().description(),
            f"trains {trained:,} of {everything:,} parameters from losses alone, "
            f"{2 * count} forwards a step: no backward, no gradient, no dropout",
            f"{directions} a step of {engine.drawn} noise, eps {engine.eps:g}{self._meeting()}",
            self._where(),
        ]

    def _where(self) -> str:
        if not self._streams:
            return "weights stay on the device: nothing crosses a link, nothing is written back"
        if not self._logs and self.config.engine.narrow_wire:
            return (
                "weights lie in host memory, which writes the step before into each, and images "
                f"of {self.config.engine.wire} are streamed to the device once a step: nothing "
                "comes back"
            )
        if not self._logs:
            return (
                "weights lie in host memory, and are streamed to the device once a step: the step "
                "before is written into each, and it goes back"
            )
        where = "on disk" if self._on_disk else "in host memory"
        return (
            f"weights stay {where}, and are streamed to the device once a step: nothing is written "
            "back, a step is a record of a log"
        )

    def _meeting(self) -> str:
        blocks = self.optimizer.blocks
        return f", in {len(blocks.blocks)} blocks of {blocks.name or 'the model'}" if blocks else ""

    def summary(self) -> dict[str, Any]:
        """Return the description as plain values."""
        engine, blocks = self.config.engine, self.optimizer.blocks
        figures: dict[str, Any] = {
            "tier": engine.tier,
            "noise": engine.drawn,
            "eps": engine.eps,
            "directions": engine.direction_count,
        }
        if engine.mode == "write_back":
            figures["mode"] = engine.mode
        if blocks is not None:
            figures |= {"blocks": blocks.name, "block_count": len(blocks.blocks)}
        return {"zo": figures}

    def close(self) -> None:
        """Close like every engine, but leave weights on disk, as memory may not hold them."""
        self.optimizer.drop_snapshot()  # All saves have ended, so nothing reads a snapshot.
        self.optimizer.close(theta=not self._on_disk)
