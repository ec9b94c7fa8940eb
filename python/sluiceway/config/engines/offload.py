"""Options of AdamW with its states in a store, and the section of a config that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import ValidationInfo, field_validator, model_validator

from sluiceway.config.codec_names import LEARNED, OFFERED
from sluiceway.config.codec_options import CodecOptions, Ratio, ratio_option
from sluiceway.config.engine_section import TieredSection
from sluiceway.config.fields import Natural, Size
from sluiceway.config.options import Options, option
from sluiceway.config.shared_options import BackwardOptions
from sluiceway.errors import Unavailable

if TYPE_CHECKING:
    from sluiceway.config.schema import Config

_CODECS = ("identity", *(name for name in OFFERED if name not in ("identity", "none")))
_DRAWN = [name for name in _CODECS[1:] if name not in LEARNED]  # Their projectors have a seed.


class _StateOptions(Options):
    """Options for the place of AdamW's states, and for the gradients on their way there."""

    tier: Literal["host", "disk", "auto"] = option(
        "host",
        "Place of moments and masters: host memory, or disk, with which host memory does not "
        "grow with the model. Host memory holds 12 bytes a parameter (fewer with another "
        "`state_codec`, twice as many with policy speculative), and the gradient of each backward "
        "of a step. auto is host memory up to `budget.host`, by default half of the machine's and "
        "at most 7/10 of what is free, and puts the rest into files at `path`. They have no name "
        "and end with the process, so a run continues from its last save, as with tier host. "
        "Memory is divided for the number of backwards that `accumulate` says; its value auto "
        "leaves room for one.",
    )
    policy: Literal["auto", "spill", "speculative"] = option(
        "auto",
        "spill writes gradients to the store, and updates once the step is decided. speculative "
        "updates during the last backward, so `accumulate` has to be a number; it keeps the "
        "result beside the last step until step() accepts or drops it. It writes no gradient to "
        "disk, unless `max_norm` or something else may scale gradients: a clipped step is then "
        "made again. New weights wait in host memory, within `budget`. The bits are the same. "
        "auto is spill.",
        to=["engine"],
    )
    gradients: Literal["auto", "fp32", "bf16", "fp16"] = option(
        "auto",
        "Type to which gradients are rounded before they cross the link. auto is the type of "
        "16-bit parameters, or, in a config, the type of autocast, and otherwise fp32.",
    )
    weights: Literal["resident", "streamed"] = option(
        "resident",
        "Place of the model's weights. resident keeps them on the device. streamed keeps those of "
        "the model's blocks with the states, and two blocks at a time on the device: a forward "
        "fetches them, and a backward fetches them again and computes each block once more. A "
        "matrix of less than half a chunk stays on the device. The bits are those of resident "
        "weights with checkpointing. With 16-bit weights and fp32 states this adds 2 bytes a "
        "parameter.",
    )
    resident: Size = option(
        0,
        "Bytes of streamed weights that stay on the device, as whole blocks, spread evenly over "
        "the model. They are not fetched.",
    )
    frozen_codec: Literal["identity", "fp8"] = option(
        "identity",
        "Format of streamed weights that are frozen, such as those below adapters (LoRA). identity "
        "is that of the model. fp8 takes 8 bits a parameter in the store, on the drive and on the "
        "link: E4M3 numbers with a power of two for each 128, rounded once to nearest, when the "
        "optimizer is made. The device unpacks them to the model's type. The model then has the "
        "rounded weights, also after `close()`.",
    )
    state_codec: Literal["fp32", "bf16", "8bit"] = option(
        "fp32",
        "Format of stored moments and masters. fp32 takes 12 bytes a parameter and has the bits of "
        "AdamW. bf16 takes 6 for a bf16 weight, which is its own master, and 8 for others. 8bit "
        "takes 5.03 for a bf16 weight, whose master has 24 bits, and 6.03 for others; its moments "
        "share a scale in blocks of 256. Both round up or down at random from `seed`, so that the "
        "mean is exact.",
        to=["engine"],
    )

    @field_validator("policy")
    @classmethod
    def _has_room_beside(cls, policy: str, field: ValidationInfo) -> str:
        if policy == "speculative" and field.data.get("tier") == "auto":
            raise ValueError(
                "is speculative, which keeps the result beside the last step, but tier is auto, "
                "which changes states in place; take policy spill, or tier host or disk"
            )
        return policy

    @field_validator("resident")
    @classmethod
    def _is_of_streamed(cls, value: int, field: ValidationInfo) -> int:
        if value and field.data.get("weights") != "streamed":
            raise ValueError(f"is {value}, but weights is resident, so all stay; leave it out")
        return value

    @field_validator("frozen_codec")
    @classmethod
    def _rounds_streamed(cls, value: str, field: ValidationInfo) -> str:
        if value != "identity" and field.data.get("weights") != "streamed":
            raise ValueError(
                f"is {value}, but weights is resident, so frozen weights stay in the model's type; "
                "take identity, or weights streamed"
            )
        return value


