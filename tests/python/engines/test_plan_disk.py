"""Plan reports on a disk: bytes, tokens that hide them, bytes written in a day.

`make soak` plans the papers' models with all of their layers: SLUICEWAY_WHOLE_MODELS.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import sluiceway as sw
import torch
import yaml
from conftest import REPOSITORY
from sluiceway.config.file import load_config
from sluiceway.model.skeleton import build_skeleton
from transformers import BloomConfig

CONFIGS = REPOSITORY / "configs"
WHOLE = bool(os.environ.get("SLUICEWAY_WHOLE_MODELS"))
# Host memory in GiB that the papers report, where they do, and parameters.
PAPERS = {
    "memascend_llama_8b": (47, 8.03e9),
    "memascend_qwen_7b": (47, 7.62e9),
    "memascend_qwen_14b": (128, 14.8e9),
    "memascend_qwen_32b": (128, 32.8e9),
    "nvmsa_98b": (128e9 / 2**30, 98e9),
}


@pytest.fixture
def plan(sluiceway):
    """The plan of a config of this repository."""

    def ask(config, *arguments):
        done = sluiceway("plan", config, "--json", *arguments, cwd=REPOSITORY)
        assert done.code == 0, done.err
        return json.loads(done.out)

    return ask


def test_tokens_that_hide_the_disk_follow_their_formula_and_a_slow_disk_is_waited_for(plan):
    config = CONFIGS / "laptop_3b_offload.yaml"
    found = plan(config)
    disk, links = found["disk"], found["bytes_per_step"]
    assert disk["bytes_per_parameter"] == pytest.approx(28, rel=1e-3)
    assert disk["hiding_tokens"] == pytest.approx(28 * 48e12 / (8 * 3e9), rel=1e-3)
    daily = links["disk_written"] / found["seconds_per_step"] * 86400 / 1e12
    assert disk["written_tb_per_day"] == pytest.approx(daily)
    assert disk["days_to_600_tb"] == pytest.approx(600 / daily)
    traffic = (links["disk_read"] + links["disk_written"]) / 3e9
    assert 0.9 * traffic < found["seconds_per_step"] < 1.2 * traffic
    fast = plan(config, "--set", "device.disk_gbps=300", "--set", "train.micro_batch=8",
                "--set", "budget.device=null")  # fmt: skip
    assert fast["tokens_per_step"] > fast["disk"]["hiding_tokens"]
    assert fast["seconds_per_step"] > 2 * traffic / 100  # The device is what takes longest.


def test_weights_that_are_fetched_share_the_paced_drive_with_states(plan):
    found = plan(CONFIGS / "laptop_3b_offload.yaml", "--set", "engine.weights=streamed",
                 "--set", "store.rate_gbps=2")  # fmt: skip
    assert found["assumed"]["disk_gbps"] == 2
    assert found["assumed"]["disk_gbps_from"] == "store.rate_gbps"
    links = found["bytes_per_step"]
    traffic = (links["disk_read"] + links["disk_written"]) / 2e9
    assert traffic <= found["seconds_per_step"] < 1.1 * traffic


def test_gradients_that_are_rounded_on_their_way_wait_on_the_device_in_full(
    sluiceway, small_model, write_config
):
    """A run over a slow link took 27 % more than its plan, which had them wait in 16 bits."""

    def device_bytes(gradients: str) -> int:
        engine = {"kind": "offload", "tier": "host", "gradients": gradients}
        done = sluiceway("plan", write_config(small_model, engine=engine), "--json")
        assert done.code == 0, done.err
        return json.loads(done.out)["peak_bytes"]["device"]

    assert device_bytes("bf16") >= device_bytes("fp32")


def test_auto_is_the_order_that_is_faster_and_fits(sluiceway, small_model, write_config):
    engine = {"kind": "offload", "weights": "streamed", "order": "auto", "gradients": "fp32"}
    device = {"tflops": 1.0, "host_gbps": 100.0, "link": {"d2h_gbps": 1, "h2d_gbps": 1}}
    config = write_config(
        small_model, engine=engine, train={"accumulate": 4}, store={"chunk": "64KiB"}, device=device
    )

    def planned(*settings):
        done = sluiceway("plan", config, "--json", *(f"--set={one}" for one in settings))
        assert done.code == 0, done.err
        return json.loads(done.out)

    found = planned()
    order, compared = found["alternatives"], found["alternatives"]["compared"]
    assert order["chosen"] == {"order": "block"}
    for name in ("step", "block"):
        alone = planned(f"engine.order={name}")
        assert "alternatives" not in alone
        assert compared[name]["seconds"] == pytest.approx(alone["seconds_per_step"])
        assert compared[name]["device_bytes"] == alone["peak_bytes"]["device"]
        assert compared[name]["fits"]
    assert compared["block"]["seconds"] < 0.9 * compared["step"]["seconds"]
    between = sum(one["device_bytes"] for one in compared.values()) // 2
    order = planned(f"budget.device={between}")["alternatives"]
    assert (order["chosen"], order["compared"]["block"]["fits"]) == ({"order": "step"}, False)
    slow = planned("device.tflops=1e-5")["alternatives"]
    assert slow["chosen"] == {"order": "step"}  # Both wait for the device.
    assert slow["compared"]["block"]["seconds"] > 0.98 * slow["compared"]["step"]["seconds"]
    assert "alternatives" not in planned("train.accumulate=1")
    resident = planned("engine.weights=resident")
    assert "alternatives" not in resident


@pytest.mark.parametrize("kind", ["offload", "subspace"])
def test_inputs_of_blocks_are_where_they_fit(sluiceway, small_model, write_config, kind, tmp_path):
    config = write_config(
        small_model, engine={"kind": kind, "activations": "auto"}, store={"chunk": "64KiB"},
        train={"steps": 2, "micro_batch": 8}, data={"sequence_length": 96},
    )  # fmt: skip

    def planned(*settings):
        done = sluiceway("plan", config, "--json", *(f"--set={one}" for one in settings))
        assert done.code == 0, done.err
        return json.loads(done.out)["alternatives"]

    found = planned()
    assert found["chosen"] == {"activations": "device"}
    device, host = (found["compared"][name]["device_bytes"] for name in ("device", "host"))
    assert host < device
    limit = f"budget.device={(device + host) // 2}"
    assert planned(limit)["chosen"] == {"activations": "host"}
    done = sluiceway("train", config, "--out", tmp_path / "out", "--set", limit)
    assert done.code == 0, done.err
    assert "activations: host; device takes" in done.out
    assert "which exceeds a budget" in done.out
    saved = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert saved["engine"]["activations"] == "host"
    done = sluiceway("resume", tmp_path / "out", "--set", "train.steps=3")
    assert done.code == 0, done.err
    if kind == "subspace":
        return
    disk = planned("engine.tier=disk", limit, "budget.pinned=64MiB", "data.sequence_length=128")
    assert list(disk["compared"]) == ["device", "host", "disk"]
    both = planned("engine.order=auto", "train.accumulate=2", "engine.weights=streamed")
    assert list(both["compared"]) == ["step+device", "step+host", "block+device", "block+host"]
    with pytest.raises(sw.InvalidArgument, match="activations is auto, which needs the plan"):
        sw.OffloadAdamW(torch.nn.Linear(2, 2), activations="auto")


def test_an_order_in_which_a_model_cannot_run_drops_out(sluiceway, write_config, tmp_path):
    BloomConfig(
        vocab_size=64, hidden_size=64, n_layer=2, n_head=4, architectures=["BloomForCausalLM"]
    ).save_pretrained(tmp_path / "model")
    engine = {"kind": "offload", "weights": "streamed", "order": "auto"}
    config = write_config(
        tmp_path / "model", engine=engine, train={"accumulate": 3}, store={"chunk": "16KiB"}
    )
    done = sluiceway("plan", config)
    assert done.code == 0, done.err
    assert "order: step; step takes" in done.out
    assert "block is not possible: " in done.out


def test_a_loss_in_slices_takes_no_room_for_logits(plan):
    config = CONFIGS / "stream_8b_8gb.yaml"
    settings = ("--set", "data.sequence_length=4096", "--set", "train.accumulate=1",
                "--set", "budget.device=null")  # fmt: skip
    device = {
        loss: plan(config, *settings, "--set", f"train.loss={loss}")["peak_bytes"]["device"]
        for loss in ("whole", "sliced")
    }
    logits = 4096 * 128256 * 4
    assert device["whole"] - device["sliced"] > logits


def parameters_of(shape: Path) -> int:
    with torch.device("meta"):
        model = build_skeleton(str(shape), torch.float32)
    return sum(p.numel() for p in model.parameters())


def of_layers(shape: Path, folder: Path, layers: int) -> Path:
    """The same shape with few layers."""
    folder.mkdir()
    config = json.loads((shape / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    return folder


def test_all_settings_of_the_papers_are_planned_with_a_ring_that_does_not_grow(plan, tmp_path):
    assert {path.stem for path in (CONFIGS / "papers").iterdir()} == set(PAPERS)
    rings = {}
    for name, (host_gib, parameters) in PAPERS.items():
        config = CONFIGS / "papers" / f"{name}.yaml"
        shape = REPOSITORY / load_config(config).model.path
        assert parameters_of(shape) == pytest.approx(parameters, rel=0.01)
        planned = shape if WHOLE else of_layers(shape, tmp_path / name, 2)
        found = plan(config, "--set", f"model.path={planned}")
        trained, peak = found["parameters"]["trained"], found["peak_bytes"]
        assert trained == parameters_of(planned)
        assert found["over_budget"] is None
        streams = load_config(config).engine.weights == "streamed"  # Weights have two slots, too.
        at_rest = 30 if streams else 26
        assert 0.95 * at_rest * trained < peak["disk"] < (at_rest + 0.5) * trained
        assert found["bytes_per_step"]["d2h"] == 2 * trained
        assert peak["host"] + peak["pinned"] < host_gib * 2**30 / (40 if streams else 50)
        if not streams:
            rings[name] = peak["pinned"]
    assert max(rings.values()) < 1.05 * min(rings.values())


STREAMED = {"stream_3b_4gb": 4, "stream_8b_8gb": 8, "stream_70b_24gb": 24}


@pytest.mark.parametrize("name", STREAMED)
def test_configs_of_streamed_weights_fit_their_cards_with_few_layers_and_with_many(
    plan, tmp_path, name
):
    config = CONFIGS / f"{name}.yaml"
    shape = REPOSITORY / load_config(config).model.path
    few, more = (
        of_layers(shape, tmp_path / str(count), count) for count in (8, 12)
    )  # Six inputs are on their way to a drive.
    found = [plan(config, "--set", f"model.path={path}", "--set", "budget.device=null")
             for path in (few, more)]  # fmt: skip
    eight, twelve = (each["peak_bytes"] for each in found)
    assert twelve["device"] - eight["device"] <= 2**18  # Norms: nothing else is of all layers.
    layers = json.loads((shape / "config.json").read_text())["num_hidden_layers"]

    def of_all(tier):
        return twelve[tier] + (layers - 12) * (twelve[tier] - eight[tier]) // 4

    assert of_all("device") <= load_config(config).budget.device < STREAMED[name] * 2**30
    assert of_all("pinned") <= load_config(config).budget.pinned


def test_a_disk_whose_rate_is_not_known_is_said_to_be_left_out(sluiceway):
    done = sluiceway(
        "plan", CONFIGS / "quickstart_offload_disk.yaml",
        "--set", "store.io=block", "--set", "store.path=/dev/none", cwd=REPOSITORY,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "the disk's time is not in them (whole devices are not measured)" in done.out


def test_a_disk_is_measured_where_the_store_will_be(plan, tmp_path):
    config = CONFIGS / "quickstart_offload_disk.yaml"
    found = plan(config, "--set", f"store.path={tmp_path / 'not' / 'there'}")
    assert found["assumed"]["disk_gbps"] > 0
    assert found["assumed"]["disk_gbps_from"] == f"measured in {tmp_path}"
    assert list(tmp_path.iterdir()) == []
