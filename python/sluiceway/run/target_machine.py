"""The machine that a plan is for: this one, or another one by its card, memory and drive."""

from __future__ import annotations

import errno
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluiceway.base.sizes import format_bytes
from sluiceway.errors import IoError
from sluiceway.machine.card import card_memory
from sluiceway.machine.catalogue import Card, card_of, card_with, drive_names, drive_of
from sluiceway.machine.device_ops import ops_on
from sluiceway.machine.processor import total_bytes
from sluiceway.model.speeds import LAUNCHING
from sluiceway.optim.common.tier_limits import device_limit

_CONTEXT_BYTES = 1 << 30  # Of a card for CUDA's context, 0.83 GiB on an H200, and a screen.
_SYSTEM_BYTES = 5 << 30  # Of memory for the system, and for a process that has loaded torch.
_MEMORY_ELSEWHERE = 32 << 30
_DRIVE_ELSEWHERE = "gen4"
_NO_DISK = "none"


@dataclass(frozen=True)
class TargetMachine:
    """A machine, with the bytes that a run may take of each tier."""

    device: str  # The name for `device.name` of a config that is planned: host, or cuda:0.
    device_bytes: int
    host_bytes: int  # Includes page-locked memory.
    disk_bytes: int  # 0 without a disk.
    drive_bytes: int  # Size of the drive, by which its rated writes go.
    folder: Path | None  # A folder on the disk, if that is here.
    # What plans assume of it, by the names of `model.speeds`; others are measured here.
    rates: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)  # Descriptions for people.
    shares_memory: bool = False  # device_bytes and host_bytes are the same bytes.

    @property
    def is_here(self) -> bool:
        """True if the rates of device and host are measured here."""
        return "tflops" not in self.rates


def target_machine(
    card: str | None, device: int | None, ram: int | None, disk: str | None
) -> TargetMachine:
    """Describe a machine.

    Parameters
    ----------
    card : str or None
        Name in the catalogue; None with `device`: the card of a desktop with this much memory;
        None without it: the device of this machine.
    device, ram : int or None
        Bytes of the device's memory and of the host's; None: those of the card, and of this machine
        or 32 GiB of another one.
    disk : str or None
        A folder here, a drive of the catalogue, or none; None: the working directory here, or a
        drive of PCIe 4 of another machine.

    Raises
    ------
    sluiceway.errors.InvalidArgument, sluiceway.errors.IoError
        The catalogue has no such card; the disk is neither a folder nor a drive of it.
    """
    if card is None and device is None:
        return _this_machine(ram, disk)
    if card is None:
        return _other_machine(card_with(device), device, ram, disk, named=False)
    return _other_machine(card_of(card), device, ram, disk, named=True)


def _this_machine(ram: int | None, disk: str | None) -> TargetMachine:
    import torch

    from sluiceway.machine.placement import auto_device

    name = auto_device()
    memory = ram or total_bytes()
    host = _left_of(memory)
    shares = name != "host" and bool(torch.cuda.get_device_properties(name).is_integrated)
    if shares:
        first = f"{torch.cuda.get_device_name(name)}, {_shared(memory)}"
        device = host = host - _CONTEXT_BYTES
    elif name == "host":
        device, host = host // 2, host - host // 2
        first = f"this machine's processor, with {format_bytes(memory)} of memory"
        first += ", half of what is left for each of device and host"
    else:
        card = torch.device(name)
        total = card_memory(card)["memory_bytes"]
        first = f"{torch.cuda.get_device_name(card)}, {format_bytes(total)}, and "
        first += f"{format_bytes(memory)} of memory"
        device = min(total - _CONTEXT_BYTES, device_limit(None, ops_on(card)))
    room, size, folder, rates, second = describe_disk("." if disk is None else disk)
    lines = [f"machine: {first}; {second}", _left_line(device, host, shares)]
    return TargetMachine(name, device, host, room, size, folder, rates, lines, shares)


def _other_machine(
    card: Card, device: int | None, ram: int | None, disk: str | None, named: bool
) -> TargetMachine:
    total = device or card.memory_bytes
    memory = ram or (total if card.shares_memory else _MEMORY_ELSEWHERE)
    room, size, folder, drive_rates, second = describe_disk(
        _DRIVE_ELSEWHERE if disk is None else disk
    )
    rates = {
        "tflops": card.tflops,
        "tflops_from": f"half of the peak of {card.name}",
        "memory_gbps": card.memory_gbps,
        "host_gbps": card.host_gbps,
        "host_gbps_from": "assumed",
        "d2h_gbps": card.link_gbps,
        "h2d_gbps": card.link_gbps,
        "link_gbps_from": "assumed",
        **LAUNCHING,
        **drive_rates,
    }
    like = card.name if named else f"a card of {format_bytes(total)}, as fast as {card.name}"
    usable, host = total - min(_CONTEXT_BYTES, total // 2), _left_of(memory)
    if card.shares_memory:
        usable = host = host - _CONTEXT_BYTES
        has = _shared(memory)
    else:
        assumed = "" if ram else " (assumed; --ram says how much)"
        has = f"{format_bytes(total)}, and {format_bytes(memory)} of memory{assumed}"
    lines = [
        f"machine: {like}, {has}; {second}{'' if disk else ' (assumed; --disk says which)'}",
        _left_line(usable, host, card.shares_memory),
    ]
    return TargetMachine(
        "cuda:0", usable, host, room, size, folder, rates, lines, card.shares_memory
    )


def describe_disk(text: str) -> tuple[int, int, Path | None, dict[str, Any], str]:
    """Describe a disk.

    Returns
    -------
    tuple
        Its room and size in bytes, its folder if it is here, its rates if assumed, and its name.

    Raises
    ------
    sluiceway.errors.InvalidArgument, sluiceway.errors.IoError
        The size of a drive is none; the text is neither a folder nor a drive of the catalogue.
    """
    if text.lower() == _NO_DISK:
        return 0, 0, None, {}, "no drive"
    if (drive := drive_of(text)) is not None:
        size = drive.room_bytes
        name = f"a drive {drive.name} of {size / 1e12:.3g} TB"
        rates = {"disk_gbps": drive.gbps, "disk_gbps_from": f"assumed of a drive {drive.name}"}
        return size, size, None, rates, name
    folder = Path(text).absolute()
    if not text or not folder.is_dir():
        raise IoError(
            f"--disk: {text} is no folder; give a folder on the drive, one of "
            f"{', '.join(drive_names())} for a drive elsewhere, with its size as in gen4:2TB, or "
            f"{_NO_DISK}",
            errno.ENOENT,
            str(folder),
        )
    found = shutil.disk_usage(folder)
    name = f"the drive of {folder}, {format_bytes(found.free)} free"
    return found.free, found.total, folder, {}, name


def _left_of(memory: int) -> int:
    """Bytes of memory that a run may take beside the system and its own process."""
    return max(memory - _SYSTEM_BYTES, memory // 2)


def _shared(memory: int) -> str:
    return f"{format_bytes(memory)} of memory for device and host together"


def _left_line(device: int, host: int, shares_memory: bool) -> str:
    places = (
        f"{format_bytes(device)} of memory"
        if shares_memory
        else f"{format_bytes(device)} of the device and {format_bytes(host)} of host memory"
    )
    return f"for the run: {places}; the rest is for the system, torch and CUDA"
