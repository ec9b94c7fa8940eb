"""Plans of runs whose weights are streamed: what a card, memory, a link and a drive have to do.

`make soak` plans one of 30 G parameters with all of its layers: SLUICEWAY_WHOLE_MODELS.
"""

from __future__ import annotations

import json
import random

import pytest
import sluiceway as sw
import torch
from conftest import REPOSITORY, read_lines
from sluiceway.commands.plan import make_plan
from sluiceway.config.file import load_config
from sluiceway.engines.zo_choices import ConsolidationCosts
from test_plan_disk import WHOLE, of_layers, parameters_of
from transformers import OPTConfig, OPTForCausalLM

EMBEDDING, DRIVE = 50272 * 12288 * 2, 6e9  # Bytes, and bytes a second.
RATES = [
    "device.tflops=0.001",
    "device.memory_gbps=50",
    "device.host_gbps=50",
    "device.disk_gbps=1",
]


def test_plain_adamw_needs_the_same_beside_engines_that_train_all_weights(tiny_model, write_config):
    needs = {
        kind: make_plan(
            load_config(write_config(tiny_model, engine={"kind": kind}), RATES)
        ).figures["native_device_bytes"]
        for kind in ("native", "offload", "zo")
    }
    assert len(set(needs.values())) == 1


def test_opt_175b_is_planned_for_a_card_of_8_gb(sluiceway):
    config = REPOSITORY / "configs" / "opt_175b_zo.yaml"
    done = sluiceway("train", config, "--dry-run", "--json", cwd=REPOSITORY)
    assert done.code == 0, done.err
    plan = json.loads(done.out)
    trained, peak, links = (
        plan["parameters"]["trained"], plan["peak_bytes"], plan["bytes_per_step"]
    )  # fmt: skip
    assert trained == pytest.approx(175e9, rel=0.01)
    assert plan["over_budget"] is None
    assert 3 * EMBEDDING < peak["device"] < 8e9
    assert peak["host"] + peak["pinned"] < 8 * 2**30
    # The base and the next one; the embedding is read once more for the head.
    assert peak["disk"] == pytest.approx(4 * trained, rel=0.01)
    assert links["h2d"] == pytest.approx(2 * trained + EMBEDDING, rel=1e-3)
    assert links["disk_read"] == pytest.approx(links["h2d"], rel=1e-3)
    assert (links["d2h"], links["disk_written"]) == (0, 0)
    new = plan["consolidation"]
    assert new["bytes_written"] == new["bytes_read"] == pytest.approx(2 * trained, rel=1e-3)
    assert new["seconds"] >= (new["bytes_read"] + new["bytes_written"]) / DRIVE
    assert new["seconds_per_step"] == pytest.approx(new["seconds"] / new["every"])
    assert plan["disk"]["written_tb_per_day"] == pytest.approx(
        new["bytes_written"] / new["every"] / plan["seconds_per_step"] * 86400 / 1e12
    )
    assert plan["seconds_per_step"] > links["disk_read"] / DRIVE + new["seconds_per_step"]
    # Two forwards of 2 operations a parameter and token, 2 bytes of each from the drive.
    hiding = links["disk_read"] / trained * plan["assumed"]["tflops"] * 1e12 / (4 * DRIVE)
    assert plan["disk"]["hiding_tokens"] == pytest.approx(hiding)


