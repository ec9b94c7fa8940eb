"""Inputs of blocks wait outside of the device: the bits of checkpointing, and less memory."""

from __future__ import annotations

import copy
import gc
import os
import weakref
from functools import partial

import pytest
import sluiceway as sw
import torch
from offload_models import offload, peak_of_backward, train_counting
from sluiceway.optim.common import activations
from small_llama import small_llama
from small_models import WIDTH, Checkpointed, Stack, make, same_bits, weights_of
from torch import nn
from torch.nn import functional

ROWS = 96  # A block's input has 96 KiB.
INPUT = ROWS * WIDTH * 4
STEPS = 3
stack, checkpointed = partial(make, Stack, blocks=4), partial(make, Checkpointed, blocks=4)


def loss_of(model, step, rows=ROWS):
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(rows, 16, generator=generator), torch.randn(rows, 8, generator=generator)
    return functional.mse_loss(model(x).float(), y)


def train(model, opt, steps=STEPS, micro=2):
    torch.manual_seed(5)
    return train_counting(model, opt, lambda step: loss_of(model, step), steps, micro)


def subspace(model, _folder=None, **arguments):
    return sw.SubspaceAdamW(model, lr=1e-3, **arguments)


# Each makes an optimizer of a model, with its store in a folder.
OPTIMIZERS = {
    "offload": lambda model, folder, **given: offload(model, **given),
    "offload on disk": offload,
    "streamed": lambda model, folder, **given: offload(model, weights="streamed", **given),
    "streamed from disk": partial(offload, weights="streamed"),
    "streamed in part": partial(offload, weights="streamed", resident=2 * WIDTH * WIDTH * 4),
    "speculative": partial(offload, policy="speculative", accumulate=2),
    "subspace": subspace,
    "cores": partial(subspace, codec="block_random", ratio=0.5),
    "residual at once": partial(subspace, accumulate=2),
}
PLACES = [(name, "host") for name in OPTIMIZERS] + [
    (name, "disk") for name in ("offload on disk", "streamed from disk", "streamed in part")
]


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_the_bits_are_those_of_checkpointing(tmp_path, name, place):
    expected, found = checkpointed(), stack()
    with OPTIMIZERS[name](expected, tmp_path / "a") as opt:
        losses = train(expected, opt)
    with OPTIMIZERS[name](found, tmp_path / "b", activations=place) as opt:
        assert train(found, opt) == losses
        assert not (tmp_path / "b" / "activations.tmp").exists()
    assert same_bits(found, expected)
    assert type(found.blocks[0]) is type(stack().blocks[0])  # close() has undone it.


def test_fused_layers_have_the_bits_of_checkpointing():
    models = checkpointed(), stack()
    for model, place in zip(models, ("device", "host"), strict=True):
        with subspace(model, fused=True, activations=place) as opt:
            train(model, opt)
    assert same_bits(*models)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dropout_and_autocast_are_repeated(dtype):
    class Dropping(Checkpointed):
        checkpoints = True

        def forward(self, x):
            x = self.enter(x)
            for block in self.blocks:
                run = partial(torch.utils.checkpoint.checkpoint, block, use_reentrant=False)
                x = functional.dropout((run if self.checkpoints else block)(x), 0.2)
            return self.leave(x)

    models = make(Dropping), make(Dropping)
    models[1].checkpoints = False
    for model, place in zip(models, ("device", "host"), strict=True):
        for block in model.blocks:
            block.register_forward_hook(lambda _m, _a, y: functional.dropout(y, 0.1))
        run, model.forward = model.forward, None
        model.forward = torch.autocast("cpu", dtype, enabled=dtype != torch.float32)(run)
        with offload(model, activations=place, gradients="fp32") as opt:
            train(model, opt)
    assert same_bits(*models)


# ---- Where the bytes are ----


def bytes_of(place, model=None, **arguments):
    """Train, and return the bytes that crossed each way, and the most of page-locked memory."""
    model = model or stack()
    with offload(model, activations=place, **arguments) as opt:
        train(model, opt, micro=1)
        opt.synchronize()
        stats = opt.engine.take_stats()
        crossed = {way: stats[f"{way}_bytes"] + opt.crossed[way] for way in ("d2h", "h2d")}
        return crossed, stats["peak_bytes"]["pinned"]


