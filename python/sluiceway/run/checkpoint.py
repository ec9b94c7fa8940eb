"""Writes and reads saves, folders that appear only complete, whatever happens during writing.

A save is written, synced and read back from the disk before it takes the place of the last save,
which stays beside it as the save before. A kill at any moment leaves one of the two complete;
`base/atomic.py` explains how, and `manifest.py` explains the checksums of a save.

A `RunState` has everything that a save has except weights and states of the optimizer. Each commit
of an engine's store contains a `RunState`, with the buffers of the model too, since a store has
only parameters.
"""

from __future__ import annotations

import io
import json
import math
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from sluiceway.base.atomic import publish_folder
from sluiceway.base.meter import meter
from sluiceway.engines.engine import Engine
from sluiceway.engines.state_file import read_state, write_state
from sluiceway.errors import Corrupt, IoError, first_line
from sluiceway.model.weight_stream import saved_buffers
from sluiceway.run.manifest import bytes_of, check_files, is_sealed, sealed, sums_of

STATE_FILE = "state.json"
RANDOM_FILE = "random.pt"
_FORMAT = 2
WITHOUT_SUMS = 1  # A format that had lengths alone.
_RUN_FORMAT = 1
_TEMPLATE = "chat_template.jinja"
# Files of a tokenizer and of a model's config, without weights.
_SIDE_FILES = ("*.json", "*.model", "*.jinja", "*.txt", "*.py", "*.tiktoken",
               "additional_chat_templates/*.jinja")  # fmt: skip


@dataclass
class Position:
    """Progress of a run. Weights, moments and random generators are saved separately."""

    step: int = 0
    batch: int = 0  # Micro-batches taken from the data.
    skipped: int = 0
    skipped_in_row: int = 0
    tokens: int = 0
    seconds: float = 0.0  # In steps, over all sittings.
    first_eval_loss: float | None = None
    last_eval_loss: float | None = None
    best_eval_loss: float | None = None
    best_step: int = 0
    evaluations_since_best: int = 0

    def note_evaluation(self, loss: float, threshold: float) -> None:
        """Count an evaluation of this step, the best if its loss is lower by `threshold`."""
        best = math.inf if self.best_eval_loss is None else self.best_eval_loss
        if loss < best - threshold:
            self.best_eval_loss, self.best_step, self.evaluations_since_best = loss, self.step, 0
        else:
            self.evaluations_since_best += 1


def publish(target: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder, and make it `target` if it reads back as it was written.

    Raises
    ------
    sluiceway.errors.IoError
        Writing failed; the previous content of `target` is still there.
    sluiceway.errors.Corrupt
        The disk returned other bytes than were written; the previous content is still there.
    """
    try:
        publish_folder(target, write, _read_back)
    except Corrupt as error:
        text = str(error).removesuffix("; the save is not usable")
        raise Corrupt(f"{text}, when it was read back; {_kept(target)}; check the disk") from None
    except (OSError, RuntimeError, SafetensorError) as error:
        # torch and safetensors wrap what the system said in classes of their own.
        reason = getattr(error, "strerror", None) or first_line(error)
        raise IoError(
            f"{target}: the save could not be written, {reason}; {_kept(target)}",
            getattr(error, "errno", None),
            str(target),
        ) from None


def _kept(target: Path) -> str:
    return "the one before it is untouched" if target.exists() else "there is none before it"


def _read_back(folder: Path) -> None:
    _, state = read_state_file(folder)
    check_files(folder, state["files"])


def writer_of(
    position: Position,
    engine: Engine,
    side_files: Path,
    extra: dict[str, Any],
    chat_template: str | None,
    save_engine: Callable[[Path], None],
) -> Callable[[Path], None]:
    """Return a function that fills the folder of a save with the run as it is now.

    Call it between two steps, after `engine.synchronize()`. Only `save_engine` may write values
    that are newer than this call.

    Parameters
    ----------
    side_files : Path
        The model folder, whose tokenizer files are copied, so that a save can stand alone.
    extra : dict
        Plain values to keep beside the position; `load_state` returns them.
    chat_template : str or None
        Takes the place of the tokenizer's; None: the tokenizer's stays.
    """
    noise, at = _noise(engine), asdict(position)

    def write(folder: Path) -> None:
        copy_side_files(side_files, folder)
        if chat_template is not None:
            (folder / _TEMPLATE).write_text(chat_template, encoding="utf-8")
        save_engine(folder)
        write_state(noise, folder / RANDOM_FILE)
        state = {"format": _FORMAT, "position": at, "files": sums_of(folder), **extra}
        (folder / STATE_FILE).write_bytes(sealed(state))
        for path in folder.rglob("*"):
            if path.is_file():
                path.chmod(0o644)  # safetensors makes files that only their owner may read.

    return write


def copy_side_files(source: Path, folder: Path) -> None:
    """Copy tokenizer and config files of a model folder, without weights and a save's state."""
    for pattern in _SIDE_FILES:
        for path in sorted(source.glob(pattern)):
            if path.name != STATE_FILE and not path.name.endswith(".index.json"):
                to = folder / path.relative_to(source)
                to.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, to)


