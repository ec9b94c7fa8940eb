"""The schema of a run: what one YAML file may say, and what each key means.

Every model is frozen and refuses unknown keys. `sluiceway.config.file` reads files into it and
reports errors with the line; `Config.resolved()` returns every value, defaults included.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, model_validator

from sluiceway.config.engine_section import EngineSection
from sluiceway.config.engines import DEFAULT_KIND, section_of
from sluiceway.config.fields import (
    Beta,
    Count,
    HomePath,
    HomePaths,
    Int,
    Natural,
    NotNegative,
    Positive,
    Section,
    SmallCount,
    off_is_null,
)
from sluiceway.config.shared_options import NormMode, Order
from sluiceway.config.values import Budget, Link, StoreOptions
from sluiceway.errors import Unavailable

DataFormat = Literal["auto", "text", "jsonl", "csv", "parquet"]
ColumnName = Literal[
    "text",
    "messages",
    "conversations",
    "prompt",
    "completion",
    "instruction",
    "input",
    "output",
    "system",
    "tools",
]
PYDOC = "pydoc"  # A text that every Python brings along.


def _device_name(value: str) -> str:
    if not re.fullmatch(r"auto|host|cuda(:\d+)?", value):
        raise ValueError(f"is {value!r}, expected auto, host, cuda or cuda:N")
    return value


def device_in_full(value: Any) -> Any:
    """Expand `device: cuda:0` to `device: {name: cuda:0}`."""
    return {"name": value} if isinstance(value, str) else value


def _of_its_kind(value: Any) -> Any:
    """Turn plain keys into the section of the kind that they name."""
    if not isinstance(value, dict):
        return value
    return section_of(value.get("kind", DEFAULT_KIND)).model_validate(value)


class ModelSection(Section):
    path: HomePath
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"  # How weights are stored.
    # null computes in `dtype`; auto is bf16 where the machine is fast at it, else null.
    autocast: Annotated[Literal["bf16", "fp16", "auto"] | None, BeforeValidator(off_is_null)] = None
    checkpointing: bool = False

    @model_validator(mode="after")
    def _scaler_needs_wide_gradients(self) -> ModelSection:
        if self.dtype == "fp16" and self.autocast == "fp16":
            raise ValueError(
                "is dtype fp16 with autocast fp16, expected dtype fp32: a loss scale cannot be "
                "taken from 16-bit gradients"
            )
        return self


class DataSection(Section):
    train: Annotated[HomePaths, Field(min_length=1)]  # Files, folders, globs, or pydoc.
    eval: HomePaths = Field(default_factory=list)
    split: Annotated[float, Field(ge=0, lt=1)] = 0.0  # Share of data.train that is held out.
    format: DataFormat = "auto"  # By each file's name and content; jsonl: arrays, too.
    columns: dict[ColumnName, str] = Field(default_factory=dict)  # Column of the files by its use.
    sequence_length: Annotated[Int, Field(ge=2)] = 256
    packing: bool = True  # Documents are joined and cut; false: one document, one sequence.
    overlong: Literal["refuse", "truncate", "drop"] = "refuse"  # Without packing.

    @model_validator(mode="after")
    def _held_out_once(self) -> DataSection:
        if self.eval and self.split:
            raise ValueError("has eval and split, expected one of them")
        return self

    @property
    def holds_out(self) -> bool:
        """Return whether a run measures its loss on text that it does not train on."""
        return bool(self.eval or self.split)


class TrainSection(Section):
    steps: Count = 200
    micro_batch: Count = 4
    accumulate: Count = 1
    lr: NotNegative = 1e-4
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    warmup_steps: Natural = 0
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.01
    max_norm: Positive | None = 1.0
    # sliced: logits of a slice of the vocabulary at a time, computed again in the backward.
    loss: Literal["whole", "sliced"] = "whole"
    seed: Natural = 0
    eval_every: Natural = 0  # Steps; 0: before the first and after the last one only.
    eval_sequences: Count | None = None  # At most this many; null: all.
    save_every: Natural = 0  # Steps; 0: after the last one only.
    max_skipped: Count = 10  # Skipped steps in a row after which the run stops.


class DeviceSection(Section):
    # auto: the first GPU that torch and the compiled module can both use, else host.
    name: Annotated[str, AfterValidator(_device_name)] = "auto"
    link: Link | None = None  # null: not throttled.
    threads: Count | None = None  # Of torch; null: what torch takes.
    lane_threads: Literal["auto"] | SmallCount = "auto"  # That share AdamW on the host.
    pin: bool = False  # Main thread on the first core, lanes on the second.
    flush_denormals: bool = True  # Numbers below 2^-126 are 0; of the host device, native too.
    tflops: Positive | None = None  # What plan assumes of matmuls; null: measured here.
    memory_gbps: Positive | None = None  # Of the device's memory; null: measured where it is here.
    host_gbps: Positive | None = None  # Of host memory; null: measured here.
    disk_gbps: Positive | None = None  # Of the store, reads and writes together; null: measured.


class ScheduleSection(Section):
    order: Order = "edf"
    norm: NormMode = "auto"


class Config(Section):
    """One run.

    Raises
    ------
    sluiceway.errors.Unavailable
        From `check_available`, for valid names that this version does not support.
    """

    model: ModelSection
    data: DataSection
    compare: Literal["native"] | None = None  # Plain AdamW first, same data, same process.
    train: TrainSection = TrainSection()
    engine: Annotated[SerializeAsAny[EngineSection], BeforeValidator(_of_its_kind)] = Field(
        default_factory=lambda: section_of(DEFAULT_KIND)()
    )
    device: Annotated[DeviceSection, BeforeValidator(device_in_full)] = DeviceSection()
    budget: Budget = Budget()
    store: StoreOptions = StoreOptions()
    schedule: ScheduleSection = ScheduleSection()
    trace: bool = True  # Write trace.json.

    @model_validator(mode="before")
    @classmethod
    def _left_out_is_the_engines(cls, tree: Any) -> Any:
        """Fill in an engine's own defaults for `train`."""
        engine, train = (tree.get(key, {}) for key in ("engine", "train"))
        if not isinstance(engine, dict) or not isinstance(train, dict):
            return tree
        defaults = section_of(engine.get("kind", DEFAULT_KIND)).train_defaults
        return {**tree, "train": {**defaults, **train}} if defaults else tree

    @model_validator(mode="after")
    def _warmup_fits(self) -> Config:
        if self.train.warmup_steps > self.train.steps:
            raise ValueError(
                f"train.warmup_steps is {self.train.warmup_steps}, expected at most "
                f"train.steps, {self.train.steps}"
            )
        return self

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all micro-batches; fewer if sequences are not packed."""
        return self.train.micro_batch * self.train.accumulate * self.data.sequence_length

    @property
    def backwards(self) -> int:
        """Backwards of a step: one, if all micro-batches pass through each block together."""
        return 1 if getattr(self.engine, "order", "step") == "block" else self.train.accumulate

    @property
    def parts(self) -> int:
        """Micro-batches of one backward."""
        return self.train.accumulate // self.backwards

    def resolved(self) -> dict[str, Any]:
        """Return every value, defaults included, in plain types for YAML and JSON."""
        return self.model_dump(mode="json")


def check_available(config: Config) -> None:
    """Refuse values that the schema knows but this version does not support."""
    if config.engine.kind == "zo" and config.device.lane_threads not in ("auto", 1):
        raise Unavailable(
            f"device.lane_threads: {config.device.lane_threads} is not in this version of the "
            "engine zo, which has no AdamW to share; leave it out"
        )
    config.engine.check_available(config)


def with_absolute_paths(config: Config) -> Config:
    """Return the config with absolute paths, so that a resume may start in any folder."""

    def absolute(names: list[str]) -> list[str]:
        return [name if name == PYDOC else os.path.abspath(name) for name in names]

    data = {"train": absolute(config.data.train), "eval": absolute(config.data.eval)}
    model = {"path": os.path.abspath(config.model.path)}
    stored = config.store.path
    if stored is not None:
        several = isinstance(stored, list)
        stored = [*map(os.path.abspath, stored)] if several else os.path.abspath(stored)
    return config.model_copy(
        update={
            "data": config.data.model_copy(update=data),
            "model": config.model.model_copy(update=model),
            "store": config.store.model_copy(update={"path": stored}),
        }
    )
