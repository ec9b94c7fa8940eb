"""What a run says of its codecs."""

from __future__ import annotations

import sluiceway as sw
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

    assert reason() == "auto: svd's projectors fit the device budget"
    narrow = sw.Budget(device="2800KiB")
    assert reason(budget=narrow) == "auto: svd's projectors do not fit the device budget"