def test_each_input_crosses_the_link_once_each_way():
    (here, held), (away, held_too) = bytes_of("device"), bytes_of("host")
    assert away["d2h"] - here["d2h"] == STEPS * 4 * INPUT
    back = away["h2d"] - here["h2d"]
    assert back % INPUT == 0
    # The last one is still there when its block is repeated, and others if the link was slow.
    assert 0 < back <= STEPS * 3 * INPUT
    assert held_too - held == 4 * INPUT


def test_a_drive_holds_them_in_place_of_host_memory(tmp_path):
    many = partial(make, Stack, blocks=16)
    _, here = bytes_of("device", many(), folder=tmp_path / "a")
    _, away = bytes_of("disk", many(), folder=tmp_path / "b")
    _, host = bytes_of("host", many(), folder=tmp_path / "c")
    assert host - here == 16 * INPUT
    assert 0 < away - here <= 8 * INPUT
    assert list((tmp_path / "b").iterdir()) == [tmp_path / "b" / "drive0.sws"]


def test_the_devices_memory_does_not_grow_with_the_number_of_blocks():
    def peak(blocks, place):
        kind = Stack if place == "host" else Checkpointed
        model = make(kind, blocks=blocks)
        with offload(model, activations=place) as opt:
            return peak_of_backward(opt, lambda step: loss_of(model, step, 2048))

    each = 2048 * WIDTH * 4
    grown = {place: peak(12, place) - peak(4, place) for place in ("device", "host")}
    assert grown["device"] >= 7.5 * each
    assert grown["host"] <= 1.5 * each


def test_a_link_that_is_slow_changes_nothing():
    expected, found = checkpointed(), stack()
    with offload(expected) as opt:
        train(expected, opt)
    link = sw.Link(d2h_gbps=0.05, h2d_gbps=0.05)
    with offload(found, activations="host", link=link) as opt:
        train(found, opt)
    assert same_bits(found, expected)


# ---- Graphs ----


def waiting(opt):
    return opt._clock._activations.core.waiting()


def test_a_graph_that_is_retained_gives_the_same_gradients_again():
    model = stack()
    with offload(model, activations="host") as opt:
        loss = loss_of(model, 0)
        for _ in range(2):
            loss.backward(retain_graph=True)
        assert waiting(opt) == 4
        sums = opt.engine.gradient_sizes()
        opt.zero_grad()
        del loss
        loss_of(model, 0).backward()
        for (twice, _), (once, _) in zip(sums, opt.engine.gradient_sizes(), strict=True):
            assert twice == pytest.approx(4 * once, rel=1e-5)


def test_a_graph_that_is_dropped_gives_its_places_back():
    model = stack()
    with offload(model, activations="host") as opt:
        for step in range(5):
            loss = loss_of(model, step)
            assert waiting(opt) <= 8
            del loss
            gc.collect()
        loss_of(model, 0).backward()
        opt.step()
        peak = opt.stats()["peak_bytes"]["pinned"]
    with offload(stack(), activations="device") as opt:
        assert peak - opt.engine.take_stats()["peak_bytes"]["pinned"] <= 9 * INPUT


def test_evaluation_between_forward_and_backward_keeps_what_waits():
    models = checkpointed(), stack()
    for model, place in zip(models, ("device", "host"), strict=True):
        with offload(model, activations=place) as opt:
            for step in range(STEPS):
                loss = loss_of(model, step)
                with torch.no_grad():
                    loss_of(model, 99)
                loss.backward()
                opt.step()
                opt.zero_grad()
    assert same_bits(*models)


def test_a_backward_after_close_still_finds_its_tensors():
    model, expected = stack(), stack()
    opt = offload(model, activations="host")
    loss = loss_of(model, 0)
    opt.close()
    loss.backward()
    loss_of(expected, 0).backward()
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


