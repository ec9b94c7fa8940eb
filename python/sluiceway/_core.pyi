"""
The C++ runtime of Sluiceway; use the classes of `sluiceway` instead.
"""

from __future__ import annotations

import collections.abc
import typing

import torch
import typing_extensions

__all__: list[str] = [
    "Activations",
    "AutoCodec",
    "Checksum",
    "ChunkStore",
    "Codec",
    "CodecFamily",
    "CoreOptions",
    "EngineOptions",
    "GatedEngine",
    "LossScale",
    "OffloadEngine",
    "OffloadEngineOptions",
    "Stream",
    "SubspaceEngine",
    "TensorSpec",
    "Trace",
    "WeightSpec",
    "ZoArena",
    "ZoEngine",
    "ZoSnapshot",
    "adam_step",
    "auto_codec",
    "bits_checksum",
    "choose_resident",
    "codec_families",
    "create_store",
    "cuda_device_count",
    "decompress_seconds",
    "draw_noise",
    "drive_properties",
    "drive_rates",
    "fetch_footprint",
    "flush_denormals",
    "materialise",
    "materialise_low_rank",
    "now_us",
    "offload_footprint",
    "open_store",
    "page_lock_refusal",
    "page_locked_copy",
    "perturb",
    "perturb_low_rank",
    "predict_step",
    "shared_device_bytes",
    "shared_pinned_bytes",
    "stable_hash",
    "warn",
    "weight_plan",
    "zo_arena_plan",
    "zo_log_directions",
    "zo_ring_plan",
]

class Stream:
    """
    The stream of a device that the framework computes on.
    """

    __hash__: typing.ClassVar[None] = None
    @staticmethod
    def cuda(ordinal: typing.SupportsInt, native: typing.SupportsInt) -> Stream:
        """
        native: the cudaStream_t as a number.
        """
    @staticmethod
    def host() -> Stream:
        """
        The calling thread.
        """
    def __eq__(self, other: Stream) -> bool: ...

class Checksum:
    """
    XXH3 of 128 bits over bytes that come piece by piece.
    """
    def __init__(self) -> None: ...
    def hex(self) -> str:
        """
        32 hex digits, as `xxh128sum` prints them.
        """
    def update(self, bytes: typing_extensions.Buffer) -> None:
        """
        Take the next piece, without holding the GIL.
        """

class Codec:
    """
    The codec of one m x n weight without an engine.
    """
    def __init__(
        self,
        name: str,
        ratio: typing.SupportsFloat,
        m: typing.SupportsInt,
        n: typing.SupportsInt,
        compute: Stream,
    ) -> None:
        """
        On the device of `compute`.
        """
    def apply(
        self, weight: torch.Tensor, core: torch.Tensor, alpha: typing.SupportsFloat, compute: Stream
    ) -> None:
        """
        weight += alpha P core Q^T; bfloat16 ones with stochastic rounding.
        """
    def compress(self, gradient: torch.Tensor, core: torch.Tensor, compute: Stream) -> None:
        """
        core <- P^T gradient Q, float32.
        """
    @property
    def core_cols(self) -> int: ...
    @property
    def core_rows(self) -> int: ...

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

class ChunkStore:
    """
    Chunks on disk that change by whole steps.
    """
    @staticmethod
    def is_drive(path: str) -> bool:
        """
        Whether a file or device begins with the header of a drive.
        """
    def catalogue(self) -> bytes:
        """
        What the store's user wrote about its chunks.
        """
    def close(self) -> None:
        """
        Unlock the drives; what is not committed is forgotten.
        """
    def commit(self, step: typing.SupportsInt, run_state: typing_extensions.Buffer = b"") -> None:
        """
        Make what is staged the last commit; on the medium when it returns.
        """
    def describe(self) -> dict:
        """
        id, version, generation, live and pinned commit, regions, drives, spares of a drive, run_state_most_bytes, catalogue_bytes, damage of a superblock copy.
        """
    def drop(self) -> None:
        """
        Forget what is staged.
        """
    def pin(self) -> None:
        """
        Keep the last commit until another is pinned; takes regions of three slots.
        """
    def read(
        self, region: typing.SupportsInt, chunk: typing.SupportsInt, version: str = "live"
    ) -> bytes:
        """
        Bytes of a chunk: live, pinned or staged.
        """
    def run_state(self, pinned: bool = False) -> bytes:
        """
        Of the last commit, or the pinned.
        """
    def unpin(self) -> None: ...
    def verify(self, progress: typing.Any = None) -> list[str]:
        """
        Read all that the commits hold; what is wrong, a line each. `progress` is told chunks done and in all; Ctrl-C ends it.
        """
    def write(
        self, region: typing.SupportsInt, chunk: typing.SupportsInt, bytes: typing_extensions.Buffer
    ) -> None:
        """
        Stage whole blocks of 4096 bytes, from the start of a chunk, for the next commit.
        """

class Trace:
    """
    Named ranges of a run.
    """
    def __init__(self, max_ranges: typing.SupportsInt) -> None:
        """
        Further ranges are counted, and the file has the count.
        """
    def add_range(
        self, row: str, name: str, begin_us: typing.SupportsFloat, end_us: typing.SupportsFloat
    ) -> None: ...
    def enable(self, on: bool, path: str = "") -> None:
        """
        Keep further ranges or not. With the path that write_json() will get, they are kept on that disk.
        """
    def write_json(self, path: str) -> None:
        """
        Chrome trace format.
        """

