"""Makes everything that a training loop needs from a config; the cheapest checks come first."""

from __future__ import annotations

import math
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sluiceway.config.file import check_config
from sluiceway.config.schema import Config
from sluiceway.engines import engine_of
from sluiceway.machine.footprint import DevicePeak
from sluiceway.machine.placement import Placement, choose_placement, enter_placement
from sluiceway.model.folder import check_context, load_tokenizer
from sluiceway.run.loop import RunContext, learning_rates
from sluiceway.run.timeline import Timeline
from sluiceway.run.trackers import check_trackers
from sluiceway.text.batches import Sequences, load_sequences
from sluiceway.text.conversations import named_template

_MARKS = re.compile(r"<\|\w+\|>")  # As templates write the edges of turns.


@dataclass(frozen=True)
class Inputs:
    """Everything that a run reads but never changes."""

    placement: Placement
    train: Sequences
    held_out: Sequences | None
    counts: dict[str, int]
    chat_template: str | None = None  # In place of the tokenizer's; None: the tokenizer's own.

    @property
    def fingerprint(self) -> str:
        """A text that changes if the tokens of the training set or of the held-out set change."""
        parts = [self.train.fingerprint]
        if self.held_out is not None:
            parts.append(self.held_out.fingerprint)
        return "-".join(parts)


def read_inputs(config: Config, folder: Path) -> Inputs:
    """Check model folder, machine and data, and read the data.

    Parameters
    ----------
    folder : Path
        Folder of the model's files: the config's model.path, or a save of a run.
    """
    check_trackers(config.train.report_to)
    shape = engine_of(config).weights(folder).shape
    check_context(shape, str(folder), config.data.sequence_length)
    placement = choose_placement(config)
    tokenizer = load_tokenizer(folder)
    template = None
    if config.data.chat_template is not None and folder == Path(config.model.path):
        template = named_template(config.data.chat_template)  # A save has it already.
        tokenizer.chat_template = template
        _tell_split_marks(template, tokenizer)
    train, held_out, counts = load_sequences(config, tokenizer, vocabulary_of(shape, tokenizer))
    return Inputs(placement, train, held_out, counts, template)


def _tell_split_marks(template: str, tokenizer: Any) -> None:
    known = tokenizer.get_vocab()
    if split := sorted(set(_MARKS.findall(template)) - set(known)):
        print(
            f"sluiceway: data.chat_template: the tokenizer has no token for {', '.join(split)} and "
            "writes each as several; training works, but chat does not stop at them",
            file=sys.stderr,
        )


def with_steps(config: Config, inputs: Inputs) -> Config:
    """Return the config with the number of steps that `train.epochs` makes of the data.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        The steps do not suit the rest of the config, or an option does not suit the schedule.
    """
    train, sequences = config.train, len(inputs.train)
    if train.epochs is not None:
        steps = math.ceil(train.epochs * sequences / (train.micro_batch * train.accumulate))
        tree = config.resolved()
        tree["train"] |= {"epochs": None, "steps": steps}
        name = f"train.epochs: {train.epochs:g} of {sequences:,} sequences"
        config = check_config(tree, name=name)
    learning_rates(config.train)
    return config


def vocabulary_of(shape: dict, tokenizer: Any) -> int:
    """Number of rows of the embedding from the model's config.json, or else from its tokenizer."""
    size = shape.get("vocab_size")
    return size if isinstance(size, int) else len(tokenizer)


def seed_everything(seed: int) -> None:
    """Seed every generator from which a model or its data may draw."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def open_context(config: Config, inputs: Inputs, folder: Path, trace: Path | None) -> RunContext:
    """Make the engine and open it; seed every generator.

    Parameters
    ----------
    folder : Path
        Folder of the weights: the config's model.path, or a save of a run.
    trace : Path or None
        File to which the trace is written when the run ends.
    """
    placement = inputs.placement
    enter_placement(config, placement)
    seed_everything(config.train.seed)
    peak = DevicePeak(placement.device)
    engine = engine_of(config)
    engine.open(folder, placement, trace)
    seed_everything(config.train.seed)  # Undo the draws of loading.
    return RunContext(inputs, engine, peak, Timeline(trace, engine.trace()))
