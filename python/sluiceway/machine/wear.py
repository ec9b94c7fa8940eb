"""What training asks of a drive or link: tokens that hide its traffic, TB written in a day."""

from __future__ import annotations

# An assumption: what many drives of 1 TB for laptops are rated for, in TB written.
RATED_TB = 600
_DAY_SECONDS = 86400


def hiding_tokens(bytes_per_parameter: float, tflops: float, gbps: float, token_flop: int) -> float:
    """T* = b F / (c B): from as many tokens a step on, computing takes longer than disk or link.

    Parameters
    ----------
    bytes_per_parameter : float
        b, read and written, or crossing, in a step.
    token_flop : int
        c, floating-point operations per parameter and token.
    """
    return bytes_per_parameter * tflops * 1e12 / (token_flop * gbps * 1e9)


def tb_per_day(count: float, seconds: float) -> float:
    """TB (1e12 bytes) of a day that goes on as these seconds have gone."""
    return count / seconds * _DAY_SECONDS / 1e12