class Activations:
    """
    Tensors of a forward that wait for its backward in host memory or on a drive.
    """
    def await_(self, id: typing.SupportsInt, compute: Stream) -> None:
        """
        Work on `compute` that is enqueued from now on sees it.
        """
    def bring(self, id: typing.SupportsInt, into: torch.Tensor, compute: Stream) -> None:
        """
        Begin to copy it back. Keep `into` until await_() has returned, or forget() True.
        """
    def forget(self, ids: list[typing.SupportsInt]) -> bool:
        """
        Free the place of the one number in the list, and clear the list. False, and nothing is done, while a copy is running.
        """
    def has_left(self, id: typing.SupportsInt) -> bool: ...
    def keep(self, tensor: torch.Tensor, compute: Stream, ids: list[typing.SupportsInt]) -> None:
        """
        Copy a dense tensor from the device, and append its number. Keep the tensor until has_left().
        """
    def take_use(self) -> dict:
        """
        stall_seconds for which the device has waited for tensors since the last call; bytes_read and bytes_written of the drive since it was opened.
        """
    def wait_left(self, id: typing.SupportsInt) -> None: ...
    def waiting(self) -> int:
        """
        The number of tensors that are not forgotten.
        """

class GatedEngine:
    """
    An engine that gathers the gradients of a step, and then makes the step.
    """
    def __len__(self) -> int: ...
    def close(self, lent: collections.abc.Sequence[torch.Tensor]) -> None:
        """
        Drop gathered gradients, and end the engine's work: a store has its last commit then. Timeout: a lane is stuck; the tensors that were `lent` to it are kept.
        """
    def drop(self) -> None: ...
    def finish(self, lent: collections.abc.Sequence[torch.Tensor]) -> None:
        """
        Like close(), whatever failed before; raises only where a lane still runs.
        """
    def gradient_sizes(self) -> list[tuple[float, float]]:
        """
        Sum of squares and largest absolute element of each weight's gradient so far; after end_backward(). Neither is finite where the gradient is not.
        """
    def has_gradient(self) -> bool: ...
    def make_activations(
        self, folder: str = "", io: str = "auto", rate_gbps: typing.SupportsFloat = 0.0
    ) -> Activations:
        """
        Places that share the engine's links and budget; without a folder in host memory. They may outlive the engine.
        """
    def note_device_times(
        self, forward_s: typing.SupportsFloat, backward_s: typing.SupportsFloat
    ) -> None: ...
    def synchronize(self) -> None: ...
    def wait(self, weight: typing.SupportsInt, compute: Stream) -> None:
        """
        Work on `compute` that is enqueued from now on sees the last update. The thread waits: on the host device until it is made, on a CUDA device until it is enqueued.
        """
    @property
    def committed_steps(self) -> int: ...
    @committed_steps.setter
    def committed_steps(self, arg1: typing.SupportsInt) -> None: ...
    @property
    def trace(self) -> Trace:
        """
        The engine's trace; it may outlive the engine.
        """

class AutoCodec:
    """
    What codec="auto" is, and what svd would cost.
    """

    measured_ratio: typing.ClassVar[float] = 0.5
    most_steps: typing.ClassVar[int] = 500
    @property
    def calibration(self) -> float:
        """
        Likewise.
        """
    @property
    def least_tokens(self) -> int:
        """
        A step has to have as many for a core of these weights to pay.
        """
    @property
    def most(self) -> float:
        """
        svd is taken where both together are less.
        """
    @property
    def name(self) -> str: ...
    @property
    def pays(self) -> bool:
        """
        A core of this ratio, in such a run, ended lower than none.
        """
    @property
    def products(self) -> float:
        """
        Of svd, as a share of a run.
        """
    @property
    def shortage(self) -> typing.Any:
        """
        A tier that has not what these weights need with svd, and its bytes needed and free; None: it fits.
        """

class WeightSpec:
    """
    A weight to train, and the options of its compression.
    """
    def __init__(self, name: str, weight: torch.Tensor, **kwargs) -> None:
        """
        keywords are codec, ratio, d, nnz, block, seed, q_of, wire, tier, weight_update, residual, second_moment; weights with the same q_of share Q, and each with an empty one has its own.
        """

class EngineOptions:
    """
    Options of an engine: schedule, clipping, throttle.
    """
    def __init__(self, *, compute: Stream, **kwargs) -> None:
        """
        compute: a stream of the device that the weights are on; keywords are link, limits, resident_bytes, schedule, norm_mode, max_norm, promised_backwards, lane_threads, device_cpu, lane_cpu, seed, codec, refresh_every, refresh_source, refresh_threshold, refresh_learn_steps, refresh_transport, refresh_learn_rate, refresh_beta, refresh_init, residual_at_once, shared, residual_every, residual_max_rms, tokens_per_step, total_steps. link: d2h GB/s, h2d GB/s, latency in us, 0 for unthrottled. limits: bytes for device, host, pinned, disk, None for no limit. refresh_every: None for the codec's own.
        """

