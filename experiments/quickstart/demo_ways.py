"""List the demo's ways: their overrides of the quickstart's config, and their run folders."""

from __future__ import annotations

from typing import Any

import yaml

from experiments.harness import REPOSITORY
from experiments.quickstart.run_folder import link_overrides

Ways = dict[str, tuple[str, dict[str, Any]]]

NATIVE = {"engine": {"kind": "native", "embeddings": "frozen"}}
BARRIER = {"engine.codec": "identity", "schedule.order": "barrier"}
CORES = {"engine.codec": "block_random"}
# All ways train the same weights: the byte embedding, which is also the head, is frozen.
IN_MEMORY: Ways = {
    "native AdamW": ("native", NATIVE),
    "full gradients": ("barrier", BARRIER),
    "cores": ("cores", CORES),
    "Sluiceway": ("sluiceway", {}),  # The default options, which decide whether a core pays.
}


def difference(name: str) -> dict[str, Any]:
    """Return the overrides of a config with states on disk, which freezes the embedding, too."""
    told = {
        each: yaml.safe_load((REPOSITORY / "configs" / f"{each}.yaml").read_text())
        for each in ("quickstart", name)
    }
    first, other = told["quickstart"], told[name]
    train = {k: v for k, v in other["train"].items() if v != first["train"].get(k)}
    return {
        "engine": {**other["engine"], "embeddings": "frozen"},
        **{key: other[key] for key in ("store", "budget")},
        **{f"train.{key}": value for key, value in train.items()},
    }


ON_DISK: Ways = {
    "AdamW on disk": ("disk", difference("quickstart_offload_disk")),
    "disk, codec": ("codec", difference("quickstart_offload_compressed")),
}
WAYS: Ways = {**IN_MEMORY, **ON_DISK}
LINKED = ("full gradients", "cores", *ON_DISK)  # Ways whose steps send something over the link.


def paced(name: str) -> str:
    """Name a way over a card's link that is paced to a laptop's."""
    return f"{name}, paced"


def ways_on(device: str, gbps: float) -> Ways:
    """Return the ways on a device, with complete overrides.

    The link of the host device is throttled to a laptop's. A card has its own link; each way that
    uses the link runs a second time, paced to a laptop's.
    """
    throttle = link_overrides(gbps)
    if device == "host":
        return {name: (folder, {**own, **throttle}) for name, (folder, own) in WAYS.items()}
    ways: Ways = {}
    for name, (folder, own) in WAYS.items():
        here = {**own, "device.name": device}
        ways[name] = (folder, {**here, "device.link": None})
        if name in LINKED:
            ways[paced(name)] = (f"{folder}_paced", {**here, **throttle})
    return ways
