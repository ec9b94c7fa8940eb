"""Configs with `kind: zo` are checked and planned, the quickstart's too."""

from __future__ import annotations

import json

import pytest
import yaml
from conftest import REPOSITORY, assert_short_error, read_lines
from sluiceway.config.engines.native import NativeSection
from sluiceway.config.engines.zo import ZoSection
from sluiceway.config.file import check_config, load_config
from sluiceway.config.schema import TrainSection
from sluiceway.engines import native_twin
from sluiceway.engines.zo import Zo
from sluiceway.errors import InvalidArgument
from sluiceway.optim.zo.arguments import ZoArguments

SMALLEST = "model: {path: m}\ndata: {train: [pydoc]}\nengine: {kind: zo}\n"


def test_what_adamw_has_defaults_for_is_off_unless_it_is_said(load):
    config = load(SMALLEST)
    assert config.engine == ZoSection()
    train = TrainSection(lr=1e-6, weight_decay=0.0, max_norm=None)
    assert config.train == train
    assert check_config(config.resolved()) == config
    assert load(SMALLEST, "train.lr=1e-3", "train.weight_decay=0.1").train.lr == 1e-3
    other = load(SMALLEST, "engine={kind: native}")
    assert other.train == TrainSection()
    assert native_twin(config).engine == NativeSection(embeddings="trained")
    assert native_twin(config).train == config.train


