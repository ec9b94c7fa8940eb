"""Rates for the prediction of step times, from the config or measured on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sluiceway.config.schema import Config
from sluiceway.config.values import Link
from sluiceway.errors import InvalidArgument, IoError
from sluiceway.machine.placement import DTYPES, Placement, is_here
from sluiceway.machine.roofs import best_seconds_on, link_seconds
from sluiceway.machine.striping import rates_of_disks, striped_rate, striping_weights
from sluiceway.model.rehearsal import rehearse

_MEASURED_WEIGHTS = 1 << 24  # A larger layer takes the time of its matrix products.
_MEASURED_TOKENS = 1024
_MEASURED_LINK_BYTES = 64 << 20
_PRODUCT = {
    "cpu": (1024, 512, 512),
    "cuda": (8192, 4096, 4096),
}  # Rows, inner and columns of the product that is timed if no layer is.
_HOST = torch.device("cpu")
# Microseconds of the thread that launches, for an operation that computes, and for the gradient of
# a weight that an engine takes: on an H200, which they did not fill, 169 ms for a forward and
# backward of 18,015 operations, and 70 ms more with 168 weights (experiments/gpu/README.md).
LAUNCHING = {"launch_us": 9.4, "hook_us": 417.0}


def measure_speeds(
    config: Config,
    placement: Placement,
    build: Callable[[int | None], nn.Module],
    disk: bool = False,
) -> dict[str, Any]:
    """Measure rates of compute, device memory, host memory and link, or take the config's.

    Parameters
    ----------
    build : callable
        Makes the run's model with the given number of layers, or with all of them for None.
    disk : bool
        Include the disk, because a step reads or writes one.

    Returns
    -------
    dict
        `tflops`, `memory_gbps`, `host_gbps`, `d2h_gbps`, `h2d_gbps` in 1e12 operations and 1e9
        bytes a second; with a disk `disk_gbps`, None if it cannot be measured. `*_from` says where
        a rate comes from. The link rates are the machine's, without the config's throttle. With a
        card `launch_us` and `hook_us`, microseconds for an operation, and for a weight's gradient.
    """
    device = config.device
    host = device.host_gbps or _measured_gbps(_HOST)
    card = placement.device if placement.name != "host" and is_here(placement.name) else None
    return {
        **_tflops(config, placement, card or _HOST, build),
        "memory_gbps": device.memory_gbps or (host if card is None else _measured_gbps(card)),
        "host_gbps": host,
        "host_gbps_from": "config" if device.host_gbps else "copies measured here",
        **(_link_speed(card) if card else {"d2h_gbps": host, "h2d_gbps": host}),
        **(LAUNCHING if placement.name != "host" else {}),
        **(disk_speed(config) if disk else {}),
    }


def _link_speed(card: torch.device) -> dict[str, Any]:
    seconds = link_seconds(_MEASURED_LINK_BYTES, card)
    rates = {f"{way}_gbps": _MEASURED_LINK_BYTES / s / 1e9 for way, s in seconds.items()}
    return {**rates, "link_gbps_from": "page-locked copies measured here"}


def link_of(config: Config, speeds: dict[str, Any]) -> Link:
    """Return the machine's link, throttled if the config says so."""
    ways = ("d2h_gbps", "h2d_gbps")
    asked = config.device.link
    if asked is None:
        return Link(**{way: speeds[way] for way in ways})
    if "link_gbps_from" not in speeds:  # Host device: the throttle stands for a card's link.
        return asked
    slower = {way: min(getattr(asked, way), speeds[way]) for way in ways}
    return Link(**slower, latency_us=asked.latency_us)