def load_state(target: Path) -> tuple[Position, dict[str, Any]]:
    """Read a save's position and extra values, and check that its files are whole.

    Raises
    ------
    sluiceway.errors.Corrupt
        A file is missing, or differs from the file that was written.
    """
    position, state = read_state_file(target)
    with meter("checking the save", bytes_of(state["files"]), in_bytes=True) as advance:
        check_files(target, state["files"], advance)
    return position, state


def read_state_file(target: Path) -> tuple[Position, dict[str, Any]]:
    """Read position and extra values without checking the other files."""
    path = target / STATE_FILE
    try:
        raw = path.read_bytes()
        state = json.loads(raw)
        position = Position(**state["position"])
        sums = dict(state["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{path}: cannot be read, {error}; the save is not usable") from None
    found = state.get("format")
    if found not in (_FORMAT, WITHOUT_SUMS):
        raise Corrupt(f"{path}: format is {found}, this version reads {WITHOUT_SUMS} and {_FORMAT}")
    # A damaged manifest must not pass for one of the format that had no checksums.
    plain = found == WITHOUT_SUMS and all(type(size) is int for size in sums.values())
    if not (plain or (found == _FORMAT and is_sealed(raw))):
        raise Corrupt(
            f"{path}: its last line is not the checksum of its text, so it was changed; the save "
            "is not usable"
        )
    return position, state


def check_if_save(folder: Path) -> None:
    """Check the files of a model folder if it is a run's save; other folders have no checksums."""
    if (folder / STATE_FILE).is_file() and (folder / RANDOM_FILE).is_file():
        load_state(folder)


def load_into(target: Path, engine: Engine) -> None:
    """Restore an engine that was opened from `target`, and all random generators."""
    noise = read_state(target / RANDOM_FILE)
    engine.load(target)
    _put_noise_back(noise, engine)


def _put_noise_back(noise: dict[str, Any], engine: Engine) -> None:
    """Restore the random generators and the loss scale that `_noise` has read."""
    engine.scaler.load_state_dict(noise["scaler"])
    torch.set_rng_state(noise["torch"])
    if noise["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(noise["cuda"])
    version, words, gauss = noise["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, place, has_gauss, cached = noise["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), place, has_gauss, cached))


def _noise(engine: Engine) -> dict[str, Any]:
    """Read all random generators and the loss scale, as tensors and plain values."""
    version, words, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state()
    numpy = (kind, torch.from_numpy(keys.astype(np.int64)), place, has_gauss, cached)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": (version, list(words), gauss),
        "numpy": numpy,
        "scaler": engine.scaler.state_dict(),
    }


# ---- Commits ----


@dataclass(frozen=True)
class RunState:
    """The state of a run between two steps, without the state of the engine."""

    position: Position
    extra: dict[str, Any]  # The plain values that a save keeps beside the position.
    rest: dict[str, Any]  # Random generators, the loss scale, and the model's buffers.

    def put_back(self, engine: Engine) -> None:
        """Restore random generators, loss scale and buffers."""
        _put_noise_back(self.rest["noise"], engine)
        for name, buffer in saved_buffers(engine.model):
            buffer.copy_(self.rest["buffers"][name])


def packed(position: Position, engine: Engine, extra: dict[str, Any]) -> bytes:
    """Pack the state of a run between two steps into bytes."""
    state = {
        "format": _RUN_FORMAT,
        "position": asdict(position),
        "extra": extra,
        "noise": _noise(engine),
        "buffers": dict(saved_buffers(engine.model)),
    }
    out = io.BytesIO()
    torch.save(state, out)
    return out.getvalue()


def unpacked(run: bytes) -> RunState:
    """Unpack bytes that `packed` returned.

    Raises
    ------
    Corrupt
        `packed` did not make these bytes.
    """
    try:
        state = torch.load(io.BytesIO(run), weights_only=True, map_location="cpu")
        known = state["format"] == _RUN_FORMAT
        position = Position(**state["position"])
    except Exception as error:  # Whatever is raised by bytes that are not its own.
        raise Corrupt(
            f"resume: the run state of the last commit cannot be read, {first_line(error)}"
        ) from None
    if not known:
        raise Corrupt(
            f"resume: format of the run state is {state['format']}, expected {_RUN_FORMAT}, which "
            "this version reads"
        )
    return RunState(position, state["extra"], {key: state[key] for key in ("noise", "buffers")})
