"""What a run says of its codecs."""

from __future__ import annotations

import json

import sluiceway as sw
from conftest import assert_short_error
from sluiceway.optim.subspace.choices import choice_lines, codec_choices
from small_models import make


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
        "4 x 256x256: block_random, core 64x64, second moment factored, residual factored; "
    )
    assert line.endswith("32 KiB each way a step (as configured)")


def test_auto_says_why():
    def reason(**arguments):
        with sw.SubspaceAdamW(make(), **arguments) as opt:
            return codec_choices(opt)[0]["why"]

    alone = "auto: these weights need no link, as the residual alone trains: "
    assert reason() == (
        f"{alone}svd's products are 18.75 % of a step of 1,024 tokens, its calibration 0.05 % of "
        "1,000 steps, expected less than 3 % together"
    )
    assert reason(tokens_per_step=8192, total_steps=200) == (
        "auto: such cores were measured to end lower than none: svd's products are 2.34 % of a "
        "step of 8,192 tokens, its calibration 0.03 % of 200 steps, less than 3 % together"
    )
    narrow = sw.Budget(device="2800KiB")
    assert reason(budget=narrow, tokens_per_step=2**20) == (
        f"{alone}svd's projectors do not fit the device budget"
    )
    too_few, too_small = {"tokens_per_step": 1023}, {"tokens_per_step": 2**20, "ratio": 0.4}
    for arguments in (too_few, too_small):
        assert reason(**arguments) == (
            f"{alone}only cores of 0.5 of each side and more, from 1,024 tokens a step, were "
            "measured to end lower than the residual alone"
        )
    assert reason(residual="none").startswith("auto: svd's products are 12.50 % of a step")


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
    assert "engine.codec was auto" in outcome.err


def test_a_plan_and_a_run_choose_for_the_tokens_of_the_config(sluiceway, small_model, write_config):
    def chosen(**train):
        steps = {"steps": 1000, **train}
        config = write_config(small_model, engine={"kind": "subspace"}, train=steps)
        return json.loads(sluiceway("plan", config, "--json").out)

    few = chosen(micro_batch=2)
    assert (few["codec"], few["tokens_per_step"]) == ("none", 64)
    assert "from 1,024 tokens a step" in few["why"]
    many = chosen(micro_batch=512, accumulate=2)
    assert (many["codec"], many["tokens_per_step"]) == ("svd", 32768)
    assert "of a step of 32,768 tokens" in many["why"]
    brief = chosen(micro_batch=512, steps=1, accumulate=2)
    assert brief["codec"] == "none"
    assert "of 1 steps, expected less than 3 %" in brief["why"]
