"""
The C++ runtime of Sluiceway; use the classes of `sluiceway` instead.
"""

from __future__ import annotations

import collections.abc
import typing

import torch

__all__: list[str] = [
    "CodecFamily",
    "EngineOptions",
    "LossScale",
    "SubspaceEngine",
    "Trace",
    "WeightSpec",
    "adam_step",
    "auto_codec",
    "codec_families",
    "count_host_allocations",
    "host_allocated_bytes",
    "host_peak_bytes",
    "now_us",
    "predict_step",
    "reset_host_peak",
    "scratch_bytes",
    "weight_plan",
]

class CodecFamily:
    """
    One codec: a row of the table that C++ keeps.
    """
    def leaves_complement(self, nnz: typing.SupportsInt) -> bool:
        """
        Whether what it leaves of a gradient holds nothing of the core.
        """
    @property
    def has_square_core(self) -> bool:
        """
        Whether it takes `d`.
        """
    @property
    def learns(self) -> bool:
        """
        Whether a refresh may change its projectors.
        """
    @property
    def name(self) -> str: ...
    @property
    def offered(self) -> bool:
        """
        False for a baseline of the experiments.
        """
    @property
    def refresh_every(self) -> int:
        """
        Steps between two refreshes where nobody says otherwise; 0: never.
        """

class LossScale:
    """
    Factor that keeps 16-bit gradients in range.
    """
    def __init__(
        self,
        mode: str,
        initial: typing.SupportsFloat = 65536.0,
        growth_interval: typing.SupportsInt = 2000,
    ) -> None: ...
    def load(
        self,
        value: typing.SupportsFloat,
        clean_steps: typing.SupportsInt,
        overflows_at_floor: typing.SupportsInt,
    ) -> None: ...
    def state(self) -> tuple[float, int, int]:
        """
        value, clean_steps, overflows_at_floor: what load() takes.
        """
    def update(self, overflowed: bool) -> None: ...
    @property
    def value(self) -> float: ...

class Trace:
    """
    Named ranges of a run, for one that no engine traces.
    """
    def __init__(self, max_ranges: typing.SupportsInt) -> None:
        """
        What does not fit is counted, and said in the file.
        """
    def add_range(
        self, row: str, name: str, begin_us: typing.SupportsFloat, end_us: typing.SupportsFloat
    ) -> None: ...
    def write_json(self, path: str) -> None:
        """
        Chrome trace format.
        """

class WeightSpec:
    """
    What to train, and how it is compressed.
    """
    def __init__(self, name: str, weight: torch.Tensor, **kwargs) -> None:
        """
        Keywords: codec ratio d nnz block seed wire tier weight_update residual second_moment.
        """

class EngineOptions:
    """
    How an engine schedules, clips and throttles.
    """
    def __init__(
        self,
        *,
        link: typing.Annotated[collections.abc.Sequence[typing.SupportsFloat], "FixedSize(3)"],
        limits: typing.Annotated[
            collections.abc.Sequence[typing.SupportsInt | None], "FixedSize(4)"
        ],
        resident_bytes: typing.SupportsInt,
        schedule: str,
        norm_mode: str,
        max_norm: typing.SupportsFloat,
        promised_backwards: typing.SupportsInt,
        seed: typing.SupportsInt,
        codec: str,
        refresh_every: typing.SupportsInt | None,
        refresh_source: str,
        refresh_threshold: typing.SupportsFloat | None,
        refresh_learn_steps: typing.SupportsInt,
        refresh_transport: str,
        refresh_learn_rate: typing.SupportsFloat,
        refresh_beta: typing.SupportsFloat,
        refresh_init: str,
        residual_at_once: bool,
        residual_every: typing.SupportsInt,
        residual_max_rms: typing.SupportsFloat,
        device_cpu: typing.SupportsInt,
        lane_cpu: typing.SupportsInt,
    ) -> None:
        """
        link: d2h GB/s, h2d GB/s, latency in us, 0 for unthrottled. limits: bytes for device, host, pinned, disk, None for no limit. refresh_every: None for the codec's own.
        """