class SubspaceEngine(GatedEngine):
    """
    Trains weights through compressed gradients.
    """
    def __init__(
        self,
        options: EngineOptions,
        weights: collections.abc.Sequence[WeightSpec],
        learner: typing.Any,
    ) -> None:
        """
        learner: fits projectors, as optim/subspace/learner.py does.
        """
    def add_core(
        self, weight: typing.SupportsInt, core: torch.Tensor, whole: bool, compute: Stream
    ) -> None:
        """
        Add P^T G Q, computed without forming G; see the header.
        """
    def add_gradient(
        self,
        weight: typing.SupportsInt,
        gradient: torch.Tensor,
        total: torch.Tensor,
        compute: Stream,
    ) -> None:
        """
        Add the gradient of a backward, with contiguous rows, to the sum of a step; see the header.
        """
    def averaged(self, weight: typing.SupportsInt) -> None:
        """
        Call after the core or the sum of a weight's gradients was averaged; see the header.
        """
    def begin_calibration(self) -> None: ...
    def calibrate_on(
        self, weight: typing.SupportsInt, gradient: torch.Tensor, compute: Stream
    ) -> None:
        """
        Fit or measure projectors on the average of a gradient over processes.
        """
    def calibrates(self, weight: typing.SupportsInt) -> bool: ...
    def calibration_due(self) -> bool: ...
    def check_weight_state(self, weight: typing.SupportsInt, state: dict) -> None:
        """
        Raise what load_weight_state would raise; nothing is changed.
        """
    def core(self, weight: typing.SupportsInt, compute: Stream) -> torch.Tensor:
        """
        The core of a step's gradients so far, as a tensor over the engine's memory.
        """
    def describe(self, weight: typing.SupportsInt) -> dict[str, typing.Any]: ...
    def end_backward(self) -> None: ...
    def end_calibration(self) -> None: ...
    def gathered_norm(self) -> tuple[float, bool]:
        """
        Norm of all gradients so far, and True if they are finite; waits for a device.
        """
    def generation(self, weight: typing.SupportsInt) -> int:
        """
        Number of times that the projectors of a weight were replaced.
        """
    def hold_residual(self, weight: typing.SupportsInt) -> None: ...
    def keeps_total(self, weight: typing.SupportsInt) -> bool:
        """
        True if the sum of a step's gradients is read after add_gradient(); see the header.
        """
    def load_refresh_state(self, state: torch.Tensor) -> None:
        """
        Take over what refresh_state gave.
        """
    def load_weight_state(self, weight: typing.SupportsInt, state: dict) -> None:
        """
        Take over what weight_state gave.
        """
    def prepare(
        self,
        hyper: collections.abc.Sequence[
            typing.Annotated[collections.abc.Sequence[typing.SupportsFloat], "FixedSize(6)"]
        ],
        weights: collections.abc.Sequence[torch.Tensor],
    ) -> None: ...
    def project(
        self,
        weight: typing.SupportsInt,
        side: str,
        rows: torch.Tensor,
        out: torch.Tensor,
        scratch: torch.Tensor,
        compute: Stream,
    ) -> None:
        """
        out = rows P, or rows Q with side "q"; scratch has project_scratch_elems of describe().
        """
    def refresh_state(self) -> torch.Tensor:
        """
        When each weight was measured last, as bytes.
        """
    def residual_done(self, weight: typing.SupportsInt) -> bool: ...
    def residual_trained(self, weight: typing.SupportsInt) -> bool:
        """
        Return whether a residual has changed the weight before step(); may wait for the device.
        """
    def step(
        self,
        hyper: collections.abc.Sequence[
            typing.Annotated[collections.abc.Sequence[typing.SupportsFloat], "FixedSize(6)"]
        ],
        weights: collections.abc.Sequence[torch.Tensor],
        factor: typing.SupportsFloat,
        other_sum_squares: typing.SupportsFloat,
        unscale: typing.SupportsFloat,
        own_factors: collections.abc.Sequence[typing.SupportsFloat],
        compute: Stream,
    ) -> tuple[bool, float, float, int]:
        """
        Make the step; updates come after everything that `compute` has by now.
        """
    def take_stats(self) -> dict[str, typing.Any]: ...
    def uncalibrated(self) -> int:
        """
        Number of weights whose projectors wait for their first gradient.
        """
    def wants_gradient(self, weight: typing.SupportsInt) -> bool: ...
    def weight_state(self, weight: typing.SupportsInt) -> dict[str, typing.Any]:
        """
        step, exp_avg (core-shaped), exp_avg_sq (too, or means of rows and columns), codec, low_bits, backwards, residual, residual_step: all copies.
        """
    @property
    def automatic(self) -> AutoCodec:
        """
        The choice for codec="auto", whether or not a weight has it.
        """

class TensorSpec:
    """
    A parameter that an offload engine trains.
    """
    def __init__(
        self,
        name: str,
        weight: torch.Tensor,
        compressed: bool,
        streamed: bool = False,
        resident: bool = False,
        frozen: bool = False,
        fp8: bool = False,
    ) -> None:
        """
        compressed: its gradient crosses as a core, where chunks are its own. streamed: its weight is in the store, for a forward to read; chunks must be its own. resident: it also stays on the device. frozen: it is streamed and has no states. fp8: it is frozen, and stored in 8 bits an element.
        """

