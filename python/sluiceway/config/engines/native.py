"""The section of a config for plain AdamW on the device."""

from __future__ import annotations

from typing import Literal

from sluiceway.config.engine_section import EngineSection
from sluiceway.config.options import option


class NativeSection(EngineSection):
    kind: Literal["native"] = "native"
    fused: bool = option(True, "Use torch's fused kernel.")
