"""A block computes each part of a batch before the next block: the bits of a loop over parts."""

from __future__ import annotations

from collections import UserDict
from functools import partial
from types import SimpleNamespace

import pytest
import sluiceway as sw
import torch
from offload_models import offload, peak_of_backward, train_counting
from small_llama import small_llama
from small_models import WIDTH, Stack, make, same_bits, update_error, weights_of
from torch import nn
from torch.nn import functional

STEPS = 3
streamed = partial(offload, weights="streamed")
away = partial(offload, activations="host")


def parts_of(rows, count):
    ends = [rows * (i + 1) // count for i in range(count)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


class _InParts(torch.autograd.Function):
    """Calls a module with one part after the other; gradients add up from the first part on."""

    @staticmethod
    def forward(ctx, module, count, x, *parameters):
        ctx.module, ctx.count, ctx.random = module, count, torch.get_rng_state()
        ctx.save_for_backward(x)
        return torch.cat([module(x[a:b]) for a, b in parts_of(len(x), count)])

    @staticmethod
    def backward(ctx, gradient):
        (x,), parameters = ctx.saved_tensors, list(ctx.module.parameters())
        found, total = [], None
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.random)
            for a, b in parts_of(len(x), ctx.count):
                part = x[a:b].detach().requires_grad_()
                out = ctx.module(part)
                first, *each = torch.autograd.grad(out, [part, *parameters], gradient[a:b])
                found.append(first)
                total = each if total is None else [t + e for t, e in zip(total, each, strict=True)]
        return None, None, torch.cat(found), *total


class Dropping(Stack):
    """A stack with dropout in its blocks, which it may call part by part."""

    parts = None
    dropout = 0.1

    def __init__(self, blocks=3):
        super().__init__(blocks)
        for block in self.blocks:
            block.norm = nn.Sequential(block.norm, nn.Dropout(self.dropout))

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            if self.parts is None:
                x = block(x)
            else:
                x = _InParts.apply(block, self.parts, x, *block.parameters())
        return self.leave(x)


class Plain(Dropping):
    dropout = 0.0


def loss_of(model, step, rows):
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(rows, 16, generator=generator), torch.randn(rows, 8, generator=generator)
    kind = next(model.parameters()).dtype
    return functional.mse_loss(model(x.to(kind)).float(), y)


def train(model, opt, rows=24, backwards=1):
    torch.manual_seed(3)
    return train_counting(model, opt, lambda step: loss_of(model, step, rows), STEPS, backwards)


WAYS = {
    "streamed": streamed,
    "away": away,
    "streamed and away": partial(streamed, activations="host"),
    "speculative": partial(streamed, policy="speculative", accumulate=1, max_norm=0.1),
    "codec": partial(streamed, codec="block_random", ratio=0.5, chunk=1 << 18),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("rows", "count"), [(24, 2), (25, 4), (3, 8)])
def test_the_bits_are_those_of_a_loop_over_the_parts(way, dtype, rows, count):
    expected, found = make(Dropping).to(dtype), make(Dropping).to(dtype)
    expected.parts = min(rows, count)
    resident = {"weights": "resident", "activations": "device"}
    with WAYS[way](expected, **resident) as opt:
        losses = train(expected, opt, rows)
    with WAYS[way](found, micro_batches=count) as opt:
        assert train(found, opt, rows) == losses
    assert same_bits(expected, found)


@pytest.mark.parametrize("make_opt", [streamed, away])
def test_several_backwards_and_a_block_that_runs_twice_add_up(make_opt):
    class Twice(Plain):
        def forward(self, x):
            x = self.enter(x)
            for block in (*self.blocks, self.blocks[0]):
                if self.parts is None:
                    x = block(x)
                else:
                    x = _InParts.apply(block, self.parts, x, *block.parameters())
            return self.leave(x)

    whole, parts = make(Twice), make(Twice)
    with make_opt(whole) as opt:
        losses = train(whole, opt, backwards=2)
    with make_opt(parts, micro_batches=3) as opt:
        assert train(parts, opt, backwards=2) == pytest.approx(losses, rel=1e-4)
    assert update_error(make(Twice), parts, whole) <= 1e-3


