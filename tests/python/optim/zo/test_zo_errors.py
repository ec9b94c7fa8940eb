"""Errors of ZoSgd leave weights, hooks and random numbers unchanged."""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator

import pytest
import sluiceway
import torch
from torch import nn
from zo_models import ZoDecoder, decoder, own_memory, zo_ids, zo_loss

IDS = zo_ids(0)


class Unchanged:
    """Everything of a model that a failing step must leave alone."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.random = model, torch.get_rng_state()
        self.values = list(zip(self.addresses(), own_memory(model), strict=True))
        self.threads, self.hooks = threading.active_count(), self.count_hooks()

    def addresses(self) -> list[int]:
        return [p.data_ptr() for p in self.model.parameters()]

    def count_hooks(self) -> list[tuple[int, int]]:
        modules = self.model.modules()
        return [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in modules]

    def check(self) -> None:
        now = zip(self.addresses(), own_memory(self.model), strict=True)
        for (address, value), (other, found) in zip(self.values, now, strict=True):
            assert address == other
            assert torch.equal(value, found)
        assert all(p.requires_grad for p in self.model.parameters())
        assert self.count_hooks() == self.hooks
        assert torch.equal(torch.get_rng_state(), self.random)
        assert threading.active_count() == self.threads


def refused(
    closure: Callable[[ZoDecoder], object], kind: type[BaseException], match: str, **options: object
) -> None:
    model = decoder()
    opt = sluiceway.ZoSgd(model, lr=0.1, **options)
    if options.get("tier") == "host":
        opt.step(lambda: zo_loss(model, IDS))  # The first step looks at the forward once more.
    before, steps = Unchanged(model), opt.committed_steps
    theta = model.state_dict()["embed.weight"].clone()
    with pytest.raises(kind, match=match):
        opt.step(lambda: closure(model))
    before.check()
    assert opt.committed_steps == steps
    assert torch.equal(model.state_dict()["embed.weight"], theta)
    opt.step(lambda: zo_loss(model, IDS))  # It goes on.
    assert opt.committed_steps == steps + 1
    assert not torch.equal(model.state_dict()["embed.weight"], theta)


TIERS = pytest.mark.parametrize("tier", ["device", "host"])


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (lambda loss: loss.expand(3), r"tensor of shape \(3,\) and torch.float32, expected"),
        (lambda loss: loss.reshape(1), r"shape \(1,\)"),
        (lambda loss: None, "returned None, expected the loss"),
        (lambda loss: {"loss": loss}, "returned {'loss': "),
    ],
)
@TIERS
def test_what_is_no_scalar_is_no_loss(made: Callable, match: str, tier: str) -> None:
    refused(lambda m: made(zo_loss(m, IDS)), sluiceway.InvalidArgument, match, tier=tier)


@pytest.mark.parametrize("directions", [1, 2])
@TIERS
def test_a_loader_in_the_closure_gives_other_inputs(directions: int, tier: str) -> None:
    # A step that is refused takes two batches; then all are the same.
    steps = iter([0, 1])
    refused(
        lambda m: zo_loss(m, zo_ids(next(steps))),
        sluiceway.InvalidArgument,
        r"inputs of ZoDecoder .* forward pass - of direction 0 differ .* next\(loader\)",
        directions=directions,
        tier=tier,
    )


@TIERS
def test_the_second_micro_batch_is_compared_too_and_so_is_the_second_direction(
    tier: str,
) -> None:
    calls = []

    def of_second_batch(model: ZoDecoder) -> torch.Tensor:
        calls.append(1)
        mine = len(calls)  # The other forward pass begins before this one ends.
        return zo_loss(model, IDS) + zo_loss(model, zo_ids(mine))

    refused(of_second_batch, sluiceway.InvalidArgument, "in call 1 of forward pass -", tier=tier)
    halves = []

    def of_second_direction(model: ZoDecoder) -> torch.Tensor:
        halves.append(1)
        return zo_loss(model, zo_ids(int(len(halves) > 2)))

    refused(
        of_second_direction,
        sluiceway.InvalidArgument,
        r"forward pass \+ of direction 1",
        directions=2,
        tier=tier,
    )


def test_a_model_that_is_called_in_parts_is_compared_at_its_first_part() -> None:
    steps = iter([0, 1])

    def closure(model: ZoDecoder) -> torch.Tensor:
        x = model.embed(zo_ids(next(steps)))
        for layer in model.layers:
            x = layer(x)
        return x.square().mean()

    refused(closure, sluiceway.InvalidArgument, "inputs of embed in call 0")


@TIERS
def test_halves_that_run_other_blocks_end_in_an_error_and_not_in_a_deadlock(tier: str) -> None:
    def skipping(when: int, block: int) -> Callable[[ZoDecoder], torch.Tensor]:
        count = []

        def closure(model: ZoDecoder) -> torch.Tensor:
            count.append(1)
            mine = len(count)  # The other forward pass begins before this one ends.
            x = model.embed(IDS)
            for number, layer in enumerate(model.layers):
                x = x if (mine, number) == (when, block) else layer(x)
            return x.square().mean()

        return closure

    one, two = ("block layers.1", "block layers.2")
    if tier == "host":
        one, two = ("module layers.1.norm", "module layers.2.norm")
    after = "the end of the closure"
    for (when, block), (plus, minus) in {
        (2, 1): (one, two),
        (1, 2): (after, two),
        (2, 2): (two, after),
    }.items():
        match = rf"forward pass \+ of direction 0 is at {plus} while forward pass - .* at {minus}"
        refused(skipping(when, block), sluiceway.InvalidArgument, match, tier=tier)


def test_a_block_that_never_runs_or_only_its_forward_does_is_named() -> None:
    def closure(model: ZoDecoder) -> torch.Tensor:
        x = model.layers[0](model.embed(IDS))
        return model.layers[2](model.layers[1].forward(x)).square().mean()

    refused(
        closure,
        sluiceway.InvalidArgument,
        r"block layers.1 is trained but did not run .* forward\(\)",
    )


class OopsError(Exception):
    pass


@pytest.mark.parametrize("kind", [OopsError, SystemExit, StopIteration, KeyboardInterrupt])
@pytest.mark.parametrize("forward", [1, 2])
@pytest.mark.parametrize("place", ["before", "inside", "after"])
@TIERS
def test_what_a_forward_pass_raises_is_raised(
    kind: type, forward: int, place: str, tier: str
) -> None:
    count = []

    def closure(model: ZoDecoder) -> torch.Tensor:
        count.append(1)
        mine = len(count) == forward
        if mine and place == "before":
            raise kind("mine")
        handle = model.layers[1].up.register_forward_hook(
            lambda *_: (_ for _ in ()).throw(kind("mine")) if mine and place == "inside" else None
        )
        try:
            loss = zo_loss(model, IDS)
        finally:
            handle.remove()
        if mine and place == "after":
            raise kind("mine")
        return loss

    # A generator turns StopIteration into a RuntimeError.
    inside = kind is StopIteration and place == "inside"
    refused(
        closure, RuntimeError if inside else kind, "StopIteration" if inside else "mine", tier=tier
    )


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A worker of pytest ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ctrl_c() -> None:
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.mark.usefixtures("interruptible")
@TIERS
def test_ctrl_c_ends_both_forward_passes(tier: str) -> None:
    count = []

    def closure(model: ZoDecoder) -> torch.Tensor:
        count.append(1)
        loss = zo_loss(model, IDS)
        if len(count) == 2:
            ctrl_c()
            time.sleep(0.2)
        return loss

    refused(closure, KeyboardInterrupt, "^$", tier=tier)


@pytest.mark.usefixtures("interruptible")
@TIERS
def test_a_forward_pass_that_holds_a_lock_does_not_hang_the_error_of_another(tier: str) -> None:
    lock, count = threading.Lock(), []

    def closure(model: ZoDecoder) -> torch.Tensor:
        count.append(1)
        if len(count) == 2:
            ctrl_c()
        with lock:
            return zo_loss(model, IDS)

    refused(closure, KeyboardInterrupt, "^$", tier=tier)


@TIERS
def test_a_block_that_runs_in_a_thread_of_the_closures_own_is_refused(tier: str) -> None:
    def closure(model: ZoDecoder) -> torch.Tensor:
        caught = []

        def call() -> None:
            try:
                zo_loss(model, IDS)
            except sluiceway.Error as error:
                caught.append(error)

        if not started:
            started.append(1)
            thread = threading.Thread(target=call, name="stray")
            thread.start()
            thread.join()
            raise caught[0]
        return zo_loss(model, IDS)

    started: list[int] = []
    match = "runs in thread stray, expected the closure's own"
    refused(closure, sluiceway.InvalidArgument, match, tier=tier)


def test_a_model_without_blocks_says_what_was_looked_for() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

    with pytest.raises(sluiceway.InvalidArgument) as found:
        sluiceway.ZoSgd(Flat())
    for words in ("no block list", "nn.ModuleList or nn.Sequential", "one (Linear), two (Linear)"):
        assert words in str(found.value)


IN_S = sluiceway.StoreOptions(path="s")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"eps": 0.0}, "eps is 0.0, expected"),
        ({"directions": 0}, "directions is 0"),
        ({"noise": "uniform"}, "noise is 'uniform', expected"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"weight_decay": float("nan")}, "weight_decay is nan"),
        ({"param_groups": [nn.Parameter(torch.ones(1))]}, "not a parameter of the model"),
        ({"noise": "lowrank", "rank": 0}, "rank is 0, expected"),
        ({"noise": "lowrank", "period": 0}, "period is 0"),
        ({"noise": "lowrank", "rank": 2.5}, "rank"),
        ({"rank": 3}, "rank is 3, which is for lowrank alone"),
        ({"resident": 5}, "resident is 5, which is for host and disk alone"),
        ({"trace": "t.json"}, "trace is t.json, which is for host and disk alone"),
        ({"budget": sluiceway.Budget(device=1 << 30)}, r"budget is .*, which is for host and disk"),
        ({"store": IN_S}, r"store is .*, which is for disk alone; leave it out"),
        ({"tier": "host", "store": IN_S}, r"store is .*, which is for disk alone; leave it out"),
        ({"tier": "host", "consolidate": 5}, "consolidate is 5, which is for disk alone"),
        ({"tier": "disk", "consolidate": 0}, "consolidate is 0"),
        ({"tier": "disk"}, r"store is None, expected store=sluiceway.StoreOptions\(path=...\)"),
        ({"tier": "disk", "store": sluiceway.StoreOptions()}, "a folder on the disk to use"),
    ],
)
def test_options_that_cannot_be(options: dict, match: str) -> None:
    with pytest.raises(sluiceway.InvalidArgument, match=match):
        sluiceway.ZoSgd(decoder(), **options)


def test_models_that_cannot_be() -> None:
    double = decoder()
    double.layers[0].up.double()
    with pytest.raises(sluiceway.InvalidArgument, match=r"layers.0.up.weight is torch.float64"):
        sluiceway.ZoSgd(double)
    with pytest.raises(sluiceway.InvalidArgument, match="no trainable parameter"):
        sluiceway.ZoSgd(decoder().requires_grad_(False))
    with pytest.raises(sluiceway.InvalidArgument, match=r"expected a torch.nn.Module"):
        sluiceway.ZoSgd(decoder().parameters())
    shared = decoder()
    shared.layers[0].norm.weight = nn.Parameter(shared.layers[1].norm.weight.data)
    with pytest.raises(sluiceway.InvalidArgument, match="over the same storage"):
        sluiceway.ZoSgd(shared)
    with pytest.raises(
        sluiceway.InvalidArgument, match=r"list of such functions; call loss = opt.step"
    ):
        sluiceway.ZoSgd(decoder()).step()


@pytest.mark.parametrize("lr", [-0.1, float("nan"), 30.0])
@TIERS
def test_rates_of_a_step_that_cannot_be(lr: float, tier: str) -> None:
    model = decoder()
    opt = sluiceway.ZoSgd(model, weight_decay=0.1, tier=tier)
    opt.param_groups[0]["lr"] = lr
    before = Unchanged(model)
    with pytest.raises(sluiceway.InvalidArgument, match=f"lr is {lr} and weight_decay 0.1"):
        opt.step(lambda: zo_loss(model, IDS))
    before.check()


@TIERS
def test_weights_that_others_change_are_refused(tier: str) -> None:
    model = decoder()
    opt = sluiceway.ZoSgd(model, tier=tier)
    opt.step(lambda: zo_loss(model, IDS))
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():  # Else tier host refuses it.
        model.norm.bias.add_(1)
    said = r"norm.bias was changed by other code since the last step; "
    said += "make a new" if tier == "host" else "load a state_dict"
    with pytest.raises(sluiceway.InvalidArgument, match=said):
        opt.step(lambda: zo_loss(model, IDS))


def test_dropout_is_warned_of_once_and_both_forward_passes_have_the_same_masks() -> None:
    model = decoder(dropout=0.5)
    opt = sluiceway.ZoSgd(model)
    masks: list[torch.Tensor] = []
    for layer in model.layers:
        layer.dropout.register_forward_hook(lambda _, i, o: masks.append(o == 0))
    with pytest.warns(UserWarning, match="draws random numbers"):
        opt.step(lambda: zo_loss(model, IDS))
    first, second = masks[0::2], masks[1::2]
    assert len(first) == 3
    assert all(map(torch.equal, first, second))
    assert not torch.equal(first[0], first[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.step(lambda: zo_loss(model, IDS))
    assert not torch.equal(masks[0], masks[6])  # The next step draws others.


def test_a_loss_that_is_not_finite_counts_with_g_0_and_is_warned_of_once() -> None:
    model = decoder()
    opt = sluiceway.ZoSgd(model, lr=1.0)
    before = Unchanged(model)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            opt.step(lambda: zo_loss(model, IDS) * float("inf"))
    assert ["no finite g" in str(one.message) for one in warned] == [True]
    assert opt.overflowed
    assert opt.stats()["zo"]["g"] == [0.0]
    before.check()
    assert opt.committed_steps == 3
