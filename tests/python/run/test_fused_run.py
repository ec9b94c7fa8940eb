"""`engine.fused: true` from the command line: what it trains, says, plans and refuses."""

from __future__ import annotations

import json

import pytest
from conftest import assert_short_error, read_lines

ENGINE = {"kind": "subspace", "codec": "block_random", "ratio": 0.5, "wire": "fp32"}


@pytest.fixture
def trained(sluiceway, small_model, write_config, tmp_path):
    def train(name, **engine):
        config = write_config(small_model, engine={**ENGINE, **engine}, train={"steps": 6})
        outcome = sluiceway("train", config, "--out", tmp_path / name)
        assert outcome.code == 0, outcome.err
        return outcome, tmp_path / name

    return train


def test_a_fused_run_agrees_with_hooks_and_says_what_is_fused(trained):
    outcome, folder = trained("fused", fused=True)
    _, other = trained("hooks", residual="none")
    ours, theirs = ([line["loss"] for line in read_lines(f)[1:]] for f in (folder, other))
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert len(ours) == 6
    summary = json.loads((folder / "summary.json").read_text())
    lost = "what a core leaves of a gradient trains nothing"
    left = {"model.embed_tokens.weight": "an embedding or the head"}
    assert summary["fused"] == {"weights": 14, "left": left, "lost": lost}
    assert f"14 of 15 weights fused: no gradient is formed, {lost}" in outcome.out
    assert "fused" not in json.loads((other / "summary.json").read_text())


def test_residuals_in_turns_agree_with_hooks(trained):
    turns = {"residual": "factored", "residual_every": 2}
    outcome, folder = trained("fused", fused=True, share_inputs=True, **turns)
    _, other = trained("hooks", share_inputs=True, **turns)
    ours, theirs = ([line["loss"] for line in read_lines(f)[1:]] for f in (folder, other))
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert "trains its weight in one of 2 steps" in outcome.out


def test_embeddings_are_left_and_said(trained):
    outcome, folder = trained("fused", fused=True, embeddings="identity")
    left = {"model.embed_tokens.weight": "an embedding or the head"}
    assert json.loads((folder / "summary.json").read_text())["fused"]["left"] == left
    assert "not fused, an embedding or the head: model.embed_tokens.weight" in outcome.out


def test_plan_and_run_choose_the_same_codec(sluiceway, small_model, write_config, tmp_path):
    config = write_config(small_model, engine={"kind": "subspace", "fused": True})
    plan = json.loads(sluiceway("plan", config, "--json").out)
    assert (plan["codec"], plan["why"]) == ("block_random", "auto: of fused linears")
    assert sluiceway("train", config, "--out", tmp_path / "out").code == 0
    choices = {
        (one["codec"], one["residual"], one["why"])
        for one in json.loads((tmp_path / "out/summary.json").read_text())["codecs"]
    }
    assert choices == {
        ("block_random", "none", "auto: of fused linears"),
        ("none", "factored", "an embedding or the head"),
    }


def test_a_residual_in_every_step_is_refused(sluiceway, small_model, write_config):
    engine = {"kind": "subspace", "fused": True, "residual": "factored"}
    outcome = sluiceway("plan", write_config(small_model, engine=engine))
    assert_short_error(outcome, 2, "engine residual is 'factored' with fused", "residual_every")
