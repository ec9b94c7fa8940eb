"""The schema of a run: what one YAML file may say, and what each key means.

Every model is frozen and refuses unknown keys. `sluiceway.config.file` reads files into it and
says errors with the line; `Config.resolved()` gives back every value, defaults included.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sluiceway.base.sizes import parse_bytes
from sluiceway.errors import InvalidArgument, Unavailable


def _bytes(value: Any) -> Any:
    try:
        return value if value is None else parse_bytes(value)
    except InvalidArgument as error:
        raise ValueError(str(error)) from None


def _off_is_null(value: Any) -> Any:
    # YAML 1.1 reads a bare `off` as false.
    return None if value is False or value == "off" else value


def _one_is_a_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _device_name(value: str) -> str:
    if not re.fullmatch(r"auto|host|cuda(:\d+)?", value):
        raise ValueError(f"is {value!r}, expected auto, host, cuda or cuda:N")
    return value


def _numbers_are_not_switches(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"is {str(value).lower()}, expected a number")
    return value


Size = Annotated[int, BeforeValidator(_bytes)]
Names = Annotated[list[str], BeforeValidator(_one_is_a_list)]
Int = Annotated[int, BeforeValidator(_numbers_are_not_switches)]
Count = Annotated[Int, Field(ge=1)]
Natural = Annotated[Int, Field(ge=0, lt=2**63)]
Float = Annotated[float, BeforeValidator(_numbers_are_not_switches)]
Positive = Annotated[Float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[Float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[Float, Field(ge=0, lt=1)]


PYDOC = "pydoc"  # Names the text that every Python brings along.


class Section(BaseModel):
    """A mapping of the file: frozen, and without room for keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Model(Section):
    path: str
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"  # How weights are stored.
    # null computes in `dtype`; auto is bf16 where the machine is fast at it, else null.
    autocast: Annotated[Literal["bf16", "fp16", "auto"] | None, BeforeValidator(_off_is_null)] = (
        None
    )
    checkpointing: bool = False

    @model_validator(mode="after")
    def _scaler_needs_wide_gradients(self) -> Model:
        if self.dtype == "fp16" and self.autocast == "fp16":
            raise ValueError(
                "is dtype fp16 with autocast fp16, expected dtype fp32: a loss scale cannot be "
                "taken from 16-bit gradients"
            )
        return self


class Data(Section):
    train: Annotated[Names, Field(min_length=1)]  # Files, globs, or pydoc.
    eval: Names = []
    format: Literal["text", "jsonl"] = "text"  # Of the files; jsonl has `text` or `messages`.
    sequence_length: Annotated[Int, Field(ge=2)] = 256
    packing: bool = True  # Documents are joined and cut; false: one document, one sequence.


class Train(Section):
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
    seed: Natural = 0
    eval_every: Natural = 0  # Steps; 0: before the first and after the last one only.
    eval_sequences: Count | None = None  # At most this many; null: all.
    save_every: Natural = 0  # Steps; 0: after the last one only.
    max_skipped: Count = 10  # Skipped steps in a row after which the run stops.


class RefreshPolicy(Section):
    every: Natural = 0
    threshold: NotNegative | None = None
    source: Literal["rolling", "closure"] = "rolling"
    learn_steps: Natural = 100
    transport: Literal["projected", "keep", "reset"] = "projected"


class SubspaceEngine(Section):
    kind: Literal["subspace"] = "subspace"
    codec: Literal[
        "auto",
        "svd",
        "block_random",
        "block_pca",
        "sparse_learned",
        "sparse_random",
        "identity",
        "none",
    ] = "auto"
    ratio: Annotated[Positive, Field(le=1)] = 0.25
    d: Count | None = None  # A square core of this size, in place of ratio.
    nnz: Count = 4
    block: Count = 32
    residual: Literal["auto", "factored", "sign", "none"] = "auto"
    residual_every: Count = 1
    second_moment: Literal["auto", "full", "factored"] = "auto"
    scale: Literal["auto"] | Positive = "auto"
    refresh: RefreshPolicy | None = None  # null: fitted once, kept.
    wire: Literal["bf16", "fp32", "int8"] = "bf16"
    tier: Literal["host", "device", "auto"] = "host"
    weight_update: Literal["auto", "stochastic", "residual"] = "auto"
    target: str | list[str] = "all-linear"
    embeddings: Literal["frozen", "identity"] = "frozen"