def test_options_of_a_config_are_those_of_the_class():
    shared = {name: field.default for name, field in ZoArguments.model_fields.items()}
    section = {name: field.default for name, field in ZoSection.model_fields.items()}
    assert (section.pop("kind"), section.pop("embeddings")) == ("zo", "trained")
    assert section.pop("eval_batches") is None
    assert {name: shared.pop(name) for name in section} == section
    assert set(shared) == {
        "device", "path", "store", "link", "budget", "trace", "pin", "opens", "seed"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("engine: {kind: zo, esp: 1}", "run.yaml:3: unknown key engine.esp, did you mean"),
        ("engine: {kind: zo, fused: true}", "unknown key engine.fused, known here: across_ranks"),
        ("engine: {kind: zo, eps: 0}", "run.yaml:3: engine.eps is 0, expected greater than 0"),
        ("engine: {kind: zo, directions: 0}", "engine.directions is 0, expected greater than or"),
        ("engine: {kind: zo, noise: guassian}", "engine.noise is 'guassian', expected 'auto'"),
        ("engine: {kind: zo, tier: dsik}", "engine.tier is 'dsik', expected 'device', 'host' or"),
        ("engine: {kind: zoo}", "engine.kind is 'zoo', expected one of: subspace, native, offload, "
         "zo; did you mean zo?"),
        ("engine: {kind: zo}\ntrain:\n  max_norm: 1.0", "run.yaml:5: train.max_norm is 1.0, but "
         "engine.kind zo has no gradient to clip; leave it out"),
        ("engine: {kind: zo}\ntrain: {betas: [0.8, 0.9]}", "run.yaml:4: train.betas is (0.8, 0.9)"),
        ("engine: {kind: zo}\ntrain: {eps: 1.0e-3}", "run.yaml:4: train.eps is 0.001, which is "
         "for AdamW, but engine.kind is zo; set engine.eps for zo"),
        ("model: {path: m, autocast: bf16}", "run.yaml:1: model.autocast is bf16, but"),
        ("model: {path: m, checkpointing: true}", "model.checkpointing is true, but"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_its_line(load, lines, words):
    parts = dict(line.split(": ", 1) for line in SMALLEST.splitlines())
    first, _, rest = lines.partition("\n")
    parts |= dict([first.split(": ", 1)])
    text = "".join(f"{key}: {value}\n" for key, value in parts.items()) + rest
    with pytest.raises(InvalidArgument) as refused:
        load(text)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_directions_of_low_rank_have_one_base_on_disk(load):
    on_disk = ("engine.tier=disk", "engine.noise=lowrank", "store.path=x", "train.steps=2000")
    assert not load(SMALLEST, *on_disk).engine.has_new_bases
    with pytest.raises(InvalidArgument, match="consolidate is 7, but noise lowrank"):
        load(SMALLEST, *on_disk, "engine.consolidate=7")


def test_a_stream_of_low_rank_has_no_limit_of_steps_and_no_store(load):
    streamed = ("engine.tier=host", "engine.noise=lowrank", "train.steps=2000")
    assert load(SMALLEST, *streamed).engine.family == "gaussian"
    with pytest.raises(InvalidArgument, match=r"store.path is x, but engine.tier is host"):
        load(SMALLEST, "engine.tier=host", "store.path=x")


# Products take nearly all of a step.
RATES = ["--set=device.tflops=0.001", "--set=device.memory_gbps=50", "--set=device.host_gbps=50"]


@pytest.mark.parametrize(
    ("model", "train", "engine"),
    [
        ({}, {}, {}),
        ({}, {"weight_decay": 0.1, "accumulate": 3}, {}),
        ({"dtype": "bf16"}, {}, {}),
        ({}, {"micro_batch": 64}, {}),
        ({}, {}, {"directions": 3}),
        ({}, {}, {"noise": "lowrank"}),
        ({}, {}, {"noise": "lowrank", "directions": 2}),
        ({"dtype": "bf16"}, {}, {"noise": "lowrank"}),
    ],
    ids=[
        "fp32",
        "decay",
        "bf16",
        "wide-batch",
        "directions",
        "low-rank",
        "low-rank-directions",
        "low-rank-bf16",
    ],
)
def test_a_run_takes_the_memory_that_was_planned(
    sluiceway, small_model, write_config, tmp_path, model, train, engine
):
    config = write_config(
        small_model, engine={"kind": "zo", **engine}, model=model, data={"eval": []},
        train={"steps": 3, "lr": 1e-5, **train},
    )  # fmt: skip
    done = sluiceway("plan", config, "--json", *RATES)
    assert done.code == 0, done.err
    plan = json.loads(done.out)
    assert plan["bytes_per_step"] == {"d2h": 0, "h2d": 0}
    done = sluiceway("train", config, "--out", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    peak = json.loads(done.out)["peak_bytes"]
    assert plan["peak_bytes"]["device"] == pytest.approx(peak["device"], rel=0.05)
    assert (plan["peak_bytes"]["host"], plan["peak_bytes"]["pinned"]) == (0, 0)
    if not (model or engine):  # A master has as many bytes as two moments of 16 bits.
        assert plan["native_device_bytes"] > plan["peak_bytes"]["device"]


@pytest.mark.parametrize(
    ("engine", "train", "model"),
    [
        ({}, {}, {}),
        ({"directions": 2}, {"accumulate": 2}, {}),
        ({"resident": "1MiB", "depth": 4, "noise": "lowrank", "rank": 32, "period": 1}, {}, {}),
        ({"depth": 1}, {}, {"dtype": "bf16"}),
        ({"mode": "write_back", "resident": "1MiB"}, {}, {}),
        ({"mode": "write_back"}, {}, {"dtype": "bf16"}),
        ({"mode": "write_back", "wire": "bf16"}, {}, {}),
        ({"mode": "write_back", "wire": "fp8"}, {}, {"dtype": "bf16"}),
    ],
    ids=[
        "plain",
        "forwards",
        "deep-low-rank",
        "bf16",
        "write_back",
        "write_back-bf16",
        "write_back-narrow",
        "write_back-fp8",
    ],
)
def test_a_streamed_run_takes_the_memory_that_was_planned(
    sluiceway, small_model, write_config, tmp_path, engine, train, model
):
    config = write_config(
        small_model, engine={"kind": "zo", "tier": "host", **engine}, data={"eval": []},
        train={"steps": 3, "lr": 1e-5, **train}, model=model,
    )  # fmt: skip
    done = sluiceway("plan", config, "--json", *RATES)
    assert done.code == 0, done.err
    plan = json.loads(done.out)["peak_bytes"]
    done = sluiceway("train", config, "--out", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    found = [line["peak_bytes"] for line in read_lines(tmp_path / "out")[1:]]
    for tier in ("host", "pinned"):
        assert plan[tier] == max(peak[tier] for peak in found)
    assert 0.95 < plan["device"] / max(peak["device"] for peak in found) < 1.05


def test_what_plays_no_part_is_refused(load):
    for said, words in (
        (["engine.resident=5"], "resident is 5, which is for host and disk alone"),
        (
            ["engine.tier=host", "engine.consolidate=5"],
            "consolidate is 5, which is for disk alone",
        ),
        (["store.path=x"], "store.path is x, but engine.tier is device, which keeps nothing on"),
        (["engine.tier=host", "store.path=x"], "store.path is x, but engine.tier is host, which"),
        (["engine.rank=5"], "rank is 5, which is for lowrank alone"),
        (["engine.eval_batches=5"], "engine.eval_batches is 5, but engine.tier is device"),
        (
            ["engine.mode=write_back"],
            "mode is write_back and tier device, which writes each step into",
        ),
        (
            ["engine.tier=disk", "engine.mode=write_back"],
            "mode is write_back and tier disk, which each",
        ),
        (
            ["engine.tier=host", "engine.master=bf16"],
            "master is bf16, which is for write_back alone",
        ),
        (["engine.tier=host", "train.steps=2000"], "train.steps is 2000 with engine.directions 1"),
        (["engine.directions=1025"], "engine.directions is 1025, expected at most 1024"),
        (
            ["engine.tier=host", "engine.mode=write_back", "engine.directions=1025"],
            "engine.directions is 1025, expected at most 1024",
        ),
    ):
        with pytest.raises(InvalidArgument, match=words):
            load(SMALLEST, *said)


@pytest.mark.parametrize(
    ("wire", "text"),
    [("auto", "written into each, and it goes back"), ("fp16", "images of fp16 are streamed to")],
)
def test_a_run_says_who_writes_steps_into_weights(load, wire: str, text: str) -> None:
    config = load(SMALLEST, "engine.tier=host", "engine.mode=write_back", f"engine.wire={wire}")
    assert text in Zo(config)._where()


def test_what_is_on_disk_is_in_the_folder_of_the_run_and_takes_any_number_of_steps(load, tmp_path):
    config = load(SMALLEST, "engine.tier=disk", "engine.consolidate=7", "train.steps=2000")
    assert config.engine.commits
    assert config.engine.in_folder(config, tmp_path).store.path == str(tmp_path / "store")
    config = load(SMALLEST, "engine.tier=disk", "store.path=/x")
    assert config.engine.in_folder(config, tmp_path).store.path == "/x"
    assert not load(SMALLEST, "engine.tier=host").engine.commits
    assert load(SMALLEST, "engine.tier=host", "engine.mode=write_back", "train.steps=2000")


def test_a_plan_counts_two_forwards_for_every_direction_and_micro_batch(
    sluiceway, small_model, write_config
):
    def planned(**changes):
        sections = {"engine": {"kind": "zo"}} | changes
        done = sluiceway("plan", write_config(small_model, **sections), "--json", *RATES)
        assert done.code == 0, done.err
        return json.loads(done.out)

    once, native = planned(), planned(engine={"kind": "native"})
    twice = planned(engine={"kind": "zo", "directions": 2}, train={"accumulate": 3})
    assert twice["seconds_per_step"] == pytest.approx(6 * once["seconds_per_step"], rel=0.01)
    # A backward takes two forwards.
    assert once["seconds_per_step"] == pytest.approx(native["seconds_per_step"] * 2 / 3, rel=0.05)
    assert once["peak_bytes"]["device"] < twice["peak_bytes"]["device"]
    assert once["why"] == "2 forwards a step, rademacher noise, weights on the device"
    done = sluiceway("plan", write_config(small_model, engine={"kind": "zo"}), *RATES,
                     "--set=budget.device=1MiB")  # fmt: skip
    assert_short_error(done, 3, "budget.device: the run needs")


def test_the_quickstart_from_losses_alone_differs_in_what_it_has_no_use_for():
    first, zo = (
        yaml.safe_load((REPOSITORY / "configs" / f"{name}.yaml").read_text())
        for name in ("quickstart", "quickstart_zo")
    )
    assert zo["model"] == first["model"] | {"autocast": None}
    assert zo["data"] == first["data"]
    config = load_config(REPOSITORY / "configs" / "quickstart_zo.yaml")
    assert config.engine.kind == "zo"
    assert (config.train.steps, config.tokens_per_step) == (700, 2048)


def test_a_config_of_an_older_run_is_accepted_with_a_warning(load):
    with pytest.warns(FutureWarning, match="mode parity is called write_back now"):
        config = load(SMALLEST, "engine.tier=host", "engine.mode=parity")
    assert config.engine.mode == "write_back"
    with pytest.warns(FutureWarning, match="perturb is gone"):
        config = load(SMALLEST, "engine.noise=lowrank", "engine.perturb=activations")
    assert not hasattr(config.engine, "perturb")
