"""The header of a safetensors file: read as the library wrote it, and what a broken one gets."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from sluiceway.errors import Corrupt, IoError
from sluiceway.model.safetensors_header import check_weights_file, read_header, write_header

TENSORS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.ones(5, dtype=torch.bfloat16)}


@pytest.fixture
def weights(tmp_path):
    """A file of two tensors with metadata, as the library writes it."""
    save_file(TENSORS, tmp_path / "a.safetensors", metadata={"format": "pt"})
    return tmp_path / "a.safetensors"


def header_of(path):
    with path.open("rb") as file:
        return read_header(file, path)


def test_tensors_lie_where_the_header_says(weights):
    header, content = header_of(weights), weights.read_bytes()
    assert header.metadata == {"format": "pt"}
    assert header.data + header.tensor_bytes == len(content)
    for tensor in header.tensors:
        begin = header.data + tensor.begin
        expected = TENSORS[tensor.name]
        assert tensor.shape == list(expected.shape)
        assert tensor.dtype == {torch.float32: "F32", torch.bfloat16: "BF16"}[expected.dtype]
        raw = expected.flatten().view(torch.uint8).numpy().tobytes()
        assert content[begin : begin + tensor.size] == raw


def test_header_that_is_written_is_one_that_the_library_reads(weights, tmp_path):
    header, copy = header_of(weights), tmp_path / "b.safetensors"
    with copy.open("wb") as file:
        written = write_header(file, header.tensors[::-1], header.metadata)
        for tensor in header.tensors[::-1]:
            begin = header.data + tensor.begin
            file.write(weights.read_bytes()[begin : begin + tensor.size])
    assert written == header_of(copy)
    assert written.data % 8 == 0
    for name, tensor in load_file(copy).items():
        assert torch.equal(tensor, TENSORS[name])


def test_whole_file_is_silent_and_one_byte_less_or_more_has_both_sizes(weights):
    check_weights_file(weights)
    content = weights.read_bytes()
    for wrong in (content[:-1], content + b"\0"):
        weights.write_bytes(wrong)
        words = f"{len(wrong)} bytes, expected {len(content)} from its header"
        with pytest.raises(Corrupt, match=words):
            check_weights_file(weights)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 bytes, expected at least 8"),
        (b"\x09\0\0\0", "4 bytes, expected at least 8"),
        (struct.pack("<Q", 100) + b"{}", "10 bytes, expected at least 108; the file is incomplete"),
        (struct.pack("<Q", 2) + b"{]", "has no safetensors header"),
        (struct.pack("<Q", 2) + b"[]", "has no safetensors header"),
        (struct.pack("<Q", 2) + b"\xff\xfe", "has no safetensors header"),
        *(
            (struct.pack("<Q", len(text)) + text, "has no safetensors header")
            for entry in (3, {}, {"dtype": "F32", "shape": [], "data_offsets": [1]})
            for text in [json.dumps({"w": entry}).encode()]
        ),
    ],
)
def test_file_without_a_whole_header_is_corrupt(tmp_path, content, words):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(Corrupt, match=words):
        check_weights_file(tmp_path / "a")


def test_file_that_is_not_there_is_an_io_error_with_its_path(tmp_path):
    with pytest.raises(IoError, match="none: cannot be read, No such file") as refused:
        check_weights_file(tmp_path / "none")
    assert refused.value.filename == str(tmp_path / "none")
