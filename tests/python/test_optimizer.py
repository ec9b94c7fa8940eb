"""SubspaceAdamW as a torch.optim.Optimizer: schedulers, scaler, checkpointing, state, refusals."""

from __future__ import annotations

import gc
import io
import weakref

import pytest
import sluiceway as sw
import torch
from small_models import Stack, batch, distance, loss_of, make, same_bits, weights_of
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

LR = 1e-3


def identity(model, **arguments):
    return sw.SubspaceAdamW(model, lr=LR, codec="identity", wire="fp32", **arguments)


def train(model, opt, steps, scheduler=None, first=0, loss=loss_of):
    for step in range(first, first + steps):
        loss(model, step).backward()
        opt.step()
        if scheduler is not None:
            scheduler.step()
        opt.zero_grad()
    return model


def close_to_native(make_model, steps=12, scheduler=None, loss=loss_of, **arguments):
    """Train twins with ours and torch's; return the distance of their weights."""
    ours, theirs = make_model(), make_model()
    reference = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    with identity(ours, **arguments) as opt:
        train(ours, opt, steps, scheduler and scheduler(opt), loss=loss)
    train(theirs, reference, steps, scheduler and scheduler(reference), loss=loss)
    return distance(ours, theirs)


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda opt: torch.optim.lr_scheduler.LinearLR(opt, total_iters=8),
        lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=12),
        lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=LR, total_steps=14),
    ],
    ids=["LinearLR", "CosineAnnealingLR", "OneCycleLR"],
)
def test_schedulers_drive_the_learning_rate(scheduler):
    assert close_to_native(make, scheduler=scheduler) <= 1e-5


def test_max_norm_in_the_constructor_clips_like_clip_grad_norm():
    ours, theirs = make(), make()
    reference = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    with identity(ours, max_norm=0.3) as opt:
        for step in range(8):
            loss_of(ours, step).backward()
            opt.step()
            opt.zero_grad()
            loss_of(theirs, step).backward()
            norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.3)
            reference.step()
            reference.zero_grad()
            assert norm > 0.3
            assert opt.stats()["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert distance(ours, theirs) <= 1e-5


def test_clip_by_value_is_refused_and_changes_nothing():
    model = make()
    with identity(model) as opt:
        before = weights_of(model)
        loss_of(model, 0).backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 1e-4)
        with pytest.raises(sw.InvalidArgument, match="clip by norm, not by value"):
            opt.step()
        for name, p in model.named_parameters():
            assert torch.equal(p, before[name])


def test_grad_scaler_skips_an_overflow_backs_off_and_goes_on():
    ours, theirs = make(), make()
    reference = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    with identity(ours) as opt:
        pairs = [(ours, opt), (theirs, reference)]
        scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in pairs]
        for step in range(8):
            scales = []
            for (model, optimizer), scaler in zip(pairs, scalers, strict=True):
                loss = loss_of(model, step) * (float("inf") if step == 3 else 1.0)
                before = weights_of(model)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scales.append(scaler.get_scale())
                if step == 3:
                    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
            assert scales[0] == scales[1] == (1024.0 if step < 3 else 512.0)
    assert distance(ours, theirs) <= 1e-5


def test_model_zero_grad_after_a_step_the_scaler_left_out_drops_the_overflow():
    model = make()
    with identity(model) as opt:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        (scaler.scale(loss_of(model, 0)) * float("nan")).backward()
        scaler.step(opt)
        scaler.update()
        model.zero_grad()
        before = weights_of(model)
        scaler.scale(loss_of(model, 1)).backward()
        scaler.step(opt)
        opt.synchronize()
        assert all(torch.isfinite(p).all() for p in model.parameters())
        assert not torch.equal(before["blocks.0.up.weight"], model.blocks[0].up.weight)