class Strange(nn.Module):
    """Blocks whose inputs are views, slices and transposes of one tensor."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(_Adds() for _ in range(3))

    def forward(self, x):
        x = (x @ torch.ones(16, 4 * WIDTH)) * self.blocks[0].up.weight.sum()
        x = x.view(-1, 4, WIDTH)
        x = self.blocks[0](x.transpose(0, 1), x[1::2], x)
        x = self.blocks[1](x[:, 8:], x.expand(2, *x.shape), x)
        return self.blocks[2](x.flatten(0, 1).t(), x[..., ::2], x)[..., :8].flatten(0, -2)


class _Adds(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, y, z):
        return self.up(z) * (x.sum() + y.mean() + x.stride(0) + y.stride(-1) + z.storage_offset())


def test_views_slices_and_shared_storages_come_back_with_their_bits():
    grads = []
    for place in ("device", "host"):
        model = make(Strange)
        with offload(model, activations=place) as opt:
            losses = []
            for step in range(2):
                x = torch.randn(64, 16, generator=torch.Generator().manual_seed(step))
                loss = model(x).square().mean()
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item())
            opt.synchronize()
            grads.append((losses, weights_of(model)))
    assert grads[0][0] == grads[1][0]
    assert all(torch.equal(grads[0][1][name], grads[1][1][name]) for name in grads[0][1])


def test_an_input_that_is_changed_in_place_is_refused_as_autograd_does():
    model = stack()
    with offload(model, activations="host") as opt:
        x = model.enter(torch.randn(ROWS, 16))
        y = model.blocks[0](x)
        x.mul_(2)
        with pytest.raises(sw.errors.InvalidArgument, match="changed in place"):
            y.sum().backward()
        opt.zero_grad()
        train(model, opt)


def test_users_own_checkpointing_and_caches_of_transformers_do_no_harm():
    models = small_llama(num_hidden_layers=3), small_llama(num_hidden_layers=3)
    ids = torch.randint(0, 64, (4, 48), generator=torch.Generator().manual_seed(1))
    for model, place in zip(models, ("device", "host"), strict=True):
        model.gradient_checkpointing_enable()
        with offload(model, activations=place) as opt:
            for _ in range(STEPS):
                model.train()
                model(input_ids=ids, labels=ids).loss.backward()
                opt.step()
                opt.zero_grad()
                model.eval()
                model.generate(ids[:1, :4], max_new_tokens=4, do_sample=False)
            if place == "host":
                assert opt.stats()["peak_bytes"]["pinned"] > 3 * 4 * 48 * 256 * 4
    assert same_bits(*models)


class TwoInputs(nn.Module):
    """Blocks that read two tensors; one of them is the same for all."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(16, WIDTH)
        self.blocks = nn.ModuleList(_Reads() for _ in range(4))
        self.leave = nn.Linear(WIDTH, 8)

    def forward(self, x):
        x = y = shared = self.enter(x)
        for block in self.blocks:
            x, y = block(x, y * 2, shared)
        return self.leave(x + y)


class _Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, y, shared):
        return self.up(x) + shared, torch.tanh(y) * x


@pytest.mark.parametrize("place", ["host", "disk"])
def test_blocks_with_several_inputs_keep_a_shared_one_once(tmp_path, monkeypatch, place):
    expected, found = make(TwoInputs), make(TwoInputs)
    with (
        monkeypatch.context() as patched,
        offload(expected, tmp_path / "a", activations="host") as opt,
    ):
        patched.setattr(activations, "LEAST_BYTES", 1 << 30)  # None leaves.
        losses = train(expected, opt)
        assert waiting(opt) == 0
    with offload(found, tmp_path / "b", activations=place) as opt:
        loss = loss_of(found, 9)
        assert waiting(opt) == 2 * 4  # x, which is the shared one in the first block, and y.
        del loss
        assert train(found, opt) == losses
    assert same_bits(found, expected)


