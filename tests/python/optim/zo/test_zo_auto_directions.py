"""Directions that are auto: as many as hide what crosses, and then those of the run for good."""

from __future__ import annotations

import copy
import json
import math

import pytest
import sluiceway
import torch
from conftest import assert_short_error, read_lines
from sluiceway.commands.plan import RunPlan, make_plan
from sluiceway.config.file import load_config
from sluiceway.engines.zo_choices import choose_directions
from sluiceway.optim.common.state import STATE_KEY
from torch import nn
from zo_models import decoder, zo_ids, zo_loss

TFLOPS, LINK, DRIVE = 0.005, 0.01, 0.004  # 1e12 operations, 1e9 bytes a second.
RATES = [
    f"device.tflops={TFLOPS}",
    "device.memory_gbps=50",
    "device.host_gbps=50",
    f"device.link={{d2h_gbps: {LINK}, h2d_gbps: {LINK}}}",
    f"device.disk_gbps={DRIVE}",
]


def held(count: int) -> int:
    return 100 + 50 * count


def hidden(hiding: float, tokens: int, replay: float = 0.0):
    """Seconds of a step, of which the bus takes one."""
    return lambda count: max(1.0, count * tokens / max(hiding, 1e-9) + replay * count**2)


@pytest.mark.parametrize(
    ("hiding", "tokens", "most", "room", "chosen", "bound"),
    [
        (1000.0, 300, 9, None, 4, "tokens"),  # 3.3 directions.
        (1000.0, 1000, 9, None, 1, "tokens"),
        (1000.0, 999, 9, None, 2, "tokens"),
        (1000.0, 5000, 9, None, 1, "tokens"),
        (0.0, 5000, 9, 10_000, 1, "tokens"),
        (1000.0, 100, 9, 300, 4, "memory"),  # 100 + 50 q.
        (1000.0, 100, 9, 299, 3, "memory"),
        (1000.0, 100, 9, 550, 9, "log"),
        (1000.0, 100, 9, 10_000, 9, "log"),
        (1000.0, 100, 9, 10, 1, "memory"),  # Nothing fits, and the plan says so.
        (1000.0, 112, 9, 549, 8, "memory"),
    ],
)
def test_directions_are_those_that_hide_what_crosses_as_far_as_they_fit(
    hiding, tokens, most, room, chosen, bound
):
    found = choose_directions(hiding, tokens, most, hidden(hiding, tokens), held, room)
    assert (found.chosen, found.bound) == (chosen, bound)
    assert (found.hiding_tokens, found.tokens) == (hiding, tokens)
    assert found.why.startswith(
        f"{chosen}, since one direction hides the transfers with {hiding:,.0f}"
    )
    assert f"and a step has {tokens:,}" in found.why


@pytest.mark.parametrize(
    ("replay", "chosen", "bound"),
    [
        (0.0, 10, "tokens"),
        (0.002, 9, "time"),  # 9 in 1.062 s are 8.47 a second, 10 in 1.2 are 8.33.
        (0.004, 8, "time"),  # 8 in 1.056 s are 7.58 a second, 9 in 1.224 are 7.35.
        (0.1, 3, "time"),  # 3 in 1.2 s are 2.5 a second, 2 in 1 are 2.
        (1.0, 1, "time"),  # 1 in 1.1 s; 2 in 4.2.
    ],
)
def test_directions_whose_replays_take_longer_than_they_are_worth_are_not_taken(
    replay, chosen, bound
):
    found = choose_directions(1000.0, 100, 99, hidden(1000.0, 100, replay), held, None)
    assert (found.chosen, found.bound) == (chosen, bound)


@pytest.fixture
def plan_of(small_model, write_config):
    """The plan of a streamed run at RATES, of engine and settings by name."""

    def plan(*settings: str, **engine) -> RunPlan:
        sections = {"engine": {"kind": "zo", **engine}, "data": {"eval": []}, "model": {}}
        return make_plan(load_config(write_config(small_model, **sections), [*RATES, *settings]))

    return plan


@pytest.fixture
def planned(plan_of):
    """Figures of such a plan."""
    return lambda *settings, **engine: plan_of(*settings, **engine).figures


