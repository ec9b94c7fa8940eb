"""The section of a config for plain AdamW on the device."""

from __future__ import annotations

from typing import Literal

from sluiceway.config.engine_section import EngineSection


class NativeSection(EngineSection):
    kind: Literal["native"] = "native"
    fused: bool = True
    embeddings: Literal["frozen", "trained"] = "trained"  # frozen: the head too.
