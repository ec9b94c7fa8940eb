"""Weights that are on the device only in their block's turn train to the very bits of others."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from functools import partial

import pytest
import sluiceway as sw
import torch
from offload_models import CHUNK, SLOW, offload, run_scaled
from peft import LoraConfig, get_peft_model
from small_llama import small_llama, tokens
from small_models import Checkpointed, CheckpointedReentrant, Stack, make, weights_of
from streamed_models import (
    STEPS,
    assert_same,
    ended,
    held_by,
    language_loss,
    loss_of,
    same_bits,
    stack,
    steps_of,
    streamed,
)
from torch import nn
from torch.nn import functional
from transformers import LlamaForCausalLM


class Dropping(nn.Module):
    """Blocks with dropout, some of which a coin leaves out, and one that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.3), nn.Tanh()) for _ in range(4)
        )
        self.order = (0, 1, 1, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.pad(x, (0, 48), value=0.1)
        for number in self.order:
            if number != 2 or torch.rand(()) < 0.5:
                x = x + self.blocks[number](x)
        return x[:, :8]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("codec", ["fp32", "bf16", "8bit"])
def test_each_place_and_format_of_states_has_the_bits_of_resident_weights(
    dtype, disk, codec, tmp_path
):
    def made(way, model):
        folder = tmp_path / way if disk else None
        return offload(model, folder, weights=way, state_codec=codec, link=SLOW)

    _, expected = ended(stack().to(dtype), partial(made, "resident"))
    _, found = ended(stack().to(dtype), partial(made, "streamed"))
    assert same_bits(found, expected)


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("policy", ["spill", "speculative"])
def test_accumulated_and_clipped_under_both_policies(micro, clip, policy, tmp_path):
    drive = partial(steps_of, micro=micro, clip=clip)
    arguments = {"policy": policy, "accumulate": micro, "io": "auto" if clip else "posix"}
    _, expected = ended(stack(), partial(offload, **arguments | {"io": "auto"}), drive)
    _, found = ended(stack(), lambda m: streamed(m, tmp_path / "s", **arguments), drive)
    assert same_bits(found, expected)


def test_a_codec_on_the_gradients_and_a_skipped_step():
    assert_same(stack, codec="block_random", target=r"blocks")
    assert_same(stack, partial(run_scaled, steps=STEPS, loss_at=loss_of))


def test_dropout_a_skipped_block_and_one_that_runs_twice():
    assert_same(partial(make, Dropping), partial(steps_of, micro=2))
    assert_same(partial(make, Dropping), policy="speculative", accumulate=1)


@pytest.mark.parametrize("kind", [Checkpointed, CheckpointedReentrant])
def test_checkpointing_of_the_user(kind):
    assert_same(partial(make, partial(kind, blocks=3, width=64)))


def test_a_model_of_transformers_with_its_own_checkpointing_and_tied_embeddings():
    def drive(model, opt):
        model.train()
        model.gradient_checkpointing_enable()
        return steps_of(model, opt, loss_at=language_loss)

    assert_same(partial(small_llama, attention_dropout=0.1, num_hidden_layers=3), drive)


def test_autocast_forward_and_backward_inside_of_it():
    def drive(model, opt):
        losses = []
        for step in range(STEPS):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, step)
                loss.backward()
            losses.append(loss.item())
            opt.step()
            opt.zero_grad()
        return losses

    assert_same(stack, drive)


def test_an_evaluation_in_the_middle_of_an_accumulation():
    def drive(model, opt):
        seen = []
        for step in range(STEPS):
            for micro in range(2):
                (loss_of(model, 2 * step + micro) / 2).backward()
                with torch.no_grad():
                    seen += [loss_of(model.eval(), 77).item(), loss_of(model, 78).item()]
                model.train()
            opt.step()
            opt.zero_grad()
        return seen

    assert_same(stack, drive)


def test_generation_between_steps():
    def drive(model, opt):
        seen = []
        for step in range(2):
            model(input_ids=tokens(step), labels=tokens(step)).loss.backward()
            opt.step()
            opt.zero_grad()
            found = model.generate(tokens(9, 1), max_new_tokens=4, do_sample=False, pad_token_id=0)
            seen.append(found.tolist())
        return seen

    assert_same(small_llama, drive)


