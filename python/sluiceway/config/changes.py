"""Compares the configs before and after a resume, and refuses changes that make another run."""

from __future__ import annotations

from typing import Any

from sluiceway.config.file import flattened
from sluiceway.config.schema import Config
from sluiceway.errors import InvalidArgument

# Keys, or whole sections, that may change: the optimizer's state fits the weights all the same.
_CHANGEABLE = (
    "train.steps",
    "train.epochs",
    "train.lr",
    "train.schedule",
    "train.schedule_options",
    "train.warmup_steps",
    "train.max_norm",
    "train.weight_decay",
    "train.eval_every",
    "train.eval_sequences",
    "train.save_every",
    "train.max_skipped",
    "train.early_stopping_patience",
    "train.early_stopping_threshold",
    "train.keep_best",
    "train.report_to",
    "device",
    "budget",
    "schedule",
    "store.io",  # The same bytes, read in another way.
    "store.rate_gbps",
    "trace",
    "model.path",  # Weights come from the save.
    "data.train",  # The tokens have to be the same: the loop checks them.
    "data.eval",
    "data.weights",
)
_NAMED = 4  # Differences to name in one error; another engine would bring dozens.


def changes(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """Map each key that differs to its old and new value.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        Some keys cannot change within a run; the text names them.
    """
    old, new = flattened(before.resolved()), flattened(after.resolved())
    found = {
        key: (old.get(key), new.get(key))
        # A key that only one of two engines has is less telling than the engine.
        for key in sorted(old.keys() | new.keys(), key=lambda k: (k not in old or k not in new, k))
        if old.get(key) != new.get(key)
    }
    if after.train.epochs is not None:
        found.pop("train.steps", None)  # They follow from the data, which is not read yet.
    changeable = (*_CHANGEABLE, *(f"engine.{key}" for key in after.engine.changeable))
    fixed = [key for key in found if not _is_among(key, changeable)]
    if fixed:
        named = ", ".join(f"{k} was {found[k][0]}, is now {found[k][1]}" for k in fixed[:_NAMED])
        more = f", and {len(fixed) - _NAMED} keys more" if len(fixed) > _NAMED else ""
        raise InvalidArgument(
            f"resume: {named}{more}; restore the values with which the run began. "
            "These keys can change: " + ", ".join(changeable)
        )
    return found


def _is_among(key: str, allowed: tuple[str, ...]) -> bool:
    return any(key == one or key.startswith(one + ".") for one in allowed)
