"""OffloadAdamW with gradients that cross as cores; what AdamW does with them is shown in C++."""

from __future__ import annotations

from functools import partial

import pytest
import sluiceway as sw
import torch
from offload_models import SLOW, error_of, loss_of, offload, run, run_scaled, words
from sluiceway import _core
from sluiceway.optim.offload.cores import core_groups, core_lines, core_options
from small_models import make, same_bits, weights_of

TARGET = ["up.weight", "down.weight"]  # Both 64 x 160, in chunks of their own.
CODEC = {"codec": "block_random", "target": TARGET}
CORE_BYTES = 2 * 2 * 32 * 80  # Of both, in bf16.
# Of a square core nothing is lost: P P^T = I, but for rounding.
ALL = {**CODEC, "ratio": 1.0, "wire": "fp32", "gradients": "fp32"}
CLOSE = 3e-5


def trained(steps=4, dtype=torch.float32, folder=None, **arguments):
    model = words(dtype=dtype)
    with offload(model, folder, **{**CODEC, **arguments}) as opt:
        run(model, opt, steps)
    return model


@pytest.mark.parametrize("codec", ["block_random", "sparse_random"])
def test_disk_memory_and_both_interfaces_train_the_same_bits(tmp_path, codec):
    options = {"codec": codec, "redraw": 2, "max_norm": 0.05}
    expected = trained(**options)
    assert not same_bits(expected, trained(**options, ratio=0.25))
    for io in ("posix", "uring"):
        assert same_bits(expected, trained(folder=tmp_path / io, io=io, **options))


def test_nothing_is_compressed_where_nothing_is_large_enough():
    model, expected = words(), words()
    with offload(model, codec="block_random") as opt:
        assert core_groups(opt) == []
        assert "no gradient is compressed" in core_lines([], opt.uncompressed)[0]
        run(model, opt, 3)
    with offload(expected) as opt:
        assert opt.uncompressed == []
        run(expected, opt, 3)
    assert same_bits(model, expected)


def test_what_crosses_is_said_by_shape_and_by_reason():
    with offload(words(), **CODEC, chunk=32 << 10) as opt:  # Both are larger than half of that.
        assert core_groups(opt) == [
            {"weights": 1, "shape": [160, 64], "codec": "block_random", "core": [80, 32]},
            {"weights": 1, "shape": [64, 160], "codec": "block_random", "core": [32, 80]},
        ]
        reasons = {group["why"] for group in opt.uncompressed}
        assert reasons == {"embeddings and head", "vectors"}
    with offload(words(), **CODEC, chunk=256 << 10) as opt:
        assert core_groups(opt) == []
        reasons = {group["why"] for group in opt.uncompressed}
        assert reasons == {"embeddings and head", "matrices of less than half a chunk", "vectors"}
    with offload(words(), codec="block_random", target="weight") as opt:
        names = {one["name"] for one in opt.describe() if one["core_rows"]}
        assert names == {"up.weight", "down.weight"}  # Embeddings and head are never.


