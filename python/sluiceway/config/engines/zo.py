"""Options of training from losses alone, and the section of a config that has them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from sluiceway.config.engine_section import TieredSection
from sluiceway.config.fields import Count, Positive, Size, SmallCount
from sluiceway.config.options import Options, option
from sluiceway.errors import Unavailable

if TYPE_CHECKING:
    from sluiceway.config.schema import Config

_LEAVE_OUT = "leave it out"
# Largest number of steps times directions that one base takes; the compiled module refuses more.
MOST_UPDATES = 1024
STREAMED = ("host", "disk")


class ZoOptions(Options):
    """Options for the place of the weights, and for the directions that are measured."""

    tier: Literal["device", "host", "disk"] = option(
        "device",
        "Place of the weights. device: each step updates them there. host: they are in host "
        "memory and streamed through the device; steps do not write them but add records to a "
        "log. disk: the same from a store, of which host memory holds what is on its way.",
        in_state=True,
    )
    mode: Literal["log", "write_back"] = option(
        "log",
        "How steps are kept if weights are streamed: log writes records to a log, and never the "
        "weights; write_back, with tier host, writes each step into the weights, which then cross "
        "the link back, or which the host writes if `wire` is narrow.",
        in_state=True,
    )
    master: Literal["fp32", "bf16"] = option(
        "fp32",
        "Type of the masters of 16-bit weights in mode write_back: fp32, from which the weights "
        "are rounded; or bf16, for weights of bfloat16, which are then their own masters and are "
        "rounded stochastically.",
        in_state=True,
    )
    wire: Literal["auto", "fp32", "bf16", "fp16", "fp8"] = option(
        "auto",
        "Form in which masters of mode write_back cross the link. auto: the masters themselves, "
        "in both directions. bf16, fp16 or fp8: images rounded to nearest; the host writes the "
        "previous step into the fp32 masters and makes the images, and nothing comes back. fp8 is "
        "E4M3 with a power of two for each 128 elements.",
        in_state=True,
    )
    consolidate: Literal["auto"] | Count = option(
        "auto",
        "Steps after which tier disk writes a new base, so that fewer steps are replayed. With "
        "auto, `sluiceway train` plans the number when the run begins, from the time of replays "
        "and of a new base; otherwise auto is the largest possible number, 1,024 / directions. In "
        "your own loop that saves states, the new base is made at the next save.",
    )
    depth: SmallCount = option(
        2,
        "Layers that are transferred to the device at the same time, with tiers host and disk.",
        to=["engine"],
    )
    perturb_lanes: SmallCount = option(1, "Streams or threads that perturb layers.", to=["engine"])
    resident: Size = option(
        0,
        "Bytes of weights that stay on the device beside norms and biases, with tiers host and "
        "disk.",
    )
    eps: Positive = option(
        1e-3, "Distance from the weights at which both losses are measured.", to=["engine"]
    )
    directions: Count | Literal["auto"] = option(
        1,
        "Directions that are measured and averaged in a step. With auto, `sluiceway train` plans "
        "when the run begins as many as hide the transfer of streamed weights. Otherwise auto is "
        "the number in the log, or in the state of mode log, from which the optimizer continues, "
        "and 1 for a new one.",
        to=["engine"],
        in_state=True,
    )
    across_ranks: Literal["batch", "directions"] = option(
        "batch",
        "What the ranks of a process group divide. batch: each rank measures all directions on a "
        "batch of its own, and losses are averaged. directions: each measures a part of the "
        "directions; with the same batch on every rank a step has the bits of one process.",
    )
    noise: Literal["auto", "rademacher", "byte_quantile", "gaussian", "lowrank"] = option(
        "auto",
        "Distribution of directions; auto is rademacher. With lowrank the directions of matrices "
        "are U V^T of Gaussian factors, and those of norms and biases are Gaussian.",
        in_state=True,
    )
    rank: SmallCount = option(4, "Columns of U and V, for noise lowrank.", in_state=True)
    period: Count = option(50, "Steps for which V is kept, for noise lowrank.", in_state=True)

    @property
    def drawn(self) -> str:
        """Distribution of the noise, with "auto" resolved."""
        return "rademacher" if self.noise == "auto" else self.noise

    @property
    def family(self) -> str:
        """Distribution of the random numbers from which noise is computed."""
        return "gaussian" if self.noise == "lowrank" else self.drawn

    @property
    def direction_count(self) -> int:
        """Directions per step; 1 until the plan has chosen."""
        return 1 if self.directions == "auto" else self.directions

    def with_directions(self, count: int) -> Self:
        """Return the options with `count` directions."""
        return self.model_copy(update={"directions": count})

    def with_base_steps(self, count: int) -> Self:
        """Return the options with `count` steps between new bases."""
        return self.model_copy(update={"consolidate": count})

    @property
    def narrow_wire(self) -> str | None:
        """Type of the narrower copies that cross the link in place of masters, or None."""
        return self.wire if self.wire in ("bf16", "fp16", "fp8") else None

    @property
    def most_steps(self) -> int:
        """Largest number of steps that can be replayed on one base."""
        return MOST_UPDATES // self.direction_count

    @property
    def has_new_bases(self) -> bool:
        """True if steps are replayed on a base, and a new base can be written."""
        return self.tier == "disk" and self.noise != "lowrank"

    @property
    def base_steps(self) -> int:
        """Steps between new bases of tier disk, unless a saved state has a number."""
        asked = self.consolidate
        return self.most_steps if asked == "auto" else min(asked, self.most_steps)

    @model_validator(mode="before")
    @classmethod
    def _of_older_version(cls, given: Any) -> Any:
        """Accept the names that saves of older runs have, with a warning."""
        if not isinstance(given, dict):
            return given
        if "perturb" in given:
            given = {key: value for key, value in given.items() if key != "perturb"}
            _warn_of_old("perturb is gone, since weights are perturbed in copies; leave it out")
        if given.get("mode") == "parity":
            given = given | {"mode": "write_back"}
            _warn_of_old("mode parity is called write_back now; write mode='write_back'")
        return given

    def _restricted(self) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
        """List options that need a value of another one: its value, those needed, the options."""
        return [
            (self.tier, STREAMED, ("depth", "perturb_lanes", "resident")),
            (self.tier, ("disk",), ("consolidate",)),
            (self.mode, ("write_back",), ("master", "wire")),
            (self.noise, ("lowrank",), ("rank", "period")),
        ]

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.mode == "write_back" and self.tier != "host":
            why = {
                "device": "which writes each step into the weights anyway",
                "disk": "which each step would write whole",
            }
            raise ValueError(
                f"mode is write_back and tier {self.tier}, {why[self.tier]}; take tier host or "
                "mode log"
            )
        if self.master == "bf16" and self.wire != "auto":
            raise ValueError(
                f"wire is {self.wire}, but a bf16 master crosses the link itself; take wire auto"
            )
        if self.mode == "write_back" and self.narrow_wire and self.resident:
            raise ValueError(
                f"resident is {self.resident}, but wire {self.wire} sends new images in each step, "
                f"so that none can stay on the device; {_LEAVE_OUT}"
            )
        if self.noise == "lowrank" and self.mode == "write_back":
            raise Unavailable(
                "noise: lowrank is not in this version for mode write_back; take rademacher, "
                "byte_quantile or gaussian, or mode log"
            )
        if self.consolidate != "auto" and self.tier == "disk" and not self.has_new_bases:
            raise ValueError(
                f"consolidate is {self.consolidate}, but noise lowrank makes no new bases, as "
                f"updates are summed up beside the base; {_LEAVE_OUT}"
            )
        for value, needed, names in self._restricted():
            for name in names if value not in needed else ():
                found, default = getattr(self, name), type(self).model_fields[name].default
                if found != default:
                    whose = " and ".join(needed)
                    raise ValueError(f"{name} is {found}, which is for {whose} alone; {_LEAVE_OUT}")
        return self


def _warn_of_old(text: str) -> None:
    warnings.warn(text, FutureWarning, stacklevel=3)


class ZoSection(ZoOptions, TieredSection):
    """The section `engine` of a config with `kind: zo`."""

    kind: Literal["zo"] = "zo"
    eval_batches: Count | None = option(
        None,
        "Evaluation batches that share one upload of streamed weights. None: the number of losses "
        "in a step, so that waiting batches take no more memory than in a step.",
    )
    changeable: ClassVar[tuple[str, ...]] = ("eps", "consolidate", "eval_batches")
    train_defaults: ClassVar[dict[str, Any]] = {"lr": 1e-6, "weight_decay": 0.0, "max_norm": None}

    @property
    def commits(self) -> bool:
        """True with tier disk: each new base is a commit."""
        return self._has_drives

    @property
    def awaits_plan(self) -> bool:
        """True if directions, or steps between new bases, are auto."""
        return self.directions == "auto" or self.awaits_base_steps

    @property
    def awaits_base_steps(self) -> bool:
        """True if there are new bases and the steps between them are auto."""
        return self.has_new_bases and self.consolidate == "auto"

    def planned(self, plan: dict[str, Any]) -> Self:
        """Return the section with the plan's choices.

        Steps between new bases stay auto if the rate of the drive is not known.
        """
        found = self
        if self.directions == "auto":
            found = found.with_directions(plan["directions"]["chosen"])
        if self.awaits_base_steps and "new_bases" in plan:
            found = found.with_base_steps(plan["new_bases"]["chosen"])
        return found

    def most_directions(self, config: Config) -> int:
        """Largest number of directions that every step of a run may have."""
        if self.tier == "device":
            return 1  # Nothing streams, and a direction more takes as long as the first.
        return max(1, MOST_UPDATES // config.train.steps) if self._has_one_base else MOST_UPDATES

    @property
    def _has_one_base(self) -> bool:
        """True if all steps of the run are replayed on one base."""
        return self.tier == "host" and self.mode == "log" and self.noise != "lowrank"

    def forwards(self, config: Config) -> int:
        """Number of losses that a step measures; all of them wait for the same weights."""
        return 2 * self.direction_count * config.train.accumulate

    def evaluated_at_once(self, config: Config) -> int:
        """Number of evaluation batches that share one pass over streamed weights."""
        if self.tier == "device":
            return 1
        return self.eval_batches or self.forwards(config)

    def misfits(self, config: Config) -> Iterator[tuple[str, str]]:
        """Find keys that set up a backward, AdamW or autocast; this engine has none of them."""
        train, model = config.train, config.model
        if self.direction_count > MOST_UPDATES:
            yield (
                "engine.directions",
                f"is {self.directions}, expected at most {MOST_UPDATES}, the most for one step",
            )
        elif self._has_one_base and train.steps * self.direction_count > MOST_UPDATES:
            yield (
                "train.steps",
                f"is {train.steps} with engine.directions {self.directions} and engine.tier "
                f"{self.tier}, expected at most {MOST_UPDATES} steps times directions, the most "
                "for one base; take tier disk, which writes new bases, or device, or mode "
                "write_back, or noise lowrank",
            )
        if self.tier == "device" and self.eval_batches is not None:
            yield (
                "engine.eval_batches",
                f"is {self.eval_batches}, but engine.tier is device, which streams nothing; leave "
                "it out",
            )
        if train.max_norm is not None:
            yield (
                "train.max_norm",
                f"is {train.max_norm}, but engine.kind zo has no gradient to clip; leave it out",
            )
        for key, hint in (("betas", "leave it out"), ("eps", "set engine.eps for zo")):
            value, default = getattr(train, key), type(train).model_fields[key].default
            if value != default:
                yield (
                    f"train.{key}",
                    f"is {value}, which is for AdamW, but engine.kind is zo; " + hint,
                )
        if model.autocast is not None:
            yield (
                "model.autocast",
                f"is {model.autocast}, but engine.kind zo computes in the type of the weights that "
                "it perturbs; set model.dtype",
            )
        if model.checkpointing:
            yield (
                "model.checkpointing",
                "is true, but engine.kind zo keeps nothing for a backward; leave it out",
            )
