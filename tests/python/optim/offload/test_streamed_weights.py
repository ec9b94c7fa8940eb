"""Weights that are on the device only in their block's turn train to the very bits of others."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import threading
import weakref
from functools import partial

import pytest
import sluiceway as sw
import torch
from offload_models import CHUNK, SLOW, offload
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_model, save_model
from sluiceway.optim.common import torch_private
from small_llama import small_llama, tokens
from small_models import (
    Checkpointed,
    CheckpointedReentrant,
    Stack,
    batch,
    make,
    weights_of,
)
from torch import nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

STEPS = 4
streamed = partial(offload, weights="streamed")
stack = partial(make, partial(Stack, blocks=3, width=64))


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


def loss_of(model, step):
    x, y = batch(step)
    return functional.mse_loss(model(x.to(next(model.parameters()).dtype)).float(), y)


def same_bits(left, right):
    assert left.keys() == right.keys()
    return all(torch.equal(left[name], right[name]) for name in left)


def steps_of(model, opt, steps=STEPS, first=0, micro=1, clip=None):
    """Return the losses of a run."""
    torch.manual_seed(11)
    losses = []
    for step in range(first, first + steps):
        for part in range(micro):
            loss = loss_of(model, micro * step + part) / micro
            loss.backward()
            losses.append(loss.item())
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        opt.zero_grad()
    return losses


def ended(model, made, drive=steps_of):
    """Return what a run of a new model gives, and its weights afterwards."""
    with made(model) as opt:
        result = drive(model, opt)
        opt.synchronize()
        weights = weights_of(model)
    assert same_bits(weights_of(model), weights)  # close() leaves them in the model.
    return result, weights


def assert_same(model_of, drive=steps_of, **arguments):
    resident, expected = ended(model_of(), partial(offload, **arguments), drive)
    found, weights = ended(model_of(), partial(streamed, **arguments), drive)
    assert found == resident
    assert same_bits(weights, expected)


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
    assert_same(stack, run_scaled)


def run_scaled(model, opt):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    for step in range(STEPS):
        loss = loss_of(model, step)
        scaler.scale(loss * float("inf") if step == 2 else loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()


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
        losses = []
        for step in range(STEPS):
            loss = model(input_ids=tokens(step), labels=tokens(step)).loss
            loss.backward()
            losses.append(loss.item())
            opt.step()
            opt.zero_grad()
        return losses

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


def held_by(p):
    with torch_private.asking_no_class():
        return p.untyped_storage().nbytes()


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
    for number, blocks in enumerate((0, 1, 2, 3)):  # Of three.
        model, folder = stack().to(torch.bfloat16), tmp_path / str(number) if disk else None
        room = blocks * 2 * 64 * 64 * 2
        with streamed(model, folder, resident=room, policy=policy, accumulate=1) as opt:
            crossed = 0
            for step in range(STEPS):
                steps_of(model, opt, steps=1, first=step)
                crossed += opt.stats()["bytes"]["h2d"]
            bytes_of.append(crossed)
            opt.synchronize()
            bits.append(weights_of(model))
    assert all(same_bits(weights, bits[0]) for weights in bits)
    assert bytes_of == sorted(bytes_of, reverse=True)
    assert len(set(bytes_of)) == 4


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


def test_a_run_with_adapters_goes_on_from_its_store(tmp_path):
    _, expected = ended(adapted(), offload)
    for first in (0, 2):
        model = adapted()
        with streamed(model, tmp_path / "s") as opt:
            assert opt.resume() == first
            steps_of(model, opt, steps=2, first=first)
            opt.synchronize()
            weights = weights_of(model)
    assert same_bits(weights, expected)


# ---- What users do around blocks -----------------------------------------------------------------


def test_a_penalty_reads_weights_outside_of_their_blocks():
    def drive(model, opt):
        losses = []
        for step in range(STEPS):
            penalty = sum(p.float().square().sum() for p in model.parameters())
            loss = loss_of(model, step) + 1e-2 * penalty
            loss.backward()
            losses.append(loss.item())
            opt.step()
            opt.zero_grad()
        return losses

    assert_same(stack, drive)


def test_a_tensor_put_in_the_place_of_a_weight_is_taken_over():
    def drive(model, opt):
        weight = model.blocks[0].up.weight
        before = weight.data.clone()
        model.blocks[2].down.weight.data = torch.full((64, 64), 0.01)
        steps_of(model, opt, steps=2)
        weight.data = before  # As a swap with an average does.
        return steps_of(model, opt, steps=2, first=2)

    assert_same(stack, drive)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_cache_that_comes_by_position_is_left_out(implementation):
    def gpt2():
        torch.manual_seed(0)
        shape = GPT2Config(
            n_embd=64, n_layer=2, n_head=4, vocab_size=64, n_positions=32, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation=implementation,
        )  # fmt: skip
        return GPT2LMHeadModel(shape)

    def drive(model, opt):
        model.train()
        losses = []
        for step in range(STEPS):
            loss = model(input_ids=tokens(step), labels=tokens(step)).loss
            loss.backward()
            losses.append(loss.item())
            opt.step()
            opt.zero_grad()
        return losses

    assert_same(gpt2, drive)


def test_decoding_with_gradients_enabled_is_refused_where_it_would_be_wrong():
    model = small_llama().eval()
    with streamed(model):
        made = model(input_ids=tokens(0, 1), use_cache=True)
        with pytest.raises(sw.InvalidArgument, match=r"has left empty.*no_grad"):
            model(input_ids=tokens(0, 1)[:, :1], past_key_values=made.past_key_values)
    with streamed(model):
        with torch.no_grad():
            made = model(input_ids=tokens(0, 1), use_cache=True)
        with pytest.raises(sw.InvalidArgument, match=r"would add to the cache twice.*no_grad"):
            model(input_ids=tokens(0, 1)[:, :1], past_key_values=made.past_key_values)


def test_gradients_of_some_tensors_alone_are_refused_before_they_train_weights():
    model = stack()
    with streamed(model) as opt:
        x = torch.randn(4, 16, requires_grad=True)
        with pytest.raises(sw.InvalidArgument, match=r"autograd\.grad.*streamed"):
            torch.autograd.grad(model(x).sum(), x)
        with pytest.raises(sw.InvalidArgument, match=r"inputs=.*streamed"):
            model(x).sum().backward(inputs=[x])
        before = weights_of(model)
        opt.step()
        opt.synchronize()
        assert same_bits(weights_of(model), before)


def test_threads_run_blocks_one_after_the_other():
    model = stack().eval()
    with torch.no_grad():
        expected = [loss_of(model, step).item() for step in range(4)]
    found = {}

    def evaluate(number):
        with torch.no_grad():
            found[number] = [loss_of(model, step % 4).item() for step in range(12)]

    with streamed(model) as opt:
        threads = [threading.Thread(target=evaluate, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == dict.fromkeys(range(3), expected * 3)
        steps_of(model, opt, steps=1)


def test_a_forked_child_is_refused_in_one_sentence():
    model = stack()
    with streamed(model) as opt:
        opt.synchronize()
        x, (read, write) = torch.zeros(1, 64), os.pipe()
        if not (child := os.fork()):
            try:
                with torch.no_grad():
                    model.blocks[0](x)  # torch's own threads are not in a child either.
            except sw.InvalidArgument as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        assert b"forked child and has no lanes" in os.read(read, 1000)


class Odd(nn.Module):
    """Blocks that return a view of a weight, call themselves, or change a weight."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.depth = kind, 0
        self.weight = nn.Parameter(torch.eye(64) + 0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "view":
            return self.weight[: len(x)]
        if self.kind == "changes":
            with torch.no_grad():
                self.weight.clamp_(-1.0, 1.0)
        if self.kind == "itself" and self.depth == 0:
            self.depth = 1
            x = self(x)
            self.depth = 0
        return torch.tanh(x @ self.weight)


class OddOnes(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Odd(kind) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.pad(x, (0, 48), value=0.1)
        return sum(block(x) for block in self.blocks)[:, :8]


def test_what_a_block_returns_is_not_overwritten_by_the_next_one():
    assert_same(partial(make, partial(OddOnes, "view")))
    with torch.no_grad():
        model = make(partial(OddOnes, "view"))
        expected = model(torch.ones(4, 16))
        with streamed(model):
            assert torch.equal(model(torch.ones(4, 16)), expected)


def test_a_block_that_calls_itself():
    model = make(partial(OddOnes, "itself"))
    with torch.no_grad():
        expected = model(torch.ones(4, 16))
    with streamed(model), torch.no_grad():
        assert torch.equal(model(torch.ones(4, 16)), expected)


def test_a_change_of_a_weight_inside_of_its_block_is_refused():
    model = make(partial(OddOnes, "changes"))
    with streamed(model), pytest.raises(sw.InvalidArgument, match="changed while its block ran"):
        model(torch.ones(4, 16))


def test_a_turn_that_an_interrupt_has_left_is_ended_by_the_next_one(monkeypatch):
    _, expected = ended(stack(), offload)
    model = stack()
    with streamed(model) as opt:
        blocks = opt._blocks
        for name in ("bring", "take_out"):
            once = iter([True])
            guard, real = blocks._guard, getattr(blocks._guard, name)

            def interrupted(parameters, real=real, once=once):
                if next(once, False):
                    raise KeyboardInterrupt
                return real(parameters)

            monkeypatch.setattr(guard, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                loss_of(model, 0)
        steps_of(model, opt)
        opt.synchronize()
        assert same_bits(weights_of(model), expected)


def test_two_optimizers_of_the_same_blocks_are_refused():
    model = stack()
    halves = [
        [{"params": list(m.parameters())}] for m in (model.blocks[0].up, model.blocks[0].down)
    ]
    with (
        streamed(model, param_groups=halves[0]),
        pytest.raises(sw.InvalidArgument, match="another open optimizer streams the blocks"),
    ):
        streamed(model, param_groups=halves[1])


def test_autocast_that_is_off_in_the_forward_is_off_in_the_repetition():
    def drive(model, opt):
        for step in range(STEPS):
            loss = loss_of(model, step)
            with torch.autocast("cpu", torch.bfloat16):
                loss.backward()
            opt.step()
            opt.zero_grad()

    class Kept(Checkpointed):
        pass

    _, expected = ended(make(partial(Kept, blocks=3, width=64)), offload, drive)
    _, found = ended(stack(), streamed, drive)
    assert same_bits(found, expected)


def test_weights_take_no_more_room_in_files_and_after_closing(tmp_path):
    model = stack()
    with streamed(model) as opt:
        steps_of(model, opt, steps=1)
        save_model(model, tmp_path / "open.safetensors")
    save_model(model, tmp_path / "closed.safetensors")
    for name in ("open", "closed"):
        other = stack(seed=5)
        load_model(other, tmp_path / f"{name}.safetensors")
        assert same_bits(weights_of(other), weights_of(model))


def test_lora_of_peft_on_a_streamed_base():
    def with_lora():
        torch.manual_seed(3)
        lora = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], lora_dropout=0.1)
        model = get_peft_model(small_llama(), lora)
        for name, p in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(p, std=0.02)
        return model

    def drive(model, opt):
        losses = []
        for step in range(STEPS):
            loss = model(input_ids=tokens(step), labels=tokens(step)).loss
            loss.backward()
            losses.append(loss.item())
            opt.step()
            opt.zero_grad()
        return losses

    assert_same(with_lora, drive)
    model = with_lora()
    with streamed(model) as opt:
        assert all("lora" in weight.name for weight in opt.weights)
        assert held_by(model.base_model.model.model.layers[0].mlp.up_proj.weight) == 4


def test_a_backward_after_close_gives_gradients_as_without_streaming():
    def gradients(**arguments):
        model = stack()
        with offload(model, **arguments):
            loss = loss_of(model, 0)
        loss.backward()
        return {name: p.grad for name, p in model.named_parameters()}

    assert same_bits(gradients(weights="streamed"), gradients())


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
    def drive(model, opt):
        for step in range(STEPS):
            model(input_ids=tokens(step), labels=tokens(step)).loss.backward()
            opt.step()
            opt.zero_grad()

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