def test_a_plan_of_a_disk_says_when_there_is_a_new_base_and_a_config_may_say_it(
    small_model, write_config
):
    def plan_of(*settings, **engine):
        tier = engine.pop("tier", "disk")
        sections = {
            "engine": {"kind": "zo", "tier": tier, **engine}, "data": {"eval": []},
            "train": {"steps": 2000 if tier == "disk" else 700},
        }  # fmt: skip
        config = write_config(small_model, **sections)
        return make_plan(load_config(config, [*RATES, *settings]))

    def planned(*settings, **engine):
        return plan_of(*settings, **engine).figures

    whole, host = plan_of(consolidate=1024), planned(tier="host")
    found, text = whole.figures, whole.text()
    assert found["peak_bytes"]["device"] == host["peak_bytes"]["device"]
    assert found["bytes_per_step"]["h2d"] == host["bytes_per_step"]["h2d"]
    assert found["consolidation"]["every"] == 1024
    assert planned(consolidate=50)["consolidation"]["every"] == 50
    least = found["consolidation"]["cheapest"]
    best = planned(consolidate=least)
    assert best["consolidation"]["every"] == least < 1024
    for other in (least + 1, max(1, least - 1)):
        assert planned(consolidate=other)["seconds_per_step"] >= best["seconds_per_step"]
    # A slower drive makes a new base dearer, and each step, beside which more may be replayed.
    slow = planned("device.disk_gbps=0.1")
    assert slow["consolidation"]["cheapest"] > least
    assert "a new base every 1,024 steps" in text
    assert f"takes least with one every {least} steps" in text
    # Left to the plan: not the cheapest, but the fewest bases that take hardly longer.
    whole = plan_of()
    auto, text = whole.figures, whole.text()
    every = auto["new_bases"]["chosen"]
    assert auto["consolidation"]["every"] == every > least
    assert auto["consolidation"]["cheapest"] == least
    same = planned(consolidate=every)
    for plan in (auto, same):
        del plan["peak_bytes"]["process"]  # It has grown.
    assert same == {name: value for name, value in auto.items() if name != "new_bases"}
    seconds = [planned(consolidate=n)["seconds_per_step"] for n in (least, every, every + 1)]
    assert seconds[0] < seconds[1] <= 1.01 * seconds[0] < seconds[2]
    assert f"\nnew bases: one every {every} steps, the largest number" in text
    few = planned("train.steps=3")
    assert few["new_bases"] == {"chosen": 3, "why": "none in 3 steps, since none would save time"}
    assert "consolidation" not in few
    # A log that takes 1,024 updates: 5 directions fill it after 204 steps at most.
    assert planned(directions=5)["new_bases"]["chosen"] <= 204
    assert "new_bases" not in planned(noise="lowrank") | planned(consolidate=7)
    # Where nobody knows how fast the drive is, a base is kept as long as it takes updates.
    unknown = planned("device.disk_gbps=null", "store.io=block", "store.path=/dev/none")
    assert "new_bases" not in unknown
    assert unknown["consolidation"]["every"] == 1024


def test_steps_between_new_bases_are_chosen_by_what_a_run_takes():
    draw = random.Random(12)
    for _ in range(200):
        bringing, working, replaying, rewriting, on_base = (draw.uniform(0, 1) for _ in range(5))
        costs = ConsolidationCosts(bringing, working, replaying / 30, 30 * rewriting, on_base / 30)
        most, steps = draw.randint(1, 60), draw.randint(1, 90)

        step = [max(bringing, working + k * costs.replaying) for k in range(most)]
        seconds = {
            every: (sum(step[:every]) + (every < steps) * costs.of_base(every)) / every
            for every in range(1, min(most, steps) + 1)
        }
        fitting = [n for n, s in seconds.items() if s <= 1.01 * min(seconds.values())]
        found = costs.choose(most, steps)
        assert found.chosen == max(fitting)
        assert found.why.startswith("none in" if found.chosen == steps else "one every")
    # Nothing is replayed, so nothing is gained.
    assert ConsolidationCosts(1, 1, 0, 1).choose(10, 10).chosen == 10