class CoreOptions:
    """
    How gradients of compressed tensors cross.
    """
    def __init__(self, **kwargs) -> None:
        """
        keywords are codec, ratio, d, nnz, block, seed, wire, redraw, spill. redraw: steps between new projectors, 0 for never; spill: gradient or core, whichever waits for the update.
        """

class OffloadEngineOptions:
    """
    Where an offload engine keeps states, and how it throttles.
    """
    def __init__(
        self,
        *,
        compute: Stream,
        drives: collections.abc.Sequence[str],
        io: str,
        rate_gbps: typing.SupportsFloat = 0.0,
        drive_weights: collections.abc.Sequence[typing.SupportsInt] = [],
        overflow: bool = False,
        **kwargs,
    ) -> None:
        """
        keywords are link, limits, resident_bytes, schedule, norm_mode, max_norm, promised_backwards, lane_threads, device_cpu, lane_cpu, gradients, cores, chunk_elems, policy, redo, state_codec, seed. link: d2h GB/s, h2d GB/s, latency in us, 0 for unthrottled. limits: bytes for device, host, pinned, disk, None for no limit. drives: files or devices, none for host memory. overflow: drives are names of files for what exceeds the host tier. rate_gbps: paces each drive, in 1e9 bytes a second; 0: as fast as it is. drive_weights: how fast the drives of a new store are beside one another; none: alike. redo: a speculative step keeps its gradients, so that it can be made again.
        """

class OffloadEngine(GatedEngine):
    """
    AdamW whose states lie in a store, on drives or in memory.
    """
    def __init__(
        self, options: OffloadEngineOptions, tensors: collections.abc.Sequence[TensorSpec]
    ) -> None: ...
    def acquire_block(
        self, block: typing.SupportsInt, backward: bool, compute: Stream
    ) -> list[torch.Tensor]:
        """
        The block's weights on the device, until release_block().
        """
    def add_gradient(
        self, tensor: typing.SupportsInt, gradient: torch.Tensor, compute: Stream
    ) -> None:
        """
        A whole gradient as one row; its storage is kept until it has left the device.
        """
    def begin(
        self,
        weights: collections.abc.Sequence[torch.Tensor],
        compute: Stream,
        streamed: collections.abc.Callable[[typing.SupportsInt], torch.Tensor] | None,
    ) -> None:
        """
        Zero moments, and masters that are the weights: step 0. streamed(number) gives the weight of a streamed tensor on the host; of these, `weights` may be empty.
        """
    def commit(self) -> None: ...
    def describe(self, tensor: typing.SupportsInt) -> dict[str, typing.Any]: ...
    def end_backward(self, norm: bool) -> tuple[float, bool]:
        """
        norm: of a sum of several backwards, which are read for it.
        """
    def expect(
        self,
        hyper: collections.abc.Sequence[
            typing.Annotated[collections.abc.Sequence[typing.SupportsFloat], "FixedSize(5)"]
        ],
        factor: typing.SupportsFloat,
    ) -> None:
        """
        With what the next step will be made, where the policy is speculative.
        """
    def leave_uncommitted(self) -> None:
        """
        From now on close() leaves the store at its last commit.
        """
    def load_tensor_state(
        self,
        tensor: typing.SupportsInt,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
        master: torch.Tensor,
        step: typing.SupportsInt,
    ) -> None:
        """
        Take over what tensor_state gave; the next commit makes it durable.
        """
    def pin(self) -> int:
        """
        Commit, for good until the next pin.
        """
    def read_tensor_state(
        self,
        tensor: typing.SupportsInt,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
        master: torch.Tensor,
    ) -> None:
        """
        Fill float32 tensors as tensor_state does.
        """
    def read_weight(self, tensor: typing.SupportsInt) -> torch.Tensor:
        """
        A copy of a streamed weight after the last step, in host memory.
        """
    def release_block(self, block: typing.SupportsInt, backward: bool, compute: Stream) -> None: ...
    def resume(self, weights: collections.abc.Sequence[torch.Tensor], compute: Stream) -> None:
        """
        The weights become what the masters of the last commit say.
        """
    def roll_back(self, generation: typing.SupportsInt) -> None: ...
    def run_state(self) -> bytes: ...
    def set_run_state(self, state: str) -> None: ...
    def step(
        self,
        hyper: collections.abc.Sequence[
            typing.Annotated[collections.abc.Sequence[typing.SupportsFloat], "FixedSize(5)"]
        ],
        weights: collections.abc.Sequence[torch.Tensor],
        factor: typing.SupportsFloat,
        other_sum_squares: typing.SupportsFloat,
        own_factors: collections.abc.Sequence[typing.SupportsFloat],
        norm: bool,
        compute: Stream,
    ) -> tuple[bool, float, float]:
        """
        Updates come after all that `compute` was given by now.
        """
    def stream(
        self,
        blocks: collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt]],
        ahead: typing.SupportsInt,
    ) -> None:
        """
        Once, after begin() or resume(): blocks are lists of streamed tensors.
        """
    def take_stats(self) -> dict[str, typing.Any]: ...
    def tensor_state(self, tensor: typing.SupportsInt) -> dict[str, typing.Any]:
        """
        step, exp_avg, exp_avg_sq, master: all copies, the last three float32.
        """
    def tensor_steps(self, tensor: typing.SupportsInt) -> int: ...
    @property
    def drives(self) -> list:
        """
        path, backend, direct and note of each.
        """
    @property
    def generations(self) -> list[tuple[int, int]]:
        """
        Generation and step of the last commit, and of a pinned one.
        """
    @property
    def is_new(self) -> bool: ...
    @property
    def store_id(self) -> str: ...