def disk_speed(config: Config) -> dict[str, Any]:
    """Return `disk_gbps`, for simultaneous reads and writes at the store's place, and its source.

    For several drives it is the combined rate of drives striped by their measured rates. It is at
    most the config's pace for them.
    """
    found, store = _unpaced_disk_speed(config), config.store
    pace = math.inf if store.rate_gbps is None else store.rate_gbps * max(1, len(store.paths))
    if (found["disk_gbps"] or math.inf) <= pace:
        return found
    return {"disk_gbps": pace, "disk_gbps_from": "store.rate_gbps"}


def _unpaced_disk_speed(config: Config) -> dict[str, Any]:
    if config.device.disk_gbps:
        return {"disk_gbps": config.device.disk_gbps, "disk_gbps_from": "config"}
    if config.store.io == "block":
        return {"disk_gbps": None, "disk_gbps_from": "whole devices are not measured"}
    folders = [_nearest_folder(Path(path)) for path in config.store.paths or ["."]]
    try:
        rates = rates_of_disks(folders, config.store.io)
    except IoError as error:
        return {"disk_gbps": None, "disk_gbps_from": str(error)}
    together = striped_rate(rates, striping_weights(rates))
    where = " and ".join(dict.fromkeys(map(str, folders)))
    return {"disk_gbps": together, "disk_gbps_from": f"measured in {where}"}


def _nearest_folder(path: Path) -> Path:
    """Return the path, or its nearest ancestor, that is an existing folder."""
    path = path.absolute()
    return next(p for p in (path, *path.parents) if p.is_dir())


def _tflops(
    config: Config,
    placement: Placement,
    where: torch.device,
    build: Callable[[int | None], nn.Module],
) -> dict[str, Any]:
    """Rate of a whole forward and backward, in which a small model spends little on products."""
    if config.device.tflops:
        return {"tflops": config.device.tflops, "tflops_from": "config"}
    threads = torch.get_num_threads()
    try:
        if placement.device_cpu is not None:
            torch.set_num_threads(1)  # Like the run, which has one core for torch.
        if (measured := _one_layer_tflops(config, placement, where, build)) is not None:
            return {"tflops": measured, "tflops_from": "one layer, forward and backward, here"}
        dtype = placement.autocast_dtype or DTYPES[config.model.dtype]
        rows, inner, cols = _PRODUCT[where.type]
        a = torch.ones(rows, inner, dtype=dtype, device=where)
        b = torch.ones(inner, cols, dtype=dtype, device=where)
        rate = 2 * rows * inner * cols / best_seconds_on(where, lambda: a @ b) / 1e12
        return {"tflops": rate, "tflops_from": "matrix products measured here"}
    finally:
        torch.set_num_threads(threads)


def _one_layer_tflops(
    config: Config,
    placement: Placement,
    where: torch.device,
    build: Callable[[int | None], nn.Module],
) -> float | None:
    """Rate of the model with one layer, on at most _MEASURED_TOKENS tokens; None if unmeasured.

    It is not measured if that model is large, or if the model cannot have one layer alone.
    """
    try:
        with torch.device("meta"):
            weights = sum(p.numel() for p in build(1).parameters())
    except InvalidArgument:  # This kind of model cannot have one layer alone.
        return None
    if weights > _MEASURED_WEIGHTS:
        return None
    length = min(config.data.sequence_length, _MEASURED_TOKENS)
    batch = min(config.train.micro_batch, max(1, _MEASURED_TOKENS // length))
    work = rehearse(lambda: build(1), set(), batch, length, placement.autocast_dtype)
    model = build(1).train().to(where)
    words = model.get_input_embeddings().num_embeddings
    ids = torch.randint(words, (batch, length), device=where)

    def step() -> None:
        with placement.cast():
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()

    return (work.forward_flops + work.backward_flops) / best_seconds_on(where, step) / 1e12


def _measured_gbps(where: torch.device) -> float:
    source = torch.ones((16 << 20) if where.type == "cpu" else (64 << 20), device=where)
    target = torch.empty_like(source)
    return 2 * source.nbytes / best_seconds_on(where, lambda: target.copy_(source)) / 1e9
