"""Streamed weights behave like any others in what users do around, between and inside of blocks."""

from __future__ import annotations

import os
import threading
from functools import partial

import pytest
import sluiceway as sw
import torch
from offload_models import offload
from safetensors.torch import load_model, save_model
from small_llama import small_llama, tokens
from small_models import Checkpointed, make, weights_of
from streamed_models import (
    STEPS,
    assert_same,
    ended,
    language_loss,
    loss_of,
    same_bits,
    stack,
    steps_of,
    streamed,
)
from torch import nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel


def test_a_penalty_reads_weights_outside_of_their_blocks():
    def penalised(model, step):
        penalty = sum(p.float().square().sum() for p in model.parameters())
        return loss_of(model, step) + 1e-2 * penalty

    assert_same(stack, partial(steps_of, loss_at=penalised))


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
        return steps_of(model.train(), opt, loss_at=language_loss)

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
        with pytest.raises(sw.InvalidArgument, match=r"autograd\.grad.*computes again"):
            torch.autograd.grad(model(x).sum(), x)
        with pytest.raises(sw.InvalidArgument, match=r"inputs=.*computes again"):
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
        pytest.raises(sw.InvalidArgument, match="another open optimizer streams the weights"),
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


def test_a_backward_after_close_gives_gradients_as_without_streaming():
    def gradients(**arguments):
        model = stack()
        with offload(model, **arguments):
            loss = loss_of(model, 0)
        loss.backward()
        return {name: p.grad for name, p in model.named_parameters()}

    assert same_bits(gradients(weights="streamed"), gradients())
