"""ZoSgd with weights on disk: the bits of tier host, in memory that does not hold the weights."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path

import pytest
import sluiceway
import torch
from safetensors.torch import load_file
from sluiceway import _core
from sluiceway.config.engines import zo
from sluiceway.model.weight_stream import save_streamed
from small_llama import small_llama
from torch import nn
from zo_models import (
    OPTIONS,
    anything,
    anythings_loss,
    decoder,
    on_host,
    same,
    zo_ids,
    zo_loss,
    zo_train,
)

BLOCK = 4096


def disk(model: nn.Module, folder: Path, **options: object) -> sluiceway.ZoSgd:
    """Make a ZoSgd with the store and its log in the same folder."""
    store = sluiceway.StoreOptions(path=folder, chunk=8192)
    return sluiceway.ZoSgd(model, tier="disk", **{"store": store, "path": folder, **options})


def memory_of(model: nn.Module) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return sum(p.untyped_storage().nbytes() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    "options",
    [
        {"directions": 2, "weight_decay": 0.3, "noise": "gaussian"},
        {"depth": 8, "perturb_lanes": 2, "resident": 300, "seed": 2**40 + 1},
    ],
)
def test_steps_are_those_of_tier_host(options: dict, tmp_path: Path) -> None:
    models = [decoder(), decoder()]
    for model in models:
        model.layers[1].norm.weight.requires_grad_(False)
    opts = [disk(models[0], tmp_path, lr=0.02, **options), on_host(models[1], lr=0.02, **options)]
    assert same(models[0].state_dict(), models[1])
    for step in range(6):
        batches = [zo_ids(2 * step), zo_ids(2 * step + 1)]
        losses = []
        for opt, model in zip(opts, models, strict=True):
            closures = [lambda i=ids, m=model: zo_loss(m, i) for ids in batches]
            losses.append((opt.step(closures), opt.evaluate(closures)))
        assert losses[0] == losses[1], step
        with torch.no_grad():
            assert torch.equal(models[0](batches[0]), models[1](batches[0]))
    assert same(models[0].state_dict(), models[1])
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(opts[0].theta(p), opts[1].theta(q))
    assert memory_of(models[0]) == 4 * sum(p.requires_grad for p in models[0].parameters())
    for opt in opts:
        opt.close()
    assert same(models[0].state_dict(), models[1])
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))


def test_any_model_is_read_from_a_store(tmp_path: Path) -> None:
    models = [anything(), anything()]
    opts = [disk(models[0], tmp_path, lr=0.05), on_host(models[1], lr=0.05)]
    for step in range(3):
        losses = [
            opt.step(lambda m=model: anythings_loss(m, step))  # noqa: B023
            for opt, model in zip(opts, models, strict=True)
        ]
        assert losses[0] == losses[1]
        assert same(models[0].state_dict(), models[1])
        opts[0].consolidate()  # What is perturbed on the device is of the new base, too.


def test_a_step_reads_what_streams_once_and_writes_nothing(tmp_path: Path) -> None:
    model, depth = decoder(), 2
    opt = disk(model, tmp_path, directions=3, depth=depth)
    order = [
        model.embed,
        *(m for layer in model.layers for m in (layer.up, layer.down)),
        model.head,
    ]
    uses = [(module.weight.nbytes, number, True) for number, module in enumerate(order)]
    of_a_pass = _core.zo_ring_plan(uses, depth, True, "fp32", "fp32")[0]["read"]
    assert of_a_pass == BLOCK * len(order)  # Each is a block; what is tied is read at either end.
    # A step ends with up to a pass of the next one read: in so many, less than half a block each.
    steps = 2 * len(order) + 1
    read = []
    for step in range(1 + steps):  # The first reads what stays, too.
        opt.step([lambda i=k: zo_loss(model, zo_ids(i)) for k in (step, step + 1)])
        crossed = opt.stats()["bytes"]
        assert (crossed["disk_written"], crossed["consolidated"], crossed["d2h"]) == (0, 0, 0)
        read.append(crossed["disk_read"])
    assert round(sum(read[1:]) / steps / BLOCK) == of_a_pass / BLOCK
    peaks = opt.stats()["peak_bytes"]
    assert peaks["host"] + peaks["pinned"] > 0


def test_a_trace_is_of_the_whole_run(tmp_path: Path) -> None:
    model, path = decoder(), tmp_path / "trace.json"
    opt = disk(model, tmp_path, lr=0.02, consolidate=2, trace=path)
    ends = []
    for step in range(5):
        zo_train(opt, model, range(step, step + 1))
        ends.append(_core.now_us())
    assert opt.consolidate() == 5
    opt.close()
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    lanes = {tid for tid, name in names.items() if name != "device"}  # Which may never wait.
    spans = itertools.pairwise([0.0, *ends])
    for begin, end in spans:  # In each step every lane has worked, whatever bases there were.
        worked = {e["tid"] for e in events if e["ph"] == "X" and begin <= e["ts"] < end}
        assert worked & lanes == lanes
    assert len(lanes) >= 3


# ---- New bases ----


def test_new_bases_of_float32_change_no_bit_and_are_counted_apart(tmp_path: Path) -> None:
    models = [decoder(), decoder()]
    opts = [
        disk(models[0], tmp_path, lr=0.02, directions=2, consolidate=3),
        on_host(models[1], lr=0.02, directions=2),
    ]
    consolidated = []
    for step in range(8):
        losses = [
            opt.step(lambda m=model: zo_loss(m, zo_ids(step)))  # noqa: B023
            for opt, model in zip(opts, models, strict=True)
        ]
        assert losses[0] == losses[1]
        crossed = opts[0].stats()["bytes"]
        consolidated.append(crossed["consolidated"] > 0)
        assert crossed["disk_written"] == 0
    assert consolidated == [False, False, False, True, False, False, True, False]
    assert same(models[0].state_dict(), models[1])
    with pytest.raises(sluiceway.InvalidArgument, match="expected 6, the step of the base in"):
        opts[0].rollback(5)
    opts[0].rollback(7)
    assert opts[0].consolidate(7) == 7
    assert opts[0].committed_steps == 7


@pytest.fixture
def small_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make bases full after four updates."""
    monkeypatch.setattr(zo, "MOST_UPDATES", 4)


