"""Training continues bit for bit from a state_dict of OffloadAdamW."""

from __future__ import annotations

import io

import pytest
import sluiceway as sw
import torch
from offload_models import loss_of, native, offload, run, words
from small_models import same_bits, update_error


def through_a_file(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    assert file.tell() < 10_000 or state["state"]
    file.seek(0)
    return torch.load(file, weights_only=True)


def uninterrupted(steps: int, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    model = words(dtype=dtype)
    with offload(model) as opt:
        run(model, opt, steps)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_go_on_bit_for_bit(dtype):
    model = words(dtype=dtype)
    with offload(model) as opt:
        run(model, opt, 3)
        state = through_a_file(opt.state_dict())
    keys = {"step", "exp_avg", "exp_avg_sq"} | ({"master"} if dtype == torch.bfloat16 else set())
    assert all(values.keys() == keys for values in state["state"].values())
    assert state["state"][0]["exp_avg"].shape == (1,) or state["state"][0]["exp_avg"].dim() >= 0
    again = words(seed=4, dtype=dtype)
    again.load_state_dict(model.state_dict())
    with offload(again) as opt:
        opt.load_state_dict(state)
        run(again, opt, 2, first=3)
    assert same_bits(again, uninterrupted(5, dtype))


def test_weights_may_be_loaded_after_the_state():
    model = words(dtype=torch.bfloat16)
    with offload(model) as opt:
        run(model, opt, 3)
        state = opt.state_dict()
    again = words(seed=4, dtype=torch.bfloat16)
    with offload(again) as opt:
        again.load_state_dict(model.state_dict())
        opt.load_state_dict(state)
        run(again, opt, 2, first=3)
    assert same_bits(again, uninterrupted(5, torch.bfloat16))


def test_a_step_of_the_store_is_named_kept_and_gone_back_to(tmp_path):
    model = words()
    with offload(model, tmp_path / "s") as opt:
        run(model, opt, 2)
        state = through_a_file(opt.state_dict())
        run(model, opt, 3, first=2)
        kept = [name for name, _ in opt.engine.generations]
        assert state["sluiceway"]["store"]["generation"] in kept
    again = words(seed=4)
    with offload(again, tmp_path / "s") as opt:
        opt.load_state_dict(state)
        assert same_bits(again, uninterrupted(2))
        run(again, opt, 2, first=2)
        opt.load_state_dict(state)  # And once more, from the middle of a run.
        run(again, opt, 3, first=2)
        assert opt.stats()["skipped_steps"] == 0
        opt.synchronize()
        assert same_bits(again, uninterrupted(5))


def test_a_step_that_is_gone_says_which_there_are(tmp_path):
    model = words()
    with offload(model, tmp_path / "s") as opt:
        run(model, opt, 1)
        first = opt.state_dict()
        run(model, opt, 1, first=1)
        second = opt.state_dict()
        run(model, opt, 1, first=2)
        before = {name: p.clone() for name, p in model.named_parameters()}
        with pytest.raises(sw.InvalidArgument, match=r"is gone, expected \d+ .step 2."):
            opt.load_state_dict(first)
        run(model, opt, 1, first=3)  # Nothing was changed by that.
        opt.synchronize()
        assert same_bits(model, uninterrupted(4))
        assert not all(torch.equal(p, before[name]) for name, p in model.named_parameters())
        opt.load_state_dict(second)


def test_a_state_of_another_store_or_of_memory_is_told_apart(tmp_path):
    states = {}
    for name in ("one", "two"):
        model = words()
        with offload(model, tmp_path / name) as opt:
            run(model, opt, 1)
            states[name] = opt.state_dict()
    with offload(words(), tmp_path / "two") as opt:
        with pytest.raises(sw.InvalidArgument, match=r"names store .*, but .* uses store"):
            opt.load_state_dict(states["one"])
        opt.load_state_dict(states["two"])
    with (
        offload(words()) as opt,
        pytest.raises(sw.InvalidArgument, match="uses host memory; make the optimizer"),
    ):
        opt.load_state_dict(states["one"])


def test_tensors_go_into_a_store_on_disk_that_holds_something_else(tmp_path):
    model = words()
    with offload(model) as opt:
        run(model, opt, 3)
        state = opt.state_dict()
    other = words(seed=8)
    with offload(other, tmp_path / "s") as opt:
        run(other, opt, 2)
    again = words(seed=4)
    again.load_state_dict(model.state_dict())
    with offload(again, tmp_path / "s") as opt:
        opt.load_state_dict(state)
        run(again, opt, 1, first=3)
    last = words(seed=5)
    with offload(last, tmp_path / "s") as opt:
        assert opt.resume() == 4
        run(last, opt, 1, first=4)
    assert same_bits(last, uninterrupted(5))


def test_a_state_of_torch_is_taken_over():
    model = words()
    opt = native(model, params=[p for p in model.parameters() if p.numel()])
    run(model, opt, 3)
    state = opt.state_dict()
    again = words(seed=4)
    again.load_state_dict(model.state_dict())
    with offload(again) as ours:
        ours.load_state_dict(state)
        assert ours.engine.committed_steps == 3
        run(again, ours, 3, first=3)
    start = words()
    start.load_state_dict(model.state_dict())
    run(model, opt, 3, first=3)
    assert update_error(start, again, model) <= 1e-5


@pytest.mark.parametrize(
    ("spoil", "say"),
    [
        (lambda s: s["state"][0].pop("exp_avg"), "has no 'exp_avg'"),
        (lambda s: s["state"][2].update(exp_avg=torch.zeros(3)), r"exp_avg of .* is \(3,\)"),
        (lambda s: s["state"][2].update(step=-1), "step of .* is -1"),
        (lambda s: s["sluiceway"].update(names=["x"]), "1 compressed weights"),
        (lambda s: s["sluiceway"].update(store={"id": "x"}), "has no 'generation'"),
        (lambda s: s.pop("param_groups"), "has no 'param_groups'"),
    ],
)
def test_a_broken_state_changes_nothing(spoil, say):
    model = words()
    with offload(model) as opt:
        run(model, opt, 2)
        state = opt.state_dict()
        spoil(state)
        with pytest.raises(sw.InvalidArgument, match=say):
            opt.load_state_dict(state)
        run(model, opt, 1, first=2)
    assert same_bits(model, uninterrupted(3))


def test_counts_and_loss_scale_are_part_of_either_state(tmp_path):
    for folder in (None, tmp_path / "s"):
        model = words()
        with offload(model, folder, loss_scale="dynamic") as opt:
            opt.scale_loss(loss_of(model, 0) * float("inf")).backward()
            opt.step()
            opt.zero_grad()
            opt.scale_loss(loss_of(model, 0)).backward()
            opt.step()
            opt.zero_grad()
            scale, state = opt.loss_scale.state(), opt.state_dict()
        again = words()
        with offload(again, folder, loss_scale="dynamic") as opt:
            opt.load_state_dict(state)
            assert (opt.loss_scale.state(), opt.skipped_steps) == (scale, 1)
            assert opt.engine.committed_steps == 1


def test_a_copy_is_refused():
    import copy
    import pickle

    with offload(words()) as opt:
        for make in (copy.deepcopy, pickle.dumps):
            with pytest.raises(sw.InvalidArgument, match="cannot be copied or pickled"):
                make(opt)


def test_a_commit_carries_bytes_of_its_user_until_the_next_step(tmp_path):
    model, raw = words(), bytes(range(256))
    with offload(model, tmp_path / "store") as opt:
        run(model, opt, 1)
        opt.set_run_state(raw)
        opt.commit()
        assert opt.run_state() == raw
        with pytest.raises(sw.InvalidArgument, match="1048577 bytes, expected at most 104"):
            opt.set_run_state(bytes(2**20 + 1 - len(_line_of(opt))))
    model = words()
    with offload(model, tmp_path / "store") as opt:
        assert opt.run_state() == raw
        assert opt.resume() == 1
        run(model, opt, 1, first=1)
    with offload(words(), tmp_path / "store") as opt:
        assert opt.run_state() == b""


def _line_of(opt):
    return opt.engine.run_state().partition(b"\n")[0] + b"\n"


def test_a_step_that_nobody_could_take_up_is_left_out(tmp_path):
    model = words()
    with offload(model, tmp_path / "store") as opt:
        run(model, opt, 2)
        opt.commit()
        run(model, opt, 1, first=2)
        opt.engine.leave_uncommitted()
    with offload(words(), tmp_path / "store") as opt:
        assert opt.resume() == 2