def test_a_gradient_hook_and_gradients_of_an_input_frozen_below():
    def drive(model, opt):
        model.blocks[1].up.weight.register_hook(lambda g: g * 0.5)
        return steps_of(model, opt)

    def frozen():
        model = stack()
        for p in [*model.enter.parameters(), *model.blocks[0].parameters()]:
            p.requires_grad_(False)
        return model

    assert_same(stack, drive)
    assert_same(frozen)


def test_an_exception_in_a_block_leaves_no_weight_behind():
    model = stack()
    with streamed(model) as opt:
        handle = model.blocks[1].down.register_forward_hook(_raise)
        with pytest.raises(ZeroDivisionError):
            loss_of(model, 0)
        handle.remove()
        loss = loss_of(model, 0)
        handle = model.blocks[1].down.register_full_backward_hook(_raise)
        loss_of(model, 0)
        handle.remove()
        loss.backward()
        opt.step()
        opt.zero_grad()
        failing = loss_of(model, 1)
        handle = model.blocks[0].up.weight.register_hook(_raise)
        with pytest.raises(ZeroDivisionError):
            failing.backward()
        handle.remove()
        opt.zero_grad()
        steps_of(model, opt, steps=STEPS - 1, first=1)
        opt.synchronize()
        weights = weights_of(model)
    _, expected = ended(stack(), offload)
    assert same_bits(weights, expected)


def _raise(*_):
    raise ZeroDivisionError


def test_parameters_keep_shape_type_and_device_and_no_memory():
    model = stack()
    with streamed(model) as opt:
        up = model.blocks[0].up.weight
        assert (up.shape, up.dtype, up.device.type) == ((64, 64), torch.float32, "cpu")
        assert held_by(up) == 4
        inside = []
        model.blocks[0].up.register_forward_hook(lambda m, *_: inside.append(m.weight.stride()))
        steps_of(model, opt, steps=1)
        assert inside == [(64, 1)] * 2  # Forward, and its repetition.
        assert held_by(up) == 4
        assert up.untyped_storage().nbytes() > 4  # A read brings it.
        steps_of(model, opt, steps=1)
        assert held_by(up) == 4
    assert held_by(up) >= 64 * 64 * 4


def test_a_weight_is_read_and_changed_between_steps_like_any_other():
    def drive(model, opt):
        steps_of(model, opt, steps=2)
        seen = [p.norm().item() for p in model.parameters()]
        with torch.no_grad():
            model.blocks[1].up.weight[3].mul_(2.0)
            model.blocks[2].down.weight.data[0, 0] = 0.25
        steps_of(model, opt, steps=2, first=2)
        return seen

    assert_same(stack, drive)


def test_a_change_between_backward_and_step_is_refused():
    model = stack()
    with streamed(model) as opt:
        loss_of(model, 0).backward()
        with torch.no_grad():
            model.blocks[1].up.weight.add_(1.0)
        with pytest.raises(sw.InvalidArgument, match=r"blocks\.1\.up\.weight was changed between"):
            opt.step()


def test_states_move_between_streamed_and_resident_weights(tmp_path):
    def halves(first, second, folder):
        model = stack()
        with offload(model, weights=first) as opt:
            steps_of(model, opt, steps=2)
            saved = io.BytesIO()
            torch.save([model.state_dict(), opt.state_dict()], saved)
        other = stack(seed=1)
        with offload(other, folder, weights=second) as opt:
            steps_of(other, opt, steps=1)
            saved.seek(0)
            of_model, of_optimizer = torch.load(saved, weights_only=True)
            other.load_state_dict(of_model)
            opt.load_state_dict(of_optimizer)
            steps_of(other, opt, steps=2, first=2)
            opt.synchronize()
            return weights_of(other)

    expected = halves("resident", "resident", None)
    for number, (first, second) in enumerate(
        [("streamed", "resident"), ("resident", "streamed"), ("streamed", "streamed")]
    ):
        assert same_bits(halves(first, second, tmp_path / str(number)), expected)


