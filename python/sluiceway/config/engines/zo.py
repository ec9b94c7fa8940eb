"""The options of training from losses alone, and the section of a config with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from sluiceway.config.engine_section import TieredSection
from sluiceway.config.fields import Count, Positive, Size, SmallCount
from sluiceway.config.options import Options, option
from sluiceway.errors import Unavailable

if TYPE_CHECKING:
    from sluiceway.config.schema import Config

_LEAVE_OUT = "expected it to be left out"
# Steps times directions that can be drawn again for a base. The compiled module refuses more.
MOST_UPDATES = 1024
_STREAMED = ("host", "disk")


class ZoOptions(Options):
    """Where the weights lie, and how directions are drawn and measured."""

    tier: Literal["device", "host", "disk"] = option(
        "device",
        "Where the weights lie: device, and moved there by each step; host, in host memory, never "
        "written to, and streamed through the device, each step a record of a log; disk, the same "
        "from a store, of which host memory holds what is on its way.",
        in_state=True,
    )
    consolidate: Literal["auto"] | Count = option(
        "auto",
        "Steps after which tier disk writes a new base, so that fewer are replayed; auto: when no "
        "more fit, 1,024 / directions. In a loop of one's own that saves states, at the next save.",
    )
    depth: SmallCount = option(
        2, "Layers of tiers host and disk that are on their way to the device."
    )
    perturb_lanes: SmallCount = option(1, "Streams or threads that perturb them.")
    resident: Size = option(
        0,
        "Bytes of weights of tiers host and disk that stay on the device beside norms and biases.",
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

    @property
    def most_steps(self) -> int:
        """Those whose updates a base takes."""
        return MOST_UPDATES // self.directions

    @property
    def base_steps(self) -> int:
        """Steps after which tier disk writes a new base, where no saved state says when."""
        asked = self.consolidate
        return self.most_steps if asked == "auto" else min(asked, self.most_steps)

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.noise == "lowrank" and self.tier == "disk":
            raise Unavailable(
                "noise: lowrank is not in this version for tier disk, expected rademacher, "
                "byte_quantile or gaussian, or tier device or host"
            )
        for value, needed, names in (
            (self.tier, _STREAMED, ("depth", "perturb_lanes", "resident")),
            (self.tier, ("disk",), ("consolidate",)),
            (self.noise, ("lowrank",), ("rank", "period")),
        ):
            for name in names if value not in needed else ():
                found, default = getattr(self, name), type(self).model_fields[name].default
                if found != default:
                    whose = " and ".join(needed)
                    raise ValueError(f"{name} is {found}, which is of {whose} alone, {_LEAVE_OUT}")
        return self


class ZoSection(ZoOptions, TieredSection):
    """The same in a file."""

    kind: Literal["zo"] = "zo"
    eval_batches: Count | None = option(
        None,
        "Batches of an evaluation that one upload of streamed weights serves. None: as many as a "
        "step has losses, which wait for weights with as much memory.",
    )
    changeable: ClassVar[tuple[str, ...]] = ("eps", "consolidate", "eval_batches")
    train_defaults: ClassVar[dict[str, Any]] = {"lr": 1e-6, "weight_decay": 0.0, "max_norm": None}

    @property
    def commits(self) -> bool:
        """On disk: with each new base."""
        return self._is_on_disk

    def halves(self, config: Config) -> int:
        """Losses that a step measures, all of which wait for the same weights."""
        return 2 * self.directions * config.train.accumulate

    def evaluated_at_once(self, config: Config) -> int:
        """Batches of an evaluation that one pass serves."""
        if self.tier == "device":
            return 1
        return self.eval_batches or self.halves(config)

    def misfits(self, config: Config) -> Iterator[tuple[str, str]]:
        """What is of a backward, of AdamW, or of autocast."""
        train, model = config.train, config.model
        replays = self.tier == "host" and self.noise != "lowrank"
        if replays and train.steps * self.directions > MOST_UPDATES:
            yield (
                "train.steps",
                f"is {train.steps} with engine.directions {self.directions} and engine.tier "
                f"{self.tier}, expected at most {MOST_UPDATES} steps times directions, which a "
                "base takes; take tier disk, which writes new ones, or device, or noise lowrank",
            )
        if self.tier == "disk" and self.directions > MOST_UPDATES:
            yield (
                "engine.directions",
                f"is {self.directions} and engine.tier is disk, expected at most {MOST_UPDATES}, "
                "which a base takes",
            )
        if self.tier == "device" and self.eval_batches is not None:
            yield (
                "engine.eval_batches",
                f"is {self.eval_batches}, and engine.tier is device, which streams nothing, "
                "expected null",
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
