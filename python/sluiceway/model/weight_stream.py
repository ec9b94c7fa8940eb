"""Copies safetensors files in pieces and writes them by tensor, never holding a whole model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Self

import torch
from torch import nn

from sluiceway.errors import Corrupt, InvalidArgument
from sluiceway.machine.placement import DTYPES
from sluiceway.model.folder import WEIGHTS_FILE
from sluiceway.model.safetensors_header import TensorEntry, read_header, write_header

_PIECE = 8 << 20  # Bytes read at a time; a multiple of every element.
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_STORED = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}
_CODES = {dtype: name for name, dtype in _FLOATS.items()} | {
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def copy_weights(
    source: Path, target: Path, dtype: str | None, advance: Callable[[int], None]
) -> int:
    """Copy one file of weights.

    Parameters
    ----------
    dtype : str or None
        Type to convert floating-point tensors to: fp32, bf16 or fp16; None keeps their types.
    advance : callable
        Called with the number of bytes of `source` that were copied since the last call.

    Returns
    -------
    int
        Bytes of tensors in `target`, without the header.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        A value does not fit `dtype`.
    sluiceway.errors.Corrupt
        `source` is shorter than its header says.
    """
    with source.open("rb", buffering=0) as read, target.open("xb") as write:
        header = read_header(read, source)
        if dtype is None:
            read.seek(0)
            for piece in _pieces(read, source.stat().st_size, source):
                write.write(piece)
                advance(len(piece))
            return source.stat().st_size - header.data
        # Large elements first, so that every tensor is aligned.
        pairs = [(tensor, _converted_entry(tensor, dtype)) for tensor in header.tensors]
        pairs.sort(key=lambda pair: -pair[1].size / max(1, math.prod(pair[1].shape)))
        written = write_header(write, [after for _, after in pairs], header.metadata)
        for before, after in pairs:
            read.seek(header.data + before.begin)
            for piece in _pieces(read, before.size, source):
                write.write(
                    piece if before.dtype == after.dtype else _converted(piece, before, dtype)
                )
                advance(len(piece))
        return written.tensor_bytes


def _converted_entry(tensor: TensorEntry, dtype: str) -> TensorEntry:
    """Return the entry with the dtype and size of `dtype`, if the tensor is of floating point."""
    if tensor.dtype not in _FLOATS:
        return tensor
    size = tensor.size // _FLOATS[tensor.dtype].itemsize * DTYPES[dtype].itemsize
    return replace(tensor, dtype=_STORED[dtype], size=size)


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


def _converted(piece: memoryview, tensor: TensorEntry, dtype: str) -> memoryview:
    before = torch.frombuffer(piece, dtype=_FLOATS[tensor.dtype])
    return memoryview(_rounded(before, tensor.name, dtype).view(torch.uint8).numpy())


def _rounded(before: torch.Tensor, name: str, dtype: str) -> torch.Tensor:
    after = before.to(DTYPES[dtype])
    if not torch.equal(after.isfinite(), before.isfinite()):
        raise InvalidArgument(
            f"--dtype {dtype}: {name} has {before[~after.isfinite()].abs().max():.3g}, "
            f"expected at most {torch.finfo(after.dtype).max:.3g}; use bf16, which has the range "
            "of fp32"
        )
    return after


def save_configs(model: nn.Module, folder: Path) -> None:
    """Write the config files that `save_pretrained` writes for a model of transformers."""
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)


def save_streamed(
    model: nn.Module, folder: Path, value_of: Callable[[nn.Parameter], torch.Tensor]
) -> None:
    """Write configs and weights like `save_pretrained`, one tensor after the other.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers; only names, shapes and types of its parameters are used.
    folder : Path
        A folder without weights.
    value_of : callable
        Returns a parameter's value on the host.
    """
    save_configs(model, folder)
    write_weights(model, folder, value_of)


def write_weights(
    model: nn.Module,
    folder: Path,
    value_of: Callable[[nn.Parameter], torch.Tensor],
    dtype: str | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Write the weights like `save_streamed`, but no configs.

    Parameters
    ----------
    dtype : str or None
        See `StreamedWeights`.
    advance : callable
        Called with the bytes of each tensor in the model's own type.
    """
    with StreamedWeights(model, folder, dtype) as file:
        for name, t in file.tensors:
            file.put(name, value_of(t) if isinstance(t, nn.Parameter) else t.detach())
            advance(t.nbytes)


class StreamedWeights:
    """Weights file like that of `save_pretrained`, written one tensor after the other.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers; only names, shapes and types of its tensors are used.
    folder : Path
        A folder without weights.
    dtype : str or None
        Type to convert floating-point tensors to: fp32, bf16 or fp16; None keeps their types.

    Attributes
    ----------
    tensors : list of (str, torch.Tensor)
        Parameters and buffers to `put`, each once. Any order works; the order of the list is the
        fastest.
    """

    def __init__(self, model: nn.Module, folder: Path, dtype: str | None = None) -> None:
        self._dtype = dtype
        # Large elements first, so that every tensor is aligned.
        self.tensors = [*model.named_parameters(), *saved_buffers(model)]
        self.tensors.sort(key=lambda named: -self._stored(named[1]).itemsize)
        entries = [
            TensorEntry(
                name,
                _CODES[self._stored(t)],
                list(t.shape),
                0,
                t.numel() * self._stored(t).itemsize,
            )
            for name, t in self.tensors
        ]
        self._file = (folder / WEIGHTS_FILE).open("xb")
        header = write_header(self._file, entries, {"format": "pt"})
        self._begins = {entry.name: header.data + entry.begin for entry in header.tensors}

    def _stored(self, t: torch.Tensor) -> torch.dtype:
        return DTYPES[self._dtype] if self._dtype and t.is_floating_point() else t.dtype

    def put(self, name: str, value: torch.Tensor) -> None:
        """Write one tensor from any device.

        Raises
        ------
        sluiceway.errors.InvalidArgument
            A value does not fit `dtype`.
        """
        if self._stored(value) is not value.dtype:
            value = _rounded(value, name, self._dtype)
        value = value.cpu().contiguous().view(-1).view(torch.uint8)
        self._file.seek(self._begins[name])
        self._file.write(memoryview(value.numpy()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def saved_buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and buffers of a model that belong in its weights file."""
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, buffer
