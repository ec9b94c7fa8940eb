"""`sluiceway eval`: held-out loss of a run's last save, or of a transformers folder."""

from __future__ import annotations

import errno
import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluiceway.base.json_text import finite
from sluiceway.base.meter import meter
from sluiceway.config.file import check_config, load_config
from sluiceway.config.schema import PYDOC, Config
from sluiceway.config.shape import CONFIG_FILE as MODEL_CONFIG
from sluiceway.errors import InvalidArgument, IoError
from sluiceway.model.folder import check_context, check_model_folder
from sluiceway.run.last_save import LastSave, last_save
from sluiceway.run.run_folder import CONFIG_FILE as RUN_CONFIG

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from sluiceway.engines.engine import Engine
    from sluiceway.machine.placement import Placement
    from sluiceway.text.batches import Batch, Sequences


@dataclass(frozen=True)
class Asked:
    """Options of the command; None stands for the run's value, or without a run for the default."""

    data: list[str] | None = None
    format: str | None = None
    sequence_length: int | None = None
    packing: bool | None = None
    dtype: str | None = None  # How weights are held: fp32, bf16 or fp16.
    sequences: int | None = None  # At most this many.


@dataclass(frozen=True)
class _Subject:
    """The folder to evaluate, and the config to evaluate it with."""

    folder: Path  # Holds weights and tokenizer.
    config: Config
    sequences: int | None
    save: LastSave | None


def evaluate(path: Path, asked: Asked) -> dict[str, Any]:
    """Compute the mean held-out loss of a run's folder, or of a transformers folder.

    The code is the one that training evaluates with.

    Returns
    -------
    dict
        `loss` in nats per token, `perplexity`, `tokens` that were predicted, `sequences`, and
        `seconds` of the forward passes alone. Numbers that are not finite are None.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        Data, tokenizer and model do not fit each other, or the folder has no run and no model.
    sluiceway.errors.Corrupt
        A file of weights is too short, or a file of a save differs from the one that was written.
    """
    subject = _subject(path, asked)
    from sluiceway.engines import engine_of
    from sluiceway.engines.weights import WeightFiles
    from sluiceway.machine.placement import DTYPES, denormals
    from sluiceway.run.held_out import check_next_token, mean_loss

    config = subject.config
    engine = None if subject.save is None else engine_of(config)
    weights = engine.weights(subject.folder) if engine else WeightFiles(subject.folder)
    check_context(weights.shape, str(subject.folder), config.data.sequence_length)
    placement = _place(config)
    held_out, replaced = _read(config, subject.folder, weights.shape)
    _check_split(subject, asked, held_out)
    model = weights.load(DTYPES[config.model.dtype], placement.device)
    if subject.save is not None:
        subject.save.check_unchanged()
    count = min(subject.sequences or len(held_out), len(held_out))
    losses = _losses(engine, model, placement)
    with denormals(config, placement), meter("evaluate", count) as advance:
        check_next_token(model, losses, config.data.sequence_length)
        began = time.perf_counter()
        loss, tokens = mean_loss(model, held_out, config.train.micro_batch, losses, count, advance)
    return finite(
        {
            "folder": str(path),
            "step": subject.save.step if subject.save else None,
            "loss": loss,
            "perplexity": math.exp(loss) if loss < 700 else math.inf,
            "tokens": tokens,
            "seconds": time.perf_counter() - began,
            "sequences": count,
            "sequences_in_data": len(held_out),
            "replaced_bytes": replaced,
            "data": config.data.model_dump(mode="json", exclude={"train"}),
            "device": placement.name,
            "precision": {"weights": config.model.dtype, "autocast": placement.autocast},
        }
    )


def _check_split(subject: _Subject, asked: Asked, held_out: Sequences) -> None:
    """Refuse a share of a run's data that is not the one that the run held out."""
    changed = asked.data or asked.format or asked.sequence_length or asked.packing is not None
    if subject.save is None or not subject.config.data.split or changed:
        return
    if not subject.save.state["data"].endswith(f"-{held_out.fingerprint}"):
        raise InvalidArgument(
            f"{subject.folder}: the data has changed since the run began, so what is held out now "
            "was perhaps trained on; restore the files, or measure on another text by --data"
        )


def _losses(
    engine: Engine | None, model: torch.nn.Module, placement: Placement
) -> Callable[[Sequence[Batch]], list[float]]:
    """Return a function for the losses of batches: the run's, or without a run the model's own."""
    from sluiceway.model.loss import loss_of

    loss = engine.loss_on(model, placement) if engine else partial(loss_of, model, placement)
    return lambda batches: [loss(batch).item() for batch in batches]


