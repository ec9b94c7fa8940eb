"""Plain SGD, written as somebody outside of Sluiceway would write an engine for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from sluiceway.config.engine_section import EngineSection
from sluiceway.config.fields import NotNegative
from sluiceway.engines.gradient import GradientEngine
from sluiceway.engines.plan import DevicePlan, trained_elements


class SgdSection(EngineSection):
    kind: Literal["sgd"] = "sgd"
    momentum: NotNegative = 0.0
    label: str = ""  # Printed, and nothing else.
    changeable: ClassVar[tuple[str, ...]] = ("label",)


class SteppingSgd(torch.optim.SGD):
    """SGD that leaves out a step whose gradients are not finite."""

    overflowed = False
    norm = 0.0

    def step(self, closure: Any = None) -> Any:
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        self.norm = torch.nn.utils.get_total_norm([g for g in gradients if g is not None]).item()
        self.overflowed = not torch.tensor(self.norm).isfinite()
        return None if self.overflowed else super().step(closure)

    def synchronize(self) -> None:
        pass

    def stats(self) -> dict[str, Any]:
        return {"grad_norm": self.norm, "sgd": {"momentum": self.param_groups[0]["momentum"]}}

    def close(self) -> None:
        pass


class Sgd(GradientEngine):
    section = SgdSection

    def make_optimizer(self, model: torch.nn.Module, trace: Path | None) -> SteppingSgd:
        trained = [p for p in model.parameters() if p.requires_grad]
        return SteppingSgd(trained, self.config.train.lr, self.config.engine.momentum)

    def plan(self, model: torch.nn.Module) -> DevicePlan:
        moments = 1 if self.config.engine.momentum else 0
        return DevicePlan(self.config, trained_elements(model), moments)

    def description(self) -> list[str]:
        return [f"momentum {self.config.engine.momentum} {self.config.engine.label}"]

    def summary(self) -> dict[str, Any]:
        return {"momentum": self.config.engine.momentum}