def test_own_loss_scale_is_removed_in_step_and_backs_off():
    ours, plain = make(), make()
    with identity(ours, loss_scale="dynamic") as opt, identity(plain) as other:
        for step in range(6):
            opt.scale_loss(loss_of(ours, step)).backward()
            opt.step()
            opt.zero_grad()
        train(plain, other, 6)
        opt.synchronize()
        other.synchronize()
        assert distance(ours, plain) <= 1e-6
        (opt.scale_loss(loss_of(ours, 9)) * float("inf")).backward()
        opt.step()
        assert opt.overflowed
        assert opt.stats()["loss_scale"] == 32768.0


def test_autocast_bf16_trains_like_native():
    def loss(model, step):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss_of(model, step)

    assert close_to_native(make, loss=loss, steps=6) <= 1e-4


class Checkpointed(Stack):
    reentrant = False

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.leave(x)


class CheckpointedReentrant(Checkpointed):
    reentrant = True


@pytest.mark.parametrize("kind", [Checkpointed, CheckpointedReentrant])
@pytest.mark.parametrize("accumulate", ["auto", 1])
def test_activation_checkpointing_of_both_kinds(kind, accumulate):
    assert close_to_native(lambda: make(kind), accumulate=accumulate) <= 1e-5


class Tied(Stack):
    """The second block uses the weight of the first, inside checkpointed segments too."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.blocks[1].up.weight = self.blocks[0].up.weight
        self.reentrant = reentrant

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.leave(x)


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_tied_weights_count_once(reentrant):
    assert close_to_native(lambda: make(Tied, reentrant=reentrant)) <= 1e-5


def test_frozen_layers_stay_and_the_rest_trains():
    def frozen():
        model = make()
        for p in model.blocks[0].parameters():
            p.requires_grad_(False)
        return model

    assert close_to_native(frozen) <= 1e-5
    model = frozen()
    before = weights_of(model)
    with identity(model) as opt:
        train(model, opt, 3)
    assert torch.equal(before["blocks.0.up.weight"], model.blocks[0].up.weight)


class Routed(Stack):
    """Odd steps leave the second block out, so its weights get no gradient."""

    step = 0

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks[: 1 + (self.step + 1) % 2]:
            x = block(x)
        self.step += 1
        return self.leave(x)


def test_a_weight_without_gradient_in_a_step_is_left_alone():
    assert close_to_native(lambda: make(Routed)) <= 1e-5


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(16, 256)
        self.attention = nn.MultiheadAttention(256, 4, batch_first=True)
        self.leave = nn.Linear(256, 8)

    def forward(self, x):
        x = self.enter(x)[None]
        return self.leave(self.attention(x, x, x)[0][0])


def test_multihead_attention_whose_projection_module_is_never_called():
    link = sw.Link(d2h_gbps=0.05, h2d_gbps=0.05)  # Slow enough to be caught reading too early.
    assert close_to_native(lambda: make(Attention), link=link) <= 1e-5


def test_gradient_accumulation_of_changing_length():
    ours, theirs = make(), make()
    reference = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    with identity(ours) as opt:
        for step, micro_batches in enumerate((1, 3, 2, 4, 1)):
            for model, optimizer in ((ours, opt), (theirs, reference)):
                for micro in range(micro_batches):
                    loss_of(model, 10 * step + micro).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert distance(ours, theirs) <= 1e-5


def test_zero_grad_without_step_drops_what_was_accumulated():
    ours, plain = make(), make()
    with identity(ours) as opt, identity(plain) as other:
        for drop in (opt.zero_grad, ours.zero_grad):
            loss_of(ours, 99).backward()
            drop()
            train(ours, opt, 2)
            train(plain, other, 2)
    assert same_bits(ours, plain)


def test_gradients_that_are_not_finite_change_nothing():
    model = make()
    with identity(model) as opt:
        train(model, opt, 2)
        opt.synchronize()
        before = weights_of(model)
        (loss_of(model, 5) * float("nan")).backward()
        opt.step()
        opt.synchronize()
        assert opt.overflowed
        assert opt.skipped_steps == 1
        assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
        opt.zero_grad()
        train(model, opt, 1, first=6)
        assert not opt.overflowed


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


def test_loading_its_own_state_is_harmless():
    ours, plain = make(), make()
    with identity(ours) as opt, identity(plain) as other:
        opt.load_state_dict(opt.state_dict())
        train(ours, opt, 2)
        opt.load_state_dict(opt.state_dict())
        train(ours, opt, 2, first=2)
        train(plain, other, 4)
    assert same_bits(ours, plain)


def test_state_of_another_codec_is_refused_by_name():
    with sw.SubspaceAdamW(make(), codec="block_random") as opt:
        state = opt.state_dict()
    with (
        sw.SubspaceAdamW(make(), codec="identity") as opt,
        pytest.raises(sw.InvalidArgument, match=r"codec was 'block_random'.*'identity'"),
    ):
        opt.load_state_dict(state)


@pytest.mark.parametrize("update", ["stochastic", "residual"])
def test_bf16_weights_do_not_lose_small_updates(update):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256, bias=False)).to(torch.bfloat16)
    before = model[0].weight.detach().float().clone()
    with sw.SubspaceAdamW(
        model, lr=1e-6, weight_decay=0.0, codec="identity", wire="fp32", weight_update=update
    ) as opt:
        for _ in range(200):  # A constant gradient: AdamW moves every weight by lr a step.
            model[0].weight.grad = None
            model(torch.ones(1, 256, dtype=torch.bfloat16)).float().sum().backward()
            opt.step()
            opt.zero_grad()
    moved = (model[0].weight.detach().float() - before).mean().item()
    exact = before - 200e-6
    if update == "residual":  # What is seen is the upper half: the exact weight, rounded.
        exact = exact.bfloat16().float()
    assert moved == pytest.approx((exact - before).mean().item(), rel=0.05)


def test_a_parameter_changed_behind_its_back_is_named():
    model = make()
    with identity(model) as opt:
        train(model, opt, 1)
        weight = model.blocks[1].up.weight
        weight.data = weight.data[:200].clone()
        model.blocks[1].up.bias.data = model.blocks[1].up.bias.data[:200].clone()
        x = torch.randn(3, 256)
        expected = r"blocks\.1\.up\.weight is 200x256, expected 256x256"
        with pytest.raises(sw.InvalidArgument, match=expected):
            model.blocks[1].up(x).sum().backward()
        weight.data = weight.data.double()
        with pytest.raises(sw.InvalidArgument, match=r"Double.*expected float32"):
            opt.step()


def test_accumulation_keeps_everything_when_the_sentinel_weight_comes_first_in_backward():
    class SmallestLast(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter = nn.Linear(16, 512)
            self.body = nn.Linear(512, 512)
            self.leave = nn.Linear(512, 128)

        def forward(self, x):
            return self.leave(torch.tanh(self.body(self.enter(x))))[:, :8]

    ours, theirs = make(SmallestLast), make(SmallestLast)
    reference = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    with identity(ours) as opt:
        for model, optimizer in ((ours, opt), (theirs, reference)):
            for step in range(4):
                for micro in range(3):
                    loss_of(model, 3 * step + micro).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert distance(ours, theirs) <= 1e-5


def test_errors_name_what_is_and_what_was_expected():
    with pytest.raises(sw.InvalidArgument, match="no trainable linear weight"):
        sw.SubspaceAdamW(nn.Sequential(nn.LayerNorm(4)))
    with pytest.raises(sw.InvalidArgument, match="residual is 'half'"):
        sw.SubspaceAdamW(make(), residual="half")
    with pytest.raises(sw.InvalidArgument, match="trains nothing"):
        sw.SubspaceAdamW(make(), codec="none", residual="none")
    with pytest.raises(sw.InvalidArgument, match="nonsense"):
        sw.SubspaceAdamW(make(), codec="nonsense")
    with pytest.raises(sw.InvalidArgument, match=r"ratio is 1\.5"):
        sw.SubspaceAdamW(make(), ratio=1.5)
    with pytest.raises(sw.Unavailable, match="lagged"):
        sw.SubspaceAdamW(make(), norm_mode="lagged")
    with pytest.raises(sw.OutOfMemory, match=r"(?s)bytes.*bytes"):
        sw.SubspaceAdamW(make(), budget=sw.Budget(host="64KiB"))
    with pytest.raises(sw.Unavailable, match="cuda:0"):
        sw.SubspaceAdamW(make(), device="cuda:0")


def test_refused_construction_leaves_the_model_as_it_was():
    model = make()
    with pytest.raises(sw.OutOfMemory):
        sw.SubspaceAdamW(model, budget=sw.Budget(pinned=1))
    assert all(p.requires_grad for p in model.parameters())
    assert not model._forward_pre_hooks


def test_bytes_on_the_links_are_exactly_the_payloads():
    model = make()
    opt = sw.SubspaceAdamW(model, codec="block_random", ratio=0.25, wire="bf16")
    expected = 4 * 64 * 64 * 2  # Four 256 x 256 weights, cores of 64 x 64 in bf16.
    totals = {"d2h": 0, "h2d": 0}
    for step in range(5):
        loss_of(model, step).backward()
        opt.step()
        for way in totals:
            totals[way] += opt.stats()["bytes"][way]
        opt.zero_grad()
    opt.synchronize()
    rest = opt.engine.take_stats()
    assert totals["d2h"] + rest["d2h_bytes"] == 5 * expected
    assert totals["h2d"] + rest["h2d_bytes"] == 5 * expected
    opt.close()


def test_a_dropped_optimizer_is_freed_and_hangs_nothing():
    model = make()
    opt = identity(model, link=sw.Link(d2h_gbps=0.01, h2d_gbps=0.01))
    loss_of(model, 0).backward()
    opt.step()
    gone = weakref.ref(opt)
    del opt
    gc.collect()
    assert gone() is None
    assert not model._forward_pre_hooks
    loss_of(model, 1).backward()
    assert model.blocks[0].up.weight.grad is not None


def test_close_is_idempotent_and_a_closed_optimizer_says_so():
    model = make()
    opt = identity(model)
    train(model, opt, 1)
    opt.close()
    opt.close()
    with pytest.raises(sw.InvalidArgument, match="closed"):
        opt.step()


def test_evaluation_between_backward_and_step_does_not_wait_for_held_work():
    ours, plain = make(), make()
    with identity(ours) as opt, identity(plain) as other:
        for step in range(4):
            loss_of(ours, step).backward()
            with torch.inference_mode():
                ours(batch(step)[0])
            opt.step()
            opt.zero_grad()
        train(plain, other, 4)
    assert same_bits(ours, plain)


def test_embeddings_and_head_are_frozen_by_default_and_trained_on_request():
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(300, 256)
            self.body = nn.Linear(256, 256)
            self.lm_head = nn.Linear(256, 300, bias=False)
            self.lm_head.weight = self.embed.weight

        def forward(self, tokens):
            return self.lm_head(self.body(self.embed(tokens)))

    def loss(model, step):
        tokens = torch.randint(0, 300, (4, 9), generator=torch.Generator().manual_seed(step))
        return functional.cross_entropy(
            model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )

    model = make(Language)
    before = model.embed.weight.detach().clone()
    with identity(model) as opt:
        assert [name for name, _ in opt.frozen] == ["embed.weight"]
        train(model, opt, 2, loss=loss)
    assert torch.equal(model.embed.weight, before)
    assert model.embed.weight.requires_grad
    assert close_to_native(lambda: make(Language), loss=loss, embeddings="identity") <= 1e-5
