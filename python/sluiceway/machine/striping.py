"""Relative speeds of the drives of a store as small integers, and their combined rate."""

from __future__ import annotations

import os
import stat
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch  # noqa: F401  A module with CUDA finds its libraries where torch has loaded them.

from sluiceway import _core
from sluiceway.errors import IoError
from sluiceway.machine.disk import disk_rates, file_rates

_MEASURED_BYTES = 128 << 20
_TOLERANCE = 0.05  # Relative error of a weight as a measure of its rate.
_SLOWEST = 1e-6  # Smallest rate, relative to the fastest, that weights can express.
_MAGIC = b"SLUICEWY"  # First bytes of a device that is a drive already (docs/store.md section 2).


def striping_weights(rates: Sequence[float]) -> list[int]:
    """Find the smallest integers in the proportions of the rates, each within 5 %.

    Parameters
    ----------
    rates : sequence of float
        Above 0, in any unit. A rate below a millionth of the fastest counts as a millionth.

    Returns
    -------
    list of int
        One weight per rate; the slowest drive has 1 to 10.
    """
    slowest = max(min(rates), _SLOWEST * max(rates))
    shares = [max(rate / slowest, 1.0) for rate in rates]
    for scale in range(1, 10):
        weights = [round(scale * share) for share in shares]
        if all(
            abs(weight - scale * share) <= _TOLERANCE * scale * share
            for weight, share in zip(weights, shares, strict=True)
        ):
            return weights
    return [round(10 * share) for share in shares]  # Half of one is no more than 5 % of 10.


def striped_rate(rates: Sequence[float], weights: Sequence[int]) -> float:
    """Combined rate of all drives if the bytes are divided in proportion to the weights."""
    return min(rate * sum(weights) / weight for rate, weight in zip(rates, weights, strict=True))


def rates_of_disks(places: Sequence[Path], io: str) -> list[float]:
    """Measure simultaneous reads and writes of each drive in turn, in GB/s.

    Parameters
    ----------
    places : sequence of Path
        Folders, or whole block devices that hold nothing, which are overwritten. Folders of one
        file system are measured once and share its rate.
    io : str
        The store's option `io`.

    Raises
    ------
    sluiceway.errors.Error
        A disk refused a request, or a device already holds data.
    """
    by = "auto" if io == "block" else io
    for place in places:
        if place.is_block_device():  # Checked before any device is overwritten.
            _core.drive_properties(str(place), by, writable=True)
    found: dict[tuple[bool, int], float] = {}
    keys = [_disk_of(place) for place in places]
    for place, key in zip(places, keys, strict=True):
        if key not in found:
            measured = _device_rates(place, by) if key[0] else disk_rates(
                place, ("both",), by, _MEASURED_BYTES
            )  # fmt: skip
            found[key] = measured["both"]["gbps"]
    sharing = Counter(keys)
    return [found[key] / sharing[key] for key in keys]


def weights_of_new(owner: str, drives: Sequence[str], io: str) -> list[int]:
    """Measure the drives of a new store and return their weights.

    Parameters
    ----------
    owner : str
        The optimizer's name, for the warning if the disks cannot be measured. The drives then
        share all chunks equally.
    drives : sequence of str
        Files that do not exist yet, or whole devices.
    io : str
        The store's option `io`.

    Returns
    -------
    list of int
        Empty if no weights are needed: there is one drive, all drives are on one disk, or some
        exist already.

    Raises
    ------
    sluiceway.errors.Error
        A device already holds data.
    """
    paths = [Path(drive) for drive in drives]
    if len(paths) < 2 or any(_is_there(path) for path in paths):
        return []
    places = [path if path.is_block_device() else path.parent for path in paths]
    if len({_disk_of(place) for place in places}) == 1:
        return []
    try:
        return striping_weights(rates_of_disks(places, io))
    except IoError as error:
        warnings.warn(
            f"{owner}: its drives share all chunks equally, {error}", RuntimeWarning, stacklevel=3
        )
        return []


def _disk_of(place: Path) -> tuple[bool, int]:
    """Return whether `place` is a block device, and the number of its device or file system."""
    found = place.stat()
    device = stat.S_ISBLK(found.st_mode)
    return device, found.st_rdev if device else found.st_dev


def _is_there(drive: Path) -> bool:
    if not drive.is_block_device():
        return drive.exists()
    try:
        with drive.open("rb", buffering=0) as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:  # Opening the store reports the reason.
        return True


def _device_rates(device: Path, io: str) -> dict:
    with device.open("rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
    return file_rates(
        str(device), ("both",), io, min(size, _MEASURED_BYTES), 0.25, whole_device=True
    )
