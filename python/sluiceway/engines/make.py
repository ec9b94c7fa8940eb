"""The optimizer that a config asks for; the loop treats all of them alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sluiceway.config.schema import Config, NativeSection, SubspaceSection
from sluiceway.config.values import Budget, Link, Refresh
from sluiceway.errors import Unavailable
from sluiceway.machine.placement import Placement
from sluiceway.optim.native import NativeAdamW


def make_optimizer(
    config: Config, model: torch.nn.Module, placement: Placement, trace: Path | None
) -> Any:
    """Build the optimizer of `config.engine` for a model that is on its device already."""
    train = config.train
    adam = {
        "lr": train.lr,
        "betas": train.betas,
        "eps": train.eps,
        "weight_decay": train.weight_decay,
    }
    if isinstance(config.engine, NativeSection):
        trained = [p for p in model.parameters() if p.requires_grad]
        return NativeAdamW(trained, train.max_norm, config.engine.fused, **adam)
    return _subspace(config, config.engine, model, placement, trace, adam)


def _subspace(
    config: Config,
    engine: SubspaceSection,
    model: torch.nn.Module,
    placement: Placement,
    trace: Path | None,
    adam: dict[str, Any],
) -> Any:
    try:
        from sluiceway.optim.subspace.optimizer import SubspaceAdamW
    except ImportError as error:
        if "_core" not in str(error):
            raise
        raise Unavailable(
            f"engine.kind: subspace needs the compiled module sluiceway._core ({error}); build it "
            "with pip install, or take engine.kind: native"
        ) from None
    arguments = {
        **adam,
        "max_norm": config.train.max_norm,
        "codec": engine.codec,
        "ratio": engine.ratio,
        "d": engine.d,
        "nnz": engine.nnz,
        "block": engine.block,
        "residual": engine.residual,
        "residual_every": engine.residual_every,
        "second_moment": engine.second_moment,
        "scale": engine.scale,
        "refresh": Refresh(**engine.refresh.model_dump()) if engine.refresh else None,
        "schedule": config.schedule.order,
        "norm_mode": config.schedule.norm,
        "wire": engine.wire,
        "tier": engine.tier,
        "weight_update": engine.weight_update,
        "target": engine.target,
        "embeddings": engine.embeddings,
        "device": placement.name,
        "link": _link(config),
        "budget": Budget(**config.budget.model_dump()),
        "accumulate": config.train.accumulate,
        "seed": config.train.seed,
        "trace": str(trace) if trace else None,
    }
    if placement.device_cpu is not None:
        arguments["_pin"] = (placement.device_cpu, placement.lane_cpu)
    return SubspaceAdamW(model, **arguments)


def _link(config: Config) -> Link | None:
    return Link(**config.device.link.model_dump()) if config.device.link else None


def native_twin(config: Config) -> Config:
    """The run that `compare: native` measures first: equal but for the engine and the saves."""
    frozen = getattr(config.engine, "embeddings", "trained") == "frozen"
    engine = NativeSection(kind="native", embeddings="frozen" if frozen else "trained")
    train = config.train.model_copy(update={"save_every": 0})
    return config.model_copy(update={"engine": engine, "train": train, "compare": None})
