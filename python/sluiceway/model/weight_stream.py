"""safetensors files copied piece by piece, converted on the way if asked: never a tensor whole.

file     8 bytes, little-endian: length of the header in bytes
         header: JSON, {name: {dtype, shape, data_offsets: [begin, end]}}, offsets from its end
         data: the tensors, without gaps
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from sluiceway.errors import Corrupt, InvalidArgument
from sluiceway.machine.placement import DTYPES

_PIECE = 8 << 20  # Bytes read at a time; a multiple of every element.
_ALIGNED = 8  # Bytes; readers map the data as elements.
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_STORED = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}
_METADATA = "__metadata__"


@dataclass(frozen=True)
class _Tensor:
    name: str
    dtype: str  # As the file has it.
    shape: list[int]
    begin: int  # Bytes from the start of the file.
    size: int  # Bytes.

    def dtype_as(self, dtype: str) -> str:
        return _STORED[dtype] if self.dtype in _FLOATS else self.dtype

    def size_as(self, dtype: str) -> int:
        if self.dtype not in _FLOATS:
            return self.size
        return self.size // _FLOATS[self.dtype].itemsize * DTYPES[dtype].itemsize


def copy_weights(
    source: Path, target: Path, dtype: str | None, advance: Callable[[int], None]
) -> int:
    """Copy one file of weights.

    Parameters
    ----------
    dtype : str or None
        What floating-point tensors become: fp32, bf16 or fp16; None: what they are.
    advance : callable
        Told how many more bytes of `source` are done.

    Returns
    -------
    int
        Bytes of tensors in `target`, the header apart.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        A value does not fit `dtype`.
    sluiceway.errors.Corrupt
        `source` is shorter than its header says.
    """
    with source.open("rb", buffering=0) as read, target.open("xb") as write:
        tensors, metadata, begin = _header(read)
        if dtype is None:
            read.seek(0)
            for piece in _pieces(read, source.stat().st_size, source):
                write.write(piece)
                advance(len(piece))
            return source.stat().st_size - begin
        # Large elements first, so that none of them lies askew.
        tensors.sort(key=lambda t: -t.size_as(dtype) / max(1, math.prod(t.shape)))
        written = _write_header(write, tensors, metadata, dtype)
        for tensor in tensors:
            read.seek(tensor.begin)
            for piece in _pieces(read, tensor.size, source):
                write.write(_converted(piece, tensor, dtype))
                advance(len(piece))
        return written


def _header(file: BinaryIO) -> tuple[list[_Tensor], dict[str, str], int]:
    """Tensors in the order of their data, metadata, and where the data begins."""
    size = struct.unpack("<Q", file.read(8))[0]
    entries: dict[str, Any] = json.loads(file.read(size))
    metadata, data = entries.pop(_METADATA, {}), 8 + size
    tensors = [
        _Tensor(name, e["dtype"], e["shape"], data + b, end - b)
        for name, e in entries.items()
        for b, end in [e["data_offsets"]]
    ]
    return sorted(tensors, key=lambda t: t.begin), metadata, data


def _write_header(
    file: BinaryIO, tensors: list[_Tensor], metadata: dict[str, str], dtype: str
) -> int:
    entries: dict[str, Any] = {_METADATA: metadata} if metadata else {}
    end = 0
    for tensor in tensors:
        offsets = [end, end + tensor.size_as(dtype)]
        stored = tensor.dtype_as(dtype)
        entries[tensor.name] = {"dtype": stored, "shape": tensor.shape, "data_offsets": offsets}
        end = offsets[1]
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    file.write(struct.pack("<Q", len(text)) + text)
    return end


def _pieces(file: BinaryIO, size: int, path: Path):
    buffer = bytearray(min(size, _PIECE))
    while size:
        piece = memoryview(buffer)[: min(size, _PIECE)]
        count = file.readinto(piece)
        # An unbuffered read may stop anywhere: go on until the piece is whole.
        while count < len(piece):
            more = file.readinto(piece[count:])
            if not more:
                raise Corrupt(f"{path}: ends {size - count} bytes too early; copy it again")
            count += more
        size -= len(piece)
        yield piece


def _converted(piece: memoryview, tensor: _Tensor, dtype: str) -> Any:
    if tensor.dtype_as(dtype) == tensor.dtype:
        return piece
    before = torch.frombuffer(piece, dtype=_FLOATS[tensor.dtype])
    after = before.to(DTYPES[dtype])
    if not torch.equal(after.isfinite(), before.isfinite()):
        raise InvalidArgument(
            f"--dtype {dtype}: {tensor.name} has {before[~after.isfinite()].abs().max():.3g}, "
            f"expected at most {torch.finfo(after.dtype).max:.3g}; take bf16, whose range is that "
            "of fp32"
        )
    return memoryview(after.view(torch.uint8).numpy())
