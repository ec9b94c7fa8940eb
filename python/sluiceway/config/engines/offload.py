"""The options of AdamW with its states in a store, and the section of a config with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationInfo, field_validator

from sluiceway.config.engine_section import STORE_FOLDER, EngineSection
from sluiceway.config.options import Options, option
from sluiceway.errors import InvalidArgument, Unavailable

if TYPE_CHECKING:
    from sluiceway.config.schema import Config

# What this version has of the values that are spelled right.
_HERE = {
    "policy": ("auto", "spill"),
    "codec": ("identity",),
    "weights": ("resident",),
    "state_codec": ("fp32",),
}


class OffloadOptions(Options):
    """Where the states of AdamW are, and how gradients get there."""

    tier: Literal["host", "disk"] = option(
        "host", "Moments and masters are kept in host memory, or on disk in bounded host memory."
    )
    policy: Literal["auto", "spill", "speculative"] = option(
        "auto",
        "spill writes gradients to the store, and updates with the norm of all of them known; "
        "speculative will update while they come. auto is spill.",
    )
    gradients: Literal["auto", "fp32", "bf16", "fp16"] = option(
        "auto",
        "What gradients are rounded to before they cross the link. auto is the type of 16-bit "
        "parameters, in a config that of autocast too, else fp32.",
    )
    codec: Literal[
        "identity", "block_random", "block_pca", "sparse_learned", "sparse_random", "svd"
    ] = option("identity", "Gradients cross whole; the codecs of SubspaceAdamW come later.")
    weights: Literal["resident", "streamed"] = option(
        "resident", "The model's weights stay on the device; streamed comes later."
    )
    state_codec: Literal["fp32", "hilo", "bf16", "8bit"] = option(
        "fp32", "Moments and masters are stored as they are; hilo, bf16 and 8bit come later."
    )

    @field_validator(*_HERE)
    @classmethod
    def _is_here(cls, value: str, field: ValidationInfo) -> str:
        here = _HERE[field.field_name]
        if value not in here:
            raise Unavailable(
                f"{field.field_name}: {value} is not in this version of the engine offload, it has "
                f"{' and '.join(here)}"
            )
        return value


class OffloadSection(OffloadOptions, EngineSection):
    """The same in a file."""

    kind: Literal["offload"] = "offload"

    @property
    def commits(self) -> bool:
        """On disk."""
        return self.tier == "disk"

    def check_available(self, config: Config) -> None:
        """Refuse a path that nothing would be kept at."""
        if self.tier == "host" and config.store.path is not None:
            raise InvalidArgument(
                f"store.path is {config.store.path}, but engine.tier is host, which keeps nothing "
                "on disk, expected null; leave it out, or set engine.tier: disk"
            )
        if config.store.io == "block" and config.store.path is None:
            raise InvalidArgument("store.io is block, expected store.path to name the device")

    def in_folder(self, config: Config, folder: Path) -> Config:
        """States on disk are in the folder of the run, if nothing else is said."""
        if self.tier == "host" or config.store.path is not None:
            return config
        store = config.store.model_copy(update={"path": str(folder / STORE_FOLDER)})
        return config.model_copy(update={"store": store})
