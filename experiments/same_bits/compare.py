"""Reads the results of runs, and finds where two runs first differ, byte for byte."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

# Compared fields of a line of losses; times, bytes and memory differ between equal runs.
COMPARED = ("step", "loss", "eval_loss", "lr", "grad_norm", "clipped_norm", "scale", "loss_scale",
            "skipped", "tokens")  # fmt: skip


# Values of an optimizer's state that differ between equal runs: a new store draws its name.
DRAWN = ("/sluiceway/store/id",)


@dataclass(frozen=True)
class Left:
    """Files of a run that has ended; `error` says why they are missing."""

    weights: Path
    optimizer: Path
    losses: Path
    error: str | None = None


@dataclass(frozen=True)
class Verdict:
    """Comparison of a run of the old side with the same run of the new one."""

    name: str
    same: bool
    first_difference: str
    first_step: int | None  # Step of the first line of losses that differs.
    # Says how much of the optimizer's state has equal names on both sides, and so was compared.
    state: str
    weights_sha256: tuple[str, str]

    def as_json(self) -> dict[str, Any]:
        """Return the verdict in plain types."""
        return asdict(self)


def of_small_run(folder: Path) -> Left:
    """Read the results of small_runs.py."""
    error = folder / "error.txt"
    text = error.read_text().strip().splitlines()[-1] if error.exists() else None
    missing = not (folder / "losses.jsonl").exists()
    return Left(folder / "weights.safetensors", folder / "optimizer.pt", folder / "losses.jsonl",
                text or ("it ended without a result" if missing else None))  # fmt: skip


def of_command(folder: Path, error: str | None = None) -> Left:
    """Read the results of `sluiceway train`."""
    save = folder / "checkpoint"
    return Left(save / "model.safetensors", save / "optimizer.pt", folder / "metrics.jsonl", error)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested dicts and sequences, with its path."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}/{key}")
    elif isinstance(tree, list | tuple):
        for place, value in enumerate(tree):
            yield from leaves(value, f"{path}/{place}")
    else:
        yield path, tree


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def difference(old: Any, new: Any) -> str | None:
    """Describe how two values differ; None if all bits are equal."""
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return None if repr(old) == repr(new) else f"{old!r}, now {new!r}"
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return f"{old.dtype} {tuple(old.shape)}, now {new.dtype} {tuple(new.shape)}"
    if torch.equal(raw(old), raw(new)):
        return None
    a, b = old.reshape(-1), new.reshape(-1)
    odd = (raw(a).view(a.numel(), -1) != raw(b).view(a.numel(), -1)).any(1)
    furthest = (a[odd].double() - b[odd].double()).abs().max().item()
    return f"{int(odd.sum())} of {a.numel()} elements, by up to {furthest:.3g}"


def first_difference(old: dict[str, Any], new: dict[str, Any], what: str) -> str | None:
    """Describe the first value, in the old order, that both sides have and that differs."""
    for name in old:
        if name in new and (found := difference(old[name], new[name])) is not None:
            return f"{what} {name}: {found}"
    return None


def compare_losses(old: Path, new: Path) -> tuple[int | None, str | None]:
    """Return step and description of the first line that differs in one of COMPARED."""
    sides = [[json.loads(line) for line in path.read_text().splitlines()] for path in (old, new)]
    for before, after in zip(*sides, strict=False):
        for key in COMPARED:
            if (found := difference(before.get(key), after.get(key))) is not None:
                return before["step"], f"step {before['step']}, {key}: {found}"
    if len(sides[0]) != len(sides[1]):
        return 0, f"{len(sides[0])} lines of losses, now {len(sides[1])}"
    return None, None


def compare_weights(old: Path, new: Path) -> str | None:
    """Describe the first weight that differs, or that one side lacks."""
    before, after = load_file(old), load_file(new)
    if odd := sorted(before.keys() ^ after.keys()):
        return f"weight {odd[0]}: not on both sides"
    return first_difference(before, after, "weight")


def compare_state(old: Path, new: Path) -> tuple[str | None, str]:
    """Describe the first difference in what both states name; say how much of them that is."""
    if not old.exists() or not new.exists():
        return None, "not compared: no optimizer.pt on both sides"
    before, after = (dict(leaves(torch.load(path, weights_only=True))) for path in (old, new))
    for drawn in DRAWN:
        before.pop(drawn, None)
    alone = [len(before.keys() - after.keys()), len(after.keys() - before.keys())]
    text = f"{len(before.keys() & after.keys())} values"
    if any(alone):
        text += f"; not compared: {alone[0]} only in old, {alone[1]} only in new"
    return first_difference(before, after, "state"), text


def sha256(path: Path) -> str:
    """Hash a file; empty if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def compare(name: str, old: Left, new: Left) -> Verdict:
    """Compare losses first, as they show where a difference began; then weights and state."""
    digests = (sha256(old.weights), sha256(new.weights))
    failed = [f"{side} failed: {left.error}" for side, left in (("old", old), ("new", new))
              if left.error]  # fmt: skip
    if failed:
        return Verdict(name, False, "; ".join(failed), 0, "", digests)
    of_state, state = compare_state(old.optimizer, new.optimizer)
    step, of_losses = compare_losses(old.losses, new.losses)
    found = (of_losses, compare_weights(old.weights, new.weights), of_state)
    first = next((text for text in found if text is not None), "")
    return Verdict(name, not first, first, step, state, digests)
