"""ZoSgd that writes each step into weights in host memory: the bits of the equations."""

from __future__ import annotations

import copy

import pytest
import sluiceway
import torch
from sluiceway import _core
from sluiceway.optim.common.state import STATE_KEY
from torch import nn
from zo_follow import follow, shared_oracle
from zo_models import (
    OPTIONS,
    anything,
    anythings_loss,
    computing_in_float32,
    decoder,
    of_dtype,
    same,
    zo_ids,
    zo_loss,
    zo_train,
)
from zo_noise import gaussian
from zo_oracle import WriteBackOracle, fp8_bytes, groups_of

WIRES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}


def writing_back(model: nn.Module, **options: object) -> sluiceway.ZoSgd:
    return sluiceway.ZoSgd(model, mode="write_back", tier="host", **options)


def oracle_of(model: nn.Module, weight_decay: float, seed: int, directions: int) -> WriteBackOracle:
    groups = groups_of(model, weight_decay)
    return WriteBackOracle(model, groups, 1e-3, seed, directions, _core.stable_hash)


@pytest.mark.parametrize(("directions", "seed"), [(1, 0), (3, 2**40 + 1)])
@pytest.mark.parametrize(("depth", "lanes"), [(2, 1), (8, 4)])
def test_losses_and_weights_are_the_oracles(directions, seed, depth, lanes) -> None:
    ours = decoder()
    opt = writing_back(
        ours, lr=0.02, weight_decay=0.5, directions=directions, seed=seed, depth=depth,
        perturb_lanes=lanes,
    )  # fmt: skip
    oracle = shared_oracle(WriteBackOracle, seed, directions, 0.5)
    follow(opt, ours, oracle, every=1 if depth == 2 else 10)
    assert opt.committed_steps == 200
    with torch.no_grad():
        assert torch.equal(ours(zo_ids(3)), oracle.model(zo_ids(3)))
    opt.close()
    assert same(ours.state_dict(), oracle.model)


def test_steps_that_nobody_looks_at_between_them_are_the_oracles() -> None:
    ours, theirs = decoder(), decoder()
    opt = writing_back(ours, lr=0.02, resident=300, weight_decay=0.5)
    oracle = oracle_of(theirs, 0.5, 0, 1)
    for step in range(60):
        ids = zo_ids(step)
        found = opt.step(lambda: zo_loss(ours, ids))  # noqa: B023
        assert found.item() == oracle.step(lambda m: zo_loss(m, ids), [0.02, 0.02])  # noqa: B023
        if step % 7 == 3:
            assert opt.evaluate(lambda: zo_loss(ours, ids)) == zo_loss(theirs, ids)  # noqa: B023
    assert same(ours.state_dict(), theirs)


@pytest.mark.parametrize(
    ("dtype", "master"),
    [(torch.bfloat16, "fp32"), (torch.bfloat16, "bf16"), (torch.float16, "fp32")],
)
def test_weights_of_16_bits_have_masters_that_are_never_rounded_to_nearest(dtype, master) -> None:
    ours, theirs = (of_dtype(decoder(), dtype) for _ in range(2))
    opt = writing_back(ours, lr=0.02, weight_decay=0.5, master=master)
    oracle = oracle_of(theirs, 0.5, 0, 1)
    oracle.at_random = master == "bf16"
    follow(opt, ours, oracle, every=10)
    state = opt.state_dict()["state"]
    assert len(state) == (7 if master == "fp32" else 0)
    assert {values["master"].dtype for values in state.values()} <= {torch.float32}
    opt.close()
    assert same(ours.state_dict(), theirs)


