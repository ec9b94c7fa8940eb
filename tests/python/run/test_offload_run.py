"""`kind: offload` on the command line: train, save, resume, plan."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
import yaml
from conftest import REPOSITORY, assert_short_error
from safetensors.torch import load_file

from experiments.kill_resume.kills import loss_lines, weights_hash

TRAIN = {"steps": 6, "accumulate": 2, "max_norm": 0.5, "save_every": 2}
ENGINE = {"kind": "offload", "gradients": "bf16"}


def test_disk_and_memory_train_the_same_bits_and_a_resume_goes_on(
    sluiceway, tiny_model, write_config, tmp_path
):
    hashes, done_on_disk = {}, None
    for name, engine, store in [
        ("host", {"tier": "host"}, {}),
        ("disk", {"tier": "disk"}, {}),
        ("posix", {"tier": "disk"}, {"io": "posix", "path": str(tmp_path / "elsewhere")}),
    ]:
        config = write_config(
            tiny_model, name + ".yaml", train=TRAIN, engine={**ENGINE, **engine},
            store={"chunk": "64KiB", **store},
        )  # fmt: skip
        out = tmp_path / name
        done = sluiceway("train", config, "--out", out)
        assert done.code == 0, done.err
        done_on_disk = done if name == "disk" else done_on_disk
        hashes[name] = (weights_hash(out), loss_lines(out))
    assert hashes["host"] == hashes["disk"] == hashes["posix"]
    assert (tmp_path / "disk" / "store" / "drive0.sws").exists()
    assert (tmp_path / "disk" / "checkpoint" / "optimizer.pt").stat().st_size < 10_000
    lines = (tmp_path / "disk" / "metrics.jsonl").read_text().splitlines()
    line = json.loads(lines[-1])
    assert line["bytes"]["disk_written"] > line["bytes"]["d2h"] > 0
    assert line["peak_bytes"]["disk"] > 0
    assert line["grad_norm"] > 0

    summary = json.loads((tmp_path / "disk" / "summary.json").read_text())
    steps = [json.loads(text) for text in lines if "seconds" in json.loads(text)]
    written = sum(step["bytes"]["disk_written"] for step in steps)
    assert summary["disk"]["written_bytes"] == written
    seconds = sum(step["seconds"] for step in steps)
    daily = written / seconds * 86400 / 1e12
    assert summary["disk"]["written_tb_per_day"] == pytest.approx(daily)
    assert summary["peak_bytes"]["disk"] == line["peak_bytes"]["disk"]
    assert re.search(r"disk r/w \d+\.\d+/\d+\.\d+ GB/s  written [\d.]+ MiB", done_on_disk.out)
    page = tmp_path / "page.html"
    told = sluiceway("report", tmp_path / "disk", "--out", page)
    assert told.code == 0, told.err
    page = page.read_text()
    for lane in ("spill", "fetch", "store"):
        assert f'<th scope="row">{lane}</th>' in page
    assert "host to disk (disk_written)" in page
    assert "written to the disk, all steps" in page

    # A run that stopped after the save of step 4, with a step more on its store.
    short = write_config(
        tiny_model, "short.yaml", train={**TRAIN, "steps": 4}, engine={**ENGINE, "tier": "disk"},
        store={"chunk": "64KiB"},
    )  # fmt: skip
    stopped = tmp_path / "stopped"
    done = sluiceway("train", short, "--out", stopped, "--set", "train.schedule=constant")
    assert done.code == 0, done.err
    done = sluiceway("resume", stopped, "--set", "train.steps=6")
    assert done.code == 0, done.err
    whole = tmp_path / "whole"
    done = sluiceway("train", short, "--out", whole, "--set", "train.schedule=constant",
                     "--set", "train.steps=6", "--set", "engine.tier=host")  # fmt: skip
    assert done.code == 0, done.err
    assert weights_hash(stopped) == weights_hash(whole)
    assert loss_lines(stopped)[-2:] == loss_lines(whole)[-2:]


def saved(run):
    return load_file(run / "checkpoint" / "model.safetensors")


def test_streamed_weights_train_the_same_bits_in_less_of_the_device(
    sluiceway, tiny_model, write_config, tmp_path
):
    losses, weights, planned, found = {}, {}, {}, {}
    ways = {
        "resident": {}, "host": {"weights": "streamed"},
        "disk": {"weights": "streamed", "tier": "disk", "state_codec": "fp32"},
    }  # fmt: skip
    for name, engine in ways.items():
        config = write_config(
            tiny_model, name + ".yaml", train=TRAIN, engine={**ENGINE, **engine},
            store={"chunk": "16KiB"},
        )  # fmt: skip
        done = sluiceway("train", config, "--out", tmp_path / name)
        assert done.code == 0, done.err
        losses[name], weights[name] = loss_lines(tmp_path / name), saved(tmp_path / name)
        done = sluiceway("plan", config, "--json")
        assert done.code == 0, done.err
        planned[name] = json.loads(done.out)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        found[name] = [line for line in map(json.loads, lines) if "bytes" in line]
    for name in ("host", "disk"):
        assert losses[name] == losses["resident"]
        assert weights[name].keys() == weights["resident"].keys()
        for key, weight in weights["resident"].items():
            assert torch.equal(weights[name][key], weight), key
        # A line has what crossed between two ends of step(), so on a busy machine one line may
        # have an update of the step before it; the last one crosses after the last line. An
        # evaluation fetches weights once more.
        steps = len(found[name])
        for link, count in planned[name]["bytes_per_step"].items():
            crossed = sum(line["bytes"][link] for line in found[name])
            assert (steps - 1) * 0.9 * count <= crossed <= (steps + 1) * count, link
        plan = planned[name]["peak_bytes"]
        assert plan["device"] < planned["resident"]["peak_bytes"]["device"]
        assert found[name][-1]["peak_bytes"]["pinned"] == pytest.approx(plan["pinned"], rel=0.01)

    # Evaluated, exported, and trained on after a save, none of which has the model whole.
    done = sluiceway("eval", tmp_path / "disk", "--json")
    assert done.code == 0, done.err
    done = sluiceway("export", tmp_path / "disk", "--to", tmp_path / "exported")
    assert done.code == 0, done.err
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    assert all(torch.equal(exported[key], weight) for key, weight in weights["disk"].items())
    done = sluiceway("resume", tmp_path / "disk", "--set", "train.steps=8")
    assert done.code == 0, done.err
    assert len(loss_lines(tmp_path / "disk")) > len(losses["disk"])


def test_states_that_do_not_fit_into_memory_are_on_disk_and_a_killed_run_continues_from_its_save(
    sluiceway, tiny_model, write_config, tmp_path
):
    config = write_config(
        tiny_model, train=TRAIN, engine={**ENGINE, "weights": "streamed"}, store={"chunk": "16KiB"}
    )
    done = sluiceway("plan", config, "--json")
    assert done.code == 0, done.err
    host = json.loads(done.out)["peak_bytes"]["host"]
    done = sluiceway("train", config, "--out", tmp_path / "host")
    assert done.code == 0, done.err
    states = (tmp_path / "host" / "checkpoint" / "optimizer.pt").stat().st_size
    settings = ["--set", "engine.tier=auto", "--set", f"budget.host={host - states // 2}"]
    done = sluiceway("plan", config, "--json", *settings)
    assert done.code == 0, done.err
    plan = json.loads(done.out)
    assert re.search("in host memory, [3-7][0-9]% of the bytes on disk", plan["why"])

    auto = tmp_path / "auto"
    done = sluiceway("train", config, "--out", auto, *settings, "--set", "train.steps=4",
                     "--set", "train.schedule=constant")  # fmt: skip
    assert done.code == 0, done.err
    assert not list((auto / "store").iterdir())
    assert (auto / "checkpoint" / "optimizer.pt").stat().st_size == pytest.approx(states, rel=0.1)
    lines = [json.loads(x) for x in (auto / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "bytes" in line]
    for key, count in plan["bytes_per_step"].items():
        moved = sum(line["bytes"][key] for line in lines)
        assert (len(lines) - 1) * 0.8 * count <= moved <= (len(lines) + 1) * 1.2 * count, key
    assert lines[-1]["peak_bytes"]["host"] <= host - states // 2
    assert lines[-1]["peak_bytes"]["disk"] == pytest.approx(plan["peak_bytes"]["disk"], rel=0.02)
    done = sluiceway("resume", auto, "--set", "train.steps=6")
    assert done.code == 0, done.err
    done = sluiceway("train", config, "--out", tmp_path / "whole",
                     "--set", "train.schedule=constant")  # fmt: skip
    assert done.code == 0, done.err
    assert weights_hash(auto) == weights_hash(tmp_path / "whole")
    assert loss_lines(auto)[-2:] == loss_lines(tmp_path / "whole")[-2:]


def test_micro_batches_pass_through_each_block_together(
    sluiceway, tiny_model, write_config, tmp_path
):
    found, planned = {}, {}
    engine = {**ENGINE, "weights": "streamed", "gradients": "fp32"}
    for order in ("step", "block"):
        config = write_config(
            tiny_model, order + ".yaml", train={**TRAIN, "accumulate": 4, "schedule": "constant"},
            engine={**engine, "order": order}, store={"chunk": "16KiB"},
        )  # fmt: skip
        done = sluiceway("train", config, "--out", tmp_path / order)
        assert done.code == 0, done.err
        lines = (tmp_path / order / "metrics.jsonl").read_text().splitlines()
        found[order] = [line for line in map(json.loads, lines) if "bytes" in line]
        done = sluiceway("plan", config, "--json")
        assert done.code == 0, done.err
        planned[order] = json.loads(done.out)
    for step, block in zip(found["step"], found["block"], strict=True):
        assert block["loss"] == pytest.approx(step["loss"], abs=2e-3)
        assert block["tokens"] == step["tokens"]
    for link in ("d2h", "h2d"):
        crossed = {o: sum(line["bytes"][link] for line in found[o]) for o in found}
        count = {o: planned[o]["bytes_per_step"][link] for o in planned}
        assert count["block"] < count["step"]
        assert crossed["block"] == pytest.approx(len(found["block"]) * count["block"], rel=0.2)
        assert crossed["block"] < 0.6 * crossed["step"]

    # auto, a save in between, and the rest of the run with the same bits. The plan takes rates that
    # do not depend on how busy this machine is.
    short, slow = tmp_path / "short", "device.link={d2h_gbps: 0.01, h2d_gbps: 0.01}"
    rates = [f"device.{rate}=10" for rate in ("tflops", "memory_gbps", "host_gbps")]
    settings = ["train.steps=4", "engine.order=auto", slow, *rates]
    settings = [word for setting in settings for word in ("--set", setting)]
    done = sluiceway("train", config, "--out", short, *settings)
    assert done.code == 0, done.err
    assert "order: block; step takes" in done.out
    assert yaml.safe_load((short / "config.yaml").read_text())["engine"]["order"] == "block"
    done = sluiceway("resume", short, "--set", "train.steps=6")
    assert done.code == 0, done.err
    losses, whole = ([line[:2] for line in loss_lines(run)] for run in (short, tmp_path / "block"))
    assert losses == whole
    assert weights_hash(short) == weights_hash(tmp_path / "block")

    done = sluiceway("train", config, "--set", "engine.weights=resident")
    assert_short_error(done, 2, "order is block, but blocks run as the model calls them")


def test_a_loss_in_slices_trains_like_the_whole_one(sluiceway, tiny_model, write_config, tmp_path):
    found = {}
    for loss in ("whole", "sliced"):
        for dtype in ("fp32", "bf16"):
            name = f"{loss}-{dtype}"
            config = write_config(
                tiny_model, name + ".yaml", train={**TRAIN, "loss": loss},
                model={"dtype": dtype}, engine=ENGINE, store={"chunk": "16KiB"},
            )  # fmt: skip
            done = sluiceway("train", config, "--out", tmp_path / name)
            assert done.code == 0, done.err
            found[name] = [line[1] for line in loss_lines(tmp_path / name)]
    assert found["sliced-fp32"] == pytest.approx(found["whole-fp32"], abs=1e-4)
    assert found["sliced-bf16"] == pytest.approx(found["whole-bf16"], abs=2e-2)
    done = sluiceway("eval", tmp_path / "sliced-fp32", "--json")
    assert done.code == 0, done.err


def test_a_run_whose_store_is_gone_is_refused_by_its_path_and_makes_none(
    sluiceway, tiny_model, write_config, tmp_path
):
    config = write_config(
        tiny_model, train={**TRAIN, "steps": 2, "save_every": 2},
        engine={**ENGINE, "tier": "disk"}, store={"chunk": "64KiB"},
    )  # fmt: skip
    out = tmp_path / "out"
    done = sluiceway("train", config, "--out", out)
    assert done.code == 0, done.err
    shutil.move(out / "store", tmp_path / "unmounted")
    done = sluiceway("resume", out, "--set", "train.steps=4")
    assert_short_error(done, 2, f"{out / 'store'} does not exist")
    assert not (out / "store").exists()
    (out / "store").mkdir()  # The folder that a drive was mounted over.
    done = sluiceway("resume", out, "--set", "train.steps=4")
    assert_short_error(done, 2, "holds no drive0.sws, so it is not a store")
    assert not list((out / "store").iterdir())
    (out / "store").rmdir()
    shutil.move(tmp_path / "unmounted", out / "store")
    done = sluiceway("resume", out, "--set", "train.steps=4")
    assert done.code == 0, done.err


# Chunks that most matrices of the small model fill; some share one, and cross whole.
CODEC = {"codec": "block_random", "target": "proj", "block": 8, "redraw": 2}


@pytest.mark.parametrize(
    ("codec", "chunk"), [({}, "64KiB"), (CODEC, "8KiB"), ({**CODEC, "spill": "core"}, "8KiB")]
)
def test_norms_that_nobody_needs_are_not_read_back(
    sluiceway, tiny_model, write_config, tmp_path, codec, chunk
):
    config = write_config(
        tiny_model, train={**TRAIN, "max_norm": None, "steps": 12, "save_every": 0},
        engine={**ENGINE, "tier": "disk", **codec}, store={"chunk": chunk},
        device={"disk_gbps": 1e9},
    )  # fmt: skip
    done = sluiceway("train", config, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    # No codec is as fast as that disk.
    assert ("engine.codec: the host decompresses for" in done.err) == bool(codec)
    lines = [json.loads(x) for x in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    plan = json.loads(sluiceway("plan", config, "--json").out)
    planned, peak = plan["bytes_per_step"], lines[-1]["peak_bytes"]
    assert peak["pinned"] == plan["peak_bytes"]["pinned"]
    assert 0 <= peak["host"] - plan["peak_bytes"]["host"] < 10_000  # Tables of the store.
    assert ("codec_seconds" in plan) == bool(codec)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    groups = summary.get("codecs", [])
    assert sum(group["weights"] for group in groups) == plan["compressed_weights"]
    assert all(f"{g['weights']} x {g['shape'][0]}x" in done.out for g in groups)
    assert ("uncompressed, whole over the link" in done.out) == bool(codec)
    assert peak["disk"] == pytest.approx(plan["peak_bytes"]["disk"], rel=0.02)
    assert lines[-1]["grad_norm"] is None
    found = [line["bytes"] for line in lines if "seconds" in line][1:]
    if "spill" not in codec:  # A core crosses once more for its update, as do bytes of the disk.
        assert {each["d2h"] for each in found} == {planned["d2h"]}
    for link, count in planned.items():
        # A commit's table, run state and superblock are written beside the states.
        commit = 32 << 10 if link == "disk_written" else 0
        # An update may be counted with the step after its own.
        mean = sum(each[link] for each in found) / len(found)
        assert 0.9 * count <= mean <= 1.1 * count + commit, link


@pytest.mark.parametrize(
    ("override", "say"),
    [
        ("engine.codec=svd", "codec: svd is not in this version of the engine offload"),
        ("store.path=x", "store.path is x, but engine.tier is host"),
        ("engine.policy=spil", "engine.policy is 'spil', expected 'auto', 'spill' or"),
        ("store.chunk=5000", "expected a multiple of 8192"),
    ],
)
def test_what_there_is_not_is_refused(sluiceway, tiny_model, write_config, tmp_path, override, say):
    config = write_config(tiny_model, engine={**ENGINE, "tier": "host"})
    done = sluiceway("train", config, "--out", tmp_path / "out", "--set", override)
    assert_short_error(done, 2, say)


def test_a_budget_below_the_least_ring_is_refused_with_both_numbers(
    sluiceway, tiny_model, write_config, tmp_path
):
    config = write_config(tiny_model, engine={**ENGINE, "tier": "disk"}, budget={"pinned": "64KiB"})
    for command in (["train", config, "--out", tmp_path / "out"], ["plan", config]):
        done = sluiceway(*command)
        assert_short_error(done, 3, "64.00 KiB", "2.0", "raise budget.pinned")


def test_a_budget_that_the_first_save_would_outgrow_is_refused_as_the_run_begins(
    sluiceway, tiny_model, write_config, tmp_path
):
    config = write_config(
        tiny_model, train={**TRAIN, "save_every": 0}, engine={**ENGINE, "tier": "disk"},
        store={"chunk": "64KiB"},
    )  # fmt: skip
    needed = json.loads(sluiceway("plan", config, "--json").out)["peak_bytes"]["disk"]
    tight = ["--set", f"budget.disk={int(1.1 * needed)}"]
    done = sluiceway("train", config, "--out", tmp_path / "out", *tight,
                     "--set", "train.save_every=2")  # fmt: skip
    assert_short_error(done, 3, "a third of them for saves", "or set train.save_every: 0")
    assert not (tmp_path / "out").exists()
    done = sluiceway("train", config, "--out", tmp_path / "out", *tight)
    assert done.code == 0, done.err


def test_gradients_may_wait_elsewhere_in_the_next_sitting(
    sluiceway, tiny_model, write_config, tmp_path
):
    config = write_config(
        tiny_model, train={**TRAIN, "steps": 2, "schedule": "constant"},
        engine={**ENGINE, "tier": "disk", **CODEC, "spill": "gradient"}, store={"chunk": "8KiB"},
    )  # fmt: skip
    for folder in ("whole", "changed"):
        done = sluiceway("train", config, "--out", tmp_path / folder)
        assert done.code == 0, done.err
    for folder, spill in (("whole", "gradient"), ("changed", "core")):
        done = sluiceway("resume", tmp_path / folder, "--set", "train.steps=6",
                         "--set", f"engine.spill={spill}")  # fmt: skip
        assert done.code == 0, done.err
    assert "engine.spill was gradient, is now core" in done.err
    found = {
        f: (weights_hash(tmp_path / f), loss_lines(tmp_path / f)) for f in ("whole", "changed")
    }
    assert found["whole"] == found["changed"]


def test_what_is_warned_of_is_said_without_a_line_of_source(
    sluiceway, tiny_model, write_config, tmp_path, memory_folder
):
    config = write_config(
        tiny_model, train={**TRAIN, "steps": 1}, engine={**ENGINE, "tier": "disk"},
        store={"chunk": "64KiB", "path": str(memory_folder)},
    )  # fmt: skip
    done = sluiceway("train", config, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    (line,) = (text for text in done.err.splitlines() if "no direct I/O" in text)
    assert line.startswith("sluiceway: OffloadAdamW: ")
    assert "warnings.warn" not in done.err


def test_a_plan_refuses_a_path_that_a_run_would_refuse(
    sluiceway, tiny_model, write_config, tmp_path
):
    config = write_config(
        tiny_model, engine={**ENGINE, "tier": "disk"}, store={"path": [str(tmp_path)] * 2}
    )
    for command in (["plan", config], ["train", config, "--out", tmp_path / "out"]):
        assert_short_error(sluiceway(*command), 2, "store: path has", "twice; give each drive")
    done = sluiceway("plan", config, "--set", 'store.path=""')
    assert_short_error(done, 2, "store.path is the empty text")


def test_the_quickstart_on_disk_differs_from_the_first_in_its_engine_alone():
    first, disk = (
        yaml.safe_load((REPOSITORY / "configs" / f"{name}.yaml").read_text())
        for name in ("quickstart", "quickstart_offload_disk")
    )
    assert {key for key in disk if disk[key] != first.get(key)} == {"engine", "store", "budget"}


def test_plan_of_the_quickstart_has_the_disk(sluiceway):
    config = REPOSITORY / "configs" / "quickstart_offload_disk.yaml"
    done = sluiceway("plan", config, "--json", cwd=REPOSITORY)
    assert done.code == 0, done.err
    plan = json.loads(done.out)
    trained = plan["parameters"]["trained"]
    assert plan["parameters"]["frozen"] == 0
    assert 24 * trained <= plan["peak_bytes"]["disk"] <= 40 * trained
    assert plan["bytes_per_step"]["d2h"] == 2 * trained
    assert plan["bytes_per_step"]["h2d"] == 4 * trained
    total = sum(plan["bytes_per_step"][f"disk_{way}"] for way in ("read", "written"))
    assert total == pytest.approx(28 * trained, rel=0.02)
