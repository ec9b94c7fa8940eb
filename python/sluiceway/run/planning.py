"""Predicts memory, traffic and time of a run, before any weight is loaded.

A plan is made from the model's config.json alone: the model exists on the meta device only and
rehearses one micro-batch there, and the rates of the machine are measured or configured.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sluiceway.config.schema import Config
from sluiceway.engines import engine_of
from sluiceway.errors import first_line
from sluiceway.machine.footprint import resident_bytes
from sluiceway.machine.placement import (
    DTYPES,
    choose_placement,
    denormals,
    is_here,
    with_threads_of_this_machine,
)
from sluiceway.model.folder import check_context, check_model_folder
from sluiceway.model.rehearsal import Rehearsal, rehearse
from sluiceway.model.skeleton import build_skeleton
from sluiceway.model.speeds import measure_speeds
from sluiceway.optim.common.tier_limits import planned_device_limit, tier_limits


class Prediction:
    """The plan of an engine, with values for all keys that the config leaves to the plan.

    Attributes
    ----------
    config : Config
        The run's config, with at most as many threads as this machine has cores.
    placement : Placement
    model : torch.nn.Module
        Prepared, on the meta device.
    plan : EnginePlan
    rehearsal : Rehearsal
        What one backward of the engine computes: a micro-batch, or all of a step.
    speeds : dict
        The rates that `model.speeds` gives.
    process_bytes : int
        Memory of this process before the rehearsal, which imports modules that a run does not need.

    Parameters
    ----------
    speeds : dict or None
        The rates that another prediction assumed; None measures them.
    like : Prediction or None
        One whose engine computes the same, and differs only in where states are and how they are
        stored. Its rehearsal holds for this one.
    """

    def __init__(
        self,
        config: Config,
        speeds: dict[str, Any] | None = None,
        like: Prediction | None = None,
    ) -> None:
        path = config.model.path
        check_context(check_model_folder(path, weights=False), path, config.data.sequence_length)
        self.config = config = with_threads_of_this_machine(config)
        self.placement = choose_placement(config, of_plan=True)
        if config.device.threads is not None:
            torch.set_num_threads(config.device.threads)
        self._engine = engine_of(config)
        if like is None:
            with torch.device("meta"):
                self.model = self._build()
        else:
            self.model = like.model
        self.process_bytes = resident_bytes()
        self.plan = plan = self._engine.plan(self.model)
        self.rehearsal = (
            self._rehearse(lambda: plan.as_trained(self._build()), plan.backward)
            if like is None
            else like.rehearsal
        )
        with denormals(config, self.placement):
            self.speeds = speeds or measure_speeds(
                config, self.placement, self._build, disk="disk_read" in plan.links()
            )
        plan.choose(self.rehearsal, self.speeds, self._room)

    def compared(self) -> dict[str, Any]:
        """Return what decides between this plan and another: seconds, bytes, and if it fits."""
        tiers = self.plan.tiers(self.rehearsal)
        limits = self.config.budget.model_dump() | {"device": self._room()}
        if is_here(self.placement.name):
            _, limits["host"], limits["pinned"], _ = tier_limits(self.config.budget)
        return {
            "seconds": self.plan.seconds(self.rehearsal, self.speeds),
            "device_bytes": tiers["device"],
            "fits": all(
                tiers.get(t, 0) <= limit for t, limit in limits.items() if limit is not None
            ),
        }

    def _room(self) -> int | None:
        return planned_device_limit(self.config.budget.device, self.placement)

    def rehearse_native(self) -> Rehearsal:
        """Rehearse one micro-batch as plain AdamW trains it."""
        return (
            self.rehearsal
            if self.plan.like_native
            else self._rehearse(self._build, True, native=True)
        )

    def _build(self, layers: int | None = None) -> torch.nn.Module:
        dtype = DTYPES[self.config.model.dtype]
        return self._engine.prepare(build_skeleton(self.config.model.path, dtype, layers))

    def _rehearse(
        self, make: Callable[[], torch.nn.Module], backward: bool, native: bool = False
    ) -> Rehearsal:
        config = self.config
        rows = config.train.micro_batch * (1 if native else config.parts)
        sizes = rows, config.data.sequence_length
        autocast = self.placement.autocast_dtype
        apart = config.data.packing == "apart"
        return rehearse(make, self.plan.freed, *sizes, autocast, backward, apart)


def predict(config: Config, speeds: dict[str, Any] | None = None) -> Prediction:
    """Predict the engine's alternative that fits and is the fastest, or the first of them.

    A later one has to be faster by 2 %, because it needs more memory. It drops out if the model
    cannot run so.

    Parameters
    ----------
    speeds : dict or None
        The rates that `model.speeds` gave; None measures them.
    """
    (first, section), *others = config.engine.alternatives(config).items()
    best = Prediction(config.model_copy(update={"engine": section}), speeds)
    if not others:
        return best
    chosen, found = first, {first: best.compared()}
    for name, section in others:
        try:
            other = Prediction(config.model_copy(update={"engine": section}), best.speeds)
        except Exception as error:  # Whatever a model raises that is called in another way.
            found[name] = {"fits": False, "error": first_line(error)}
            continue
        now, seen = found[chosen], other.compared()
        found[name] = seen
        faster = seen["seconds"] < 0.98 * now["seconds"] or not now["fits"]
        if seen["fits"] and faster:
            chosen, best = name, other
    engine = best.config.engine
    values = {key: getattr(engine, key) for key in config.engine.compared_keys}
    best.plan.note_alternatives(values, found)
    return best


def planned(config: Config, folder: Path, quiet: bool) -> Config:
    """Return the config with the plan's choices filled in; print the reasons, unless `quiet`.

    Parameters
    ----------
    folder : Path
        The folder of the run.
    """
    plan = predict(config.engine.in_folder(config, folder)).plan
    for line in () if quiet else plan.chosen():
        print(f"{config.engine.kind}: {line}", flush=True)
    return config.model_copy(update={"engine": config.engine.planned(plan.figures)})