class _Routed(nn.Module):
    """A mixture of two experts; the sign of a sequence's sum chooses one."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x):
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = ((x.sum(-1) > 0) == bool(number)).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]))
        return x + out


@pytest.mark.parametrize("make_opt", [streamed, away])
def test_a_weight_that_the_last_part_does_not_use_has_its_gradient(make_opt):
    class Mixture(Plain):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(_Routed() for _ in range(2))

    def steps_of(model, opt):
        torch.manual_seed(1)
        for _ in range(3):
            x = torch.randn(6, 16)
            x = torch.cat([x, -x]) + torch.linspace(-2, 2, 12)[:, None]
            model(x).square().sum().backward()
            opt.step()
            opt.zero_grad()
        opt.synchronize()
        return weights_of(model)

    ends = []
    for count in (1, 2, 12):
        with make_opt(model := make(Mixture), micro_batches=count) as opt:
            ends.append(steps_of(model, opt))
    for end in ends[1:]:
        for name, expected in ends[0].items():
            assert torch.allclose(end[name], expected, rtol=1e-3, atol=1e-4), name


def test_parts_fetch_no_weight_again():
    crossed = {}
    for count in (1, 2, 6):
        model = make(Plain, blocks=4)
        with streamed(model, micro_batches=count) as opt:
            train(model, opt)
            opt.synchronize()
            rest = opt.engine.take_stats()
            crossed[count] = {way: opt.crossed[way] + rest[f"{way}_bytes"] for way in opt.crossed}
    assert crossed[1]["d2h"] == crossed[2]["d2h"] == crossed[6]["d2h"]
    # Up to two blocks for a step that never comes may have crossed.
    fetched = [crossed[count]["h2d"] for count in (1, 2, 6)]
    assert max(fetched) - min(fetched) <= 2 * 2 * WIDTH * WIDTH * 4 < fetched[0] / 4


def test_one_part_at_a_time_has_activations_inside_of_a_block():
    def peak(count):
        model = make(Plain)
        with away(model, micro_batches=count) as opt:
            return peak_of_backward(opt, lambda step: loss_of(model, step, 4096))

    each = 4096 * WIDTH * 4  # Of an activation: at least three live inside of a block.
    assert peak(1) - peak(8) >= 2 * each


def test_a_llama_with_padding_and_few_sequences():
    def batch(rows, step):
        generator = torch.Generator().manual_seed(step)
        most = model.config.vocab_size
        ids = torch.randint(3, most, (rows, 13), generator=generator)
        mask = torch.ones_like(ids)
        mask[0, 7:] = 0
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": ids.masked_fill(mask == 0, -100),
        }

    ends = []
    for count in (1, 3):
        torch.manual_seed(0)
        model = small_llama()
        with streamed(model, micro_batches=count) as opt:
            for step, rows in enumerate((5, 1, 2, 6)):
                model(**batch(rows, step)).loss.backward()
                opt.step()
                opt.zero_grad()
                with torch.no_grad():
                    model(**batch(4, 9))
            opt.synchronize()
            ends.append(weights_of(model))
    for one, three in zip(*(end.values() for end in ends), strict=True):
        assert torch.allclose(one, three, rtol=1e-3, atol=1e-4)


# ---- What is refused ----


class _Takes(nn.Module):
    """Blocks with something beside the batch."""

    def __init__(self, beside=None, returns=None):
        super().__init__()
        self.enter = nn.Linear(16, WIDTH)
        self.blocks = nn.ModuleList(_Beside(returns) for _ in range(2))
        self.beside = beside

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x, _ = block(x, self.beside)
        return x


class _Beside(nn.Module):
    def __init__(self, returns):
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.returns = returns

    def forward(self, x, beside):
        x = self.up(x)
        return x, x.mean() if self.returns == "a mean" else None


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        (torch.ones(6, WIDTH), r"6 sequences of 6 tokens, and beside them a tensor of shape"),
        (torch.ones(6, 1, 4), r"a tensor of shape \(6, 1, 4\), whose rows"),  # Of heads, perhaps.
        (object(), "a block gets a object, which micro_batches cannot divide"),
    ],
)
def test_what_may_not_be_divided_is_refused_and_training_goes_on(beside, message):
    x, model = torch.randn(6, 6, 16), _Takes(beside)
    with streamed(model, micro_batches=2) as opt:
        with pytest.raises(sw.InvalidArgument, match=message):
            model(x)
        model(x[:1]).sum().backward()
        opt.step()
        opt.synchronize()


def test_what_has_other_rows_goes_to_every_part():
    beside = torch.ones(1, 6), torch.ones(5, WIDTH), torch.ones(1, 1, 6, 6), torch.ones(6)
    for one in beside:
        model = _Takes(one)
        with streamed(model, micro_batches=2) as opt:
            model(torch.randn(6, 6, 16)).sum().backward()
            opt.step()
            opt.synchronize()


def test_a_block_that_returns_something_else_than_rows_is_refused():
    model = _Takes(returns="a mean")
    x = torch.randn(6, 5, 16)
    with streamed(model, micro_batches=2) as opt:
        with pytest.raises(sw.InvalidArgument, match=r"shape \(\) for 3 sequences"):
            model(x)
        model(x[:1]).sum().backward()
        opt.step()
        opt.synchronize()


@pytest.mark.parametrize("make_opt", [streamed, away])
def test_tensors_that_blocks_share_in_a_dictionary_are_refused(make_opt):
    model = _Takes(UserDict(keys=torch.ones(3)))
    with make_opt(model), pytest.raises(sw.InvalidArgument, match="share tensors in a UserDict"):
        model(torch.randn(4, 5, 16))


@pytest.mark.parametrize("make_opt", [streamed, away])
def test_a_loss_of_routers_is_refused(make_opt):
    model = make()
    model.config = SimpleNamespace(output_router_logits=True)
    with pytest.raises(sw.InvalidArgument, match="output_router_logits"):
        make_opt(model)
    assert type(model.blocks[0]) is type(make().blocks[0])


class _SequenceFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 2, 128, batch_first=False) for _ in range(2)
        )


def test_blocks_that_have_the_sequence_first_are_refused_and_leave_no_store(tmp_path):
    with pytest.raises(sw.InvalidArgument, match="batch_first=True"):
        streamed(_SequenceFirst(), tmp_path / "store", micro_batches=2)
    assert not list(tmp_path.glob("store/*"))


def test_parts_without_blocks_that_are_computed_again_are_refused():
    with pytest.raises(sw.InvalidArgument, match="micro_batches is 2, but blocks run as the model"):
        offload(make(), micro_batches=2)
    with pytest.raises(sw.InvalidArgument, match="micro_batches"):
        streamed(make(), micro_batches=0)
