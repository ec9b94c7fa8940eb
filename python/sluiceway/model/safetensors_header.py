"""Reads, checks and writes the header of a safetensors file, which says where each tensor lies.

file     8 bytes, little-endian: length of the header in bytes
         header: JSON, {name: {dtype, shape, data_offsets: [begin, end]}}, offsets from its end
         data: the tensors, without gaps
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from sluiceway.errors import Corrupt, IoError

_LENGTH = struct.Struct("<Q")
_ALIGNED = 8  # Bytes; readers map the data as elements.
_METADATA = "__metadata__"


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file.

    Parameters
    ----------
    dtype : str
        The format's name of the type: F32, BF16, ...
    begin : int
        Start of the tensor, in bytes from the end of the header.
    size : int
        Bytes.
    """

    name: str
    dtype: str
    shape: list[int]
    begin: int
    size: int


@dataclass(frozen=True)
class SafetensorsHeader:
    """Contents of a file's header.

    Parameters
    ----------
    tensors : list of TensorEntry
        In the order of their data.
    metadata : dict
        Texts that the writer added.
    data : int
        Start of the tensors, in bytes from the start of the file.
    """

    tensors: list[TensorEntry]
    metadata: dict[str, str]
    data: int

    @property
    def tensor_bytes(self) -> int:
        """Length of the data."""
        return max((tensor.begin + tensor.size for tensor in self.tensors), default=0)


def read_header(file: BinaryIO, path: Path) -> SafetensorsHeader:
    """Read the header of an open file, and leave the file positioned at the start of the data.

    Raises
    ------
    sluiceway.errors.Corrupt
        The file ends within its header, or has none.
    """
    size = os.fstat(file.fileno()).st_size
    head = file.read(_LENGTH.size)
    length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
    if len(head) < _LENGTH.size or length > size - _LENGTH.size:
        raise Corrupt(
            f"{path}: {size} bytes, expected at least {_LENGTH.size + length or _LENGTH.size}; the "
            "file is incomplete, copy it again"
        )
    try:
        entries: dict[str, Any] = json.loads(file.read(length))
        metadata = entries.pop(_METADATA, {})
        tensors = [
            TensorEntry(name, entry["dtype"], entry["shape"], begin, end - begin)
            for name, entry in entries.items()
            for begin, end in [entry["data_offsets"]]
        ]
        tensors.sort(key=lambda tensor: tensor.begin)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Corrupt(f"{path}: has no safetensors header, copy it again") from None
    return SafetensorsHeader(tensors, metadata, _LENGTH.size + length)


def check_weights_file(path: Path) -> SafetensorsHeader:
    """Check that a file has the length that its header implies, and return the header.

    Raises
    ------
    sluiceway.errors.Corrupt
        The file is longer or shorter; the text has both sizes.
    sluiceway.errors.IoError
        The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header = read_header(file, path)
    except OSError as error:
        raise IoError(f"{path}: cannot be read, {error.strerror}", error.errno, str(path)) from None
    expected = header.data + header.tensor_bytes
    if size != expected:
        raise Corrupt(f"{path}: {size} bytes, expected {expected} from its header; copy it again")
    return header


def write_header(
    file: BinaryIO, tensors: list[TensorEntry], metadata: dict[str, str]
) -> SafetensorsHeader:
    """Write the header for tensors that will follow one another in the given order.

    Parameters
    ----------
    tensors : list of TensorEntry
        Their `begin` is ignored; the returned header has the computed one.
    """
    placed, end = [], 0
    for tensor in tensors:
        placed.append(replace(tensor, begin=end))
        end += tensor.size
    entries: dict[str, Any] = {_METADATA: metadata} if metadata else {}
    for tensor in placed:
        offsets = [tensor.begin, tensor.begin + tensor.size]
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": offsets,
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    file.write(_LENGTH.pack(len(text)) + text)
    return SafetensorsHeader(placed, metadata, _LENGTH.size + len(text))