def test_conjugate_views_and_small_tensors_stay():
    class Conjugates(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(_OfComplex() for _ in range(2))

        def forward(self, x):
            z = torch.complex(x, x + 1)
            for block in self.blocks:
                z = block(z.conj())
            return torch.view_as_real(z)[..., 0]

    class _OfComplex(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Parameter(torch.full((64, 256), 0.5))

        def forward(self, z):
            return z * self.up + z.imag

    results = []
    for place in ("device", "host"):
        model = make(Conjugates)
        with offload(model, activations=place) as opt:
            for step in range(2):
                x = torch.randn(64, 256, generator=torch.Generator().manual_seed(step))
                model(x).square().mean().backward()
                opt.step()
                opt.zero_grad()
        results.append(model)
    assert same_bits(*results)


def test_sequences_of_many_lengths_use_the_same_room(tmp_path):
    model = stack()
    with offload(model, tmp_path / "s", activations="disk") as opt:
        first = opt.stats()["peak_bytes"]["disk"]
        lengths = [300 + 37 * (step * 7 % 24) for step in range(24)]
        for step, rows in enumerate(lengths):
            loss_of(model, step, rows).backward()
            opt.step()
            opt.zero_grad()
        grown = opt.stats()["peak_bytes"]["disk"] - first
        written = opt.stats()["bytes"]["disk_written"]
    largest = 4 * max(lengths) * WIDTH * 4
    assert largest <= grown <= 3 * largest  # Not the sum of all steps.
    assert written > 4 * lengths[-1] * WIDTH * 4


def test_a_closed_optimizer_holds_no_memory_for_activations():
    model = stack()
    opt = offload(model, activations="host")
    train(model, opt)
    held = weakref.ref(opt._clock._activations)
    opt.close()
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("weights", ["resident", "streamed"])
def test_an_optimizer_that_is_dropped_is_gone_at_once(weights):
    model = stack()
    opt = offload(model, activations="host", weights=weights)
    train(model, opt)
    held = weakref.ref(opt), weakref.ref(opt._clock._activations)
    gc.disable()
    try:
        del opt
        assert [one() for one in held] == [None, None]
    finally:
        gc.enable()
    assert all(type(p) is nn.Parameter for p in model.parameters())


# ---- What is refused ----


def test_a_budget_that_is_too_small_is_named_and_training_goes_on():
    with offload(stack()) as opt:
        needed = opt.engine.take_stats()["peak_bytes"]["pinned"]
    budget, model = sw.Budget(pinned=needed + 2 * INPUT), stack()
    with offload(model, activations="host", budget=budget) as opt:
        with pytest.raises(sw.errors.OutOfMemory, match="activations"):
            loss_of(model, 0)
        gc.collect()
        loss_of(model, 0, rows=ROWS // 3).backward()
        opt.step()


@pytest.mark.parametrize(
    ("make_opt", "message"),
    [
        (lambda m: offload(m, activations="disk"), "tier is host, which has no drive"),
        (lambda m: subspace(m, activations="disk"), "tier is host, which has no drive"),
        (lambda m: offload(m, activations="away"), "activations"),
    ],
)
def test_a_place_that_is_not_there_is_refused(make_opt, message):
    with pytest.raises(sw.errors.InvalidArgument, match=message):
        make_opt(stack())


def test_a_model_without_blocks_is_refused_and_leaves_no_store(tmp_path):
    model = nn.Linear(8, 8)
    with pytest.raises(sw.errors.InvalidArgument, match="has no block list"):
        offload(model, tmp_path / "s", activations="host")
    assert not (tmp_path / "s").exists()
    model(torch.ones(1, 8)).sum().backward()  # It is as it was.


def test_blocks_of_another_open_optimizer_are_refused():
    model = stack()
    groups = [[{"params": list(part.parameters())}] for part in (model.enter, model.blocks)]
    with offload(model, activations="host", param_groups=groups[1]):
        for options in ({"activations": "host"}, {"weights": "streamed"}):
            with pytest.raises(sw.errors.InvalidArgument, match="another open optimizer streams"):
                offload(model, param_groups=groups[0], **options)


def test_a_whole_device_has_no_room_for_activations(tmp_path):
    with pytest.raises(sw.errors.InvalidArgument, match="room for the store alone"):
        offload(stack(), tmp_path / "s", io="block", activations="disk")


def test_a_copy_of_the_model_is_one_without_an_optimizer():
    model = stack()
    with offload(model, activations="host") as opt:
        copied = copy.deepcopy(model)
        assert type(copied.blocks[0]) is type(stack().blocks[0])
        loss_of(copied, 0).backward()
        assert waiting(opt) == 0


def test_a_forked_child_is_refused():
    model = stack()
    with offload(model, activations="host") as opt:
        loss = loss_of(model, 0)
        read, write = os.pipe()
        if not (child := os.fork()):
            try:
                model(torch.zeros(ROWS, 16))
            except sw.errors.InvalidArgument as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert b"forked child" in os.read(read, 1000)
        loss.backward()
        opt.step()


def test_an_exception_in_a_block_leaves_nothing_behind():
    model = stack()
    with offload(model, activations="host") as opt:
        hook = model.blocks[2].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss_of(model, 0)
        hook.remove()
        gc.collect()
        train(model, opt)
        assert waiting(opt) <= 4
