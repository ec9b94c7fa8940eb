"""The schema of a run: what one YAML file may say, and what each key means.

Every model is frozen and refuses unknown keys. `sluiceway.config.file` reads files into it and
reports errors with the line; `Config.resolved()` returns every value, defaults included.
"""

from __future__ import annotations

import math
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
    one_is_a_list,
)
from sluiceway.config.options import option
from sluiceway.config.shared_options import NormMode, Order
from sluiceway.config.shipped import shipped
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
Schedule = Literal[
    "constant",
    "constant_with_warmup",
    "linear",
    "cosine",
    "cosine_with_restarts",
    "cosine_with_min_lr",
    "polynomial",
    "inverse_sqrt",
    "warmup_stable_decay",
]
Tracker = Literal[
    "aim",
    "clearml",
    "comet_ml",
    "dvclive",
    "mlflow",
    "swanlab",
    "tensorboard",
    "trackio",
    "wandb",
]
PYDOC = "pydoc"  # A text that every Python brings along.
HUB = "hf://datasets/"  # Begins the name of a data set of the Hugging Face hub.
# Names of transformers.TrainingArguments that a file may use for keys of `train`.
TRAINER_NAMES = {
    "max_steps": "steps",
    "num_train_epochs": "epochs",
    "per_device_train_batch_size": "micro_batch",
    "gradient_accumulation_steps": "accumulate",
    "learning_rate": "lr",
    "lr_scheduler_type": "schedule",
    "lr_scheduler_kwargs": "schedule_options",
    "warmup_ratio": "warmup_steps",  # Below 1 it is a share in any case.
    "adam_epsilon": "eps",
    "max_grad_norm": "max_norm",
    "eval_steps": "eval_every",
    "save_steps": "save_every",
    "load_best_model_at_end": "keep_best",
}


def is_local(name: str) -> bool:
    """Tell a file, folder or glob of data from `pydoc` and data sets of the hub."""
    return name != PYDOC and not name.startswith(HUB)


def is_file_name(chat_template: str) -> bool:
    """Tell a file with a chat template from a name that TRL gives one."""
    return chat_template.endswith(".jinja") or os.sep in chat_template


def _steps_or_share(value: float) -> float:
    if value >= 1 and value != int(value):
        raise ValueError(f"is {value}, expected whole steps, or a share of all steps below 1")
    return value if value < 1 else int(value)


def _names(value: Any) -> Any:
    """Turn `none`, as TrainingArguments have it, or one name into a list."""
    return [] if value in (None, False, "none") else one_is_a_list(value)


def _device_name(value: str) -> str:
    if not re.fullmatch(r"auto|host|cuda(:\d+)?", value):
        raise ValueError(f"is {value!r}, expected auto, host, cuda or cuda:N")
    return value


def device_in_full(value: Any) -> Any:
    """Expand `device: cuda:0` to `device: {name: cuda:0}`."""
    return {"name": value} if isinstance(value, str) else value


def _model_folder(path: str) -> str:
    return str(shipped(path))


def _of_its_kind(value: Any) -> Any:
    """Turn plain keys into the section of the kind that they name."""
    if not isinstance(value, dict):
        return value
    return section_of(value.get("kind", DEFAULT_KIND)).model_validate(value)


class ModelSection(Section):
    path: Annotated[HomePath, AfterValidator(_model_folder)] = option(
        ...,
        "Folder of the model, as transformers writes it. `configs/shapes/llama_7b` and others come "
        "along without weights, for plans.",
    )
    dtype: Literal["fp32", "bf16", "fp16"] = option(
        "fp32",
        "Type of the weights in training. If this key is left out, it is that of the model's "
        "config.json, and fp32 for fp16.",
    )
    autocast: Annotated[Literal["bf16", "fp16", "auto"] | None, BeforeValidator(off_is_null)] = (
        option(
            None,
            "Type of matrix products. null computes in `dtype`. auto is bf16 where the machine is "
            "fast at it, else null.",
        )
    )
    checkpointing: bool = option(
        False, "Compute each block again in the backward, which then needs less memory."
    )

    @model_validator(mode="after")
    def _scaler_needs_wide_gradients(self) -> ModelSection:
        if self.dtype == "fp16" and self.autocast == "fp16":
            raise ValueError(
                "is dtype fp16 with autocast fp16, expected dtype fp32: a loss scale cannot be "
                "taken from 16-bit gradients"
            )
        return self


