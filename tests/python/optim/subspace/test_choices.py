"""A run reports its choice of codecs."""

from __future__ import annotations

import json

import pytest
import sluiceway as sw
from conftest import assert_short_error
from sluiceway.optim.subspace.choices import choice_lines, codec_choices, coreless_lines
from small_models import make
from twins import train


def test_weights_of_one_kind_are_one_line_with_summed_bytes():
    with sw.SubspaceAdamW(make(), codec="block_random") as opt:
        (choice,) = codec_choices(opt)
        costs = opt.describe()
    assert choice["weights"] == 4
    assert choice["shape"] == [256, 256]
    assert choice["core"] == [64, 64]
    assert choice["residual"] == choice["second_moment"] == "factored"
    assert choice["device_bytes"] == sum(c["device_bytes"] for c in costs)
    assert choice["d2h_bytes"] == 4 * 64 * 64 * 2
    (line,) = choice_lines([choice])
    assert line.startswith(
        "4 weights of 256 x 256: block_random with cores of 64 x 64, residual factored; "
    )
    assert line.endswith("32 KiB each way a step (as configured)")


def test_auto_says_why():
    def reason(**arguments):
        with sw.SubspaceAdamW(make(), **arguments) as opt:
            return codec_choices(opt)[0]["why"]

    alone = "auto: without a core nothing crosses the link; "
    only = "a core was measured to end lower only"
    assert reason() == (
        f"{alone}{only} in runs of up to 500 steps, here are 1,000 (assumed; say total_steps=)"
    )
    assert reason(total_steps=501) == f"{alone}{only} in runs of up to 500 steps, here are 501"
    assert reason(total_steps=500) == (
        f"{alone}svd would take 18.9 % of the time (18.75 % of a step of 1,024 tokens (assumed; "
        "say tokens_per_step=) in 1 backward (assumed; say accumulate=) for its products, 0.11 % "
        "of 500 steps for its calibration), and auto takes it only below 6 %"
    )
    assert reason(tokens_per_step=8192, total_steps=200, accumulate=2) == (
        "auto: svd was measured to end lower than no core; svd takes 3.16 % of the time (3.12 % "
        "of a step of 8,192 tokens in 2 backwards for its products, 0.03 % of 200 steps for its "
        "calibration), and auto takes it below 14 %"
    )
    large = {"tokens_per_step": 2**20, "total_steps": 500}
    narrow = sw.Budget(device="2800KiB")
    assert reason(budget=narrow, **large) == (
        f"{alone}svd needs 5 MiB of device memory, and 1.7 MiB are left"
    )
    pinned = sw.Budget(pinned="64KiB")
    assert "KiB of pinned memory, and 64 KiB are left" in reason(budget=pinned, **large)
    assert reason(tokens_per_step=1023) == (
        f"{alone}{only} from 1,024 tokens a step on, here are 1,023"
    )
    for ratio in (0.4, 0.6):
        assert reason(ratio=ratio, **large) == f"{alone}{only} at ratio 0.5, here is another"
    assert reason(residual="none").startswith("auto: svd would take 12.6 % of the time (12.50 % ")


def test_a_resume_may_name_the_codec_that_auto_came_to_and_no_other(
    sluiceway, small_model, write_config, tmp_path
):
    config = write_config(small_model, engine={"kind": "subspace"}, train={"steps": 2})
    assert sluiceway("train", config, "--out", tmp_path / "out").code == 0

    def resumed(codec):
        return sluiceway("resume", tmp_path / "out", "--set", f"engine.codec={codec}")

    assert_short_error(resumed("svd"), 2, "was 'none' when it was saved")
    outcome = resumed("none")
    assert outcome.code == 0, outcome.err
    assert "no effect" not in outcome.out + outcome.err  # The user gave no ratio.
    assert "engine.codec was auto" in outcome.err


def test_auto_in_a_resume_is_what_it_was_in_the_save(
    sluiceway, small_model, write_config, tmp_path
):
    svd = {"kind": "subspace", "codec": "svd", "ratio": 0.5}
    config = write_config(small_model, engine=svd, train={"steps": 2})
    assert sluiceway("train", config, "--out", tmp_path / "out").code == 0
    more = ("--set", "engine.codec=auto", "--set", "train.steps=4")  # It would be none by itself.
    assert sluiceway("resume", tmp_path / "out", *more).code == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    found = {(c["codec"], c["why"]) for c in summary["codecs"]}
    assert found == {("svd", "as it was in the save"), ("none", "an embedding or the head")}
    assert summary["steps"] == 4


def test_a_run_without_a_core_names_the_options_that_only_a_core_has():
    arguments = {"wire": "fp32", "refresh": sw.Refresh(every=1)}
    with sw.SubspaceAdamW(make(), codec="none", **arguments) as opt:
        (line,) = coreless_lines(opt)
        assert line == "refresh, wire: no effect, as no weight's gradient has a core"
    with sw.SubspaceAdamW(make(), codec="none", ratio=0.3, embeddings="identity") as opt:
        assert coreless_lines(opt)[0].startswith("ratio: ")
    with sw.SubspaceAdamW(make(), ratio=0.3) as opt:
        assert coreless_lines(opt) == []
    with sw.SubspaceAdamW(make(), codec="svd", **arguments) as opt:
        assert coreless_lines(opt) == []


@pytest.mark.parametrize("embeddings", ["frozen", "identity"])
def test_without_projectors_the_closure_of_a_refresh_is_never_run(embeddings):
    model = make()

    def refuse():
        raise AssertionError("nothing is to be measured")

    policy = sw.Refresh(every=1, source="closure", closure=refuse)
    with sw.SubspaceAdamW(model, codec="none", embeddings=embeddings, refresh=policy) as opt:
        train(model, opt, 2)


def test_a_plan_and_a_run_choose_for_the_tokens_of_the_config(sluiceway, small_model, write_config):
    def chosen(**train):
        steps = {"steps": 500, **train}
        config = write_config(small_model, engine={"kind": "subspace"}, train=steps)
        return json.loads(sluiceway("plan", config, "--json").out)

    few = chosen(micro_batch=2)
    assert (few["codec"], few["tokens_per_step"]) == ("none", 64)
    assert "tokens a step on, here are 64" in few["why"]
    many = chosen(micro_batch=512, accumulate=2)
    assert (many["codec"], many["tokens_per_step"]) == ("svd", 32768)
    assert "of a step of 32,768 tokens" in many["why"]
    brief = chosen(micro_batch=64, steps=1, accumulate=2)
    assert brief["codec"] == "none"
    assert "of 1 steps for its calibration), and auto takes it only below 14 %" in brief["why"]
