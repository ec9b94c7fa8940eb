"""Moments and masters in fewer bytes: bits that depend on nothing but the seed, and no drift."""

from __future__ import annotations

from functools import partial

import pytest
import sluiceway as sw
import torch
from offload_models import CHUNK, Words, loss_of, native, offload, run, words
from small_models import make, weights_of
from torch import nn
from torch.nn import functional

CODECS = ("bf16", "8bit")
STEPS = 6


def narrow(seed: int = 0) -> Words:
    return words(seed, torch.bfloat16)


def trained(model, steps=STEPS, folder=None, **arguments):
    """Return the weights and the states of a run."""
    with offload(model, folder, **arguments) as opt:
        run(model, opt, steps)
        opt.synchronize()
        return weights_of(model), states_of(opt)


def states_of(opt):
    states = [opt.engine.tensor_state(i) for i in range(len(opt.weights))]
    return {f"{i} {key}": state[key] for i, state in enumerate(states) for key in state}


def assert_equal(found, expected):
    for name, value in expected.items():
        same = torch.equal(found[name], value) if torch.is_tensor(value) else found[name] == value
        assert same, name


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_falls_as_with_fp32_states(codec, dtype):
    def fall(**arguments):
        model = words(0, dtype)
        with offload(model, state_codec=arguments["state_codec"]) as opt:
            run(model, opt, 60)
            return sum(loss_of(model, step).item() for step in range(20))

    start = sum(loss_of(words(0, dtype), step).item() for step in range(20))
    whole, rounded = fall(state_codec="fp32"), fall(state_codec=codec)
    assert whole < start - 2
    assert rounded == pytest.approx(whole, abs=0.1 * (start - whole))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("model_of", [words, narrow])
def test_every_place_and_policy_has_the_same_bits(codec, model_of, tmp_path):
    train = partial(trained, state_codec=codec, seed=3)
    weights, states = train(model_of())
    ways = {
        "disk": {"folder": tmp_path / "spill"},
        "threads": {"lane_threads": 2},
        "early": {"policy": "speculative", "accumulate": 1},
        "early on disk": {"folder": tmp_path / "a", "policy": "speculative", "accumulate": 1},
        "posix": {"folder": tmp_path / "b", "io": "posix"},
    }
    for way in ways.values():
        found, found_states = train(model_of(), **way)
        assert_equal(found, weights)
        assert_equal(found_states, states)


def test_the_seed_decides_the_rounding():
    same, again = (trained(narrow(), state_codec="8bit", seed=5) for _ in range(2))
    other, _ = trained(narrow(), state_codec="8bit", seed=6)
    assert_equal(again[0], same[0])
    assert not torch.equal(other["up.weight"], same[0]["up.weight"])


def mixed(seed: int = 0) -> Words:
    """Weights in bf16 that share chunks with norms in f32."""
    model = narrow(seed)
    model.norm.float()
    model.norm.register_forward_pre_hook(lambda _, args: (args[0].float(),))
    model.norm.register_forward_hook(lambda _, args, out: out.bfloat16())
    return model


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("model_of", [words, narrow, mixed])
def test_chunks_do_not_matter(codec, model_of):
    weights, states = trained(model_of(), state_codec=codec)
    found, found_states = trained(model_of(), state_codec=codec, chunk=4 * CHUNK)
    assert_equal(found, weights)
    assert_equal(found_states, states)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("model_of", [words, narrow])
def test_a_run_goes_on_from_its_store(codec, model_of, tmp_path):
    weights, states = trained(model_of(), 2 * STEPS, state_codec=codec)
    with offload(first := model_of(), tmp_path, state_codec=codec) as opt:
        run(first, opt, STEPS)
    with offload(model := model_of(9), tmp_path, state_codec=codec) as opt:
        assert opt.resume() == STEPS
        assert_equal(weights_of(model), weights_of(first))
        run(model, opt, STEPS, STEPS)
        opt.synchronize()
        assert_equal(weights_of(model), weights)
        assert_equal(states_of(opt), states)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("model_of", [words, narrow])
def test_a_saved_state_goes_on_with_the_same_bits(codec, model_of, tmp_path):
    weights, states = trained(model_of(), 2 * STEPS, state_codec=codec)
    with offload(model := model_of(), state_codec=codec) as opt:
        run(model, opt, STEPS)
        torch.save((opt.state_dict(), model.state_dict()), tmp_path / "state.pt")
    saved, of_model = torch.load(tmp_path / "state.pt", weights_only=True)
    with offload(other := model_of(4), state_codec=codec) as opt:
        other.load_state_dict(of_model)
        opt.load_state_dict(saved)
        run(other, opt, STEPS, STEPS)
        opt.synchronize()
        assert_equal(weights_of(other), weights)
        assert_equal(states_of(opt), states)


@pytest.mark.parametrize("codec", CODECS)
def test_a_state_of_fp32_or_of_torch_loads_rounded(codec):
    model, theirs = words(), words()
    with offload(model) as opt:
        run(model, opt, STEPS)
        ours = opt.state_dict()
        expected = states_of(opt)
    trains = [p for p in theirs.parameters() if p.numel()]
    run(theirs, their_opt := native(theirs, params=trains), STEPS)
    for state in (ours, their_opt.state_dict()):
        with offload(words(), state_codec=codec) as opt:
            opt.load_state_dict(state)
            for name, value in states_of(opt).items():
                if "exp_avg" in name:
                    scale = expected[name].abs().max().item()
                    assert torch.allclose(value, expected[name], rtol=0.1, atol=0.02 * scale), name


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("model_of", [narrow, mixed])
def test_masters_of_a_loaded_state_still_round_to_their_weights(codec, model_of, tmp_path):
    with offload(model := model_of()) as opt:
        run(model, opt, STEPS)
        saved = opt.state_dict()
    with offload(other := model_of(5), tmp_path, state_codec=codec) as opt:
        other.load_state_dict(model.state_dict())
        opt.load_state_dict(saved)
        expected = weights_of(other)
        for number, weight in enumerate(opt.weights):
            master = opt.engine.tensor_state(number)["master"]
            assert torch.equal(master.to(weight.parameter.dtype), weight.parameter), weight.name
    with offload(again := model_of(6), tmp_path, state_codec=codec) as opt:
        assert opt.resume() == STEPS
        assert_equal(weights_of(again), expected)


