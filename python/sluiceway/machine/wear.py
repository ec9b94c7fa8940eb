"""Load that training puts on a drive or link: TB per day, and the tokens that hide its traffic."""

from __future__ import annotations

# An assumption: the rating of many laptop drives of 1 TB, in TB written.
RATED_TB = 600
_DAY_SECONDS = 86400


def hiding_tokens(bytes_per_parameter: float, tflops: float, gbps: float, token_flop: int) -> float:
    """Return T* = b F / (c B), the tokens per step above which computing hides disk or link.

    Parameters
    ----------
    bytes_per_parameter : float
        b, the bytes read and written, or crossing the link, in a step.
    tflops : float
        F, in 1e12 operations a second.
    gbps : float
        B, in 1e9 bytes a second.
    token_flop : int
        c, floating-point operations per parameter and token.
    """
    return bytes_per_parameter * tflops * 1e12 / (token_flop * gbps * 1e9)


def tb_per_day(count: float, seconds: float) -> float:
    """TB (1e12 bytes) in a day at the rate of `count` bytes in `seconds`."""
    return count / seconds * _DAY_SECONDS / 1e12