class ZoArena:
    """
    The base of a zeroth-order run in a store: weights that a step only reads.
    """
    @staticmethod
    def create(
        weights: collections.abc.Sequence[tuple[str, torch.Tensor, typing.SupportsInt]],
        tensor_of: collections.abc.Callable,
        *,
        drives: collections.abc.Sequence[str],
        io: str,
        rate_gbps: typing.SupportsFloat,
        chunk_bytes: typing.SupportsInt,
        threads: typing.SupportsInt,
        limits: typing.Annotated[
            collections.abc.Sequence[typing.SupportsInt | None], "FixedSize(4)"
        ],
        progress: typing.Any = None,
        drive_weights: collections.abc.Sequence[typing.SupportsInt] = [],
    ) -> ZoArena:
        """
        Make a base from the tensor that `tensor_of` returns for the number of a weight, called when the weight before was copied. progress: called with bytes done and in all. drive_weights: how fast the drives are beside one another; none: alike.
        """
    @staticmethod
    def open(
        weights: collections.abc.Sequence[tuple[str, torch.Tensor, typing.SupportsInt]],
        *,
        drives: collections.abc.Sequence[str],
        io: str,
        rate_gbps: typing.SupportsFloat,
        chunk_bytes: typing.SupportsInt,
        threads: typing.SupportsInt,
        limits: typing.Annotated[
            collections.abc.Sequence[typing.SupportsInt | None], "FixedSize(4)"
        ],
    ) -> ZoArena | None:
        """
        Each weight is name, a tensor like it, parameter group. drives: files or devices, none for host memory. rate_gbps: paces each drive, in 1e9 bytes a second; 0: as fast as it is. None: there is no base yet.
        """
    def read(self, weight: typing.SupportsInt) -> torch.Tensor:
        """
        Read the base of a weight as bytes.
        """
    @property
    def base(self) -> tuple[str, int, int, str]:
        """
        Hash, generation and step of the base, and the id of its log.
        """
    @property
    def drives(self) -> list:
        """
        path, backend, direct and note of each.
        """
    @property
    def peak_bytes(self) -> dict[str, typing.Any]: ...
    @property
    def run_state(self) -> bytes:
        """
        The bytes that the base carries.
        """
    @property
    def written_bytes(self) -> int:
        """
        Bytes that this process has written.
        """

class ZoSnapshot:
    """
    The masters at one step, for another thread to read while steps go on. Weights are given by their number in hold().
    """
    def close(self) -> None:
        """
        End the reading of all weights.
        """
    def let_go(self, weight: typing.SupportsInt) -> None:
        """
        End the reading of a weight. An error says that others may have written to it.
        """
    def wait(self, weight: typing.SupportsInt) -> None:
        """
        Wait until its master is of the step; it stays so until let_go().
        """
    @property
    def step(self) -> int: ...

