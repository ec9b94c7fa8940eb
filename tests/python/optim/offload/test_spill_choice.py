"""`spill: auto` is chosen by bytes and rates, reported by plan and run, and keeps the bits."""

from __future__ import annotations

import json

import pytest
import sluiceway as sw
from offload_models import offload, run, words
from sluiceway.config.engines.offload import OffloadOptions
from sluiceway.optim.offload.spill_choice import Rates, choose_spill
from small_models import same_bits

CODEC = {"codec": "block_random", "target": ["up.weight", "down.weight"]}
DISK = {**CODEC, "tier": "disk"}
SLOW_LINK = sw.Link(d2h_gbps=0.042, h2d_gbps=0.042)


@pytest.mark.parametrize(
    ("options", "link", "rates", "expected"),
    [
        (DISK, None, Rates(), "core"),  # 4 of 28 bytes of an ordinary disk.
        (DISK, None, Rates(disk_gbps=14.0), "gradient"),  # The host decompresses for longer.
        (DISK, None, Rates(disk_gbps=14.0, host_gbps=100.0), "core"),  # The host has time.
        (DISK, None, Rates(disk_gbps=0.5), "core"),
        (DISK, SLOW_LINK, Rates(), "gradient"),  # A second crossing takes longer than the disk.
        ({**DISK, "ratio": 0.125}, SLOW_LINK, Rates(), "core"),
        (CODEC, None, Rates(), "gradient"),  # There is no disk.
        ({**DISK, "spill": "gradient"}, None, Rates(), "gradient"),
        ({**CODEC, "spill": "core"}, None, Rates(), "core"),
        ({"tier": "disk"}, None, Rates(), "gradient"),  # Nothing is compressed.
    ],
)
def test_the_cheaper_is_chosen_by_the_rates_that_are_given(options, link, rates, expected):
    found = choose_spill(OffloadOptions(**options), "bf16", link, rates)
    assert found.spill == expected
    chosen = "codec" in options and "spill" not in options
    assert found.why.startswith(f"{expected}, as a weight takes ") == chosen
    assert found == choose_spill(OffloadOptions(**options), "bf16", link, rates)


def test_what_is_chosen_gives_the_same_bits(tmp_path):
    models = []
    for spill in ("auto", "core", "gradient"):
        models.append(words())
        with offload(models[-1], tmp_path / spill, gradients="bf16", spill=spill, **CODEC) as opt:
            assert opt.spill.spill == ("core" if spill == "auto" else spill)
            run(models[-1], opt, 3)
    assert same_bits(models[0], models[1])
    assert same_bits(models[0], models[2])


def test_without_room_for_one_more_core_gradients_wait(tmp_path):
    def least(spill: str) -> int:
        """The smallest budget of host memory that is enough, to 1 KiB."""
        low, high = 0, 4 << 20
        while high - low > 1024:
            middle = (low + high) // 2
            budget = sw.Budget(host=middle)
            try:
                offload(words(), tmp_path / "s", spill=spill, budget=budget, **CODEC).close()
                high = middle
            except sw.OutOfMemory:
                low = middle
        return high

    gradient, core = least("gradient"), least("core")
    assert gradient + 1024 < core
    budget = sw.Budget(host=(gradient + core) // 2)
    with offload(words(), tmp_path / "s", budget=budget, **CODEC) as opt:
        assert opt.spill.spill == "gradient"
        assert "budget.host has no room for one more core" in opt.spill.why
    assert least("auto") == gradient


def test_plan_and_run_say_what_was_chosen_and_why(sluiceway, tiny_model, write_config, tmp_path):
    config = write_config(
        tiny_model, train={"steps": 2}, store={"chunk": "8KiB"}, device={"disk_gbps": 2.0},
        engine={"kind": "offload", "tier": "disk", "codec": "block_random", "target": "proj",
                "block": 8, "gradients": "bf16"},
    )  # fmt: skip
    say = "spill: core, as a weight takes "
    done = sluiceway("plan", config)
    assert done.code == 0, done.err
    assert say in done.out
    assert "at 2 GB/s of disk, 10 GB/s of host memory and 12 GB/s of link" in done.out
    plan = json.loads(sluiceway("plan", config, "--json").out)
    other = json.loads(sluiceway("plan", config, "--json", "--set", "device.disk_gbps=99").out)
    assert (plan["spill"]["chosen"], other["spill"]["chosen"]) == ("core", "gradient")
    assert plan["bytes_per_step"]["disk_written"] < other["bytes_per_step"]["disk_written"]
    assert plan["bytes_per_step"]["d2h"] > other["bytes_per_step"]["d2h"]
    done = sluiceway("train", config, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert say in done.out
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["spill"] == "core"
    without = sluiceway("plan", config, "--json", "--set", "engine.codec=identity",
                        "--set", "engine.target=null", "--set", "engine.block=32")  # fmt: skip
    assert without.code != 0 or "spill" not in json.loads(without.out)
