"""Trains a few blocks of a planned model with random weights, and compares them with the plan.

A run of a large model is expensive to begin in vain. Most of what a plan predicts is about one
block: its weights and their states, its slot, its bytes on each link, the time of its products. So
a model with the same embedding, head and blocks, but fewer of them, shows whether the plan is right
on this machine.
"""

from __future__ import annotations

import gc
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sluiceway.base.columns import columns
from sluiceway.base.interrupt import Interrupt
from sluiceway.base.sizes import format_bytes
from sluiceway.commands.bench import shortened, train_steps
from sluiceway.commands.plan import make_plan, plan_rows
from sluiceway.config.schema import Config
from sluiceway.errors import InvalidArgument, OutOfMemory, first_line
from sluiceway.machine.placement import DTYPES, choose_placement
from sluiceway.machine.processor import available_bytes
from sluiceway.model.skeleton import build_skeleton, shape_of
from sluiceway.run.session import Inputs
from sluiceway.text.sequences import Sequences

STEPS = 6  # The last three are timed.
MOST_BLOCKS = 4
_SHARE = 0.9  # Of what is free.
_COMPARED = ("peak_bytes", "bytes_per_step", "seconds_per_step")


@dataclass(frozen=True)
class _Cut:
    """A config of a model with fewer blocks, and its plan."""

    config: Config
    blocks: int
    figures: dict[str, Any]

    def needed(self) -> dict[str, int]:
        """Bytes of each kind that the trial takes, with the files of its weights."""
        peaks, parameters = self.figures["peak_bytes"], self.figures["parameters"]
        weights = sum(parameters.values()) * DTYPES[self.config.model.dtype].itemsize
        on_card = self.figures["device"]["name"] != "host"
        return {
            "memory": max(peaks["process"], 2 * weights),
            "disk": peaks.get("disk", 0) + weights,
            **({"device memory": peaks["device"]} if on_card else {}),
        }