class DataSection(Section):
    train: Annotated[HomePaths, Field(min_length=1)] = option(
        ...,
        "Files, folders and globs to train on; hf://datasets/OWNER/NAME is a data set of the "
        "Hugging Face hub, pydoc the manual that Python brings.",
    )
    eval: HomePaths = Field(
        default_factory=list, description="The same, to measure the loss on; not with `split`."
    )
    weights: dict[HomePath, Positive] = Field(
        default_factory=dict,
        description="How often an epoch has the documents of a name in `train`; 0.5: half of them. "
        "Others: once.",
    )
    split: Annotated[float, Field(ge=0, lt=1)] = option(
        0.0, "Share of `train` that is held out to measure the loss on."
    )
    format: DataFormat = option(
        "auto",
        "Format of the files. auto goes by each file's name and content. jsonl includes arrays.",
    )
    columns: dict[ColumnName, str] = Field(
        default_factory=dict, description="Names of the files' columns by their use."
    )
    chat_template: HomePath | None = option(
        None,
        "Template of conversations, if not the tokenizer's: a .jinja file, or a name of TRL's such "
        "as qwen3. Saves keep it.",
    )
    sequence_length: Annotated[Int, Field(ge=2)] = option(
        2048, "Tokens of a sequence, at most the model's context, which is taken if it is smaller."
    )
    packing: bool | Literal["apart"] = option(
        True,
        "Join documents and cut them into equal sequences. apart: no document of a sequence sees "
        "another. false: a document, a sequence.",
    )
    overlong: Literal["refuse", "truncate", "drop"] = option(
        "refuse", "What happens to documents longer than a sequence, without packing."
    )

    @model_validator(mode="after")
    def _held_out_once(self) -> DataSection:
        if self.eval and self.split:
            raise ValueError("has eval and split, expected one of them")
        return self

    @model_validator(mode="after")
    def _weights_are_of_train(self) -> DataSection:
        for name in self.weights:
            if name not in self.train:
                raise ValueError(f"weights has {name}, expected a name that is in train")
        return self

    @property
    def holds_out(self) -> bool:
        """Return whether a run measures its loss on text that it does not train on."""
        return bool(self.eval or self.split)


class TrainSection(Section):
    steps: Count = option(200, "Steps of the optimizer.")
    epochs: Positive | None = option(
        None, "Passes over the training data, which take the place of `steps`; null: `steps`."
    )
    micro_batch: Count = option(4, "Sequences of one forward.")
    accumulate: Count = option(1, "Micro-batches of a step.")
    lr: NotNegative = option(1e-4, "Learning rate after the warmup.")
    schedule: Schedule = option(
        "cosine",
        "Course of the learning rate after the warmup, as transformers computes it; linear and "
        "cosine end at 0.",
    )
    schedule_options: dict[str, int | float | str] = Field(
        default_factory=dict,
        description="Further arguments of the schedule, such as `{min_lr_rate: 0.1}`.",
    )
    warmup_steps: Annotated[NotNegative, AfterValidator(_steps_or_share)] = option(
        0, "Steps in which the learning rate rises from 0; below 1: their share of all steps."
    )
    betas: tuple[Beta, Beta] = option((0.9, 0.999), "Decay of AdamW's moments.")
    eps: Positive = option(1e-8, "Number that AdamW adds to the root of the second moment.")
    weight_decay: NotNegative = option(0.01, "Decay of the weights, times the learning rate.")
    max_norm: Positive | None = option(
        1.0, "Norm at which gradients are clipped together; null: they are not."
    )
    loss: Literal["whole", "sliced"] = option(
        "whole",
        "sliced computes logits for a slice of the vocabulary at a time, and again in the "
        "backward, so that a large vocabulary needs little memory.",
    )
    seed: Natural = option(0, "Seed of the data's order, of dropout and of the engine.")
    eval_every: Natural = option(
        0, "Steps between two evaluations; 0: before the first step and after the last one."
    )
    eval_sequences: Count | None = option(
        None, "Largest number of sequences of an evaluation; null: all."
    )
    save_every: Natural = option(0, "Steps between two saves; 0: after the last step alone.")
    max_skipped: Count = option(
        10, "Steps in a row that may be skipped for numbers that are not finite."
    )
    early_stopping_patience: Count | None = option(
        None,
        "Evaluations in a row without a lower loss after which training stops; null: it never "
        "stops early.",
    )
    early_stopping_threshold: NotNegative = option(
        0.0, "Amount, in nats, by which a loss has to be lower than the lowest before."
    )
    keep_best: bool = option(
        False, "Keep the model of the lowest held-out loss in the folder `best` of the run."
    )
    report_to: Annotated[list[Tracker], BeforeValidator(_names)] = Field(
        default_factory=list, description="Trackers that get the run's figures; none by default."
    )

    @model_validator(mode="before")
    @classmethod
    def _one_length(cls, tree: Any) -> Any:
        if isinstance(tree, dict) and tree.get("epochs") is not None and "steps" in tree:
            raise ValueError("has epochs and steps, expected one of them")
        return tree

    @property
    def warmup(self) -> int:
        """Steps of the warmup."""
        share = self.warmup_steps
        return math.ceil(share * self.steps) if share < 1 else int(share)