class ZoEngine:
    """
    Streams perturbed weights from host memory or an arena.
    """
    def __init__(
        self,
        *,
        compute: Stream,
        mode: str,
        trained: collections.abc.Sequence[tuple[str, torch.Tensor, typing.SupportsInt]] = [],
        base_hash: bytes = b"",
        arena: ZoArena = None,
        **kwargs,
    ) -> None:
        """
        Mode log, which logs what moves the weights: keywords are link, limits, resident_bytes, resident_room, perturb_lanes, device_cpu, lane_cpu, eps, family, seed, groups, directions, depth, rank, period, log. Mode write_back, which writes each step into them: keywords are link, limits, resident_bytes, resident_room, perturb_lanes, device_cpu, lane_cpu, eps, family, seed, groups, directions, wire, depth, threads. link: d2h GB/s, h2d GB/s, latency in us, 0 for unthrottled. limits: bytes for device, host, pinned, disk, None for no limit. resident_room: bytes of weights that may stay on the device. depth: modules on their way. log: a file, made if it is not there. rank: of noise, 0 for elementwise. period: steps for which V is kept. trained: name, tensor and parameter group of each weight, if the noise has a rank. base_hash: 16 bytes, of a base in host memory. arena: the base. threads: how many write steps in host memory. wire: type in which float32 masters cross the link, or fp8, for images of them; empty: as they are.
        """
    def acquire(
        self, use: typing.SupportsInt, round: typing.SupportsInt, minus: bool, compute: Stream
    ) -> torch.Tensor:
        """
        The slot itself, as a tensor: its elements last until release(). Of an evaluation both sides are theta.
        """
    def begin_evaluation(self) -> None: ...
    def begin_snapshot(self) -> ZoSnapshot:
        """
        Begin a snapshot of next_step, which the passes complete; one at a time.
        """
    def begin_step(self, directions: collections.abc.Sequence[typing.SupportsInt] = []) -> None:
        """
        Round k of the pass measures directions[k]; without a list all of them.
        """
    def branch(self, step: typing.SupportsInt, path: str) -> None:
        """
        Write the line up to `step` to a log of its own.
        """
    def commit(
        self,
        g: collections.abc.Sequence[typing.SupportsFloat],
        rates: collections.abc.Sequence[tuple[typing.SupportsFloat, typing.SupportsFloat]],
        non_finite: bool = False,
    ) -> None:
        """
        Make the step, one (lr, weight_decay) a group, and end the pass.
        """
    def consolidate(
        self, step: typing.SupportsInt, run_state: bytes, progress: typing.Any = None
    ) -> None:
        """
        Make theta of a step the base, which carries the bytes of a run; between passes. progress: called with bytes done and in all.
        """
    def drop_snapshot(self) -> None:
        """
        Drop the last snapshot, which nobody reads any more.
        """
    def finish(self) -> None:
        """
        End the pass, if there is one; a step that was not committed is as if it had not begun.
        """
    def finish_snapshot(self, seconds: typing.SupportsFloat | None = None) -> bool:
        """
        Wait at most `seconds` until it was read; return True if it was. Needs no further pass.
        """
    def flush(self) -> None:
        """
        Bring masters to next_step; nothing moves until the next pass begins.
        """
    def hold(
        self,
        weights: collections.abc.Sequence[
            tuple[str, torch.Tensor, typing.SupportsInt, torch.Tensor]
        ],
    ) -> None:
        """
        Take all trained weights, once: name, master in host memory, parameter group, and a tensor of the shape and type that a forward reads.
        """
    def low_rank_neighbours(
        self,
        weight: str,
        direction: typing.SupportsInt,
        base: torch.Tensor,
        plus: torch.Tensor,
        minus: torch.Tensor,
        compute: Stream,
    ) -> None:
        """
        Write theta + eps z and theta - eps z of the step that has begun.
        """
    def low_rank_theta(
        self, weight: str, base: torch.Tensor, out: torch.Tensor, compute: Stream
    ) -> None:
        """
        Write theta of a weight with low-rank noise, by its name.
        """
    def pending(self, group: typing.SupportsInt) -> tuple[list[tuple[int, int, int, float]], float]:
        """
        Return (seed, step, purpose, scale) of each update of the base, and Gamma.
        """
    def release(
        self, use: typing.SupportsInt, round: typing.SupportsInt, compute: Stream
    ) -> None: ...
    def restart(self, step: typing.SupportsInt) -> None:
        """
        Declare that masters are of this step.
        """
    def restore(self, entries: typing.SupportsInt) -> None:
        """
        Return to the line that the log had after a number of entries.
        """
    def rollback(self, step: typing.SupportsInt) -> None: ...
    @typing.overload
    def stream(
        self,
        uses: collections.abc.Sequence[
            tuple[
                str, torch.Tensor, typing.SupportsInt, typing.SupportsInt, bool, typing.SupportsInt
            ]
        ],
    ) -> None:
        """
        Mode log. Each is name, host tensor, parameter group, number of the module, whether it stays on the device, number in the arena or -1; in the order of the forward. Names of one storage are one weight. Of a weight of the arena the tensor says shape and type.
        """
    @typing.overload
    def stream(
        self, uses: collections.abc.Sequence[tuple[typing.SupportsInt, typing.SupportsInt, bool]]
    ) -> None:
        """
        Mode write_back. Each is the number of a weight that is held, number of the module, and whether it stays on the device; in the order of the forward.
        """
    def sync(self) -> None: ...
    def take_stats(self) -> dict[str, typing.Any]: ...
    @property
    def entries(self) -> int: ...
    @property
    def gammas(self) -> list[float]: ...
    @property
    def is_passing(self) -> bool: ...
    @property
    def log_id(self) -> str: ...
    @property
    def next_step(self) -> int: ...
    @property
    def streams(self) -> bool: ...
    @property
    def trace(self) -> Trace:
        """
        The trace of all rings, also of those before a new base.
        """

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
    compute: Stream,
) -> None:
    """
    One AdamW step in place; float32 weights plainly, bfloat16 ones with stochastic rounding keyed by (seed, step, name).
    """

def auto_codec(
    weights: collections.abc.Sequence[tuple[tuple[typing.SupportsInt, typing.SupportsInt], dict]],
    free: collections.abc.Mapping[str, typing.SupportsInt],
    weight_dtype: str,
    tokens_per_step: typing.SupportsInt,
    total_steps: typing.SupportsInt,
    backwards: typing.SupportsInt,
    refresh_every: typing.SupportsInt,
    residual_every: typing.SupportsInt,
    speculative: bool,
    on_host: bool,
) -> AutoCodec:
    """
    What codec="auto" is for weights of these shapes and keywords, those of WeightSpec, in a run of so many steps, each of so many tokens in so many backwards; free: bytes of each tier, one that is missing has enough; refresh_every: steps between two fits, 0 for one; residual_every: between two residuals of a weight; speculative: moments are kept twice.
    """

