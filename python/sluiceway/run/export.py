"""Copies the last save of a run, a step, or the best model so far, to a transformers folder.

Weights are streamed, so memory does not grow with the model.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluiceway.base.meter import meter
from sluiceway.config.schema import HUB
from sluiceway.config.shape import CONFIG_FILE
from sluiceway.errors import InvalidArgument
from sluiceway.run.last_save import LastSave, last_save
from sluiceway.run.run_folder import RunFolder

if TYPE_CHECKING:
    from sluiceway.config.schema import Config
    from sluiceway.engines.weights import CopiedWeights
    from sluiceway.run.checkpoint import Position

CARD = "README.md"
_DTYPE_KEYS = ("dtype", "torch_dtype")
_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def export(
    run: Path, to: Path, dtype: str | None = None, force: bool = False, step: int | None = None
) -> dict[str, Any]:
    """Write the last save's config, tokenizer and weights; the folder appears once complete.

    Parameters
    ----------
    step : int or None
        The step whose weights are written, if the engine keeps steps; None: the step of the save.
    dtype : str or None
        fp32, bf16 or fp16: type of the written weights; None: the type that they have.
    force : bool
        Replace an existing model folder. It stays until the new one is complete.

    Returns
    -------
    dict
        `folder`, `step` of the weights, `bytes` written, `dtype`.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        There is no save, or it has no weights of `step`; `to` may not be replaced; or a value does
        not fit `dtype`.
    sluiceway.errors.Corrupt
        A file of the save differs from the file that was written.
    sluiceway.errors.IoError
        Writing failed; the content of `to` is untouched.
    """
    RunFolder.check(run)
    _check_target(run, to, force)
    save = last_save(run)
    from sluiceway.base.atomic import replace_folder

    with _weights(save, step) as weights, replace_folder(to) as folder:
        written = save.step if step is None else step
        losses = save.position if written == save.step else None
        _write_side_files(save.folder, folder, dtype, _card(save.config, written, losses))
        with meter("export", weights.size, in_bytes=True) as advance:
            weights.copy(folder, dtype, advance)
        save.check_unchanged()
        count = sum(path.stat().st_size for path in folder.iterdir())
    best, at = RunFolder(run).best_path, save.position
    if step is None and at.best_step not in (0, save.step) and best.is_dir():
        print(
            f"sluiceway: {best} has the model of step {at.best_step}, whose held-out loss of "
            f"{at.best_eval_loss:.4f} is lower than that of step {save.step}",
            file=sys.stderr,
        )
    return {
        "folder": str(to),
        "step": written,
        "bytes": count,
        "dtype": dtype,
    }


def write_best(run: RunFolder, config: Config, position: Position) -> None:
    """Put the model of the save that the run has just made into the run's folder `best`.

    Parameters
    ----------
    config : Config
        The run's config, with default paths inside the run's folder.
    """
    from sluiceway.base.atomic import replace_folder
    from sluiceway.engines import engine_of

    weights = engine_of(config).weights(run.checkpoint_path)
    with replace_folder(run.best_path) as folder:
        card = _card(config, position.step, position)
        _write_side_files(run.checkpoint_path, folder, None, card)
        weights.copy(folder, None, lambda count: None)


def base_name(folder: Path) -> str:
    """Return OWNER/NAME of a model in the hub's cache or whose config names it, else its folder's.

    The cache keeps a model in `models--OWNER--NAME/snapshots/REVISION`.
    """
    for part in folder.absolute().parts:
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/", 1)
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # The model has gone since the run; its name remains.
        config = {}
    known = str(config.get("_name_or_path", ""))
    return known if re.fullmatch(r"[\w.-]+/[\w.-]+", known) else folder.absolute().name


def _card(config: Config, step: int, position: Position | None) -> str:
    """Return the model card: what the model was made from, and how.

    Parameters
    ----------
    position : Position or None
        Has the losses of the step; None: they are not known.
    """
    base, train = base_name(Path(config.model.path)), config.train
    lines = [
        "---", "library_name: transformers", "tags: [sluiceway]",
        *([f"base_model: {base}"] if "/" in base else []), "---", "",
        f"# {base.rpartition('/')[2]}, fine-tuned", "", f"- Base model: {base}",
        f"- Data: {', '.join(_data_name(name) for name in config.data.train)}",
        f"- Steps: {step}, of at most {config.tokens_per_step:,} tokens",
        f"- Engine: `{config.engine.kind}`, learning rate {train.lr:g}, {train.schedule}",
    ]  # fmt: skip
    if position is not None and None not in (position.first_eval_loss, position.last_eval_loss):
        before, after = position.first_eval_loss, position.last_eval_loss
        lines.append(f"- Held-out loss: {before:.4f} before, {after:.4f} after, nats per token")
    return "\n".join([*lines, "", "Trained with Sluiceway.", ""])


def _data_name(name: str) -> str:
    """Name data without the folders of this machine."""
    return name.removeprefix(HUB) if name.startswith(HUB) else Path(name).name


def _weights(save: LastSave, step: int | None) -> AbstractContextManager[CopiedWeights]:
    engine = save.engine()
    if step is None:
        return nullcontext(engine.weights(save.folder))
    if (kept := engine.weights_of_step(save.folder, step)) is None:
        raise InvalidArgument(
            f"--step: is {step}, but engine.kind is {save.config.engine.kind}, which keeps no "
            f"weights but those of its saves; leave --step out: the last save is "
            f"of step {save.step}"
        )
    return kept


def _check_target(run: Path, to: Path, force: bool) -> None:
    target, save = to.resolve(), RunFolder(run).checkpoint_path.resolve()
    if save.is_relative_to(target) or target.is_relative_to(save):
        raise InvalidArgument(
            f"--to: {to} is where the run keeps its save, expected another folder"
        )
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    if not target.is_dir():
        raise InvalidArgument(f"--to: {to} is a file, expected a new folder")
    if not force:
        raise InvalidArgument(
            f"--to: {to} is not empty, expected a new folder; --force replaces a model folder"
        )
    if not (target / CONFIG_FILE).is_file():
        first = min(path.name for path in target.iterdir())
        raise InvalidArgument(
            f"--to: {to} has no {CONFIG_FILE} but {first}; --force replaces only model "
            "folders; choose another folder"
        )


def _write_side_files(source: Path, folder: Path, dtype: str | None, card: str) -> None:
    from sluiceway.run.checkpoint import copy_side_files

    copy_side_files(source, folder)
    (folder / CARD).write_text(card, encoding="utf-8")
    if dtype is None:
        return
    path = folder / CONFIG_FILE
    config = _with_dtype(json.loads(path.read_text(encoding="utf-8")), _NAMES[dtype])
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _with_dtype(config: Any, name: str) -> Any:
    """Return the config with every dtype in it, also of parts of the model, set to `name`."""
    if not isinstance(config, dict):
        return config
    return {
        key: name if key in _DTYPE_KEYS and isinstance(value, str) else _with_dtype(value, name)
        for key, value in config.items()
    }
