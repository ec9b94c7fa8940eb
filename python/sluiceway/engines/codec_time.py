"""How long the host decompresses gradients in a step, and whether the disk waits for that."""

from __future__ import annotations

from typing import Any

from sluiceway import _core

_FIRST = 2  # Steps that are not judged: nothing has been read for the first, pages are new.
_JUDGED = 5
_DISK_LANES = ("fetch_seconds", "store_seconds", "spill_seconds")


def codec_seconds(
    cores: _core.CoreOptions, elements: int, shape: tuple[int, int], gradients: str
) -> float:
    """Host seconds of a step, from a measurement on this machine that takes some milliseconds.

    Parameters
    ----------
    cores : CoreOptions
    elements : int
        Of all gradients that are decompressed.
    shape : tuple of int
        Of the largest of them, which is measured.
    gradients : str
        What they are rounded to.
    """
    return elements * _core.decompress_seconds(cores, *shape, gradients) if elements else 0.0


class CodecTime:
    """Compares it with the disk's time, once a run has made a few steps.

    Parameters
    ----------
    seconds : float
        Of the codec, a step.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._disk: list[float] = []

    def add(self, metrics: dict[str, Any]) -> str | None:
        """A step ended; what is to be said, once, where the codec takes longer than the disk."""
        # Lanes of the disk run beside each other.
        self._disk.append(max(metrics["offload"][lane] for lane in _DISK_LANES))
        if len(self._disk) != _FIRST + _JUDGED:
            return None
        disk = sum(self._disk[_FIRST:]) / _JUDGED
        if self._seconds <= disk:
            return None
        return (
            f"decompressing takes the host {self._seconds:.3g} s a step, the disk {disk:.3g} s, "
            "expected the disk to take longer; try a smaller ratio, or codec identity"
        )