class Experts(torch.nn.Module):
    """Matrices in one parameter of three dimensions, and one that is by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.each = torch.nn.Parameter(torch.randn(2, 96, 64))
        self.up = torch.nn.Linear(64, 96, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x) + sum(x @ one.t() for one in self.each)


def test_experts_cross_whole_and_are_trained():
    model = make(Experts)
    before = weights_of(model)
    with offload(model, codec="block_random", target="each|up") as opt:
        assert [group["shape"] for group in core_groups(opt)] == [[96, 64]]
        assert [group["why"] for group in opt.uncompressed] == ["3-D weights"]
        model(torch.ones(3, 64)).square().sum().backward()
        opt.step()
        opt.synchronize()
        assert not any(torch.equal(w, before[name]) for name, w in weights_of(model).items())


@pytest.mark.parametrize("backwards", [1, 4])
def test_cores_cross_once_a_step(backwards):
    model = words()
    used = sum(p.numel() for p in model.parameters()) - 18  # But for the layer that nobody calls.
    with offload(model, gradients="bf16", accumulate=backwards, _exact_norm=False, **CODEC) as opt:
        for step in range(3):
            for micro in range(backwards):
                loss_of(model, 10 * step + micro).backward()
            opt.step()
            opt.zero_grad()
            whole = 2 * (used - 2 * 64 * 160)
            assert opt.stats()["bytes"]["d2h"] == backwards * whole + CORE_BYTES
    assert opt.stats()["offload"]["decompress_seconds"] > 0


def clipped(how):
    def drive(model, opt):
        for step in range(4):
            for micro in range(2):
                (loss_of(model, 2 * step + micro) / 2).backward()
            if how == "ours" and isinstance(opt, sw.OffloadAdamW):
                assert opt.clip_grad_norm_(0.05) > 0.05
            elif how != "max_norm" or not isinstance(opt, sw.OffloadAdamW):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            opt.step()
            opt.zero_grad()

    return drive


@pytest.mark.parametrize("accumulate", ["auto", 2])
@pytest.mark.parametrize("how", ["torch", "ours", "max_norm"])
def test_a_core_that_keeps_all_is_accumulated_and_clipped_as_by_torch(how, accumulate):
    own = {"max_norm": 0.05} if how == "max_norm" else {}
    assert error_of(clipped(how), accumulate=accumulate, **ALL, **own) <= CLOSE


def test_a_scaler_and_its_skipped_steps():
    assert error_of(partial(run_scaled, steps=5), **ALL) <= CLOSE


def test_an_overflow_of_a_core_alone_skips_the_step_and_nothing_of_it_stays():
    model = words()
    with offload(model, **CODEC) as opt:
        before = weights_of(model)
        handle = model.up.weight.register_hook(lambda g: torch.full_like(g, 3e38))
        loss_of(model, 0).backward()
        handle.remove()
        opt.step()
        assert opt.overflowed
        opt.zero_grad()
        assert all(torch.equal(w, before[name]) for name, w in weights_of(model).items())
        run(model, opt, 4)
    assert same_bits(model, trained())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_run_goes_on_bit_for_bit_with_projectors_that_are_drawn_again(tmp_path, dtype):
    model = words(dtype=dtype)
    with offload(model, tmp_path / "s", redraw=2, **CODEC) as opt:
        run(model, opt, 3)
        state = opt.state_dict()
        run(model, opt, 1, first=3)
    expected = trained(5, dtype, redraw=2)
    again = words(seed=4, dtype=dtype)
    with offload(again, tmp_path / "s", redraw=2, **CODEC) as opt:
        assert opt.resume() == 4
        run(again, opt, 1, first=4)
    assert same_bits(again, expected)
    with offload(again, tmp_path / "s", redraw=2, **CODEC) as opt:
        opt.load_state_dict(state)
        run(again, opt, 2, first=3)
    assert same_bits(again, expected)


OTHERS = [
    ({"codec": "sparse_random"}, "codec was 'block_random' .*, here it is 'sparse_random'"),
    ({"ratio": 0.25}, "ratio was 0.5 when it was saved, here it is 0.25"),
    ({"block": 16}, "block was 32"),
    ({"wire": "fp32"}, "wire was 'bf16'"),
    ({"redraw": 3}, "redraw was 0"),
    ({"seed": 3}, "seed was 0"),
    ({"target": ["up.weight"]}, "compressed_weights was 2 .*, here it is 1"),
    ({"codec": "identity", "target": "all-linear"}, "codec was 'block_random'.*is 'identity'"),
]


def test_another_codec_is_refused_with_both_values(tmp_path):
    states = {}
    for tier, folder in [("host", None), ("disk", tmp_path / "s")]:
        model = words()
        with offload(model, folder, **CODEC) as opt:
            run(model, opt, 1)
            states[tier] = opt.state_dict()
    for other, say in OTHERS:
        model = words(seed=4)
        before = weights_of(model)
        with offload(model, tmp_path / "s", **{**CODEC, **other}) as opt:
            for state in states.values():
                with pytest.raises(sw.InvalidArgument, match="load_state_dict: " + say):
                    opt.load_state_dict(state)
            with pytest.raises(sw.InvalidArgument, match="resume: " + say):
                opt.resume()
        assert all(torch.equal(w, before[name]) for name, w in weights_of(model).items())
    with offload(words(), tmp_path / "s", **CODEC) as opt:
        assert opt.resume() == 1


def test_a_state_without_a_codec_is_no_state_of_one():
    model = words()
    with offload(model) as opt:
        run(model, opt, 1)
        state = opt.state_dict()
    assert "arguments" not in state["sluiceway"]
    with (
        offload(words(), **CODEC) as opt,
        pytest.raises(sw.InvalidArgument, match=r"codec was 'identity'.*here it is 'block_random'"),
    ):
        opt.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "say"),
    [
        ({"redraw": 3}, "redraw is 3, but codec is identity.*or codec block_random"),
        ({"ratio": 0.25}, "ratio is 0.25, but codec is identity"),
        ({"target": "up"}, "target is 'up', but codec is identity"),
        ({**CODEC, "ratio": 1.5}, "ratio is 1.5, expected at most 1"),
        ({**CODEC, "ratio": 0.0}, "ratio is 0.0, expected more than 0"),
        ({**CODEC, "wire": "int8"}, "wire is 'int8', expected bf16 or fp32"),
        ({**CODEC, "redraw": -1}, "redraw is -1, expected at least 0"),
        ({**CODEC, "d": 16}, "d is 16, but codec is block_random"),
        ({**CODEC, "block": 1000}, "block is 1000 rows, expected 1 to"),
        ({**CODEC, "codec": "sparse_random", "d": 100}, "d is 100, expected at most the smaller"),
        ({**CODEC, "target": ["none"]}, "the model has no parameter 'none'"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, say):
    with pytest.raises(sw.InvalidArgument, match=say):
        offload(words(), **options)


def test_bytes_are_those_that_were_planned():
    model = words()
    with offload(model, link=SLOW, **CODEC) as opt:
        core = {one["name"]: one["core_rows"] * one["core_cols"] for one in opt.describe()}
        assert core["up.weight"] == 80 * 32
        cores = core_options(opt.options, 0)
        specs = [_core.TensorSpec(w.name, w.parameter, not w.identity) for w in opt.weights]
        found = _core.offload_footprint(
            specs, "fp32", 4096, 1, 1, None, None, cores, "spill", False, "fp32", 0
        )
        run(model, opt, 2)
        assert found["core_weights"] == 2
        assert found["core_d2h_bytes"] == CORE_BYTES
        assert found["pinned_bytes"] == opt.stats()["peak_bytes"]["pinned"]
