"""The state of SubspaceAdamW: training goes on from it bit for bit, in any process."""

from __future__ import annotations

import copy
import io
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import sluiceway as sw
import torch
from sluiceway import _host_allocator
from small_models import batch, make, same_bits, two_groups
from torch.nn import functional
from twins import LR, identity, train


@pytest.mark.parametrize(
    "arguments",
    [
        {"codec": "identity", "wire": "fp32"},
        {"codec": "block_random"},
        {"codec": "block_random", "wire": "int8", "norm_mode": "speculative"},
        {"codec": "block_random", "tier": "device"},
        {"codec": "sparse_learned", "refresh": sw.Refresh(every=3, learn_steps=5)},
        {"codec": "svd", "accumulate": 1},
        {"codec": "block_pca", "refresh": sw.Refresh(every=3)},
        {"codec": "none", "accumulate": 1},
        {"codec": "sparse_random", "nnz": 1, "residual": "sign"},
    ],
    ids=[
        "identity",
        "block_random",
        "int8-speculative",
        "device",
        "sparse_learned",
        "svd",
        "block_pca",
        "none",
        "sketch-sign",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_state_dict_in_the_middle_continues_bit_for_bit(arguments, dtype):
    def typed():
        return make().to(dtype)

    def loss(model, step):
        x, y = batch(step)
        return functional.mse_loss(model(x.to(dtype)).float(), y)

    whole = typed()
    with sw.SubspaceAdamW(whole, lr=LR, **arguments) as opt:
        train(whole, opt, 9, loss=loss)
    first = typed()
    with sw.SubspaceAdamW(first, lr=LR, **arguments) as opt:
        train(first, opt, 5, loss=loss)
        stored = io.BytesIO()
        torch.save({"model": first.state_dict(), "opt": opt.state_dict()}, stored)
    stored.seek(0)
    saved = torch.load(stored, weights_only=True)
    second = typed()
    with sw.SubspaceAdamW(second, lr=LR, **arguments) as opt:
        second.load_state_dict(saved["model"])
        opt.load_state_dict(saved["opt"])
        train(second, opt, 4, first=5, loss=loss)
    assert same_bits(second, whole)


def continue_from(path, threads):
    """Train on from a file, in whatever process this is; replaces it by the weights."""
    torch.set_num_threads(threads)
    saved = torch.load(path, weights_only=True)
    model = make(seed=5)  # Nothing may depend on what it started from.
    with sw.SubspaceAdamW(model, codec="block_random", lr=LR) as opt:
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["opt"])
        train(model, opt, 4, first=5)
        torch.save(model.state_dict(), path)


def test_another_process_continues_the_default_codec_bit_for_bit(tmp_path):
    whole, first = make(), make()
    with sw.SubspaceAdamW(whole, codec="block_random", lr=LR) as opt:
        train(whole, opt, 9)
    with sw.SubspaceAdamW(first, codec="block_random", lr=LR) as opt:
        train(first, opt, 5)
        torch.save({"model": first.state_dict(), "opt": opt.state_dict()}, tmp_path / "saved.pt")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(continue_from, tmp_path / "saved.pt", torch.get_num_threads()).result()
    first.load_state_dict(torch.load(tmp_path / "saved.pt", weights_only=True))
    assert same_bits(first, whole)


def test_loading_its_own_state_is_harmless():
    ours, plain = make(), make()
    with identity(ours) as opt, identity(plain) as other:
        opt.load_state_dict(opt.state_dict())
        train(ours, opt, 2)
        opt.load_state_dict(opt.state_dict())
        train(ours, opt, 2, first=2)
        train(plain, other, 4)
    assert same_bits(ours, plain)


def test_a_state_that_is_kept_does_not_follow_the_training():
    model = make()
    with sw.SubspaceAdamW(model, codec="block_random", lr=LR) as opt:
        train(model, opt, 2)
        state = opt.state_dict()
        before = copy.deepcopy(state["state"])
        train(model, opt, 3, first=2)
    assert {int(values["step"]) for values in state["state"].values()} == {2}
    for number, values in before.items():
        assert torch.equal(values["exp_avg"], state["state"][number]["exp_avg"])


def test_what_auto_stands_for_takes_over_the_state_of_auto():
    with sw.SubspaceAdamW(make(), codec="block_random", lr=LR) as opt:
        state = opt.state_dict()
    for residual in ("factored", "auto"):
        state["sluiceway"]["arguments"]["residual"] = residual  # Either may have been written.
        with sw.SubspaceAdamW(make(), codec="block_random", lr=LR, residual="factored") as opt:
            opt.load_state_dict(state)


def test_numbers_of_numpy_do_not_keep_a_state_from_loading_weights_only():
    stored = io.BytesIO()
    with sw.SubspaceAdamW(
        make(), codec="block_random", lr=LR, seed=np.int64(3), ratio=np.float32(0.25)
    ) as opt:
        torch.save(opt.state_dict(), stored)
    stored.seek(0)
    with sw.SubspaceAdamW(make(), codec="block_random", lr=LR, seed=3) as opt:
        opt.load_state_dict(torch.load(stored, weights_only=True))


def test_state_of_other_groups_is_refused_with_their_sizes():
    one, two = make(), make()
    with sw.SubspaceAdamW(one, codec="block_random", lr=LR) as opt:
        state = opt.state_dict()
    with (
        sw.SubspaceAdamW(two, codec="block_random", lr=LR, param_groups=two_groups(two, LR)) as opt,
        pytest.raises(sw.InvalidArgument, match=r"groups of \[14\] parameters, here of \[6, 8\]"),
    ):
        opt.load_state_dict(state)


def test_state_of_another_codec_is_refused_by_name():
    with sw.SubspaceAdamW(make(), codec="block_random") as opt:
        state = opt.state_dict()
    with (
        sw.SubspaceAdamW(make(), codec="identity") as opt,
        pytest.raises(sw.InvalidArgument, match=r"was 'block_random'.*'identity'"),
    ):
        opt.load_state_dict(state)


def test_every_option_that_differs_from_those_of_a_state_is_named():
    with sw.SubspaceAdamW(make(), codec="svd", ratio=0.5, weight_update="residual") as opt:
        state = opt.state_dict()
    all_three = (
        "ratio was 0.5 when it was saved, here it is 0.25; .*weight_update was 'residual'.*; "
        "codec was 'svd' .*; make the optimizer with the saved values$"
    )
    with (
        sw.SubspaceAdamW(make(), codec="block_random", ratio=0.25) as opt,
        pytest.raises(sw.InvalidArgument, match=all_three),
    ):
        opt.load_state_dict(state)


@pytest.mark.parametrize("codec", [["x"], {}, None])
def test_a_codec_of_a_state_that_is_no_name_is_refused(codec):
    with sw.SubspaceAdamW(make(), codec="svd") as opt:
        state = opt.state_dict()
        state["sluiceway"]["codecs"] = [codec] * 4
        with pytest.raises(sw.InvalidArgument, match="expected a name for each of 4 weights"):
            opt.load_state_dict(state)


def test_auto_that_chooses_another_codec_here_is_refused_by_name_and_what_helps_does_help():
    roomy, narrow, helped = make(), make(), make()
    with sw.SubspaceAdamW(roomy, lr=LR, tokens_per_step=2**20, total_steps=500) as opt:
        train(roomy, opt, 1)
        state, weights = copy.deepcopy((opt.state_dict(), roomy.state_dict()))
        train(roomy, opt, 2, first=1)
    with (
        sw.SubspaceAdamW(narrow, lr=LR) as opt,
        pytest.raises(sw.InvalidArgument, match="was 'svd' when it was saved, here it is 'none'"),
    ):
        opt.load_state_dict(state)
    helped.load_state_dict(weights)
    with sw.SubspaceAdamW(helped, lr=LR, codec="svd") as opt:
        opt.load_state_dict(state)
        train(helped, opt, 2, first=1)
    assert same_bits(helped, roomy)


@pytest.mark.parametrize(("saved", "here"), [(0.25, 0.5), (0.5, 0.25)])
def test_without_a_core_a_state_of_another_ratio_is_gone_on_from(saved, here):
    model, other = make(), make()
    with sw.SubspaceAdamW(model, lr=LR, codec="none", ratio=saved) as opt:
        train(model, opt, 2)
        state = copy.deepcopy(opt.state_dict())
        other.load_state_dict(copy.deepcopy(model.state_dict()))
        train(model, opt, 2, first=2)
    with sw.SubspaceAdamW(other, lr=LR, ratio=here) as opt:  # Of auto.
        opt.load_state_dict(state)
        train(other, opt, 2, first=2)
    assert same_bits(other, model)


def test_loading_a_state_holds_no_second_copy_of_it():
    model = make(blocks=6)
    with sw.SubspaceAdamW(model, lr=LR, codec="identity") as opt:
        train(model, opt, 1)
        state = opt.state_dict()
        tensors = [v for s in state["state"].values() for v in s.values() if torch.is_tensor(v)]
        whole = sum(tensor.nbytes for tensor in tensors)
        del tensors
        _host_allocator.reset_peak()
        before = _host_allocator.allocated_bytes()
        opt.load_state_dict(state)
        more = _host_allocator.peak_bytes() - before
    assert whole >= 12 * 2 * 4 * 256 * 256
    assert more < whole / 4


def test_an_interrupted_load_leaves_nothing_that_trains_but_can_be_done_again(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    model, other = make(), make()
    with identity(other) as opt:
        train(other, opt, 4)
    with identity(model) as opt:
        train(model, opt, 2)
        saved, weights = opt.state_dict(), copy.deepcopy(model.state_dict())
        train(model, opt, 2, first=2)
        with monkeypatch.context() as patch:
            patch.setattr(opt, "_restore_own_state", interrupted)
            with pytest.raises(KeyboardInterrupt):
                opt.load_state_dict(saved)
        for act in (opt.step, opt.state_dict, lambda: train(model, opt, 1)):
            with pytest.raises(sw.InvalidArgument, match="was interrupted"):
                act()
        opt.load_state_dict(saved)
        model.load_state_dict(weights)
        train(model, opt, 2, first=2)
    assert same_bits(model, other)
