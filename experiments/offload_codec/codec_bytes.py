"""Bytes that the disk engine moves for a parameter in a step, by formula.

The states are 12 bytes; reading and writing them makes 24. Under `identity`, M micro-batches are M
gradients of 2 bytes, which cross the link, are spilled and are read back. A codec sums the
micro-batches in the core on the device, so it sends f^2 of a gradient whatever M is. It then spills
either the decompressed gradient or nothing. In the second case the core waits on the device and
crosses the link a second time for its update. The 16-bit weight goes up in any case.
"""

from __future__ import annotations

from experiments.offload_codec.projectors import BLOCK, NNZ, kept

MICRO_BATCHES = (1, 4, 16)
SIDE = 4096  # Side of a square weight, for figures that depend on its shape.
STATES, GRADIENT, WEIGHT = 24, 2, 2


def d2h_bytes(codec: str, ratio: float, micro_batches: int) -> float:
    """Return the bytes that go down the link."""
    return GRADIENT * micro_batches if codec == "identity" else GRADIENT * ratio**2


def disk_bytes(codec: str, ratio: float, micro_batches: int, spill: str) -> float:
    """Return bytes read and written; `spill` is "gradient" or "core"."""
    if codec == "identity":
        return STATES + 2 * GRADIENT * micro_batches
    return STATES + (2 * GRADIENT if spill == "gradient" else 0)


def projector_bytes(codec: str, ratio: float) -> float:
    """Bytes a parameter of P and Q (f32), SIDE x SIDE weight: host memory, and link at a redraw."""
    if codec == "svd":
        return 8 * ratio
    return 8 * NNZ / SIDE if codec == "sparse_learned" else 0.0  # Positions come from the seed.


def host_flop(codec: str, ratio: float) -> float:
    """Flop a parameter to decompress a SIDE x SIDE weight: Z = S Q^T, then P Z."""
    if codec == "identity":
        return 0.0
    nonzeros = {"svd": ratio * SIDE, "block_random": kept(ratio, BLOCK), "sparse_learned": NNZ}
    return 2 * nonzeros[codec] * (1 + ratio)


COLUMNS = (
    "codec", "f", *(f"d2h, M = {m}" for m in MICRO_BATCHES), "h2d",
    *(f"disk, M = {m}, gradient spilled" for m in MICRO_BATCHES), "disk, core kept, any M",
    "P and Q", "host flop",
)  # fmt: skip


def cells(codec: str, ratio: float) -> list[str]:
    """Format one line of the table."""
    down = [d2h_bytes(codec, ratio, m) for m in MICRO_BATCHES]
    disk = [disk_bytes(codec, ratio, m, "gradient") for m in MICRO_BATCHES]
    core = "-" if codec == "identity" else f"{disk_bytes(codec, ratio, 1, 'core'):g}"
    return [codec, "-" if codec == "identity" else f"{ratio:g}", *(f"{d:g}" for d in down),
            f"{WEIGHT}", *(f"{d:g}" for d in disk), core,
            f"{projector_bytes(codec, ratio):.3g}", f"{host_flop(codec, ratio):,.0f}"]  # fmt: skip