def test_a_run_goes_on_from_its_store_and_from_a_named_step(tmp_path):
    _, expected = ended(stack(), offload)
    model = stack()
    with streamed(model, tmp_path / "s") as opt:
        steps_of(model, opt, steps=1)
        named = opt.state_dict()
        steps_of(model, opt, steps=1, first=1)
    model = stack(seed=3)
    with streamed(model, tmp_path / "s") as opt:
        with pytest.raises(sw.InvalidArgument, match="resume"):
            loss_of(model, 0).backward()
        assert opt.resume() == 2
        steps_of(model, opt, steps=STEPS - 2, first=2)
        opt.synchronize()
        assert same_bits(weights_of(model), expected)
        opt.load_state_dict(named)
        steps_of(model, opt, steps=STEPS - 1, first=1)
        opt.synchronize()
        assert same_bits(weights_of(model), expected)


def test_a_store_of_resident_weights_is_refused_with_the_reason(tmp_path):
    model = stack()
    with offload(model, tmp_path / "s") as opt:
        steps_of(model, opt, steps=1)
    with pytest.raises(sw.InvalidArgument, match=r"up.weight.*streamed"):
        streamed(stack(), tmp_path / "s")


def test_copies_have_the_weights_and_no_tie_to_the_optimizer():
    model = stack()
    with streamed(model) as opt:
        steps_of(model, opt, steps=2)
        opt.synchronize()
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        for other in copies:
            assert type(other.blocks[0]).__mro__ == type(stack().blocks[0]).__mro__
            assert same_bits(weights_of(other), weights_of(model))
            assert loss_of(other, 5).item() == loss_of(model, 5).item()


def test_a_dropped_optimizer_leaves_the_weights_in_the_model():
    _, expected = ended(stack(), offload)
    model = stack()
    opt = streamed(model)
    steps_of(model, opt)
    gone = weakref.ref(opt)
    del opt
    gc.collect()
    assert gone() is None
    assert same_bits(weights_of(model), expected)
    assert type(model.blocks[0]) is type(stack().blocks[0])


def test_models_without_such_weights_are_refused():
    with pytest.raises(sw.InvalidArgument, match="no block list"):
        streamed(make(partial(nn.Linear, 64, 64)))
    model = stack()
    with pytest.raises(sw.InvalidArgument, match=r"no block of blocks has .* 524288 elements"):
        streamed(model, chunk=4 << 20)
    assert loss_of(model, 0).requires_grad
    assert CHUNK == 4 * 4096  # So that blocks of width 64 have chunks of their own.


def test_compiled_models_run_their_blocks_as_they_are():
    model = stack()
    with streamed(model) as opt:
        compiled = torch.compile(model, backend="eager")
        for step in range(2):
            loss_of(compiled, step).backward()
            opt.step()
            opt.zero_grad()
        opt.synchronize()
        weights = weights_of(model)
    _, expected = ended(stack(), offload, partial(steps_of, steps=2))
    assert same_bits(weights, expected)


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("policy", ["spill", "speculative"])
def test_blocks_that_stay_on_the_device_are_not_fetched(disk, policy, tmp_path):
    bits, bytes_of = [], []
    for number, blocks in enumerate((0, 1, 2, 3)):  # Of five, of which two are fetched once.
        model = make(partial(Stack, blocks=5, width=64)).to(torch.bfloat16)
        folder = tmp_path / str(number) if disk else None
        room = blocks * 2 * 64 * 64 * 2
        with streamed(model, folder, resident=room, policy=policy, accumulate=1) as opt:
            crossed = 0
            for step in range(STEPS):
                steps_of(model, opt, steps=1, first=step)
                crossed += opt.stats()["bytes"]["h2d"]
            opt.synchronize()
            bytes_of.append(crossed + opt.engine.take_stats()["h2d_bytes"])
            bits.append(weights_of(model))
    assert all(same_bits(weights, bits[0]) for weights in bits)
    assert bytes_of == sorted(bytes_of, reverse=True)
    assert len(set(bytes_of)) == 4