def test_a_run_from_disk_takes_what_was_planned(sluiceway, small_model, write_config, tmp_path):
    config = write_config(
        small_model, engine={"kind": "zo", "tier": "disk", "consolidate": 8}, data={"eval": []},
        train={"steps": 9, "lr": 1e-5}, store={"chunk": "64KiB"},
    )  # fmt: skip
    plan = make_plan(load_config(config, RATES)).figures
    done = sluiceway("train", config, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    lines = read_lines(tmp_path / "out")
    tiers, new = plan["peak_bytes"], plan["consolidation"]
    assert (tmp_path / "out" / "store" / "drive0.sws").stat().st_size == tiers["disk"]
    assert {line["peak_bytes"]["pinned"] for line in lines} == {tiers["pinned"]}
    assert lines[-1]["peak_bytes"]["host"] <= tiers["host"]
    links, steps = plan["bytes_per_step"], [line["bytes"] for line in lines]
    for name, count in links.items():  # What comes ahead of the next step counts as it arrives.
        assert sum(step[name] for step in steps[1:8]) == pytest.approx(7 * count, abs=0.5 * count)
    assert new["every"] == 8
    assert steps[8]["consolidated"] == pytest.approx(new["bytes_written"], rel=0.02)


def test_opt_30b_is_planned_for_a_laptop(tmp_path):
    path = REPOSITORY / "configs" / "laptop_30b_zo.yaml"
    shape = REPOSITORY / load_config(path).model.path
    assert parameters_of(shape) == pytest.approx(30e9, rel=0.01)
    planned = shape if WHOLE else of_layers(shape, tmp_path / "small", 2)
    plan = make_plan(load_config(path, [f"model.path={planned}"])).figures
    trained, peak, links = parameters_of(planned), plan["peak_bytes"], plan["bytes_per_step"]
    embedding = 50272 * 7168 * 2
    assert plan["parameters"]["trained"] == trained
    assert plan["over_budget"] is None
    # It arrives, and has two copies; it is the largest matrix, and crosses twice.
    assert 3 * embedding < peak["device"] < 7 * 2**30
    assert peak["host"] + peak["pinned"] < 6 * 2**30
    assert peak["disk"] == pytest.approx(4 * trained, rel=0.02)
    assert links["h2d"] == pytest.approx(2 * trained + embedding, rel=1e-3)
    assert links["disk_read"] == pytest.approx(links["h2d"], rel=1e-3)
    new = plan["consolidation"]
    assert new["every"] == 100
    assert new["bytes_written"] == pytest.approx(2 * trained, rel=1e-3)
    share = new["seconds_per_step"]
    assert share >= (new["bytes_read"] + new["bytes_written"]) / 3e9 / 100
    assert plan["seconds_per_step"] > links["disk_read"] / 3e9 + share


def test_the_period_of_bases_that_costs_least_is_found():
    draw = random.Random(11)
    for _ in range(20):
        costs = ConsolidationCosts(*(draw.uniform(0, 10) for _ in range(2)), draw.uniform(0, 0.1),
                                   draw.uniform(0, 900), draw.uniform(0, 2))  # fmt: skip
        every = draw.randrange(1, 200)
        steps = [max(costs.bringing, costs.working + k * costs.replaying) for k in range(every)]
        base = max(costs.rewriting, every * costs.replaying_base)
        means = costs.means(200)
        assert means[every - 1] == pytest.approx((sum(steps) + base) / every)
        assert means[costs.cheapest(200) - 1] == min(means)
    # Where nothing hides the replay: r C / 2 + B / C is least at sqrt(2 B / r).
    assert ConsolidationCosts(0, 1, 0.02, 100).cheapest(1000) == 100


def test_an_opt_streamed_one_layer_at_a_time_is_that_of_the_device():
    def losses(**options):
        torch.manual_seed(4)
        model = OPTForCausalLM(
            OPTConfig(vocab_size=61, hidden_size=32, ffn_dim=96, num_hidden_layers=2,
                      num_attention_heads=2, max_position_embeddings=32)
        ).to(torch.bfloat16).eval()  # fmt: skip
        ids = torch.randint(2, 61, (2, 19), generator=torch.Generator().manual_seed(1))
        loss = sw.ChunkedLoss(model)
        with sw.ZoSgd(model, lr=1e-2, eps=1e-2, **options) as opt:
            found = [opt.step(lambda: loss(input_ids=ids, labels=ids)).item() for _ in range(3)]
        assert loss.refusal is None
        return found

    streamed = losses(tier="host", depth=1)
    assert streamed == losses()
    assert len({*streamed}) == 3


def test_low_rank_on_disk_has_the_factors_of_tier_host_and_no_new_base(small_model, write_config):
    def planned(**engine):
        config = write_config(
            small_model, engine={"kind": "zo", "noise": "lowrank", "period": 10, **engine},
            data={"eval": []}, train={"steps": 40},
        )  # fmt: skip
        return make_plan(load_config(config, RATES)).figures

    host, disk = planned(tier="host"), planned(tier="disk")
    assert disk["device_parts"]["factors"] == host["device_parts"]["factors"] > 0
    assert "consolidation" not in disk