class DeviceSection(Section):
    name: Annotated[str, AfterValidator(_device_name)] = option(
        "auto",
        "host, cuda or cuda:N. auto is the first GPU that torch and the compiled module can both "
        "use, else host.",
    )
    link: Link | None = option(None, "Throttle of the link; null: none.")
    threads: Count | None = option(None, "Threads of torch; null: as many as torch takes.")
    lane_threads: Literal["auto"] | SmallCount = option(
        "auto", "Threads that share AdamW on the host."
    )
    pin: bool = option(False, "Keep the main thread on the first core and lanes on the second.")
    flush_denormals: bool = option(
        True, "On the host device numbers below 2^-126 are 0, with native AdamW, too."
    )
    tflops: Positive | None = option(
        None, "What `plan` assumes of the device, in 1e12 operations a second; null: measured here."
    )
    memory_gbps: Positive | None = option(
        None, "What it assumes of the device's memory, in GB/s; null: measured here."
    )
    host_gbps: Positive | None = option(
        None, "What it assumes of host memory, in GB/s; null: measured here."
    )
    disk_gbps: Positive | None = option(
        None, "What it assumes of all drives, reads and writes together; null: measured here."
    )


class ScheduleSection(Section):
    order: Order = option("edf", "Order in which weights use the lanes; the bits are the same.")
    norm: NormMode = option(
        "auto",
        "exact: updates wait for the norm of the whole gradient. speculative: they begin with a "
        "forecast. auto chooses by measured times. The bits are the same.",
    )


class Config(Section):
    """One run.

    Raises
    ------
    sluiceway.errors.Unavailable
        From `check_available`, for valid names that this version does not support.
    """

    model: ModelSection
    data: DataSection
    compare: Literal["native"] | None = option(
        None, "native trains with plain AdamW first, on the same data in the same process."
    )
    train: TrainSection = TrainSection()
    engine: Annotated[SerializeAsAny[EngineSection], BeforeValidator(_of_its_kind)] = Field(
        default_factory=lambda: section_of(DEFAULT_KIND)()
    )
    device: Annotated[DeviceSection, BeforeValidator(device_in_full)] = DeviceSection()
    budget: Budget = Budget()
    store: StoreOptions = StoreOptions()
    schedule: ScheduleSection = ScheduleSection()
    trace: bool = option(True, "Write trace.json, the course of some steps.")

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
        train = self.train
        if train.epochs is None and train.warmup > train.steps:
            raise ValueError(
                f"train.warmup_steps is {train.warmup_steps}, expected at most "
                f"train.steps, {train.steps}"
            )
        return self

    @model_validator(mode="after")
    def _evaluates_if_it_has_to(self) -> Config:
        train = self.train
        for key in ("early_stopping_patience", "keep_best"):
            if getattr(train, key) and not (self.data.holds_out and train.eval_every):
                raise ValueError(
                    f"train.{key} needs a held-out loss: set train.eval_every, and data.eval or "
                    "data.split"
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
        return [os.path.abspath(name) if is_local(name) else name for name in names]

    data: dict[str, Any] = {
        part: absolute(getattr(config.data, part)) for part in ("train", "eval")
    }
    weights = config.data.weights
    data["weights"] = dict(zip(absolute([*weights]), weights.values(), strict=True))
    template = config.data.chat_template
    if template is not None and is_file_name(template):
        data["chat_template"] = os.path.abspath(template)
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
