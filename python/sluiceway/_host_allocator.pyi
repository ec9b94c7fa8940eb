"""
Counts what torch allocates on the CPU.
"""

from __future__ import annotations

__all__: list[str] = ["allocated_bytes", "count", "peak_bytes", "reset_peak"]

def allocated_bytes() -> int:
    """
    Bytes that torch holds of what was counted.
    """

def count() -> None:
    """
    From now on count torch's CPU allocations of this process; idempotent.
    """

def peak_bytes() -> int:
    """
    The most of them since reset_peak().
    """

def reset_peak() -> None:
    """
    Let the peak be what is held now.
    """
