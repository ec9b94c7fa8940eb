"""OffloadAdamW does what torch's AdamW does in fp32, whatever is done around a step."""

from __future__ import annotations

from functools import partial

import pytest
import sluiceway as sw
import torch
from offload_models import LR, Words, error_of, loss_of, native, offload, run, run_scaled, words
from small_models import Checkpointed, CheckpointedReentrant, make, same_bits, weights_of
from small_models import loss_of as stack_loss
from torch import nn

STEPS = 8
CLOSE = 1e-5


def plainly(model, opt):
    run(model, opt, STEPS)


def test_every_parameter_is_trained_as_by_torch():
    model = words()
    before = weights_of(model)
    assert error_of(plainly) <= CLOSE
    with offload(model) as opt:
        run(model, opt, 1)
    still = {name for name, w in weights_of(model).items() if torch.equal(w, before[name])}
    assert still == {"unused.weight", "unused.bias", "empty"}


@pytest.mark.parametrize("accumulate", ["auto", 3])
@pytest.mark.parametrize("clip", ["torch", "ours", "max_norm", "none"])
def test_accumulated_and_clipped_as_by_torch(accumulate, clip):
    def drive(model, opt):
        for step in range(STEPS):
            for micro in range(3):
                (loss_of(model, 3 * step + micro) / 3).backward()
            if clip == "ours" and isinstance(opt, sw.OffloadAdamW):
                opt.clip_grad_norm_(0.05)
            elif clip != "none" and not (clip == "max_norm" and isinstance(opt, sw.OffloadAdamW)):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            opt.step()
            opt.zero_grad()

    own = {"max_norm": 0.05} if clip == "max_norm" else {}
    assert error_of(drive, accumulate=accumulate, **own) <= CLOSE


def test_the_norm_that_clipping_returns_is_that_of_every_gradient():
    ours, theirs = words(), words()
    loss_of(theirs, 0).backward()
    expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
    with offload(ours) as opt:
        loss_of(ours, 0).backward()
        found = torch.nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
        assert found.item() == pytest.approx(expected.item(), rel=1e-5)
        opt.step()
        assert opt.stats()["grad_norm"] == pytest.approx(min(1.0, expected.item()), rel=1e-4)


def test_clipping_by_a_norm_that_is_not_known_yet_is_refused_by_its_promise():
    model = words()
    with offload(model, accumulate=3) as opt:
        before = weights_of(model)
        for step in range(2):
            loss_of(model, step).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with pytest.raises(sw.InvalidArgument, match="after 2 of 3 promised backwards"):
            opt.step()
        opt.zero_grad()
        assert all(torch.equal(w, before[name]) for name, w in weights_of(model).items())
        for step in range(2):  # Fewer are a step like any other.
            loss_of(model, step).backward()
        opt.step()
        opt.zero_grad()
        for step in range(2):
            loss_of(model, step).backward()
        assert 0 < opt.clip_grad_norm_(1e9) < 1e3
        opt.step()


def test_a_scaler_and_its_skipped_steps():
    assert error_of(partial(run_scaled, steps=STEPS)) <= CLOSE


def test_a_loss_scale_of_its_own_skips_what_is_not_finite():
    model = words()
    with offload(model, loss_scale=2.0**8) as opt:
        before = weights_of(model)
        opt.scale_loss(loss_of(model, 0) * float("nan")).backward()
        opt.step()
        assert opt.overflowed
        assert opt.skipped_steps == 1
        assert all(torch.equal(w, before[name]) for name, w in weights_of(model).items())

    def drive(model, opt):
        for step in range(STEPS):
            loss = loss_of(model, step)
            (opt.scale_loss(loss) if isinstance(opt, sw.OffloadAdamW) else loss).backward()
            opt.step()
            opt.zero_grad()

    assert error_of(drive, loss_scale=2.0**8) <= CLOSE


def test_autocast_in_bf16():
    def drive(model, opt):
        for step in range(STEPS):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, step)
            loss.backward()
            opt.step()
            opt.zero_grad()

    assert error_of(drive) <= CLOSE


def test_groups_and_schedulers():
    def groups(model):
        some = [p for p in model.parameters() if p.dim() == 2]
        others = [p for p in model.parameters() if p.dim() != 2]
        return [
            {"params": some, "lr": 2e-3, "betas": (0.8, 0.95)},
            {"params": others, "lr": 5e-4, "weight_decay": 0.0, "eps": 1e-6},
        ]

    def drive(model, opt):
        scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + step))
        for step in range(STEPS):
            loss_of(model, step).backward()
            opt.step()
            scheduler.step()
            opt.zero_grad()

    assert error_of(drive, groups) <= CLOSE