def measure_plan(config: Config, figures: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train some steps with as many blocks as fit, and return predicted and measured figures.

    `figures` are those of the whole model's plan; its choices are the trial's. Files of the trial
    are removed from `folder`, which is on the disk to try, when it ends.

    Raises
    ------
    sluiceway.errors.OutOfMemory
        Not even one block fits.
    """
    placement = choose_placement(config)
    total = shape_of(config.model.path).get_text_config().num_hidden_layers
    with (
        Interrupt() as interrupt,
        tempfile.TemporaryDirectory(dir=folder, prefix=".sluiceway-plan-") as scratch,
    ):
        cut = _largest(config, figures, Path(scratch), total)
        vocabulary = _write_weights(config, cut)
        gc.collect()  # Those weights are not to count.
        inputs = Inputs(placement, _random_sequences(cut.config, vocabulary), None, {})
        found = train_steps(cut.config, inputs, interrupt)
    measured = {**found, "seconds_per_step": found["median_step_seconds"]}
    return {
        "blocks": cut.blocks,
        "of": total,
        "steps": STEPS,
        "predicted": {key: cut.figures[key] for key in _COMPARED},
        "measured": {key: measured[key] for key in _COMPARED},
    }


def _largest(config: Config, figures: dict[str, Any], scratch: Path, total: int) -> _Cut:
    """Plan as many blocks as fit; later blocks may be larger than the first."""
    # A drive's rate is measured once, in the folder of the trial.
    speeds = None if "disk" in figures else figures["assumed"]
    for blocks in range(min(total, MOST_BLOCKS), 0, -1):
        cut = _cut(config, figures, scratch, blocks, total, speeds)
        speeds, free = cut.figures["assumed"], _free(cut, scratch)
        lacking = [kind for kind, count in cut.needed().items() if count > free[kind]]
        if not lacking:
            return cut
    kind = lacking[0]
    raise OutOfMemory(
        f"plan --measure: one block needs {format_bytes(cut.needed()[kind])} of {kind}, "
        f"{format_bytes(free[kind])} may be used, nine tenths of what is free; free some, or plan "
        "without --measure"
    )


def _free(cut: _Cut, scratch: Path) -> dict[str, int]:
    """Bytes that a trial may take: a share of what is free."""
    free = {
        "memory": available_bytes(),
        "disk": shutil.disk_usage(scratch).free,
        "device memory": cut.figures["device"].get("free_bytes", 0),
    }
    return {kind: int(_SHARE * count) for kind, count in free.items()}


def _cut(
    config: Config,
    figures: dict[str, Any],
    scratch: Path,
    blocks: int,
    total: int,
    speeds: dict[str, Any] | None,
) -> _Cut:
    """Plan the model with fewer blocks; files and store are in the folder `scratch`."""
    folder = scratch / "model"
    try:
        shape_of(config.model.path, blocks).save_pretrained(folder)
    except Exception as error:  # transformers raises half a dozen types here.
        raise InvalidArgument(
            f"plan --measure: transformers cannot make {config.model.path} with {blocks} blocks, "
            f"{first_line(error)}; plan without --measure"
        ) from None
    engine = config.engine.planned(figures)
    resident = getattr(engine, "resident", 0)
    if resident:  # The same share of the blocks stays on the device.
        engine = engine.model_copy(update={"resident": resident * blocks // total})
    budget = config.budget
    if getattr(engine, "tier", None) == "auto" and figures["peak_bytes"].get("disk"):
        host = figures["peak_bytes"]["host"] * blocks // total  # The same share of it is on disk.
        budget = budget.model_copy(update={"host": host})
    store = config.store
    if store.path is not None:
        io = "auto" if store.io == "block" else store.io
        store = store.model_copy(update={"path": str(scratch / "store"), "io": io})
    changed = config.model_copy(
        update={
            "model": config.model.model_copy(update={"path": str(folder)}),
            "train": config.train.model_copy(update=_train_of_trial(config)),
            "engine": engine,
            "store": store,
            "budget": budget,
        }
    )
    changed = shortened(engine.in_folder(changed, scratch), STEPS)
    return _Cut(changed, blocks, make_plan(changed, speeds).figures)


def _train_of_trial(config: Config) -> dict[str, Any]:
    """Changes with which no step is clipped, skipped or made again, as random weights might."""
    bound = {} if config.train.max_norm is None else {"max_norm": 1e30}
    return {"lr": 1e-12, "max_skipped": STEPS + 1, **bound}


def _write_weights(config: Config, cut: _Cut) -> int:
    """Write random weights of a model, and return the size of its vocabulary."""
    model = build_skeleton(config.model.path, DTYPES[config.model.dtype], cut.blocks)
    model.save_pretrained(cut.config.model.path)
    return model.get_input_embeddings().weight.shape[0]


def _random_sequences(config: Config, vocabulary: int) -> Sequences:
    """Draw tokens for one step, which all steps read."""
    length = config.data.sequence_length
    count = config.train.micro_batch * config.train.accumulate
    tokens = np.random.default_rng(0).integers(vocabulary, size=count * length, dtype=np.int32)
    starts = np.arange(count, dtype=np.int64) * length
    lengths = np.full(count, length, np.int64)
    halves = np.arange(0, len(tokens), max(1, length // 2), dtype=np.int64)
    documents = halves if config.data.packing == "apart" else None
    return Sequences(tokens, np.ones(len(tokens), bool), starts, lengths, documents)


def describe_measured(found: dict[str, Any]) -> str:
    """Return the table for people."""
    head = (
        f"measured with the first {found['blocks']} of {found['of']} blocks, random weights and "
        f"one store in the folder, {found['steps']} steps"
    )
    predicted, measured = (
        {row[0]: row[1] for row in plan_rows(found[key])} for key in ("predicted", "measured")
    )
    rows = [[name, value, measured.get(name, "-")] for name, value in predicted.items()]
    return f"{head}\n{columns([['', 'predicted', 'measured'], *rows], '12')}"