def _place(config: Config) -> Placement:
    from sluiceway.machine import placement

    here = placement.with_threads_of_this_machine(config)  # The run may be of another one.
    chosen = placement.choose_placement(here)
    placement.enter_placement(here, chosen)
    return chosen


def _subject(path: Path, asked: Asked) -> _Subject:
    if not path.is_dir():
        what = "is a file" if path.exists() else "is not there"
        raise IoError(
            f"{path}: {what}, expected the folder of a run or a transformers folder; a model of "
            f"the Hugging Face hub gets there by: hf download OWNER/NAME --local-dir {path}",
            errno.ENOENT,
            str(path),
        )
    if (path / RUN_CONFIG).is_file():
        return _run(path, asked)
    if not (path / MODEL_CONFIG).is_file():
        raise InvalidArgument(
            f"{path}: has neither {RUN_CONFIG} nor {MODEL_CONFIG}, expected the folder of a run or "
            "a transformers folder"
        )
    return _model(path, asked)


def _run(path: Path, asked: Asked) -> _Subject:
    config = load_config(path / RUN_CONFIG)
    if not (asked.data or config.data.holds_out):
        raise InvalidArgument(
            f"--data is missing, and {path} has no data.eval and no data.split; expected a file, "
            f"a folder, a glob or {PYDOC}"
        )
    save = last_save(path)
    # The run's own figure is over its own share of its own data.
    sequences = asked.sequences or (None if asked.data else config.train.eval_sequences)
    device = config.device.model_copy(update={"pin": False})
    config = _with(config.model_copy(update={"device": device}), asked)
    return _Subject(save.folder, config, sequences, save)


def _model(path: Path, asked: Asked) -> _Subject:
    if not asked.data:
        raise InvalidArgument(
            f"--data is missing, and {path} is no run with a data.eval; expected a file, a folder, "
            f"a glob or {PYDOC}"
        )
    check_model_folder(path, weights=False)
    model = {"path": str(path), "dtype": "fp32"}
    config = _with(check_config({"model": model, "data": {"train": asked.data}}), asked)
    from sluiceway.run.checkpoint import check_if_save

    check_if_save(path)
    return _Subject(path, config, asked.sequences, None)


def _with(config: Config, asked: Asked) -> Config:
    """Return the config with the asked values in place of its own, checked again."""
    given = {
        "eval": asked.data,
        "format": asked.format,
        "sequence_length": asked.sequence_length,
        "packing": asked.packing,
    }
    given = {key: value for key, value in given.items() if value is not None}
    if asked.data:
        given["split"] = 0.0
    tree = config.resolved()
    where = {("data", key): f"--{key.replace('_', '-')}" for key in given}
    tree |= {"data": tree["data"] | given}
    if asked.dtype is not None:
        tree["model"]["dtype"] = asked.dtype
    return check_config(tree, where | {("model", "dtype"): "--dtype"})


def _read(config: Config, folder: Path, shape: dict) -> tuple[Any, int]:
    from sluiceway.model.folder import load_tokenizer
    from sluiceway.run.session import vocabulary_of
    from sluiceway.text.documents import read_held_out
    from sluiceway.text.sequences import make_sequences

    corpus = read_held_out(config.data)
    tokenizer = load_tokenizer(folder)
    vocabulary = vocabulary_of(shape, tokenizer)
    sequences = make_sequences(corpus, tokenizer, config.data, "eval", vocabulary)
    return sequences, corpus.replaced


def describe(figures: dict[str, Any]) -> str:
    """Return one line with the figures of `evaluate`."""
    loss, perplexity = figures["loss"], figures["perplexity"]
    texts = [
        "loss is not finite" if loss is None else f"loss {loss:.4f} nats per token",
        f"perplexity {'-' if perplexity is None else format(perplexity, '.4g')}",
        f"{figures['tokens']:,} tokens in {figures['seconds']:.1f} s",
    ]
    data = figures["data"]
    sequences = f"{figures['sequences']} of {figures['sequences_in_data']} sequences"
    size = f"{'' if data['packing'] else 'at most '}{data['sequence_length']} tokens"
    source = ", ".join(data["eval"]) or f"{100 * data['split']:g} % of the run's data"
    texts.append(f"{sequences} of {size} from {source}")
    if figures["replaced_bytes"]:
        texts.append(f"{figures['replaced_bytes']} bytes were not UTF-8")
    step = "" if figures["step"] is None else f" step {figures['step']}:"
    return f"{figures['folder']}:{step} " + ", ".join(texts)