@pytest.mark.parametrize(("tier", "gbps"), [("host", LINK), ("disk", DRIVE)])
def test_a_plan_takes_the_slower_of_link_and_drive(plan_of, planned, tier, gbps):
    auto = plan_of("train.accumulate=3", tier=tier, directions="auto")
    found, text = auto.figures, auto.text()
    chosen, trained = found["directions"], found["parameters"]["trained"]
    crossing = "disk_read" if tier == "disk" else "h2d"
    hiding = found["bytes_per_step"][crossing] / trained * TFLOPS * 1e12 / (4 * gbps * 1e9)
    assert chosen["hiding_tokens"] == pytest.approx(hiding)
    assert chosen["tokens"] == found["tokens_per_step"] == 2 * 3 * 32
    most = math.ceil(hiding / (2 * 3 * 32))
    seconds = [
        planned("train.accumulate=3", tier=tier, directions=q)["seconds_per_step"]
        for q in range(1, most + 1)
    ]
    rates = [q / s for q, s in enumerate(seconds, start=1)]
    count = max(q for q, rate in enumerate(rates, start=1) if rate >= 0.99 * max(rates))
    assert chosen["chosen"] == count > 1
    assert f"\ndirections: {count}, since one direction hides" in text
    assert ("\ndisk: nothing is written while it trains" in text) == (tier == "disk")
    same = planned("train.accumulate=3", tier=tier, directions=count)
    del found["directions"]
    for plan in (found, same):
        del plan["peak_bytes"]["process"]  # It has grown.
    assert found == same


def test_a_plan_of_weights_on_the_device_has_one_direction(planned):
    chosen = planned(directions="auto")["directions"]
    assert (chosen["chosen"], chosen["hiding_tokens"]) == (1, 0)


def test_a_plan_is_bounded_by_what_waits_and_by_the_log(planned):
    free = planned(tier="host", directions="auto")["directions"]
    assert (free["bound"], free["chosen"] > 3) == ("tokens", True)
    room = planned(tier="host", directions=3)["peak_bytes"]["device"]
    for budget, count in ((room, 3), (room - 1, 2)):
        found = planned(f"budget.device={budget}", tier="host", directions="auto")
        assert (found["directions"]["chosen"], found["directions"]["bound"]) == (count, "memory")
        assert found["peak_bytes"]["device"] <= budget
        assert found["over_budget"] is None
    found = planned("train.steps=400", tier="host", directions="auto")["directions"]
    assert (found["chosen"], found["bound"]) == (2, "log")
    assert "are more than the 2 per step that the log can hold" in found["why"]


def test_the_number_belongs_to_the_run(sluiceway, tiny_model, write_config, tmp_path):
    run = tmp_path / "run"
    config = write_config(
        tiny_model, engine={"kind": "zo", "tier": "host", "directions": "auto"},
        data={"eval": []}, train={"steps": 2, "lr": 1e-4},
    )  # fmt: skip
    done = sluiceway("train", config, "--out", run, *(f"--set={rate}" for rate in RATES))
    assert done.code == 0, done.err
    count = load_config(run / "config.yaml").engine.directions
    assert count > 1
    assert f"zo: directions: {count}, since one direction hides" in done.out
    assert f"zo: {count} directions a step" in done.out
    # A link of other rates asks for another number.
    more = ["--set=train.steps=3", "--set=device.link={d2h_gbps: 100, h2d_gbps: 100}"]
    done = sluiceway("resume", run, *more, "--set=engine.directions=auto")
    assert_short_error(done, 2, f"engine.directions was {count}, is now auto")
    done = sluiceway("resume", run, *more)
    assert done.code == 0, done.err
    lines = [line["zo"] for line in read_lines(run)]
    assert [(line["directions"], len(line["g"])) for line in lines] == [(count, count)] * 3
    state = torch.load(run / "checkpoint" / "optimizer.pt", weights_only=True)["sluiceway"]
    assert state["directions"] == count


def test_steps_between_new_bases_belong_to_the_run(sluiceway, tiny_model, write_config, tmp_path):
    run = tmp_path / "run"
    config = write_config(
        tiny_model, engine={"kind": "zo", "tier": "disk"}, data={"eval": []},
        train={"steps": 40, "lr": 1e-4, "save_every": 40}, store={"chunk": "64KiB"},
    )  # fmt: skip
    # A drive that writes in no time, and weights that cross at once: replays are what takes time.
    rates = ["device.disk_gbps=1000", "device.tflops=1000", "device.memory_gbps=1000"]
    done = sluiceway("train", config, "--out", run, *(f"--set={rate}" for rate in rates))
    assert done.code == 0, done.err
    every = load_config(run / "config.yaml").engine.consolidate
    assert 1 <= every < 40
    assert f"zo: new bases: one every {every} steps, the largest number" in done.out
    written = [line["step"] for line in read_lines(run) if line["bytes"]["consolidated"]]
    assert written == list(range(every + 1, 41, every))
    # What resumes has the number, or plans it once more.
    done = sluiceway("resume", run, "--set=train.steps=41", "--set=engine.consolidate=auto")
    assert done.code == 0, done.err
    again = load_config(run / "config.yaml").engine.consolidate
    assert f"zo: new bases: one every {again} steps" in done.out
    changed = f"engine.consolidate was {every}, is now {again}"
    assert done.err.count(changed) == (again != every)


