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
    mode: Literal["log", "parity"] = option(
        "log",
        "What steps of streamed weights are: log, records of one, and weights are never written "
        "to; parity, of tier host, written into the weights, which cross the link back, or, with "
        "a narrow wire, are written by the host.",
        in_state=True,
    )
    master: Literal["fp32", "bf16"] = option(
        "fp32",
        "How mode parity keeps 16-bit weights in host memory: fp32, of which they are images; "
        "bf16, for weights of bfloat16, as they are, and rounded at random.",
        in_state=True,
    )
    wire: Literal["auto", "fp32", "bf16", "fp16", "fp8"] = option(
        "auto",
        "How masters of mode parity cross the link: auto, as they are, and back; bf16, fp16 or "
        "fp8, those of fp32 as images that are rounded to nearest, which the host makes when it "
        "has written the step before into them, and nothing comes back. fp8 is E4M3 with a power "
        "of two for each 128 elements.",
        in_state=True,
    )
    consolidate: Literal["auto"] | Count = option(
        "auto",
        "Steps after which tier disk writes a new base, so that fewer are replayed. auto, in a "
        "config: planned as the run begins, by what replays and a new base take; else when no more "
        "fit, 1,024 / directions. In a loop of one's own that saves states, at the next save.",
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
    directions: Count | Literal["auto"] = option(
        1,
        "Directions that are measured and averaged in a step. auto, in a config: as many as hide "
        "the crossing of streamed weights, planned as the run begins; else those of a log, or of "
        "a state of mode log, that goes on, and of new ones 1.",
        in_state=True,
    )
    noise: Literal["auto", "rademacher", "byte_quantile", "gaussian", "lowrank"] = option(
        "auto",
        "What directions are drawn from; auto is rademacher. lowrank: those of matrices are U V^T "
        "of Gaussian factors, norms and biases have Gaussian ones.",
        in_state=True,
    )
    rank: SmallCount = option(4, "Columns of U and V, for noise lowrank.", in_state=True)
    period: Count = option(50, "Steps for which V is kept, for noise lowrank.", in_state=True)
    perturb: Literal["weights", "activations"] = option(
        "weights",
        "What noise lowrank of tier device is added to: copies of all weights, or, in activations, "
        "outputs of linear layers, whose weights are not copied. Of both g is the same but for "
        "its rounding.",
    )

    @property
    def drawn(self) -> str:
        """What "auto" stands for."""
        return "rademacher" if self.noise == "auto" else self.noise

    @property
    def family(self) -> str:
        """Of what numbers are drawn from."""
        return "gaussian" if self.noise == "lowrank" else self.drawn

    @property
    def direction_count(self) -> int:
        """Of a step; one as long as it is left to a plan."""
        return 1 if self.directions == "auto" else self.directions

    def with_directions(self, count: int) -> Self:
        """The same of so many directions."""
        return self.model_copy(update={"directions": count})

    def with_base_steps(self, count: int) -> Self:
        """The same with a new base after so many steps."""
        return self.model_copy(update={"consolidate": count})

    @property
    def narrow_wire(self) -> str | None:
        """What images that cross in place of masters consist of, if any do."""
        return self.wire if self.wire in ("bf16", "fp16", "fp8") else None

    @property
    def most_steps(self) -> int:
        """Those whose updates a base takes."""
        return MOST_UPDATES // self.direction_count

    @property
    def has_new_bases(self) -> bool:
        """Whether steps on a base are replayed, and it lies where others can be written."""
        return self.tier == "disk" and self.noise != "lowrank"

    @property
    def base_steps(self) -> int:
        """Steps after which tier disk writes a new base, where no saved state says when."""
        asked = self.consolidate
        return self.most_steps if asked == "auto" else min(asked, self.most_steps)

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.mode == "parity" and self.tier != "host":
            why = {
                "device": "which writes each step into the weights as it is",
                "disk": "which would be written over in each step",
            }
            raise ValueError(
                f"mode is parity and tier {self.tier}, {why[self.tier]}, expected tier host, or "
                "mode log"
            )
        if self.master == "bf16" and self.wire != "auto":
            raise ValueError(
                f"wire is {self.wire} and master bf16, which crosses as it is, expected auto"
            )
        if self.mode == "parity" and self.narrow_wire and self.resident:
            raise ValueError(
                f"resident is {self.resident} and wire {self.wire}, whose images are made anew in "
                f"each step, {_LEAVE_OUT}"
            )
        if self.noise == "lowrank" and self.mode == "parity":
            raise Unavailable(
                "noise: lowrank is not in this version for mode parity, expected rademacher, "
                "byte_quantile or gaussian, or mode log"
            )
        if self.consolidate != "auto" and self.tier == "disk" and not self.has_new_bases:
            raise ValueError(
                f"consolidate is {self.consolidate} and noise lowrank, whose updates are summed up "
                f"beside the base, {_LEAVE_OUT}"
            )
        for value, needed, names in (
            (self.tier, _STREAMED, ("depth", "perturb_lanes", "resident")),
            (self.tier, ("disk",), ("consolidate",)),
            (self.mode, ("parity",), ("master", "wire")),
            (self.noise, ("lowrank",), ("rank", "period", "perturb")),
            (self.tier, ("device",), ("perturb",)),
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
    changeable: ClassVar[tuple[str, ...]] = ("eps", "consolidate", "perturb", "eval_batches")
    train_defaults: ClassVar[dict[str, Any]] = {"lr": 1e-6, "weight_decay": 0.0, "max_norm": None}

    @property
    def commits(self) -> bool:
        """On disk: with each new base."""
        return self._is_on_disk

    @property
    def awaits_plan(self) -> bool:
        """Where directions are auto, or steps between new bases."""
        return self.directions == "auto" or self.awaits_base_steps

    @property
    def awaits_base_steps(self) -> bool:
        """Where new bases are made, and nobody said how often."""
        return self.has_new_bases and self.consolidate == "auto"

    def planned(self, plan: dict[str, Any]) -> Self:
        """With what it has chosen; a drive whose rate nobody knows leaves new bases as they are."""
        found = self
        if self.directions == "auto":
            found = found.with_directions(plan["directions"]["chosen"])
        if self.awaits_base_steps and "new_bases" in plan:
            found = found.with_base_steps(plan["new_bases"]["chosen"])
        return found

    def most_directions(self, config: Config) -> int:
        """Those that every step of a run may have."""
        if self.tier == "device":
            return 1  # Nothing streams, and a direction more takes as long as the first.
        return max(1, MOST_UPDATES // config.train.steps) if self._has_one_base else MOST_UPDATES

    @property
    def _has_one_base(self) -> bool:
        """For all steps, each of which is replayed."""
        return self.tier == "host" and self.mode == "log" and self.noise != "lowrank"

    def halves(self, config: Config) -> int:
        """Losses that a step measures, all of which wait for the same weights."""
        return 2 * self.direction_count * config.train.accumulate

    def evaluated_at_once(self, config: Config) -> int:
        """Batches of an evaluation that one pass serves."""
        if self.tier == "device":
            return 1
        return self.eval_batches or self.halves(config)

    def misfits(self, config: Config) -> Iterator[tuple[str, str]]:
        """What is of a backward, of AdamW, or of autocast."""
        train, model = config.train, config.model
        if self.direction_count > MOST_UPDATES:
            yield (
                "engine.directions",
                f"is {self.directions}, expected at most {MOST_UPDATES}, which a step takes",
            )
        elif self._has_one_base and train.steps * self.direction_count > MOST_UPDATES:
            yield (
                "train.steps",
                f"is {train.steps} with engine.directions {self.directions} and engine.tier "
                f"{self.tier}, expected at most {MOST_UPDATES} steps times directions, which a "
                "base takes; take tier disk, which writes new ones, or device, or mode parity, or "
                "noise lowrank",
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
