"""Options of OffloadAdamW, and the engine that they describe."""

from __future__ import annotations

import warnings
from typing import Any, Self

import torch
from pydantic import model_validator
from torch import nn

from sluiceway import _core
from sluiceway.config.engines.offload import OffloadOptions, refuse_resident
from sluiceway.config.fields import SmallCount
from sluiceway.config.options import option
from sluiceway.config.shared_options import SharedOptions
from sluiceway.config.values import Budget, StoreOptions
from sluiceway.errors import InvalidArgument, OutOfMemory
from sluiceway.machine.processor import available_bytes
from sluiceway.machine.striping import weights_of_new
from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.common.tier_limits import lane_threads, parameter_bytes, tier_limits
from sluiceway.optim.offload.cores import core_options, tensor_specs
from sluiceway.optim.offload.spill_choice import (
    ORDINARY,
    Rates,
    SpillChoice,
    choose_spill,
    no_room_for_cores,
)
from sluiceway.store.drives import drive_warnings
from sluiceway.store.folder import drives_for

_CHUNK_STEP = 8192  # In bytes, so that a chunk's 16-bit gradients fill whole blocks.
_SHARE_OF_FREE = 0.7  # Of the host's free memory.
_MASTER_BYTES = 4  # Bytes per element of the streams that `chunk` counts.
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class OffloadArguments(SharedOptions, OffloadOptions, StoreOptions):
    """Options that OffloadAdamW takes by name."""

    micro_batches: SmallCount = option(
        1,
        "Parts of a batch. All of them pass through a block, one after the other, before the next "
        "block: one backward then fetches streamed weights as often as with one part, and only one "
        "part at a time has activations inside of a block. The first dimension of what a block "
        "gets is the batch. Needs weights streamed, or activations that leave the device.",
    )
    # After several backwards the norm is read back for code that reads `.grad`; a run has no such
    # code.
    exact_norm: bool = option(True, "", alias="_exact_norm")
    # Whether a speculative step without max_norm keeps its gradients, since other code may scale
    # them, or change the learning rate after the backward.
    redo: bool = option(True, "", alias="_redo", to=["engine"])
    rates: Rates = option(ORDINARY, "", alias="_rates")  # The rates that decide `spill`.

    @model_validator(mode="after")
    def _repeats_blocks(self) -> Self:
        if self.micro_batches > 1:
            refuse_resident(self, f"micro_batches is {self.micro_batches}")
        return self

    @model_validator(mode="after")
    def _device_has_no_room(self) -> Self:
        if self.activations == "disk" and self.io == "block":
            raise ValueError(
                "activations is disk, but io is block, and a whole device has room for the store "
                "alone; take activations host, or a folder"
            )
        return self


def resolve_gradients(choice: str, model: nn.Module, autocast: torch.dtype | None = None) -> str:
    """Resolve gradients="auto" to the 16-bit type that the model computes in, or to fp32.

    Parameters
    ----------
    choice : str
        The option `gradients`.
    model : torch.nn.Module
        Its first trained parameter of 16 bits decides, if it has one.
    autocast : torch.dtype, optional
        The type that the model computes in, if known.
    """
    if choice != "auto":
        return choice
    trained = (p.dtype for p in model.parameters() if p.requires_grad and p.dtype in _NAMES)
    narrow = [dtype for dtype in trained if dtype.itemsize == 2]
    return _NAMES[narrow[0] if narrow else autocast or torch.float32]


def resolve_policy(options: OffloadOptions) -> str:
    """Resolve policy="auto"."""
    return "spill" if options.policy == "auto" else options.policy