class NativeEngine(Section):
    kind: Literal["native"]
    fused: bool = True
    embeddings: Literal["frozen", "trained"] = "trained"  # frozen: the head too.


Engine = Annotated[SubspaceEngine | NativeEngine, Field(discriminator="kind")]
ENGINES = ("subspace", "native")
ENGINES_TO_COME = ("exact", "zo")


class LinkRate(Section):
    d2h_gbps: Positive  # GB/s, 1e9 bytes.
    h2d_gbps: Positive
    latency_us: NotNegative = 0.0


class Device(Section):
    name: Annotated[str, AfterValidator(_device_name)] = "auto"
    link: LinkRate | None = None  # null: not throttled.
    threads: Count | None = None  # Of torch; null: what torch takes.
    lane_threads: Count = 1
    pin: bool = False  # Main thread on the first core, lanes on the second.
    tflops: Positive | None = None  # What plan assumes of matmuls; null: measured here.
    memory_gbps: Positive | None = None  # Of the device's memory; null: as the host's.
    host_gbps: Positive | None = None  # Of host memory; null: measured here.


class BudgetSizes(Section):
    device: Size | None = None
    host: Size | None = None
    pinned: Size | None = None
    disk: Size | None = None


class Store(Section):
    path: str | None = None
    io: Literal["auto", "uring", "posix", "block"] = "auto"
    chunk: Size = 4 << 20


class Schedule(Section):
    order: Literal["edf", "fcfs", "paper", "barrier"] = "edf"
    norm: Literal["auto", "exact", "speculative", "lagged"] = "auto"


class Config(Section):
    """One run.

    Raises
    ------
    sluiceway.errors.Unavailable
        From `check_available`, for values that are spelled right but not in this version.
    """

    model: Model
    data: Data
    compare: Literal["native"] | None = None  # Plain AdamW first, same data, same process.
    train: Train = Train()
    engine: Engine = SubspaceEngine()
    device: Device = Device()
    budget: BudgetSizes = BudgetSizes()
    store: Store = Store()
    schedule: Schedule = Schedule()
    trace: bool = True  # Write trace.json.

    @model_validator(mode="after")
    def _warmup_fits(self) -> Config:
        if self.train.warmup_steps > self.train.steps:
            raise ValueError(
                f"train.warmup_steps is {self.train.warmup_steps}, expected at most "
                f"train.steps, {self.train.steps}"
            )
        return self

    def resolved(self) -> dict[str, Any]:
        """Every value, defaults written out, in plain types that YAML and JSON can hold."""
        return self.model_dump(mode="json")


def check_available(config: Config) -> None:
    """Refuse what the schema knows and this version does not have yet."""
    engine = config.engine
    if config.device.lane_threads != 1:
        raise Unavailable(
            f"device.lane_threads: {config.device.lane_threads} is not in this version, it has 1"
        )
    if config.schedule.norm == "lagged":
        raise Unavailable(
            "schedule.norm: lagged is not in this version, it has auto, exact and speculative"
        )
    if config.store.path is not None:
        raise Unavailable(
            "store.path: this version keeps nothing on disk while it trains, expected null"
        )
    if isinstance(engine, SubspaceEngine) and engine.refresh and engine.refresh.source == "closure":
        raise Unavailable(
            "engine.refresh.source: closure needs the Python class, a config has: rolling"
        )


def with_absolute_paths(config: Config) -> Config:
    """The same run from whatever folder it is resumed in."""

    def absolute(names: list[str]) -> list[str]:
        return [name if name == PYDOC else os.path.abspath(name) for name in names]

    data = {"train": absolute(config.data.train), "eval": absolute(config.data.eval)}
    model = {"path": os.path.abspath(config.model.path)}
    return config.model_copy(
        update={
            "data": config.data.model_copy(update=data),
            "model": config.model.model_copy(update=model),
        }
    )
