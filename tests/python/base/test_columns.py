"""Descriptions of weights print as a table."""

from __future__ import annotations

import re

import sluiceway as sw
from small_llama import small_llama


def test_alike_weights_of_layers_are_one_row_and_their_bytes_are_added_up():
    with sw.SubspaceAdamW(small_llama(), codec="svd") as opt:
        described = opt.describe()
    lines = str(described).splitlines()
    assert len(described) == 15
    assert len(lines) == 9
    titles, first, second = (re.split(" {2,}", line) for line in lines[:3])
    assert titles[0] == "weights"
    assert first[0] == "model.embed_tokens.weight"
    assert "an embedding or the head" in first
    assert second[0] == "model.layers.*.self_attn.q_proj.weight"
    assert second[1] == "2"
    assert "128 x 128" in second
    sent = sum(one["d2h_bytes"] for one in described if one["name"].endswith("q_proj.weight"))
    assert second[-1] == f"{sent / 1024:g} KiB"


def test_weights_without_cores_and_bytes_are_described_too():
    with sw.OffloadAdamW(small_llama(), tier="host") as opt:
        described = opt.describe()
    lines = str(described).splitlines()
    assert lines[0].split() == ["weights", "shape", "dtype", "core", "chunks"]
    assert lines[1].split() == ["model.embed_tokens.weight", "1", "64", "x", "256", "f32", "-", "1"]
    assert str(type(described)([])) == "weights"