@pytest.mark.parametrize(
    ("dtype", "codec", "spared"),
    [
        (torch.bfloat16, "bf16", 2),
        (torch.bfloat16, "8bit", 2),
        (torch.bfloat16, "fp32", 0),  # The weight is a copy, which an update does not read.
        (torch.float32, "fp32", 4),
        (torch.float32, "8bit", 4),
    ],
)
def test_speculative_updates_read_no_weight_that_the_backward_has_fetched(
    dtype, codec, spared, tmp_path
):
    """Three blocks may wait, so all do; one that is kept is read once less."""
    read, bits, host = [], [], []
    for number, room in enumerate((None, 1 << 17)):
        model = make(partial(Stack, blocks=3, width=128)).to(dtype)
        arguments = {"policy": "speculative", "accumulate": 1, "state_codec": codec}
        budget = sw.Budget(host=room)
        with streamed(
            model, tmp_path / str(number), chunk=1 << 16, budget=budget, **arguments
        ) as opt:
            bytes_read = 0
            for step in range(STEPS):
                steps_of(model, opt, steps=1, first=step)
                opt.synchronize()
                bytes_read += opt.stats()["bytes"]["disk_read"]
            host.append(opt.stats()["peak_bytes"]["host"])
        read.append(bytes_read)
        bits.append(weights_of(model))
    assert same_bits(*bits)
    matrices = 3 * 2 * 128 * 128  # Some of the next step's are fetched ahead.
    assert abs(read[1] - read[0] - STEPS * spared * matrices) <= dtype.itemsize * matrices
    assert host[0] - host[1] == spared * matrices


@pytest.mark.parametrize("codec", ["bf16", "8bit"])
def test_weights_fetched_between_a_backward_and_its_step_are_not_taken_for_new_ones(
    codec, tmp_path
):
    def drive(model, opt):
        for step in range(STEPS):
            loss_of(model, step).backward()
            with torch.no_grad():  # Fetches weights whose new values wait for the step.
                loss_of(model, step)
            opt.step()
            opt.zero_grad()

    def made(way, model):
        arguments = {"policy": "speculative", "accumulate": 1, "state_codec": codec}
        return offload(model, tmp_path / way, weights=way, **arguments)

    _, expected = ended(stack().to(torch.bfloat16), partial(made, "resident"), drive)
    _, found = ended(stack().to(torch.bfloat16), partial(made, "streamed"), drive)
    assert same_bits(found, expected)


def test_a_store_is_taken_up_with_other_blocks_on_the_device(tmp_path):
    _, expected = ended(stack(), offload)
    for first, resident in ((0, 1 << 20), (2, 1 << 15)):
        model = stack(seed=first)
        with streamed(model, tmp_path / "s", resident=resident) as opt:
            opt.resume() if first else model.load_state_dict(stack().state_dict())
            steps_of(model, opt, steps=2, first=first)
            opt.synchronize()
    assert same_bits(weights_of(model), expected)


def test_resident_bytes_without_streamed_weights_are_refused():
    with pytest.raises(sw.InvalidArgument, match=r"resident.*all stay"):
        offload(stack(), resident=1 << 20)


