"""The dependencies of a build: those of pyproject.toml, with torch at the minor version in use.

The build back end calls this. A module that was compiled against one minor version of torch does
not load beside another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any


def dynamic_metadata(settings: Mapping[str, Any], _: Mapping[str, Any]) -> dict[str, list[str]]:
    """The list that the settings hold, with `torch>=...` replaced."""
    pinned = "torch==" + ".".join(version("torch").split(".")[:2]) + ".*"
    asked = settings["dependencies"]
    return {"dependencies": [pinned if each.startswith("torch>") else each for each in asked]}


def dynamic_wheel(_: Mapping[str, Any]) -> dict[str, bool]:
    """A source distribution leaves them open."""
    return {"dependencies": True}