@pytest.mark.parametrize(
    ("dtype", "wire", "directions", "depth", "steps"),
    [
        (torch.float32, "bf16", 2, 2, 25),
        (torch.bfloat16, "bf16", 2, 2, 25),
        (torch.float16, "fp16", 2, 2, 25),
        (torch.float32, "fp8", 1, 2, 200),
        (torch.bfloat16, "fp8", 2, 8, 25),
        (torch.float16, "fp8", 2, 2, 10),
    ],
)
def test_images_cross_a_narrow_link_and_nothing_comes_back(
    dtype, wire, directions, depth, steps
) -> None:
    ours, theirs = (of_dtype(decoder(), dtype) for _ in range(2))
    opt = writing_back(
        ours, lr=0.02, weight_decay=0.1, directions=directions, wire=wire, depth=depth
    )
    oracle = oracle_of(theirs, 0.1, 0, directions)
    oracle.wire = WIRES[wire]
    h2d = d2h = 0
    for step in range(steps):
        ids = zo_ids(step)
        found = opt.step(lambda: zo_loss(ours, ids))  # noqa: B023
        expected = oracle.step(lambda m: zo_loss(computing_in_float32(m), ids), [0.02, 0.02])  # noqa: B023
        assert found.item() == expected, step
        crossed = opt.stats()["bytes"]
        h2d, d2h = h2d + crossed["h2d"], d2h + crossed["d2h"]
        assert crossed["disk_read"] == 0
        if step % 9 == 5:
            assert same(ours.state_dict(), theirs)
    assert same(ours.state_dict(), theirs)
    assert len(opt.state_dict()["state"]) == (0 if dtype is torch.float32 else 7)
    crossing = [p.numel() for p in (*ours.parameters(), ours.head.weight) if p.dim() >= 2]
    whole = sum(fp8_bytes(n) if wire == "fp8" else 2 * n for n in crossing)
    vectors = 4 * sum(p.numel() for p in ours.parameters() if p.dim() < 2)
    assert steps * whole <= h2d - vectors <= (1 + steps) * whole  # The next pass may have begun.
    assert d2h <= (2 + steps // 9) * vectors  # When somebody looks.


@pytest.mark.parametrize("directions", [1, 2])
def test_any_model_is_measured_with_its_own_forward_pass(directions: int) -> None:
    ours, theirs = anything(), anything()
    opt = writing_back(ours, lr=0.05, directions=directions, weight_decay=0.1, noise="gaussian")
    trained = [p for p in theirs.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    oracle = WriteBackOracle(theirs, groups, 1e-3, 0, directions, _core.stable_hash, gaussian)
    for step in range(6):

        def loss(model: nn.Module, step: int = step) -> torch.Tensor:
            return anythings_loss(model.requires_grad_(False), step)

        found = opt.step(lambda: anythings_loss(ours, step)).item()  # noqa: B023
        assert found == oracle.step(loss, [0.05, 0.05])
        if step % 2:
            ids = torch.randint(0, 7, (2, 4))
            with torch.no_grad():
                assert torch.equal(ours(ids), theirs(ids))
            assert opt.evaluate(lambda: anythings_loss(ours, 0)) == loss(copy.deepcopy(theirs), 0)
    assert same(ours.state_dict(), theirs)


def test_each_streamed_weight_comes_once_a_use_and_goes_back_once() -> None:
    model = decoder()
    opt = writing_back(model, lr=0.01, directions=3)
    crossed = {"d2h": 0, "h2d": 0}
    for step in range(5):
        opt.step([lambda k=k: zo_loss(model, zo_ids(k)) for k in range(step, step + 2)])
        for way in crossed:
            crossed[way] += opt.stats()["bytes"][way]
    streamed = [p for p in model.parameters() if p.dim() >= 2]
    once = sum(p.nbytes for p in streamed)  # The first pass has nothing to write.
    assert 3 * once <= crossed["d2h"] <= 4 * once
    whole = sum(p.nbytes for p in streamed) + model.head.weight.nbytes
    assert crossed["h2d"] == pytest.approx(5 * whole, abs=whole)


# ---- State ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_and_the_models_weights_are_all_that_a_new_optimizer_needs(dtype) -> None:
    def fresh(seed: int = 0) -> nn.Module:
        return of_dtype(decoder(seed), dtype)

    whole = fresh()
    in_one_go = writing_back(whole, **OPTIONS)
    expected = zo_train(in_one_go, whole, range(6))
    in_one_go.close()
    model = fresh()
    opt = writing_back(model, **OPTIONS)
    found = zo_train(opt, model, range(3))
    state = copy.deepcopy((model.state_dict(), opt.state_dict()))
    again = fresh(1)
    again.load_state_dict(state[0])
    other = writing_back(again, **{**OPTIONS, "lr": 9.0})
    other.load_state_dict(state[1])
    assert found + zo_train(other, again, range(3, 6)) == expected
    assert same(again.state_dict(), whole)
    if dtype is torch.float32:
        zo_train(opt, model, range(10, 12))  # Back, in the same optimizer.
        model.load_state_dict(state[0])
        opt.load_state_dict(state[1])
        assert found + zo_train(opt, model, range(3, 6)) == expected


def test_a_closure_that_fails_has_changed_nothing() -> None:
    ours, theirs = decoder(), decoder()
    opt, oracle = writing_back(ours, lr=0.1), oracle_of(theirs, 0.0, 0, 1)
    for step in range(4):
        ids, calls = zo_ids(step), []

        def failing(ids: torch.Tensor = ids, calls: list = calls) -> torch.Tensor:
            x = ours.layers[0](ours.embed(ids))
            calls.append(x)
            raise RuntimeError("planted")

        with pytest.raises(RuntimeError, match="planted"):
            opt.step(failing if step else lambda: failing() and zo_loss(ours, zo_ids(0)))
        found = opt.step(lambda: zo_loss(ours, ids))  # noqa: B023
        assert found.item() == oracle.step(lambda m: zo_loss(m, ids), [0.1, 0.1])  # noqa: B023
    assert same(ours.state_dict(), theirs)


# ---- What cannot be ----


def test_what_mode_write_back_does_not_have_is_refused(tmp_path) -> None:
    for given, text in (
        ({"tier": "disk"}, "mode is write_back and tier disk, which each step would write whole"),
        ({"tier": "device"}, "mode is write_back and tier device, which writes each step into"),
        ({"noise": "lowrank"}, "lowrank is not in this version for mode write_back"),
        ({"path": tmp_path}, "path is .*, which is for log alone; leave it out"),
        ({"consolidate": 3}, "consolidate is 3, which is for disk alone"),
        ({"wire": "fp8", "mode": "log"}, "wire is fp8, which is for write_back alone"),
        ({"wire": "fp8", "resident": 5}, "resident is 5, but wire fp8 sends new images"),
        ({"wire": "fp8", "master": "bf16"}, "wire is fp8, but a bf16 master crosses"),
        ({"wire": "fp8", "noise": "lowrank"}, "lowrank is not in this version for mode write_back"),
        ({"wire": "bf16", "resident": 5}, "resident is 5, but wire bf16 sends new images"),
        ({"wire": "bf16", "master": "bf16"}, "wire is bf16, but a bf16 master crosses"),
    ):
        with pytest.raises((sluiceway.InvalidArgument, sluiceway.Unavailable), match=text):
            sluiceway.ZoSgd(decoder(), **{"mode": "write_back", "tier": "host", **given})
    with pytest.raises(
        sluiceway.InvalidArgument, match="master is bf16, which is for write_back alone"
    ):
        sluiceway.ZoSgd(decoder(), tier="host", master="bf16")
    half = of_dtype(decoder(), torch.float16)
    with pytest.raises(sluiceway.InvalidArgument, match="is float16, expected bfloat16 or float32"):
        writing_back(half, master="bf16")
    opt = writing_back(decoder())
    for call in (lambda: opt.rollback(0), lambda: opt.branch(0, tmp_path)):
        with pytest.raises(sluiceway.InvalidArgument, match="in mode 'write_back' has no log"):
            call()


def test_states_of_other_modes_and_weights_changed_by_others_are_refused() -> None:
    model = decoder()
    opt = writing_back(model, **OPTIONS)
    logged = sluiceway.ZoSgd(decoder(), tier="host", **OPTIONS)
    with pytest.raises(sluiceway.InvalidArgument, match="mode was 'log'"):
        opt.load_state_dict(logged.state_dict())
    with pytest.raises(sluiceway.InvalidArgument, match="mode was 'write_back'"):
        logged.load_state_dict(opt.state_dict())
    zo_train(opt, model, range(2))
    model.load_state_dict(decoder(seed=3).state_dict())
    with pytest.raises(sluiceway.InvalidArgument, match="was changed by other code"):
        zo_train(opt, model, range(1))
    half = of_dtype(decoder(), torch.bfloat16)
    opt = writing_back(half, **OPTIONS)
    state = opt.state_dict() | {"state": {}}
    with pytest.raises(sluiceway.InvalidArgument, match=r"has no master of embed"):
        opt.load_state_dict(state)
    opt.close()
    opt.close()
    with pytest.raises(sluiceway.InvalidArgument, match="optimizer is closed"):
        opt.step(lambda: zo_loss(half, zo_ids(0)))


def test_the_older_name_of_the_mode_is_accepted_with_a_warning() -> None:
    model, again = decoder(), decoder()
    with pytest.warns(FutureWarning, match="write mode='write_back'"):
        opt = sluiceway.ZoSgd(model, mode="parity", tier="host", **OPTIONS)
    assert opt.options.mode == "write_back"
    zo_train(opt, model, range(3))
    saved = copy.deepcopy(opt.state_dict())
    assert saved[STATE_KEY]["mode"] == "write_back"
    saved[STATE_KEY]["mode"] = "parity"  # As in states of the older version.
    again.load_state_dict(model.state_dict())
    other = writing_back(again, **OPTIONS)
    other.load_state_dict(saved)
    assert zo_train(other, again, range(3, 5)) == zo_train(opt, model, range(3, 5))