# ---- ZoSgd ----


def steps(opt: sluiceway.ZoSgd, model: nn.Module, numbers: range) -> list[float]:
    return [opt.step(lambda: zo_loss(model, zo_ids(s))).item() for s in numbers]  # noqa: B023


@pytest.mark.filterwarnings("ignore:.*directions=.auto. means 1")
@pytest.mark.parametrize("tier", ["device", "host"])
def test_a_state_brings_its_directions_along(tier):
    model, again, other = decoder(), decoder(), decoder()
    opt = sluiceway.ZoSgd(model, lr=0.02, tier=tier, directions=3)
    steps(opt, model, range(2))
    state = copy.deepcopy(opt.state_dict())
    if tier == "device":
        again.load_state_dict(model.state_dict())
    auto = sluiceway.ZoSgd(again, lr=0.02, tier=tier, directions="auto")
    assert auto.options.directions == 1
    for bad in ("auto", None, 0):
        with pytest.raises(sluiceway.InvalidArgument, match="directions"):
            auto.load_state_dict(state | {STATE_KEY: state[STATE_KEY] | {"directions": bad}})
    auto.load_state_dict(state)
    assert auto.options.directions == 3
    assert steps(auto, again, range(2, 4)) == steps(opt, model, range(2, 4))
    assert auto.stats()["zo"]["g"] == opt.stats()["zo"]["g"]
    assert len(auto.stats()["zo"]["g"]) == auto.stats()["zo"]["directions"] == 3
    one = sluiceway.ZoSgd(other, lr=0.02, tier=tier, directions=1)
    with pytest.raises(sluiceway.InvalidArgument, match="directions was 3 when it was saved"):
        one.load_state_dict(state)


def test_a_state_that_cannot_be_taken_leaves_the_directions(tmp_path):
    model = decoder()
    with pytest.warns(
        UserWarning, match="directions=.auto. means 1 here, since neither the tokens"
    ):
        opt = sluiceway.ZoSgd(model, lr=0.02, tier="host", directions="auto", path=tmp_path)
    other = sluiceway.ZoSgd(decoder(), lr=0.02, tier="host", directions=3)
    state = other.state_dict()
    state["sluiceway"] = copy.deepcopy(state["sluiceway"])
    log = bytearray(state["sluiceway"]["log"]["log"])
    log[40] ^= 1  # Of the base.
    state["sluiceway"]["log"]["log"] = bytes(log)
    with pytest.raises(sluiceway.Corrupt):
        opt.load_state_dict(state)
    assert opt.options.directions == 1
    assert len(steps(opt, model, range(1))) == 1


def test_a_log_that_goes_on_has_its_directions(tmp_path):
    model = decoder()
    with sluiceway.ZoSgd(model, lr=0.02, tier="host", directions=2, path=tmp_path) as opt:
        steps(opt, model, range(2))
    again, whole = decoder(), decoder()
    with sluiceway.ZoSgd(again, lr=0.02, tier="host", directions="auto", path=tmp_path) as opt:
        assert (opt.options.directions, opt.committed_steps) == (2, 2)
        found = steps(opt, again, range(2, 4))
    with sluiceway.ZoSgd(whole, lr=0.02, tier="host", directions=2) as opt:
        assert found == steps(opt, whole, range(4))[2:]


def test_weights_on_the_device_have_one_direction(recwarn):
    opt = sluiceway.ZoSgd(decoder(), directions="auto")
    assert opt.stats()["zo"]["directions"] == opt.options.directions == 1
    assert not recwarn.list


def test_a_plan_as_json_has_why(sluiceway, small_model, write_config):
    engine = {"kind": "zo", "tier": "host", "directions": "auto"}
    rates = [f"--set={rate}" for rate in RATES]
    done = sluiceway("plan", write_config(small_model, engine=engine), "--json", *rates)
    assert done.code == 0, done.err
    plan = json.loads(done.out)
    assert plan["directions"].keys() == {"chosen", "hiding_tokens", "tokens", "bound", "why"}
    assert plan["why"].startswith(f"{2 * plan['directions']['chosen']} forwards a step")