@pytest.mark.usefixtures("small_bases")
def test_a_base_that_is_full_makes_room_for_more(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    opt = disk(model, tmp_path, lr=1e-3, directions=2)
    x = torch.ones(1, 2)
    for _ in range(7):
        opt.step(lambda: model(x).sum())
    assert opt.committed_steps == 7
    with pytest.raises(sluiceway.InvalidArgument, match="expected 6, the step of the base in"):
        opt.rollback(5)


@pytest.mark.usefixtures("small_bases")
def test_no_base_leaves_a_state_behind(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    opt = disk(model, tmp_path, lr=1e-3, directions=2)
    x = torch.ones(1, 2)

    def step() -> None:
        opt.step(lambda: model(x).sum())

    step()
    state = copy.deepcopy(opt.state_dict())
    step()  # On a base of the state, since it is half full.
    with pytest.raises(sluiceway.InvalidArgument, match=r"is 2, expected 1 .* to 1 "):
        opt.consolidate(2)
    step()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        sluiceway.InvalidArgument, match=r"cannot be later than the last state_dict"
    ):
        step()
    assert opt.committed_steps == 3
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    opt.load_state_dict(state)
    assert opt.committed_steps == 1
    step()
    late = opt.state_dict()
    step()
    step()
    opt.state_dict()
    assert opt.consolidate() == 4
    for old in (state, late):
        with pytest.raises(sluiceway.InvalidArgument, match="expected a state of step 4 or later"):
            opt.load_state_dict(old)
    assert opt.committed_steps == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_is_gone_on_from_with_the_same_bits_whenever_bases_were_made(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    """A new base rounds with decay and 16 bits, so it must be made at the same steps again."""

    def begin(folder: str) -> tuple[nn.Module, sluiceway.ZoSgd]:
        model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 3)).to(dtype)
        with torch.no_grad():
            for number, p in enumerate(model.parameters()):
                draw = torch.Generator().manual_seed(number)
                p.copy_(torch.randn(p.shape, generator=draw))
        options = {**OPTIONS, "consolidate": 2, "eps": 0.05}
        return model, disk(model, tmp_path / folder, **options)

    def steps(model: nn.Module, opt: sluiceway.ZoSgd, numbers: range) -> list[float]:
        x = torch.linspace(-1, 1, 12).view(4, 3).to(dtype)
        return [
            opt.step(lambda: (model(x * (1 + s)).float() - 1).square().mean()).item()  # noqa: B023
            for s in numbers
        ]

    whole, opt = begin("whole")
    expected = []
    for first in range(0, 9, 3):
        opt.state_dict()
        expected += steps(whole, opt, range(first, first + 3))
    model, again = begin("again")
    steps(model, again, range(1))
    again.load_state_dict(again.state_dict())
    again.rollback(0)
    found = []
    for first in range(0, 9, 3):
        state = copy.deepcopy(again.state_dict())
        steps(model, again, range(20, 22))  # Lost: other data.
        again.load_state_dict(state)
        found += steps(model, again, range(first, first + 3))
    assert found == expected
    assert same(model.state_dict(), whole)


# ---- Stores that are there ----


def test_store_and_log_go_on_whatever_the_model_has(tmp_path: Path) -> None:
    whole = decoder()
    in_one_go = disk(whole, tmp_path / "whole", **OPTIONS)
    expected = zo_train(in_one_go, whole, range(6))
    found = []
    for seed, steps in enumerate((range(2), range(2, 3), range(3, 6))):
        model = decoder(seed=seed)
        opt = disk(model, tmp_path / "s", **OPTIONS)
        assert opt.committed_steps == steps.start
        found += zo_train(opt, model, steps)
        opt.close(theta=steps.stop == 6)
        assert (memory_of(model) > 4 * len([*model.parameters()])) == (steps.stop == 6)
    assert found == expected
    assert same(model.state_dict(), whole)
    in_one_go.close()
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["drive0.sws", "scalars.log"]


