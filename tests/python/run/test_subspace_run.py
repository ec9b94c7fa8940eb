"""The command line with the subspace engine: bytes, budgets, plan against run, what it refuses."""

from __future__ import annotations

import json

import pytest
from conftest import assert_short_error, read_lines

from experiments.kill_resume.kills import weights_hash


@pytest.fixture
def subspace(small_model, write_config):
    def write(**sections):
        sections.setdefault("engine", {})
        engine = {"kind": "subspace", "codec": "block_random", "embeddings": "frozen"}
        sections["engine"] = engine | sections["engine"]
        return write_config(small_model, **sections)

    return write


def test_bytes_on_the_links_are_those_the_plan_predicts(sluiceway, subspace, tmp_path):
    config = subspace(train={"steps": 4, "eval_sequences": 1})
    plan = json.loads(sluiceway("plan", config, "--json").out)
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert plan["compressed_weights"] == 2 * 7
    lines = read_lines(tmp_path / "out")[1:]
    for link in ("d2h", "h2d"):
        # A step's update crosses while the next one runs, so the last one is in no line.
        crossed = sum(line["bytes"][link] for line in lines)
        assert 3 * plan["bytes_per_step"][link] <= crossed <= 4 * plan["bytes_per_step"][link]
    assert plan["bytes_per_step"]["d2h"] > 0


def test_frozen_embedding_is_in_the_summary_and_does_not_move(sluiceway, subspace, tmp_path,
                                                              small_model):  # fmt: skip
    import torch
    from safetensors.torch import load_file

    outcome = sluiceway("train", subspace(), "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert "frozen: model.embed_tokens.weight" in outcome.out
    before = load_file(small_model / "model.safetensors")
    after = load_file(tmp_path / "out" / "checkpoint" / "model.safetensors")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert "model.embed_tokens.weight" not in moved
    assert len(moved) == len(before) - 1


@pytest.mark.parametrize(
    ("compare", "embeddings", "said"),
    [
        (None, "frozen", ["subspace: embeddings and head are frozen, "]),
        (None, "identity", []),
        (
            "native",
            "frozen",
            [
                "native (to compare): embeddings and head are frozen, ",
                "subspace: embeddings and head are frozen, ",
            ],
        ),
    ],
)
def test_first_lines_of_a_run_say_that_embeddings_are_frozen(
    sluiceway, subspace, tmp_path, small_model, compare, embeddings, said
):
    from safetensors.torch import load_file

    weights = load_file(small_model / "model.safetensors")
    frozen = weights["model.embed_tokens.weight"].numel()
    everything = sum(w.numel() for w in weights.values())
    config = subspace(compare=compare, engine={"embeddings": embeddings}, train={"steps": 2})
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    lines = [line for line in outcome.out.splitlines() if "are frozen" in line]
    assert [line.startswith(words) for line, words in zip(lines, said, strict=True)] == [True] * (
        len(said)
    )
    if said:
        assert outcome.out.splitlines().index(lines[0]) < 5
        assert f"{frozen:,} of {everything:,} parameters" in lines[0]


def test_comparison_trains_the_same_weights_as_the_engine(sluiceway, subspace, tmp_path):
    config = subspace(compare="native", train={"steps": 4})
    outcome = sluiceway("train", config, "--out", tmp_path / "out", "--json")
    assert outcome.code == 0, outcome.err
    summary = json.loads(outcome.out)
    native = json.loads((tmp_path / "out" / "native" / "summary.json").read_text())
    assert native["parameters"].items() <= summary["parameters"].items()
    assert native["first_eval_loss"] == summary["first_eval_loss"]
    assert summary["native_ratio"] > 0


def test_identity_over_a_fp32_wire_follows_plain_adamw(sluiceway, subspace, tmp_path):
    engine = {"codec": "identity", "wire": "fp32"}
    train = {"steps": 10, "accumulate": 3, "lr": 1e-3, "warmup_steps": 2, "max_norm": 0.5}
    config = subspace(engine=engine, train=train, compare="native")
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    ours, theirs = (
        [line["loss"] for line in read_lines(folder)[1:]]
        for folder in (tmp_path / "out", tmp_path / "out" / "native")
    )
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert ours[-1] < ours[0] - 0.1


@pytest.mark.parametrize(
    ("model", "engine"),
    [
        pytest.param({"dtype": "bf16"}, {}, id="bf16-weights"),
        pytest.param({"autocast": "fp16"}, {}, id="fp16-autocast"),
        pytest.param({}, {"codec": "sparse_learned", "refresh": {"every": 2}}, id="learned"),
        pytest.param({}, {"codec": "identity", "embeddings": "identity"}, id="identity"),
    ],
)
def test_run_in_two_sittings_ends_in_the_bits_of_a_run_in_one(
    sluiceway, subspace, tmp_path, model, engine
):
    train = {"schedule": "constant", "lr": 1e-3, "accumulate": 2}
    for name, steps in (("one", 6), ("two", 3)):
        config = subspace(model=model, engine=engine, train={**train, "steps": steps})
        outcome = sluiceway("train", config, "--out", tmp_path / name)
        assert outcome.code == 0, outcome.err
    outcome = sluiceway("resume", tmp_path / "two", "--set", "train.steps=6")
    assert outcome.code == 0, outcome.err
    assert weights_hash(tmp_path / "one") == weights_hash(tmp_path / "two")
    losses = [[line.get("loss") for line in read_lines(tmp_path / n)] for n in ("one", "two")]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][1]


