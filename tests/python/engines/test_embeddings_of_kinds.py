"""Every kind of engine trains embeddings and head unless its section says that they are frozen."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

KINDS = {
    "native": {"kind": "native"},
    "subspace": {"kind": "subspace"},
    "offload": {"kind": "offload"},
    "offload on disk": {"kind": "offload", "tier": "disk"},
    "streamed": {"kind": "offload", "weights": "streamed", "tier": "host"},
    "streamed from disk": {"kind": "offload", "weights": "streamed", "tier": "disk"},
    "zo": {"kind": "zo", "tier": "device"},
    "zo on the host": {"kind": "zo", "tier": "host"},
    "zo on disk": {"kind": "zo", "tier": "disk"},
    "zo that writes back": {"kind": "zo", "tier": "host", "mode": "write_back"},
}


# That the others train them, their own tests show.
CASES = [("subspace", "trained"), *((kind, "frozen") for kind in KINDS)]


@pytest.mark.parametrize(("kind", "embeddings"), CASES)
def test_embeddings_are_trained_or_frozen_as_the_section_says(
    sluiceway, small_model, write_config, tmp_path, kind, embeddings
):
    engine = KINDS[kind] | ({} if embeddings == "trained" else {"embeddings": "frozen"})
    train = {"steps": 2, "warmup_steps": 0}
    config = write_config(small_model, engine=engine, train=train, store={"chunk": 65536})
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert ("embeddings and head are frozen" in outcome.out) == (embeddings == "frozen")
    resumed = sluiceway("resume", tmp_path / "out", "--set", "train.steps=3")
    assert resumed.code == 0, resumed.err
    assert sluiceway("export", tmp_path / "out", "--to", tmp_path / "exported").code == 0
    before = load_file(small_model / "model.safetensors")
    after = load_file(tmp_path / "exported" / "model.safetensors")
    assert set(after) == set(before)
    is_same = {name: torch.equal(after[name], before[name]) for name in before}
    of_vocabulary = {name for name in before if "embed" in name or "lm_head" in name}
    assert of_vocabulary
    for name, same in is_same.items():
        assert same == (embeddings == "frozen" and name in of_vocabulary), name