@pytest.mark.parametrize("codec", CODECS)
def test_a_huge_gradient_spoils_no_other_element(codec):
    model = nn.Linear(600, 1, bias=False)
    with offload(model, state_codec=codec) as opt:
        for _ in range(3):
            (model.weight * 1e25)[0, 5].backward()
            opt.step()
            opt.zero_grad()
        opt.synchronize()
        assert torch.isfinite(model.weight).all()


def test_a_store_goes_on_with_the_seed_that_it_was_made_with(tmp_path):
    with offload(model := narrow(), tmp_path, state_codec="8bit", seed=1) as opt:
        run(model, opt, 1)
    say = "seed was 1 when it was saved, here it is 2"
    with (
        offload(narrow(), tmp_path, state_codec="8bit", seed=2) as opt,
        pytest.raises(sw.InvalidArgument, match=say),
    ):
        opt.resume()
    with offload(narrow(), tmp_path, state_codec="8bit", seed=1) as opt:
        assert opt.resume() == 1


def test_a_store_of_another_codec_is_refused(tmp_path):
    with offload(narrow(), tmp_path / "eight", state_codec="8bit"):
        pass
    with pytest.raises(sw.InvalidArgument, match='state_codec is "8bit", expected no such key'):
        offload(narrow(), tmp_path / "eight")
    with pytest.raises(sw.InvalidArgument, match='state_codec is "8bit", expected "bf16"'):
        offload(narrow(), tmp_path / "eight", state_codec="bf16")
    with offload(narrow(), tmp_path / "whole"):
        pass
    with pytest.raises(sw.InvalidArgument, match='state_codec is not set, expected "bf16"'):
        offload(narrow(), tmp_path / "whole", state_codec="bf16")


@pytest.mark.parametrize("codec", CODECS)
def test_an_edited_weight_is_trained_from_its_new_value(codec):
    with offload(model := narrow(), state_codec=codec) as opt:
        run(model, opt, 2)
        with torch.no_grad():
            model.down.weight[3] = 7
        before = states_of(opt)
        run(model, opt, 1, 2)
        opt.synchronize()
        after = states_of(opt)
        assert (model.down.weight[3].float() - 7).abs().max() < 0.1
        number = [weight.name for weight in opt.weights].index("down.weight")
        moved = (after[f"{number} master"] - before[f"{number} master"]).abs()
        assert moved[3].min() > 1  # From the value that the edit replaced.
        assert moved[[0, 1, 2, 4]].max() < 0.1


class Rows(nn.Module):
    """An embedding of which the rows from 8 on are never used, and whose others may rest."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(64, 100)

    def forward(self, used: int) -> torch.Tensor:
        return functional.mse_loss(self.rows(torch.arange(used)).float(), torch.ones(used, 100))


def rows(dtype: torch.dtype) -> Rows:
    return make(Rows, 1).to(dtype)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_are_never_used_do_not_move_in_1000_steps(codec, dtype):
    model = rows(dtype)
    before = model.rows.weight.detach().clone()
    with offload(model, state_codec=codec, weight_decay=0.0, lr=1e-2) as opt:
        for _ in range(1000):
            model(8).backward()
            opt.step()
            opt.zero_grad()
    assert torch.equal(model.rows.weight[8:], before[8:])
    assert not torch.equal(model.rows.weight[:8], before[:8])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_whose_gradient_ends_comes_to_rest(codec, dtype):
    def moved(state_codec):
        model = rows(dtype)
        with offload(model, state_codec=state_codec, weight_decay=0.0, lr=1e-2) as opt:
            for step in range(600):
                if step == 300:
                    opt.synchronize()
                    middle = model.rows.weight.detach()[4:8].float().clone()
                # From step 20 on the gradient of rows 4 to 7, in a block with 3, is zero.
                model(8 if step < 20 else 4).backward()
                opt.step()
                opt.zero_grad()
            opt.synchronize()
            after = model.rows.weight.detach()[4:8].float()
            start = rows(dtype).rows.weight.detach()[4:8].float()
            return (after - middle).abs().max().item(), (after - start).mean().item()

    late, whole = moved(codec)
    late_fp32, expected = moved("fp32")
    assert late_fp32 == 0
    assert late == 0  # A residue of a moment, divided by eps, would go on for ever.
    assert whole == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.bfloat16, {"bf16": 6, "8bit": 5 + 8 / 256}),
        (torch.float16, {"bf16": 8, "8bit": 6 + 8 / 256}),
        (torch.float32, {"bf16": 8, "8bit": 6 + 8 / 256}),
    ],
)
def test_host_memory_holds_so_many_bytes_a_parameter(dtype, expected):
    elements = 4 << 20

    def peak(codec):
        model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4))).to(dtype)
        with offload(model, state_codec=codec, chunk=4 << 20) as opt:
            sum(p.float().square().sum() for p in model.parameters()).backward()
            opt.step()
            opt.synchronize()
            return opt.stats()["peak_bytes"]["host"] / elements

    whole = peak("fp32")
    for codec, found in expected.items():
        assert whole - peak(codec) == pytest.approx(12 - found, abs=0.002)