def test_trace_shows_lanes_and_the_loops_steps(sluiceway, subspace, tmp_path):
    assert sluiceway("train", subspace(), "--out", tmp_path / "out").code == 0
    events = json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]
    rows = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"loop", "device", "d2h", "host", "h2d"} <= rows
    assert "step 6" in {e["name"] for e in events}


@pytest.mark.parametrize("tier", ["device", "host", "pinned"])
def test_budget_too_small_for_one_layer_is_refused_with_both_byte_counts(
    sluiceway, subspace, tmp_path, tier
):
    config = subspace(budget={tier: 4096})
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert_short_error(outcome, 3, tier, "4096")
    assert not (tmp_path / "out").exists()


def test_model_without_any_large_linear_layer_is_refused(
    sluiceway, tiny_model, write_config, tmp_path
):
    config = write_config(tiny_model, engine={"kind": "subspace"})
    for command in (["train", config, "--out", tmp_path / "out"], ["plan", config]):
        outcome = sluiceway(*command)
        assert_short_error(outcome, 2, "has no trainable linear weight", "65536")
    assert not (tmp_path / "out").exists()


def test_codec_without_a_core_needs_a_residual(sluiceway, subspace, tmp_path):
    engine = {"codec": "none", "residual": "none"}
    outcome = sluiceway("train", subspace(engine=engine), "--out", tmp_path / "out")
    assert_short_error(outcome, 2, "codec none and residual none", "set a residual")
    assert not (tmp_path / "out").exists()


def test_run_says_and_writes_down_what_its_codecs_are(sluiceway, subspace, tmp_path):
    config = subspace(engine={"codec": "auto"}, train={"steps": 2})
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    line = "8 weights of 256 x 256: no core; the device trains with the gradient as Adafactor does"
    assert line in outcome.out
    assert "(auto: without a core nothing crosses the link; a core was measured" in outcome.out
    choices = json.loads((tmp_path / "out" / "summary.json").read_text())["codecs"]
    assert sum(choice["weights"] for choice in choices) == 2 * 7
    (why,) = {c["why"] for c in choices}
    assert why.endswith("measured to end lower only from 1,024 tokens a step on, here are 64")
    train = {"steps": 2, "micro_batch": 64}
    config = subspace(engine={"codec": "auto"}, train=train)
    outcome = sluiceway("train", config, "--out", tmp_path / "more")
    assert " % of a step of 2,048 tokens in 1 backward for its products, " in outcome.out
    assert " % of 2 steps for its calibration), and auto takes it only below 6 %" in outcome.out
    assert "max_norm 1 does not clip the 14 without a core" in outcome.out
    cores = subspace(train={"steps": 1})
    assert "does not clip" not in sluiceway("train", cores, "--out", tmp_path / "cores").out


def test_loss_that_is_not_finite_is_null_in_json(sluiceway, subspace, tmp_path):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    train = {"steps": 3, "lr": 1e30, "max_norm": None}
    outcome = sluiceway("train", subspace(train=train), "--out", tmp_path / "out", "--json")
    assert outcome.code == 1
    assert "step 3: the run ended here and has diverged" in outcome.err
    summary = (tmp_path / "out" / "summary.json").read_text()
    assert json.loads(summary, parse_constant=refuse)["final_loss"] is None
    for line in (tmp_path / "out" / "metrics.jsonl").open():
        json.loads(line, parse_constant=refuse)
