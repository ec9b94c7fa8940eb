"""The options of AdamW with its states in a store, and the section of a config with them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import ValidationInfo, field_validator

from sluiceway.config.codec_options import CodecOptions, Ratio, ratio_option
from sluiceway.config.engine_section import TieredSection
from sluiceway.config.fields import Natural
from sluiceway.config.options import Options, check_is_here, option
from sluiceway.errors import Unavailable

# What this version has of the values that are spelled right.
_HERE = {
    "weights": ("resident",),
    "state_codec": ("fp32",),
}
_DRAWN = ("block_random", "sparse_random")  # Codecs whose projectors come from a seed.


class _StateOptions(Options):
    """Where the states of AdamW are, and how gradients get there."""

    tier: Literal["host", "disk"] = option(
        "host", "Moments and masters are kept in host memory, or on disk in bounded host memory."
    )
    policy: Literal["auto", "spill", "speculative"] = option(
        "auto",
        "spill writes gradients to the store, and updates when the step is decided. speculative "
        "updates during the backward, where `accumulate` says which is the last, beside the last "
        "step, and step() keeps that or drops it: no gradient is on disk, but with `max_norm` or "
        "whoever else may scale it, for a step that was clipped is made again. New weights wait in "
        "what `budget` has of host memory. The bits are the same. auto is spill.",
    )
    gradients: Literal["auto", "fp32", "bf16", "fp16"] = option(
        "auto",
        "What gradients are rounded to before they cross the link. auto is the type of 16-bit "
        "parameters, in a config that of autocast too, else fp32.",
    )
    weights: Literal["resident", "streamed"] = option(
        "resident", "The model's weights stay on the device; streamed comes later."
    )
    state_codec: Literal["fp32", "hilo", "bf16", "8bit"] = option(
        "fp32", "Moments and masters are stored as they are; hilo, bf16 and 8bit come later."
    )

    @field_validator(*_HERE)
    @classmethod
    def _is_here(cls, value: str, field: ValidationInfo) -> str:
        return check_is_here("offload", _HERE, field.field_name, value)


class OffloadOptions(CodecOptions, _StateOptions):
    """The same, and which gradients cross the link compressed."""

    codec: Literal[
        "identity", "block_random", "block_pca", "sparse_learned", "sparse_random", "svd"
    ] = option(
        "identity",
        "identity: gradients cross whole, AdamW is as it is. block_random, sparse_random: those of "
        "`target` are compressed on the device, summed there over all backwards of a step, and "
        "decompressed on the host, so that AdamW with full moments trains what the core has of "
        "them. block_random at a ratio of 1/2 kept 0.959 to 0.978 of AdamW's gain "
        "(`experiments/offload_codec`); its best learning rate may be twice that of AdamW. The "
        "others of SubspaceAdamW learn projectors, and come later.",
        to=["weight"],
        in_state=True,
    )
    ratio: Ratio = ratio_option(0.5)
    wire: Literal["bf16", "fp32"] = option(
        "bf16", "The format in which cores cross the link.", to=["weight"], in_state=True
    )
    spill: Literal["auto", "gradient", "core"] = option(
        "auto",
        "What of a compressed gradient waits for its update: the decompressed one, on disk, or the "
        "core, on the device, which crosses and is decompressed once more by the update. auto is "
        "what takes less time by the rates that are given, else by those of an ordinary machine. "
        "The bits are the same. A speculative update needs neither.",
        to=["weight"],
    )
    redraw: Natural = option(
        0,
        "Steps between new projectors, drawn from the seed and the count of steps; 0: never, which "
        "kept most.",
        to=["weight"],
        in_state=True,
    )

    @field_validator("codec")
    @classmethod
    def _draws(cls, codec: str) -> str:
        if codec not in ("identity", *_DRAWN):
            raise Unavailable(
                f"codec: {codec} is not in this version of the engine offload, as it learns its "
                f"projectors; it has identity, {' and '.join(_DRAWN)}; take block_random"
            )
        return codec

    @field_validator("ratio", "d", "nnz", "block", "wire", "target", "spill", "redraw")
    @classmethod
    def _is_of_the_codec(cls, value: Any, field: ValidationInfo) -> Any:
        codec, default = field.data.get("codec"), cls.model_fields[field.field_name].default
        if field.field_name == "spill" and value == "gradient":
            return value  # What the identity does.
        if codec == "identity" and value != default:
            raise ValueError(
                f"is {value!r} and codec is identity, which compresses nothing, expected "
                f"{default!r}; say codec block_random"
            )
        if field.field_name == "d" and value is not None and codec == "block_random":
            raise ValueError(f"is {value} and codec is block_random, expected None; say ratio")
        return value


class OffloadSection(OffloadOptions, TieredSection):
    """The same in a file."""

    kind: Literal["offload"] = "offload"
    changeable: ClassVar[tuple[str, ...]] = ("spill",)  # Where gradients wait changes no bit.

    @property
    def commits(self) -> bool:
        """On disk."""
        return self._is_on_disk