def test_a_base_without_its_log_is_gone_on_from(tmp_path: Path) -> None:
    model = decoder()
    opt = disk(model, tmp_path, **{**OPTIONS, "path": None})
    zo_train(opt, model, range(3))
    state = copy.deepcopy(opt.state_dict())
    assert opt.consolidate() == 3
    expected = zo_train(opt, model, range(3, 5))
    opt.close()
    for saved in (None, state):
        again = decoder(seed=4)
        opt = disk(again, tmp_path, **{**OPTIONS, "path": None})
        assert opt.committed_steps == 3
        if saved is not None:
            opt.load_state_dict(saved)
            assert state["param_groups"][0]["gamma"] < 1
        assert opt.param_groups[0]["gamma"] == 1  # Of this base.
        assert zo_train(opt, again, range(3, 5)) == expected
        opt.close(theta=False)


def test_a_base_carries_a_run_of_its_step(tmp_path: Path) -> None:
    model = decoder()
    opt = disk(model, tmp_path, lr=0.02, consolidate=2)
    assert opt.has_new_store
    for step in range(5):
        opt.state_dict()
        zo_train(opt, model, range(step, step + 1))
        opt.set_run_state(b"run %d" % opt.committed_steps)
    assert opt.run_state() == b"run 4"
    opt.close(theta=False)
    opt = disk(decoder(), tmp_path, **{"lr": 0.02, "path": None})
    assert (opt.committed_steps, opt.run_state(), opt.has_new_store) == (4, b"run 4", False)


def test_states_of_other_bases_are_refused(tmp_path: Path) -> None:
    model = decoder()
    opt = disk(model, tmp_path / "one", **OPTIONS)
    zo_train(opt, model, range(2))
    opt.consolidate()
    state = opt.state_dict()
    for seed in (0, 1):
        with pytest.raises(sluiceway.InvalidArgument, match="use the store of the state"):
            disk(decoder(seed=seed), tmp_path / f"{seed}", **OPTIONS).load_state_dict(state)


# ---- What cannot be ----


def test_a_store_has_one_optimizer(tmp_path: Path) -> None:
    opt = disk(decoder(), tmp_path)
    model = decoder()
    with pytest.raises(sluiceway.IoError, match="is open in another process or drive"):
        disk(model, tmp_path, path=tmp_path / "log")
    assert same(model.state_dict(), decoder())
    opt.close()
    disk(model, tmp_path).close()


def test_a_store_that_cannot_be_made_leaves_the_model_alone(tmp_path: Path) -> None:
    model = decoder()
    with pytest.raises(sluiceway.OutOfMemory, match="disk"):
        disk(model, tmp_path / "s", path=None, budget=sluiceway.Budget(disk=1000))
    assert all(map(torch.equal, model.parameters(), decoder().parameters()))
    assert not (tmp_path / "s").exists()
    disk(model, tmp_path / "s").close()
    with pytest.raises(sluiceway.InvalidArgument, match=r"run seed 0, .* run seed 3"):
        disk(model, tmp_path / "s", seed=3)
    assert all(map(torch.equal, model.parameters(), decoder().parameters()))
    other = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(sluiceway.InvalidArgument, match="weights"):
        disk(other, tmp_path / "s")
    assert other[0].weight.untyped_storage().nbytes() == 16


def test_a_base_in_memory_is_not_consolidated() -> None:
    with pytest.raises(sluiceway.InvalidArgument, match="has no store; use tier="):
        on_host(decoder()).consolidate()


def test_a_save_has_the_buffers_that_a_save_in_memory_has(tmp_path: Path) -> None:
    model = small_llama()
    model.model.register_buffer("kept", torch.arange(5))
    model.model.register_buffer("scalar", torch.tensor(True))
    model.model.register_buffer("made_anew", torch.zeros(3), persistent=False)
    for name in ("whole", "streamed"):
        (tmp_path / name).mkdir()
    model.save_pretrained(tmp_path / "whole")
    save_streamed(model, tmp_path / "streamed", nn.Parameter.detach)
    whole, streamed = (
        load_file(tmp_path / name / "model.safetensors") for name in ("whole", "streamed")
    )
    assert whole.keys() == streamed.keys()
    assert all(torch.equal(tensor, streamed[name]) for name, tensor in whole.items())


def test_a_closed_optimizer_says_so(tmp_path: Path) -> None:
    model = decoder()
    with disk(model, tmp_path) as opt:
        opt.step(lambda: zo_loss(model, zo_ids(0)))
    weight = next(model.parameters())
    assert opt.stats()["peak_bytes"]["pinned"] > 0
    for use in (lambda: opt.theta(weight), opt.run_state, opt.consolidate):
        with pytest.raises(sluiceway.InvalidArgument, match="the optimizer is closed"):
            use()