def test_parameters_that_have_no_gradient_in_some_steps_keep_their_count():
    def drive(model, opt):
        for step in range(STEPS):
            model.norm.requires_grad_(step % 3 != 1)
            loss_of(model, step).backward()
            opt.step()
            opt.zero_grad()

    assert error_of(drive) <= CLOSE


@pytest.mark.parametrize("kind", [Checkpointed, CheckpointedReentrant])
def test_activation_checkpointing(kind):
    def drive(model, opt):
        for step in range(4):
            stack_loss(model, step).backward()
            opt.step()
            opt.zero_grad()

    assert error_of(drive, model=lambda: make(kind, width=48)) <= CLOSE


@pytest.mark.parametrize("schedule", ["edf", "fcfs", "barrier"])
def test_orders_of_the_lanes_have_the_same_bits(schedule):
    first, second = words(), words()
    for model, arguments in [(first, {}), (second, {"schedule": schedule, "chunk": 64 << 10})]:
        with offload(model, max_norm=0.1, **arguments) as opt:
            run(model, opt, 4)
    assert same_bits(first, second)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_weights_are_their_masters_rounded(dtype):
    """An fp32 twin that is fed the same gradients is what the masters are, to the last bits."""
    model, twin = words(dtype=dtype), words(dtype=dtype).float()
    reference = native(twin)
    with offload(model) as opt:
        assert opt.describe()[0]["dtype"] == str(dtype).replace("torch.", "").replace("loat", "")
        seen: dict[int, torch.Tensor] = {}
        for p in model.parameters():
            p.register_hook(lambda g, p=p: seen.update({id(p): g.clone()}))
        for step in range(4):
            seen.clear()
            loss_of(model, step).backward()
            for p, q in zip(model.parameters(), twin.parameters(), strict=True):
                q.grad = seen[id(p)].float() if id(p) in seen else None
            opt.step()
            opt.zero_grad()
            reference.step()
            states = opt.state_dict()["state"]
            masters = [states[i].get("master") for i in sorted(states)]
            for p, q, master in zip(_trained(model), _trained(twin), masters, strict=True):
                assert ((master - q).abs() <= 1e-6 * q.abs().clamp(min=LR)).all()
                assert torch.equal(p, master.to(dtype))


def _trained(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach() for p in model.parameters() if p.numel()]


def test_a_weight_that_was_edited_goes_on_from_what_it_is():
    def drive(model, opt):
        for step in range(STEPS):
            loss_of(model, step).backward()
            opt.step()
            opt.zero_grad()
            with torch.no_grad():
                if step == 2:
                    model.up.weight[3, 5] += 1.0
                if step == 4:
                    model.norm.weight.data.mul_(0.5)  # No version counts it.
                if step == 5:
                    model.up.bias.data = torch.ones_like(model.up.bias)

    assert error_of(drive) <= CLOSE


@pytest.mark.parametrize("way", ["data", "numpy", "held", "mask"])
def test_an_edit_of_few_elements_that_autograd_does_not_see_is_trained_on(way):
    """The edit changes no version, and is far smaller than the weight."""

    def drive(model, opt):
        weight = model.up.weight
        for step in range(STEPS):
            loss_of(model, step).backward()
            opt.step()
            opt.zero_grad()
            if step == 2 and way == "data":
                weight.data[77, 41] = 0.5
            if step == 2 and way == "numpy":
                if hasattr(opt, "synchronize"):
                    opt.synchronize()
                weight.detach().numpy()[77, 41] = 0.5
            if step == 2 and way == "held":
                weight.data.view(-1).narrow(0, 1001, 1).fill_(-0.5)
            if step == 2 and way == "mask":
                weight.data[weight.data.abs() < 1e-3] = 0.25

    assert error_of(drive) <= CLOSE


def test_an_edit_of_one_element_between_backward_and_step_is_refused():
    model = words()
    with offload(model) as opt:
        run(model, opt, 1)
        loss_of(model, 1).backward()
        model.up.weight.data[77, 41] += 1.0
        with pytest.raises(sw.InvalidArgument, match=r"up\.weight was changed between backward"):
            opt.step()
        opt.zero_grad()


def test_a_weight_that_is_edited_between_backward_and_step_is_refused():
    model = words()
    with offload(model) as opt:
        run(model, opt, 1)
        loss_of(model, 1).backward()
        before, noise = model.up.bias.detach().clone(), torch.ones_like(model.up.bias)
        with torch.no_grad():
            model.up.bias += noise
        with pytest.raises(sw.InvalidArgument, match=r"up\.bias was changed between backward"):
            opt.step()
        with torch.no_grad():
            model.up.bias.copy_(before)
        opt.step()
        opt.zero_grad()


