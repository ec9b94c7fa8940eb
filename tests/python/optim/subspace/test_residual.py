"""Residuals, which a codec leaves of gradients, are trained on the device and undone."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from small_models import WIDTH, batch, loss_of, make, same_bits, weights_of
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from twins import LR, train


def subspace(model, codec="block_random", **arguments):
    return sw.SubspaceAdamW(model, lr=LR, codec=codec, **arguments)


def trained(steps=3, micro_batches=1, kind=None, loss=loss_of, **arguments):
    model = make(kind) if kind else make()
    with subspace(model, **arguments) as opt:
        train(model, opt, steps, loss=loss, micro_batches=micro_batches)
    return model


@pytest.mark.parametrize("codec", ["block_random", "svd", "block_pca", "none"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_promised_backwards_give_the_bits_of_waiting_for_step(codec, micro_batches):
    promised = trained(codec=codec, micro_batches=micro_batches, accumulate=micro_batches)
    waiting = trained(codec=codec, micro_batches=micro_batches)
    assert same_bits(promised, waiting)
    assert not same_bits(waiting, make())


def test_auto_is_factored_where_the_codec_leaves_a_complement():
    default = trained()
    assert same_bits(default, trained(residual="factored"))
    assert not same_bits(default, trained(residual="none"))
    assert same_bits(
        trained(codec="sparse_random"), trained(codec="sparse_random", residual="none")
    )


def test_auto_codec_is_svd_where_it_pays_fits_and_is_cheap_and_none_where_not():
    def chosen(**arguments):
        with subspace(make(), codec="auto", **arguments) as opt:
            return {(w["codec"], w["residual"]) for w in opt.describe()}

    many = {"tokens_per_step": 2**20, "total_steps": 500}
    assert chosen(**many) == {("svd", "factored")}
    assert chosen() == {("none", "factored")}
    for arguments in ({"budget": sw.Budget(device="2800KiB")}, {"ratio": 0.25}):
        assert chosen(**many, **arguments) == {("none", "factored")}


def test_auto_codec_is_a_core_where_no_residual_is_to_be():
    with subspace(make(), codec="auto", residual="none") as opt:
        assert {w["codec"] for w in opt.describe()} == {"block_random"}
        assert opt.describe()[0]["core_rows"] == WIDTH // 2


def test_a_residual_moves_weights_out_of_the_subspace_of_the_codec():
    def rank_of_the_first_update(residual):
        before = make().blocks[0].up.weight
        after = trained(steps=1, residual=residual).blocks[0].up.weight
        return int(torch.linalg.matrix_rank((after - before).detach(), rtol=1e-4))

    core = 64  # A quarter of 256 rows.
    assert rank_of_the_first_update("none") <= core
    assert rank_of_the_first_update("factored") > core
    assert rank_of_the_first_update("sign") > core


def test_one_backward_more_than_promised_is_refused_and_names_accumulate():
    model = make()
    with subspace(model, accumulate=1) as opt:
        loss_of(model, 0).backward()
        with pytest.raises(sw.InvalidArgument, match="set accumulate to the true number"):
            loss_of(model, 1).backward()
        opt.zero_grad()
        train(model, opt, 1)


@pytest.mark.parametrize("codec", ["block_random", "none"])
def test_a_skipped_step_changes_nothing_while_residuals_wait(codec):
    model = make()
    with subspace(model, codec=codec) as opt:
        train(model, opt, 2)
        opt.synchronize()
        before = weights_of(model)
        hook = model.blocks[0].up.weight.register_hook(lambda g: g * float("nan"))
        loss_of(model, 5).backward()  # One gradient of many is not finite.
        hook.remove()
        opt.step()
        opt.synchronize()
        assert opt.overflowed
        assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_a_promise_does_not_apply_a_residual_under_a_loss_scale():
    model, waiting = make(), make()
    with (
        subspace(model, accumulate=1, loss_scale="dynamic") as opt,
        subspace(waiting, loss_scale="dynamic") as other,
    ):
        before = weights_of(model)
        opt.scale_loss(loss_of(model, 0) * float("inf")).backward()
        opt.step()
        opt.synchronize()
        assert opt.overflowed
        assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
        other.scale_loss(loss_of(waiting, 0) * float("inf")).backward()
        other.step()
        for step in range(2):
            for m, o in ((model, opt), (waiting, other)):
                o.zero_grad()
                o.scale_loss(loss_of(m, step)).backward()
                o.step()
    assert same_bits(model, waiting)


def test_grad_scaler_in_float16_waits_and_skips_whole_steps():
    model = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def backward(step):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_of(model, step)
        scaler.scale(loss).backward()

    with subspace(model, accumulate=1) as opt:
        before = weights_of(model)
        backward(0)
        assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        opt.synchronize()
        after = weights_of(model)
        assert not torch.equal(after["blocks.0.up.weight"], before["blocks.0.up.weight"])
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_of(model, 1) * float("inf")
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        opt.synchronize()
        assert all(torch.equal(p, after[n]) for n, p in model.named_parameters())


class Twice(nn.Module):
    """One layer used twice, its second use inside a reentrant checkpoint."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(16, 256)
        self.shared = nn.Linear(256, 256)
        self.leave = nn.Linear(256, 8)

    def forward(self, x):
        x = torch.tanh(self.shared(self.enter(x)))
        x = checkpoint(lambda x: torch.tanh(self.shared(x)), x, use_reentrant=True)
        return self.leave(x)