class SubspaceEngine:
    """
    Trains weights through compressed gradients.
    """
    def __init__(
        self, options: EngineOptions, weights: collections.abc.Sequence[WeightSpec]
    ) -> None: ...
    def __len__(self) -> int: ...
    def add_gradient(
        self, weight: typing.SupportsInt, gradient: torch.Tensor, total: torch.Tensor
    ) -> None:
        """
        `gradient` of a backward, rows contiguous, and the sum of a step's; see the header.
        """
    def add_trace_range(
        self, row: str, name: str, begin_us: typing.SupportsFloat, end_us: typing.SupportsFloat
    ) -> None: ...
    def begin_calibration(self) -> None: ...
    def calibration_due(self) -> bool: ...
    def check_weight_state(self, weight: typing.SupportsInt, state: dict) -> None:
        """
        Raise what load_weight_state would raise; nothing is changed.
        """
    def close(self, lent: collections.abc.Sequence[torch.Tensor]) -> None:
        """
        drop() and synchronize(). Timeout: a lane is stuck; what was `lent` to it is kept.
        """
    def describe(self, weight: typing.SupportsInt) -> dict[str, typing.Any]: ...
    def drop(self) -> None: ...
    def enable_trace(self, on: bool) -> None: ...
    def end_backward(self) -> tuple[float, bool]: ...
    def end_calibration(self) -> None: ...
    def finish(self, lent: collections.abc.Sequence[torch.Tensor]) -> None:
        """
        As close(), whatever failed before; raises only where a lane still runs.
        """
    def has_gradient(self) -> bool: ...
    def hold_residual(self, weight: typing.SupportsInt) -> None: ...
    def load_refresh_state(self, state: torch.Tensor) -> None:
        """
        Take over what refresh_state gave.
        """
    def load_weight_state(self, weight: typing.SupportsInt, state: dict) -> None:
        """
        Take over what weight_state gave.
        """
    def note_device_times(
        self, forward_s: typing.SupportsFloat, backward_s: typing.SupportsFloat
    ) -> None: ...
    def prepare(
        self,
        hyper: collections.abc.Sequence[
            typing.Annotated[collections.abc.Sequence[typing.SupportsFloat], "FixedSize(6)"]
        ],
        weights: collections.abc.Sequence[torch.Tensor],
    ) -> None: ...
    def refresh_state(self) -> torch.Tensor:
        """
        When each weight was measured last, as bytes.
        """
    def residual_done(self, weight: typing.SupportsInt) -> bool: ...
    def step(
        self,
        hyper: collections.abc.Sequence[
            typing.Annotated[collections.abc.Sequence[typing.SupportsFloat], "FixedSize(6)"]
        ],
        weights: collections.abc.Sequence[torch.Tensor],
        factor: typing.SupportsFloat,
        other_sum_squares: typing.SupportsFloat,
        unscale: typing.SupportsFloat,
    ) -> tuple[bool, float, float, int]: ...
    def synchronize(self) -> None: ...
    def take_stats(self) -> dict[str, typing.Any]: ...
    def wait(self, weight: typing.SupportsInt) -> float: ...
    def weight_state(self, weight: typing.SupportsInt) -> dict[str, typing.Any]:
        """
        step, exp_avg (core-shaped), exp_avg_sq (too, or means of rows and columns), codec, low_bits, backwards, residual, residual_step: all copies.
        """
    def write_trace(self, path: str) -> None: ...
    @property
    def committed_steps(self) -> int: ...
    @committed_steps.setter
    def committed_steps(self, arg1: typing.SupportsInt) -> None: ...

def adam_step(
    name: str,
    weight: torch.Tensor,
    gradient: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    factor: typing.SupportsFloat,
    step: typing.SupportsInt,
    lr: typing.SupportsFloat,
    beta1: typing.SupportsFloat,
    beta2: typing.SupportsFloat,
    eps: typing.SupportsFloat,
    weight_decay: typing.SupportsFloat,
    seed: typing.SupportsInt,
) -> None:
    """
    One AdamW step in place; float32 weights plainly, bfloat16 ones with stochastic rounding keyed by (seed, step, name).
    """

def auto_codec(
    shapes: collections.abc.Sequence[tuple[typing.SupportsInt, typing.SupportsInt]],
    device_bytes: typing.SupportsInt,
    weight_dtype: str,
    refreshed: bool,
    **kwargs,
) -> str:
    """
    The family that codec="auto" is for weights of these shapes; more keywords as of WeightSpec.
    """

def codec_families() -> list[CodecFamily]:
    """
    All codecs, in the order in which errors name them; "auto" is none.
    """

def count_host_allocations() -> None:
    """
    From now on count torch's CPU allocations of this process; idempotent.
    """

def host_allocated_bytes() -> int:
    """
    Bytes that torch holds of what was counted.
    """

def host_peak_bytes() -> int:
    """
    The most of them since reset_host_peak().
    """

def now_us() -> float:
    """
    Microseconds of the trace's clock.
    """

def predict_step(
    order: str,
    norm_barrier: bool,
    forward_s: collections.abc.Sequence[typing.SupportsFloat],
    backward_s: collections.abc.Sequence[typing.SupportsFloat],
    d2h_s: collections.abc.Sequence[typing.SupportsFloat],
    host_s: collections.abc.Sequence[typing.SupportsFloat],
    h2d_s: collections.abc.Sequence[typing.SupportsFloat],
    apply_s: collections.abc.Sequence[typing.SupportsFloat],
) -> float:
    """
    Seconds of one steady-state step; lists hold seconds per layer, layer 0 first in the forward.
    """

def reset_host_peak() -> None:
    """
    Let the peak be what is held now.
    """

def scratch_bytes(
    shapes: collections.abc.Sequence[tuple[typing.SupportsInt, typing.SupportsInt]],
    weight_dtype: str,
    refreshed: bool,
    **kwargs,
) -> int:
    """
    Device bytes that weights of these shapes share, whether or not their projectors are replaced on the way; more keywords as of WeightSpec.
    """

def weight_plan(
    m: typing.SupportsInt,
    n: typing.SupportsInt,
    weight_dtype: str,
    speculative: bool,
    held: bool,
    **kwargs,
) -> dict[str, int]:
    """
    Bytes per tier and per step of one m x n weight, without allocating anything; more keywords as of WeightSpec.
    """