def test_a_weight_of_another_shape_or_layout_is_refused():
    for change, say in [
        (torch.ones(3), r"up\.bias is \(3,\), expected \(160,\)"),
        (torch.ones(160, 2)[:, 0], r"up\.bias has strides \(2,\), expected contiguous"),
    ]:
        model = words()
        with offload(model) as opt:
            run(model, opt, 1)
            loss_of(model, 1).backward()
            model.up.bias.data = change
            with pytest.raises(sw.InvalidArgument, match=say):
                opt.step()


def test_an_edit_of_a_16_bit_weight_keeps_the_masters_of_all_other_elements():
    model = words(dtype=torch.bfloat16)
    with offload(model) as opt:
        run(model, opt, 3)
        number = [tied.name for tied in opt.weights].index("embed.weight")
        before = opt.state_dict()["state"][number]["master"]
        with torch.no_grad():
            model.embed.weight[7, 3] = 2.0
        after = opt.state_dict()["state"][number]["master"]
        assert after[7, 3] == 2.0
        after[7, 3] = before[7, 3]
        assert torch.equal(before, after)
        assert not torch.equal(before, before.bfloat16().float())


def test_what_cannot_be_trained_is_refused_by_its_name():
    class One(nn.Module):
        def __init__(self, parameter):
            super().__init__()
            self.p = nn.Parameter(parameter)

    for parameter, say in [
        (torch.zeros(4, 6).t(), "p has strides"),
        (torch.zeros(4, dtype=torch.float64), "p is torch.float64"),
        (torch.zeros(1), "no trainable parameter of at least 2 elements"),
    ]:
        with pytest.raises(sw.InvalidArgument, match=say):
            sw.OffloadAdamW(One(parameter))
    with pytest.raises(sw.InvalidArgument, match=r"is bf16 .* fp16; set gradients='bf16'"):
        sw.OffloadAdamW(words(dtype=torch.bfloat16), gradients="fp16")
    mixed = words(dtype=torch.bfloat16)
    mixed.up.half()
    with pytest.raises(sw.InvalidArgument, match="weights are bf16 and fp16"):
        sw.OffloadAdamW(mixed)
    model = Words().requires_grad_(False)
    with pytest.raises(sw.InvalidArgument, match="no trainable parameter"):
        sw.OffloadAdamW(model)


@pytest.mark.parametrize(
    ("arguments", "kind", "say"),
    [
        ({"codec": "svd"}, sw.Unavailable, "svd is not.*learns its projectors.*take block_random"),
        ({"weights": "mapped"}, sw.InvalidArgument, "'mapped', expected resident or streamed"),
        ({"state_codec": "int8"}, sw.InvalidArgument, "state_codec is .int8., expected fp32"),
        ({"codec": "zip"}, sw.InvalidArgument, "codec is 'zip', expected identity"),
        ({"chunk": 5000}, sw.InvalidArgument, "chunk is 5000 bytes, expected a multiple of 8192"),
        ({"tier": "tape"}, sw.InvalidArgument, "tier is 'tape', expected host, disk or auto"),
        ({"tear": "host"}, TypeError, "did you mean 'tier'"),
        ({"path": "x"}, sw.InvalidArgument, "tier is 'host', which keeps nothing on disk"),
        ({"tier": "disk"}, sw.InvalidArgument, "there is no path"),
        ({"budget": sw.Budget(pinned=4096)}, sw.OutOfMemory, "raise budget.pinned"),
    ],
)
def test_options_are_refused_in_one_sentence(arguments, kind, say):
    with pytest.raises(kind, match=say):
        sw.OffloadAdamW(words(), **arguments)


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_numbers_of_a_step(tier, tmp_path):
    model = words()
    elements = sum(p.numel() for p in _trained(model))
    used = elements - 18  # But for the layer that nobody calls.
    crossed = {"d2h": 0, "h2d": 0, "disk_written": 0}
    where = {"path": tmp_path / "store"} if tier == "disk" else {}
    with offload(model, gradients="bf16", tier=tier, **where) as opt:
        for step in range(3):
            run(model, opt, 1, first=step)
            stats = opt.stats()
            crossed = {link: count + stats["bytes"][link] for link, count in crossed.items()}
        opt.synchronize()
        crossed["h2d"] += opt.engine.take_stats()["h2d_bytes"]
    assert crossed["d2h"] == 3 * 2 * used
    assert crossed["h2d"] == 3 * 4 * used
    if tier == "disk":
        assert crossed["disk_written"] > 12 * elements
    else:  # A store in memory has drives, and no disk.
        assert crossed["disk_written"] == 0
    assert stats["peak_bytes"].keys() == {"device", "host", "pinned", "process", "disk"}
    assert stats["grad_norm"] > 0
    # States in host memory are changed in place; only `commit()` and `close()` commit their counts.
    assert stats["offload"]["commits"] == (tier == "disk")