def bits_checksum(tensor: torch.Tensor) -> int:
    """
    XXH3, 64 bits, of a tensor's elements: who changes one without telling autograd is seen.
    """

def choose_resident(
    bytes: collections.abc.Sequence[typing.SupportsInt], room: typing.SupportsInt
) -> list[bool]:
    """
    Which of some weights stay on the device: as many bytes as fit, spread evenly.
    """

def codec_families() -> list[CodecFamily]:
    """
    All codecs, in the order in which errors name them; "auto" is none.
    """

def create_store(
    paths: collections.abc.Sequence[str],
    regions: collections.abc.Sequence[
        tuple[str, typing.SupportsInt, typing.SupportsInt, typing.SupportsInt]
    ],
    *,
    catalogue: bytes = b"",
    weights: collections.abc.Sequence[typing.SupportsInt] = [],
    run_state_bytes: typing.SupportsInt = 1048576,
    io: str = "auto",
    whole_device: bool = False,
    progress: typing.Any = None,
) -> ChunkStore:
    """
    Make a store on new files, or on whole devices, and open it.

    regions: kind (state, gradient, weights or log), bytes of a chunk, chunks, slots. weights: how fast the drives are beside one another; none: alike. progress: told bytes done and in all. After an error, and after Ctrl-C, its files are gone again.
    """

def cuda_device_count() -> int:
    """
    CUDA devices that this build can use; 0 in a build without CUDA.
    """

def decompress_seconds(
    cores: CoreOptions, m: typing.SupportsInt, n: typing.SupportsInt, gradients: str
) -> float:
    """
    Measured on this machine: host seconds of one element of an m x n gradient.
    """

def draw_noise(
    out: torch.Tensor,
    family: str,
    seed: typing.SupportsInt,
    step: typing.SupportsInt,
    tensor: typing.SupportsInt,
    purpose: typing.SupportsInt,
    first: typing.SupportsInt = 0,
    compute: Stream | None = None,
) -> None:
    """
    Fill a float32 tensor with elements `first` and on of the noise of a key.
    """

def drive_properties(path: str, io: str = "auto", writable: bool = False) -> dict:
    """
    backend, direct, block_device, alignments and note of a file or device that is opened to read, or to write: a device that holds anything is then refused. Nothing is written.
    """

def drive_rates(
    path: str,
    mixes: collections.abc.Sequence[str],
    *,
    io: str = "auto",
    block_bytes: typing.SupportsInt = 4194304,
    blocks: typing.SupportsInt = 64,
    depth: typing.SupportsInt = 32,
    seconds: typing.SupportsFloat = 1.0,
    whole_device: bool = False,
) -> dict:
    """
    Overwrite the first blocks of a file, or of a whole device that holds nothing, then measure each mix: read, write or both.

    Each takes `seconds`, and so long as what is in flight then. What drive_properties() says, memory_bytes, huge_bytes of it, and rates: mix, bytes, seconds, processor_seconds.
    """

def fetch_footprint(
    tensors: collections.abc.Sequence[TensorSpec],
    blocks: collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt]],
    ahead: typing.SupportsInt,
    chunk_elems: typing.SupportsInt,
    state_codec: str,
) -> dict[str, int]:
    """
    Bytes on the device, and of page-locked memory, that an engine's stream() takes; bytes that it fetches for a forward and its backward, and for the forward alone; host memory that keeps weights for speculative updates, and the bytes that these need not read then.
    """

def flush_denormals(on: bool) -> bool:
    """
    Let this thread and torch's own take numbers below 2^-126 for 0, or not; returns whether this thread did. Threads that are made later start with it.
    """

def materialise(
    w: torch.Tensor,
    out: torch.Tensor,
    pending: collections.abc.Sequence[
        tuple[
            typing.SupportsInt,
            typing.SupportsInt,
            typing.SupportsInt,
            typing.SupportsInt,
            typing.SupportsFloat,
        ]
    ],
    gamma: typing.SupportsFloat,
    family: str,
    first: typing.SupportsInt = 0,
    stochastic: tuple[
        typing.SupportsInt, typing.SupportsInt, typing.SupportsInt, typing.SupportsInt
    ]
    | None = None,
    compute: Stream | None = None,
) -> None:
    """
    Write theta, rounded to nearest, or to bfloat16 with the random bits of the key (seed, step, tensor, purpose) that `stochastic` is.
    """

def materialise_low_rank(
    w: torch.Tensor,
    out: torch.Tensor,
    pending: tuple[torch.Tensor, torch.Tensor] | None,
    gamma: typing.SupportsFloat,
    first: typing.SupportsInt = 0,
    stochastic: tuple[
        typing.SupportsInt, typing.SupportsInt, typing.SupportsInt, typing.SupportsInt
    ]
    | None = None,
    compute: Stream | None = None,
) -> None:
    """
    Write theta, rounded to nearest, or to bfloat16 with the random bits of the key (seed, step, tensor, purpose) that `stochastic` is; w begins at element `first` of it.
    """

def now_us() -> float:
    """
    Microseconds of the trace's clock.
    """

