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
# All of these train the same weights: the byte embedding and the tied head are frozen.
FROZEN: Ways = {
    "native AdamW": ("native", NATIVE),
    "full gradients": ("barrier", BARRIER),
    "cores": ("cores", CORES),
    "Sluiceway": ("sluiceway", {}),  # The default options, which decide whether a core pays.
}


def difference(name: str) -> dict[str, Any]:
    """Return the overrides that a config with states on disk has and the quickstart lacks."""
    told = {
        each: yaml.safe_load((REPOSITORY / "configs" / f"{each}.yaml").read_text())
        for each in ("quickstart", name)
    }
    first, other = told["quickstart"], told[name]
    train = {k: v for k, v in other["train"].items() if v != first["train"].get(k)}
    return {
        **{key: other[key] for key in ("engine", "store", "budget")},
        **{f"train.{key}": value for key, value in train.items()},
    }


# Full AdamW of every weight, embedding and head too.
ON_DISK: Ways = {
    "AdamW on disk": ("disk", difference("quickstart_offload_disk")),
    "disk, codec": ("codec", difference("quickstart_offload_compressed")),
}
WAYS: Ways = {**FROZEN, **ON_DISK}
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