class OffloadOptions(CodecOptions, BackwardOptions, _StateOptions):
    """Options of OffloadAdamW: the place of its states, and how gradients cross the link."""

    tiers_with_drives: ClassVar[tuple[str, ...]] = ("disk", "auto")

    codec: Literal[_CODECS] = option(
        "identity",
        "identity sends gradients whole, for AdamW as usual. block_random and sparse_random "
        "compress the gradients of `target` on the device, sum the cores there over all backwards "
        "of a step, and decompress them on the host, so that AdamW with full moments trains with "
        "the decompressed gradients. block_random at a ratio of 1/2 kept 0.959 to 0.978 of "
        "AdamW's gain (`experiments/offload_codec`); its best learning rate may be twice that of "
        "AdamW. The other codecs learn projectors, and are not there yet.",
        to=["weight"],
        in_state=True,
    )
    ratio: Ratio = ratio_option(0.5)
    wire: Literal["bf16", "fp32"] = option(
        "bf16", "The format in which cores cross the link.", to=["weight"], in_state=True
    )
    spill: Literal["auto", "gradient", "core"] = option(
        "auto",
        "Form in which a compressed gradient waits for its update: gradient is the decompressed "
        "one, on disk; core stays on the device, crosses again and is decompressed again by the "
        "update. auto is the faster form, computed from the rates in the config or those of an "
        "ordinary machine. Both give the same bits. With policy speculative, no gradient waits.",
        to=["weight"],
    )
    redraw: Natural = option(
        0,
        "Steps between new projectors, drawn from the seed and the number of the step; 0, which "
        "kept the largest share of AdamW's gain, draws no new ones.",
        to=["weight"],
        in_state=True,
    )

    @field_validator("codec")
    @classmethod
    def _draws(cls, codec: str) -> str:
        if codec in LEARNED:
            raise Unavailable(
                f"codec: {codec} is not in this version of the engine offload, as it learns its "
                f"projectors; offload has identity, {' and '.join(_DRAWN)}; take block_random"
            )
        return codec

    @field_validator("ratio", "d", "nnz", "block", "wire", "target", "spill", "redraw")
    @classmethod
    def _is_of_the_codec(cls, value: Any, field: ValidationInfo) -> Any:
        codec, default = field.data.get("codec"), cls.model_fields[field.field_name].default
        if field.field_name == "spill" and value == "gradient":
            return value  # The identity does so.
        if codec == "identity" and value != default:
            raise ValueError(
                f"is {value!r}, but codec is identity, which compresses nothing; take {default!r}, "
                "or codec block_random"
            )
        if field.field_name == "d" and value is not None and codec == "block_random":
            raise ValueError(f"is {value}, but codec is block_random; leave it out, and set ratio")
        return value


def refuse_resident(options: OffloadOptions, what: str) -> None:
    """Refuse an order of micro-batches and blocks if blocks run as the model calls them."""
    if options.weights == "resident" and options.activations == "device":
        raise ValueError(
            f"{what}, but blocks run as the model calls them; take weights streamed, or "
            "activations host"
        )


class OffloadSection(OffloadOptions, TieredSection):
    """The section `engine` of a config with `kind: offload`."""

    kind: Literal["offload"] = "offload"
    # They change no bit.
    changeable: ClassVar[tuple[str, ...]] = ("spill", "resident", "activations")
    compared: ClassVar[dict[str, tuple[str, ...]]] = {
        "order": ("step", "block"), "activations": ("device", "host", "disk"),
    }  # fmt: skip

    order: Literal["auto", "step", "block"] = option(
        "step",
        "step runs each micro-batch through the model before the next one. block runs all of a "
        "step through a block before the next block (`micro_batches`): a step fetches streamed "
        "weights twice, however many micro-batches it has, and the inputs of all blocks wait for "
        "all of them. It needs weights streamed, or activations that leave the device. Both give "
        "the same gradients but for rounding. auto is block where `plan` finds it 2 % faster, "
        "and it fits the budgets.",
    )

    @model_validator(mode="after")
    def _repeats_blocks(self) -> Self:
        if self.order == "block":
            refuse_resident(self, "order is block")
        return self

    def is_alternative(self, config: Config) -> bool:
        """True if there are parts for order block, and a drive for activations disk."""
        resident = self.weights == "resident" and self.activations == "device"
        if self.order == "block" and (resident or config.train.accumulate == 1):
            return False
        return self.activations != "disk" or (self._has_drives and config.store.io != "block")

    @property
    def commits(self) -> bool:
        """True with tier disk, where every step is durable."""
        return self.tier == "disk"
