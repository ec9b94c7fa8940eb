"""What may differ between a run's two sittings, and what would make it another run."""

from __future__ import annotations

from typing import Any

from sluiceway.config import Config
from sluiceway.config_file import flattened
from sluiceway.errors import InvalidArgument

# Keys, or whole sections, that do not change what the weights mean to the optimizer's state.
_CHANGEABLE = (
    "train.steps",
    "train.lr",
    "train.schedule",
    "train.warmup_steps",
    "train.max_norm",
    "train.weight_decay",
    "train.eval_every",
    "train.eval_sequences",
    "train.save_every",
    "train.max_skipped",
    "device",
    "budget",
    "schedule",
    "trace",
)


def changes(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """Map each key that differs to its two values.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        One of them cannot change within a run.
    """
    old, new = flattened(before.resolved()), flattened(after.resolved())
    found = {
        key: (old.get(key), new.get(key))
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    }
    for key, (was, now) in found.items():
        if not any(key == allowed or key.startswith(allowed + ".") for allowed in _CHANGEABLE):
            raise InvalidArgument(
                f"--set {key}: {was} cannot become {now} within a run; what can change: "
                + ", ".join(_CHANGEABLE)
            )
    return found
