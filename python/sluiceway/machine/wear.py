"""What training asks of a drive: tokens that hide its traffic, and what it writes in a day."""

from __future__ import annotations

# An assumption: what many drives of 1 TB for laptops are rated for, in TB written.
RATED_TB = 600
_DAY_SECONDS = 86400
# Floating-point operations per parameter and token: forward, backward, and forward once more.
_TOKEN_FLOP = 8


def hiding_tokens(bytes_per_parameter: float, tflops: float, disk_gbps: float) -> float:
    """T* = b F / (8 B): from as many tokens a step on, computing takes longer than the disk.

    Parameters
    ----------
    bytes_per_parameter : float
        b, read and written in a step.
    """
    return bytes_per_parameter * tflops * 1e12 / (_TOKEN_FLOP * disk_gbps * 1e9)


def tb_per_day(count: float, seconds: float) -> float:
    """TB (1e12 bytes) of a day that goes on as these seconds have gone."""
    return count / seconds * _DAY_SECONDS / 1e12