def offload_footprint(
    tensors: collections.abc.Sequence[TensorSpec],
    gradients: str,
    chunk_elems: typing.SupportsInt,
    micro_batches: typing.SupportsInt,
    slots: typing.SupportsInt,
    in_place_limit: typing.SupportsInt | None,
    pinned_limit: typing.SupportsInt | None,
    cores: CoreOptions,
    policy: str,
    on_card: bool,
    state_codec: str,
    park_room: typing.SupportsInt,
) -> dict[str, float]:
    """
    Bytes per tier of an engine for these tensors, the elements of each of its streams, and what of both is of gradients that cross compressed, without making anything; slots: copies of every state, 2, 3 with a pin, or 1 where states in host memory change in place; in_place_limit: bytes of the host tier for these, the rest on drives; on_card: the device is a CUDA device; park_room: host bytes that are left for weights that wait for the decision of a speculative step.
    """

def open_store(
    paths: collections.abc.Sequence[str],
    *,
    writable: bool = False,
    io: str = "auto",
    whole_device: bool = False,
) -> ChunkStore:
    """
    Open the last commit. Several may read a store at a time, or one may write it.
    """

def page_lock_refusal(ordinal: typing.SupportsInt, bytes: typing.SupportsInt) -> str:
    """
    What keeps so many bytes of host memory from being page-locked for a CUDA device; empty: nothing does.
    """

def page_locked_copy(tensor: torch.Tensor, compute: Stream) -> torch.Tensor:
    """
    Copy a tensor to host memory of exactly its size, page-locked for the stream's device.
    """

def perturb(
    w: torch.Tensor,
    plus: torch.Tensor,
    minus: torch.Tensor,
    pending: collections.abc.Sequence[
        tuple[
            typing.SupportsInt,
            typing.SupportsInt,
            typing.SupportsInt,
            typing.SupportsInt,
            typing.SupportsFloat,
        ]
    ],
    gamma: typing.SupportsFloat,
    eps: typing.SupportsFloat,
    family: str,
    seed: typing.SupportsInt,
    step: typing.SupportsInt,
    tensor: typing.SupportsInt,
    purpose: typing.SupportsInt,
    first: typing.SupportsInt = 0,
    compute: Stream | None = None,
) -> None:
    """
    Write theta + eps z and theta - eps z, where theta is gamma (w + the pending updates), each of them (seed, step, tensor, purpose, scale).
    """

def perturb_low_rank(
    w: torch.Tensor,
    plus: torch.Tensor,
    minus: torch.Tensor,
    pending: tuple[torch.Tensor, torch.Tensor] | None,
    gamma: typing.SupportsFloat,
    eps: typing.SupportsFloat,
    direction: tuple[torch.Tensor, torch.Tensor] | None,
    compute: Stream | None = None,
) -> None:
    """
    Write theta + eps z and theta - eps z, where theta is gamma (w + L^T R of `pending`) and z is L^T R of `direction`, each of them a left factor k x m and a right one k x n, or None.
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

def shared_device_bytes(
    shapes: collections.abc.Sequence[tuple[typing.SupportsInt, typing.SupportsInt]],
    weight_dtype: str,
    refreshed: bool,
    on_host: bool,
    **kwargs,
) -> int:
    """
    Device bytes that weights of these shapes share, whether or not their projectors are replaced on the way; more keywords as of WeightSpec.
    """

def shared_pinned_bytes(weights: typing.SupportsInt, on_host: bool) -> int:
    """
    Pinned bytes that so many weights share: what scans of their gradients arrive in.
    """

def stable_hash(name: str) -> int:
    """
    64 bits of a name, equal on every machine: the `tensor` of a key of noise.
    """

def warn(text: str) -> None:
    """
    Say a sentence as a lane of the runtime does: a RuntimeWarning on the main thread.
    """

def weight_plan(
    m: typing.SupportsInt,
    n: typing.SupportsInt,
    weight_dtype: str,
    speculative: bool,
    on_host: bool,
    **kwargs,
) -> dict[str, int]:
    """
    Bytes per tier and per step of one m x n weight, without allocating anything; on_host: on the host device, not a CUDA device. More keywords as of WeightSpec.
    """

def zo_arena_plan(
    weights: collections.abc.Sequence[tuple[str, typing.SupportsInt, str]],
    chunk_bytes: typing.SupportsInt,
) -> dict[str, int]:
    """
    Bytes of a base of (name, elements, dtype), of its store with room for the next one, of the store's tables, of the buffers in which a new base is made, and of the largest weight.
    """

def zo_log_directions(path: str) -> int:
    """
    Number of directions of each step of an existing log.
    """

def zo_ring_plan(
    uses: collections.abc.Sequence[tuple[typing.SupportsInt, typing.SupportsInt, bool]],
    depth: typing.SupportsInt,
    reads: bool,
    dtype: str,
    held: str,
    wire: str = "",
    goes_back: bool = False,
) -> tuple[dict[str, int], str]:
    """
    Bytes of the ring that (bytes, number of the module, streamed) of a forward's uses need: on the device, of staging, arriving in a pass, and read in it, where weights are read; and a line that says so. dtype: of a copy; held: type of the weights themselves; wire: that in which they cross, or fp8, for images of them, empty: as they are; goes_back: they go back to host memory.
    """