def test_a_weight_used_twice_waits_whatever_was_promised():
    # Reentrant checkpointing ends a backward in the middle, so that two are counted.
    assert same_bits(trained(kind=Twice, accumulate=1), trained(kind=Twice))


def test_residual_every_takes_turns():
    model = make()
    with subspace(model, codec="none", residual_every=2) as opt:
        changed = dict.fromkeys((w.name for w in opt.weights), 0)
        for step in range(4):
            before = weights_of(model)
            loss_of(model, step).backward()
            opt.step()
            opt.zero_grad()
            opt.synchronize()
            for name in changed:
                changed[name] += not torch.equal(model.get_parameter(name), before[name])
    assert set(changed.values()) == {2}


@pytest.mark.parametrize("fused", [False, True], ids=["hooks", "fused"])
def test_only_the_gradients_of_a_turn_wait_and_are_reserved(fused):
    model = make()
    with subspace(model, residual="factored", residual_every=4, fused=fused) as opt:
        assert len(opt.weights) == 4
        for step in range(5):
            loss_of(model, step).backward()
            loss_of(model, step + 1).backward()
            assert list(opt._gradients.totals) == [-step % 4]
            opt.step()
            opt.zero_grad()
        assert opt.engine.take_stats()["held_bytes"] == 4 * WIDTH * WIDTH
    assert opt._gradients.totals == {}


def test_a_budget_need_not_hold_the_gradients_of_all_turns():
    def needed(**arguments):
        budget = sw.Budget(device=1 << 30)
        with subspace(make(), residual="factored", budget=budget, **arguments) as opt:
            return opt.stats()["peak_bytes"]["device"], opt.engine.take_stats()["held_bytes"]

    (_, one), (_, every) = needed(residual_every=4), needed()
    assert every == 4 * one
    model = make()
    own = sum(p.nbytes for p in model.parameters())
    with subspace(make(), residual="none", budget=sw.Budget(device=1 << 30)) as opt:
        cores = opt.engine.take_stats()["peak_bytes"]["device"] - own
    room = sw.Budget(device=own + cores + 2 * one)
    with subspace(model, residual="factored", residual_every=4, budget=room):
        pass
    with pytest.raises(sw.OutOfMemory, match="the gradient of blocks"):
        subspace(model, residual="factored", budget=room)


def test_gradients_are_freed_with_a_promise_and_after_waiting_without_one():
    model = make()
    with subspace(model, accumulate=1) as opt:
        loss_of(model, 0).backward()
        assert not opt._gradients.totals
        opt.step()
    model = make()
    with subspace(model) as opt:
        loss_of(model, 0).backward()
        assert len(opt._gradients.totals) == len(opt.weights)
        opt.step()
        assert not opt._gradients.totals
        assert opt._gradients.lent
        functional.mse_loss(*(model(batch(1)[0]), batch(1)[1]))
        assert not opt._gradients.lent