class Adapted(nn.Module):
    """A frozen linear layer beside a small one of low rank that is trained."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 4, bias=False)
        self.up = nn.Linear(4, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def adapted():
    """Return a stack whose first block is frozen, and whose others have adapters."""
    model = stack().requires_grad_(False)
    for block in model.blocks[1:]:
        block.up, block.down = Adapted(block.up), Adapted(block.down)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("codec", ["fp32", "8bit"])
@pytest.mark.parametrize("disk", [False, True])
def test_adapters_on_a_base_that_is_fetched_and_never_written(dtype, codec, disk, tmp_path):
    _, expected = ended(adapted().to(dtype), partial(offload, state_codec=codec))
    for number, resident in enumerate((0, 1 << 15)):
        folder = tmp_path / str(number) if disk else None
        model = adapted().to(dtype)
        with streamed(model, folder, state_codec=codec, resident=resident) as opt:
            assert len(opt.weights) == 8
            assert held_by(model.blocks[0].up.weight) == dtype.itemsize or resident
            for step in range(STEPS):
                steps_of(model, opt, steps=1, first=step)
            written = opt.stats()["bytes"]["disk_written"]
            opt.synchronize()
            weights = weights_of(model)
            base = model.blocks[1].up.base.weight
            if not resident:
                with torch.no_grad():
                    base[0, 0] = 7.0
                with pytest.raises(sw.InvalidArgument, match="is frozen, and its store"):
                    loss_of(model, 0)
                opt._blocks.between.forget()
        assert same_bits(weights, expected)
        assert written < 2 * 64 * 64 * 4 * 6 or not disk


@pytest.mark.parametrize("resident", [0, 1 << 15])
def test_a_run_with_adapters_goes_on_from_its_store(resident, tmp_path):
    _, expected = ended(adapted(), offload)
    for first in (0, 2):
        model = adapted()
        with streamed(model, tmp_path / "s", resident=resident) as opt:
            assert opt.resume() == first
            steps_of(model, opt, steps=2, first=first)
            opt.synchronize()
            weights = weights_of(model)
    assert same_bits(weights, expected)


def in_fp8(value):
    """Round a tensor to E4M3 with a power of two for each 128 elements, the smallest that fits."""
    blocks = functional.pad(value.double().flatten(), (0, -value.numel() % 128)).view(-1, 128)
    largest = blocks.abs().amax(dim=1, keepdim=True)
    # Numbers up to 464 round to 448 or less. Scales are 2^-116 to 2^119.
    scale = torch.ldexp(torch.ones_like(largest), torch.ceil(torch.log2(largest / 464)).int())
    scale = torch.where(largest / scale > 464, 2 * scale, scale).clamp(2.0**-116, 2.0**119)
    rounded = (blocks / scale).float().to(torch.float8_e4m3fn).double() * scale
    return rounded.flatten()[: value.numel()].view(value.shape).to(value.dtype)


def rounded(model):
    """Round the frozen matrices that are streamed."""
    for p in model.blocks.parameters():
        if not p.requires_grad and p.dim() == 2:
            p.data = in_fp8(p.data)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tier", "chunk"), [("host", 8192), ("host", 16384), ("disk", 8192)])
@pytest.mark.parametrize("resident", [0, 1 << 15])
def test_a_base_in_8_bits_trains_as_one_that_was_rounded_first(
    dtype, tier, chunk, resident, tmp_path
):
    def made():
        return adapted().to(dtype)

    disk = tier == "disk"
    arguments = {"chunk": chunk, "resident": resident, "frozen_codec": "fp8"}
    drive = partial(steps_of, steps=2)
    _, expected = ended(rounded(made()), offload, drive)
    for first in (0, 2):
        model = made()
        with streamed(model, tmp_path if disk else None, **arguments) as opt:
            assert opt.resume() == first
            if not first:
                drive(model, opt)
            weights = weights_of(model)
        assert same_bits(weights, expected)
        assert same_bits(weights_of(model), expected)  # After close(), too.
        if not disk:
            return


def test_a_base_in_8_bits_crosses_and_lies_in_fewer_bytes(tmp_path):
    moved, stored = [], []
    for codec in ("identity", "fp8"):
        folder = tmp_path / codec
        model = make(partial(Stack, blocks=8, width=128)).to(torch.bfloat16)
        model.blocks.requires_grad_(False)
        with streamed(model, folder, chunk=1 << 16, frozen_codec=codec) as opt:
            crossed = dict.fromkeys(("h2d", "disk_read"), 0)
            for step in range(STEPS):
                steps_of(model, opt, steps=1, first=step)
                crossed = {name: crossed[name] + opt.stats()["bytes"][name] for name in crossed}
            moved.append(crossed)
            stored.append(sum(f.stat().st_size for f in folder.iterdir()))
    # 129 bytes for 128 elements, in whole blocks: five for a matrix, which has eight of bf16.
    each = 16384
    for name in ("h2d", "disk_read"):
        assert 0.6 < moved[1][name] / moved[0][name] < 0.68
    assert stored[0] - stored[1] == 2 * 2 * 8 * 3 * 4096
    assert moved[1]["h2d"] > STEPS * 14 * 2 * each


@pytest.mark.parametrize("codec", ["identity", "fp8"])
@pytest.mark.parametrize("resident", [0, 1 << 15, 1 << 20])
def test_a_frozen_weight_that_is_changed_is_refused(codec, resident):
    """Loading the base after the optimizer was made changes it."""
    model = adapted()
    with streamed(model, frozen_codec=codec, resident=resident) as opt:
        steps_of(model, opt, steps=1)
        base = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
        model.load_state_dict(base, strict=False)  # The values that are there.
        steps_of(model, opt, steps=1, first=1)
        base["blocks.1.up.base.weight"][3, 3] += 1
        model.load_state_dict(base, strict=False)
        with pytest.raises(sw.InvalidArgument, match=r"blocks\.1\.up\.base\.weight was changed"):
            steps_of(model, opt, steps=1, first=2)


def test_a_store_of_a_base_in_8_bits_is_not_taken_for_another(tmp_path):
    with streamed(adapted(), tmp_path, frozen_codec="fp8"):
        pass
    with pytest.raises(sw.InvalidArgument, match="fp8"):
        streamed(adapted(), tmp_path)


def test_8_bits_need_a_frozen_weight_that_is_streamed():
    with pytest.raises(sw.InvalidArgument, match=r"frozen_codec is fp8.*requires_grad_\(False\)"):
        streamed(stack(), frozen_codec="fp8")
    with pytest.raises(sw.InvalidArgument, match=r"frozen_codec.*weights streamed"):
        offload(adapted(), frozen_codec="fp8")


def test_lora_of_peft_on_a_streamed_base():
    def with_lora():
        torch.manual_seed(3)
        lora = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], lora_dropout=0.1)
        model = get_peft_model(small_llama(), lora)
        for name, p in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(p, std=0.02)
        return model

    assert_same(with_lora, partial(steps_of, loss_at=language_loss))
    model = with_lora()
    with streamed(model) as opt:
        assert all("lora" in weight.name for weight in opt.weights)
        assert held_by(model.base_model.model.model.layers[0].mlp.up_proj.weight) == 4


def test_a_model_is_opened_in_the_type_and_on_the_device_that_are_there(tmp_path):
    small_llama().save_pretrained(tmp_path)
    with pytest.raises(sw.InvalidArgument, match="dtype is 'int8', expected fp32, bf16, fp16"):
        sw.open_streamed(tmp_path, dtype="int8")
    with pytest.raises(sw.Unavailable, match="device is 'cuda:9'"):
        sw.open_streamed(tmp_path, device="cuda:9")
    expected = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for dtype in ("bf16", torch.bfloat16):
        model = sw.open_streamed(tmp_path, dtype)
        assert held_by(model.model.layers[1].mlp.up_proj.weight) == 2
        assert same_bits(weights_of(model), weights_of(expected))
        assert torch.equal(model(input_ids=tokens(0)).logits, expected(input_ids=tokens(0)).logits)
        assert held_by(model.model.layers[1].mlp.up_proj.weight) == 2 * 256 * 256


def test_an_opened_model_is_trained_and_written_weight_by_weight(tmp_path):
    drive = partial(steps_of, loss_at=language_loss)
    first = small_llama(num_hidden_layers=3)
    first.save_pretrained(tmp_path / "model")
    _, expected = ended(first.train(), offload, drive)
    model = sw.open_streamed(tmp_path / "model").train()
    for optimizer in (sw.SubspaceAdamW, sw.OffloadAdamW, sw.ZoSgd):
        with pytest.raises(sw.InvalidArgument, match=r"open_streamed|strides \(0, 0\)"):
            optimizer(model)
    with streamed(model, tmp_path / "store") as opt:
        drive(model, opt)
        opt.save_pretrained(tmp_path / "result")
        with pytest.raises(sw.InvalidArgument, match="has weights already"):
            opt.save_pretrained(tmp_path / "result")
    again = sw.open_streamed(tmp_path / "result")
    assert same_bits(weights_of(again), expected)
    with pytest.raises(sw.InvalidArgument, match="the optimizer is closed"):
        model(input_ids=tokens(0))
