"""`sluiceway plan --measure`: the trial takes what its plan says, and leaves nothing behind."""

from __future__ import annotations

import json

import pytest
import torch
from conftest import assert_short_error, build_llama
from sluiceway.commands import measured_plan
from sluiceway.commands.measured_plan import measure_plan
from sluiceway.commands.plan import make_plan
from sluiceway.config.file import load_config
from sluiceway.errors import OutOfMemory
from sluiceway.model.skeleton import build_skeleton

OFFLOADED = {"kind": "offload", "tier": "disk", "weights": "streamed", "gradients": "bf16"}


@pytest.fixture(scope="module")
def deep_model(tmp_path_factory):
    """A model folder of six blocks whose weights are large enough to be streamed."""
    return build_llama(tmp_path_factory.mktemp("models") / "deep", hidden=256, layers=6)


@pytest.fixture
def trial(tmp_path):
    """An empty folder for the trial."""
    folder = tmp_path / "trial"
    folder.mkdir()
    return folder


def measured(config, folder):
    checked = load_config(config)
    return measure_plan(checked, make_plan(checked).figures, folder)


@pytest.mark.parametrize(
    "engine",
    [
        {"kind": "native"},
        {**OFFLOADED, "state_codec": "8bit"},
        {"kind": "subspace", "codec": "block_random"},
        {"kind": "zo", "tier": "host"},
    ],
    ids=lambda engine: "-".join(map(str, engine.values())),
)
def test_a_trial_takes_what_its_plan_says(sluiceway, engine, deep_model, write_config, trial):
    sections = {"engine": engine, "train": {"save_every": 2}}
    if engine.get("tier") == "disk":
        sections["store"] = {"path": str(trial / "of the run"), "chunk": "64KiB"}
    # In a process of its own: tensors of other tests would count.
    done = sluiceway("plan", write_config(deep_model, **sections), "--measure", trial, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)["measured"]
    assert (found["blocks"], found["of"]) == (4, 6)
    predicted, seen = found["predicted"], found["measured"]
    for link, count in predicted["bytes_per_step"].items():
        # What crosses late counts in the next step, so on a busy machine steps differ.
        assert 0.3 * count <= seen["bytes_per_step"][link] <= 2 * count, link
    for tier in ("device", "disk"):
        if tier in predicted["peak_bytes"]:
            # Gradients need not wait on the device, as the plan allows for.
            count = predicted["peak_bytes"][tier]
            assert 0.4 * count < seen["peak_bytes"][tier] < 1.1 * count, tier
    assert seen["seconds_per_step"] > 0
    assert list(trial.iterdir()) == []


def test_the_command_prints_both_or_one_object(sluiceway, tiny_model, write_config, trial):
    config = write_config(tiny_model)
    said = sluiceway("plan", config, "--measure", trial)
    assert said.code == 0, said.err
    head = (
        "measured with the first 2 of 2 blocks, random weights and one store in the folder, 6 steps"
    )
    table = said.out.splitlines()[said.out.splitlines().index(head) + 1 :]
    assert table[0].split() == ["predicted", "measured"]
    assert [line[:14] for line in table if line.startswith(("device", "seconds"))] == [
        "device memory ",
        "seconds a step",
    ]
    found = json.loads(sluiceway("plan", config, "--measure", trial, "--json").out)["measured"]
    assert found["predicted"].keys() == found["measured"].keys()


def test_as_many_blocks_as_fit(monkeypatch, deep_model, write_config, trial):
    config = write_config(deep_model, engine={"kind": "native"})

    def with_room_for(blocks):
        def free(cut, scratch):
            return {k: count - (cut.blocks > blocks) for k, count in cut.needed().items()}

        monkeypatch.setattr(measured_plan, "_free", free)
        return measured(config, trial)

    assert with_room_for(3)["blocks"] == 3
    with pytest.raises(OutOfMemory, match=r"one block needs .* of memory, .* may be used"):
        with_room_for(0)
    assert list(trial.iterdir()) == []


def test_bad_places_are_refused(sluiceway, tiny_model, write_config, tmp_path):
    config = write_config(tiny_model)
    said = sluiceway("plan", config, "--measure", tmp_path / "none")
    assert_short_error(said, 2, "--measure:", "none is not a folder")
    assert said.out == ""
    if not torch.cuda.is_available():
        said = sluiceway("plan", config, "--measure", tmp_path, "--set", "device.name=cuda:0")
        assert_short_error(said, 2, "cuda:0")
    small = write_config(tiny_model, name="small.yaml", budget={"device": "64KiB"})
    assert_short_error(
        sluiceway("plan", small, "--measure", tmp_path, "--json"), 3, "budget.device"
    )


def test_a_model_of_several_kinds_of_layers_is_cut(tmp_path):
    from transformers import Gemma3TextConfig

    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    Gemma3TextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, layer_types=kinds,
        architectures=["Gemma3ForCausalLM"],
    ).save_pretrained(tmp_path)  # fmt: skip
    model = build_skeleton(str(tmp_path), torch.float32, 2)
    assert len(model.model.layers) == 2
    assert model.config.layer_types == kinds[:2]
