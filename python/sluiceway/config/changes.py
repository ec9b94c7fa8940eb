"""What may differ between a run's two sittings, and what would make it another run."""

from __future__ import annotations

from typing import Any

from sluiceway.config.file import flattened
from sluiceway.config.schema import Config
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
    "store.io",  # Another way to the same bytes.
    "trace",
    "model.path",  # Weights come from the save.
    "data.train",  # What is read must have the same tokens: the loop checks.
    "data.eval",
)
_NAMED = 4  # Differences in one error; another engine would bring dozens.


def changes(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """Map each key that differs to its two values.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        Some of them cannot change within a run; the text names them.
    """
    old, new = flattened(before.resolved()), flattened(after.resolved())
    found = {
        key: (old.get(key), new.get(key))
        # A key that only one of two engines has says less than the engine.
        for key in sorted(old.keys() | new.keys(), key=lambda k: (k not in old or k not in new, k))
        if old.get(key) != new.get(key)
    }
    changeable = (*_CHANGEABLE, *(f"engine.{key}" for key in after.engine.changeable))
    fixed = [key for key in found if not _is_among(key, changeable)]
    if fixed:
        named = ", ".join(f"{k} was {found[k][0]}, is now {found[k][1]}" for k in fixed[:_NAMED])
        more = f", and {len(fixed) - _NAMED} keys more" if len(fixed) > _NAMED else ""
        raise InvalidArgument(
            f"resume: {named}{more}; expected what the run began with, what can change: "
            + ", ".join(changeable)
        )
    return found


def _is_among(key: str, allowed: tuple[str, ...]) -> bool:
    return any(key == one or key.startswith(one + ".") for one in allowed)
