"""The options of training from losses alone, and the section of a config with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import ValidationInfo, field_validator, model_validator

from sluiceway.config.engine_section import EngineSection
from sluiceway.config.fields import Count, Positive, Size, SmallCount
from sluiceway.config.options import Options, check_is_here, option
from sluiceway.errors import Unavailable

if TYPE_CHECKING:
    from sluiceway.config.schema import Config

# What this version has of the values that are spelled right.
_HERE = {"tier": ("device", "host")}
_LEAVE_OUT = "expected it to be left out"
_MOST_UPDATES = 1024  # That a base takes: steps times directions. The compiled module refuses more.


class ZoOptions(Options):
    """Where the weights lie, and how directions are drawn and measured."""

    tier: Literal["device", "host", "disk"] = option(
        "device",
        "Where the weights lie: device, and moved there by each step; host, in host memory, never "
        "written to, and streamed through the device, each step a record of a log; disk, later.",
        in_state=True,
    )
    depth: SmallCount = option(2, "Layers of tier host that are on their way to the device.")
    perturb_lanes: SmallCount = option(1, "Streams or threads that perturb them.")
    resident: Size = option(
        0, "Bytes of weights of tier host that stay on the device beside norms and biases."
    )
    eps: Positive = option(1e-3, "How far from the weights both losses are measured.")
    directions: Count = option(
        1, "Directions that are measured and averaged in a step.", in_state=True
    )
    noise: Literal["auto", "rademacher", "byte_quantile", "gaussian", "lowrank"] = option(
        "auto",
        "What directions are drawn from; auto is rademacher. lowrank: those of matrices are U V^T "
        "of Gaussian factors, norms and biases have Gaussian ones.",
        in_state=True,
    )
    rank: SmallCount = option(4, "Columns of U and V, for noise lowrank.", in_state=True)
    period: Count = option(50, "Steps for which V is kept, for noise lowrank.", in_state=True)

    @property
    def drawn(self) -> str:
        """What "auto" stands for."""
        return "rademacher" if self.noise == "auto" else self.noise

    @property
    def family(self) -> str:
        """Of what numbers are drawn from."""
        return "gaussian" if self.noise == "lowrank" else self.drawn

    @field_validator(*_HERE)
    @classmethod
    def _is_here(cls, value: str, field: ValidationInfo) -> str:
        return check_is_here("zo", _HERE, field.field_name, value)

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.noise == "lowrank" and self.tier == "disk":
            raise Unavailable(
                "noise: lowrank is not in this version for tier disk, expected rademacher, "
                "byte_quantile or gaussian, or tier device or host"
            )
        for value, needed, names in (
            (self.tier, "host", ("depth", "perturb_lanes", "resident")),
            (self.noise, "lowrank", ("rank", "period")),
        ):
            for name in names if value != needed else ():
                found, default = getattr(self, name), type(self).model_fields[name].default
                if found != default:
                    raise ValueError(f"{name} is {found}, which is of {needed} alone, {_LEAVE_OUT}")
        return self


class ZoSection(ZoOptions, EngineSection):
    """The same in a file."""

    kind: Literal["zo"] = "zo"
    changeable: ClassVar[tuple[str, ...]] = ("eps",)
    train_defaults: ClassVar[dict[str, Any]] = {"lr": 1e-6, "weight_decay": 0.0, "max_norm": None}

    def misfits(self, config: Config) -> Iterator[tuple[str, str]]:
        """What is of a backward, of AdamW, or of autocast."""
        train, model = config.train, config.model
        replays = self.tier != "device" and self.noise != "lowrank"
        if replays and train.steps * self.directions > _MOST_UPDATES:
            yield (
                "train.steps",
                f"is {train.steps} with engine.directions {self.directions} and engine.tier "
                f"{self.tier}, expected at most {_MOST_UPDATES} steps times directions, which a "
                "base takes in this version; take tier device, or noise lowrank",
            )
        if train.max_norm is not None:
            yield (
                "train.max_norm",
                f"is {train.max_norm}, but engine.kind zo has no gradient to clip, expected null",
            )
        for key, hint in (("betas", "leave it out"), ("eps", "engine.eps is that of zo")):
            value, default = getattr(train, key), type(train).model_fields[key].default
            if value != default:
                yield (
                    f"train.{key}",
                    f"is {value}, which is AdamW's, and engine.kind is zo, expected {default}; "
                    + hint,
                )
        if model.autocast is not None:
            yield (
                "model.autocast",
                f"is {model.autocast}, but engine.kind zo computes in what it perturbs, expected "
                "null; say model.dtype",
            )
        if model.checkpointing:
            yield (
                "model.checkpointing",
                "is true, but engine.kind zo keeps nothing for a backward, expected false",
            )