def _check_gradients(owner: str, weights: list[CompressedWeight], gradients: str) -> None:
    """Refuse trained 16-bit weights of a type other than `gradients`, one type for all."""
    dtypes = {w.name: w.parameter.dtype for w in weights if w.parameter.requires_grad}
    narrow = {name: _NAMES[dtype] for name, dtype in dtypes.items() if dtype.itemsize == 2}
    if len(set(narrow.values())) > 1:
        raise InvalidArgument(
            f"{owner}: weights are bf16 and fp16, expected one 16-bit type, with or without fp32; "
            "cast them to one"
        )
    for name, kind in narrow.items():
        if kind != gradients:
            raise InvalidArgument(
                f"{owner}: {name} is {kind} and needs {kind} gradients, but these are kept as "
                f"{gradients}; set gradients={kind!r}"
            )


def chunk_elements(owner: str, chunk: int) -> int:
    """Return the number of elements in a chunk of `chunk` bytes."""
    if chunk <= 0 or chunk % _CHUNK_STEP:
        raise InvalidArgument(
            f"{owner}: chunk is {chunk} bytes, expected a multiple of {_CHUNK_STEP}"
        )
    return chunk // _MASTER_BYTES


def offload_limits(tier: str, budget: Budget | None) -> list[int | None]:
    """Return `tier_limits`; without a budget, tier auto takes no more than is free on the host."""
    device, host, pinned, disk = tier_limits(budget)
    if tier == "auto" and (budget is None or budget.host is None):
        host = min(host, int(_SHARE_OF_FREE * available_bytes()))
    return [device, host, pinned, disk]


def open_engine(
    owner: str,
    model: nn.Module,
    weights: list[CompressedWeight],
    options: OffloadArguments,
    compute: _core.Stream,
) -> tuple[_core.OffloadEngine, SpillChoice]:
    """Build the engine that the options describe, and open its store or create it.

    The engine uses the device of `compute`. Returns the engine, and the resolved option `spill`.

    Raises
    ------
    InvalidArgument, IoError, OutOfMemory, Corrupt, Unavailable
        The call made nothing.
    """
    link, pin = options.link, options.pin or (-1, -1)
    gradients = resolve_gradients(options.gradients, model)
    _check_gradients(owner, weights, gradients)
    choice = choose_spill(options, gradients, link, options.rates)
    keywords: dict[str, Any] = {
        **options.keywords_for("engine"),
        "compute": compute,
        "link": (link.d2h_gbps, link.h2d_gbps, link.latency_us) if link else (0.0, 0.0, 0.0),
        "limits": offload_limits(options.tier, options.budget),
        "resident_bytes": parameter_bytes(model, [w.parameter for w in weights if w.away]),
        "max_norm": options.max_norm or 0.0,
        "promised_backwards": 0 if options.accumulate == "auto" else options.accumulate,
        "io": options.io,
        "rate_gbps": options.rate_gbps or 0.0,
        "gradients": gradients,
        "chunk_elems": chunk_elements(owner, options.chunk),
        "policy": resolve_policy(options),
        "seed": options.seed,
        "device_cpu": pin[0],
        "lane_cpu": pin[1],
        "lane_threads": lane_threads(options.lane_threads, compute, options.pin is not None),
        "overflow": options.tier == "auto",
    }
    specs = tensor_specs(weights)
    with drives_for(owner, options.tier, options.paths, options.io) as drives:
        keywords["drive_weights"] = weights_of_new(owner, drives, options.io)

        def made(spill: str) -> _core.OffloadEngine:
            cores = core_options(options, options.seed, spill)
            said = _core.OffloadEngineOptions(drives=drives, cores=cores, **keywords)
            return _core.OffloadEngine(said, specs)

        try:
            engine = made(choice.spill)
        except OutOfMemory:
            if options.spill != "auto" or choice.spill == "gradient":
                raise
            choice = no_room_for_cores()
            engine = made(choice.spill)
    drives = [drive for drive in engine.drives if drive["backend"] != "memory"]
    for line in drive_warnings({"drives": drives}) if drives else []:
        warnings.warn(f"{owner}: {line}", RuntimeWarning, stacklevel=2)
    return engine, choice
