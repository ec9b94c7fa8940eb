"""ZoSgd.snapshot: weights of one step, whoever reads them when, and whatever steps follow."""

from __future__ import annotations

import copy
import random
import threading
from typing import Any

import pytest
import sluiceway
import torch
from sluiceway.base.side_thread import run_aside
from sluiceway.optim.zo.weight_snapshot import WeightSnapshot
from torch import nn
from zo_models import OPTIONS, decoder, of_dtype, same, zo_ids, zo_loss, zo_train

VARIANTS = {
    "fp32": (torch.float32, {}),
    "bf16": (torch.bfloat16, {}),
    "at-random": (torch.bfloat16, {"master": "bf16"}),
    "resident": (torch.bfloat16, {"resident": 300}),
    "narrow": (torch.float32, {"wire": "bf16"}),
    "narrow-of-16-bits": (torch.float16, {"wire": "fp16"}),
    "fp8": (torch.float32, {"wire": "fp8"}),
}


def writing_back(model: nn.Module, **options: Any) -> sluiceway.ZoSgd:
    return sluiceway.ZoSgd(model, **{**OPTIONS, "mode": "write_back", "tier": "host", **options})


def twins(variant: str = "fp32", steps: int = 3, **more: Any) -> list[tuple[nn.Module, Any]]:
    """Two models, of the same steps: one that is read from, and one that tells what is there."""
    dtype, options = VARIANTS[variant]
    found = []
    for _ in range(2):
        model = of_dtype(decoder(), dtype)
        opt = writing_back(model, **options, **more)
        zo_train(opt, model, range(steps))
        found.append((model, opt))
    return found


class Reading:
    """Reads all weights in an order of its own, each when it may."""

    def __init__(self, snapshot: WeightSnapshot, model: nn.Module, at_once: bool = True) -> None:
        self._snapshot, self._may = snapshot, threading.Semaphore(0)
        self._named = [*model.named_parameters()]  # A tied one once.
        random.Random().shuffle(self._named)
        self.weights: dict[str, torch.Tensor] = {}
        self.masters: dict[int, torch.Tensor] = {}
        self.count = len(self._named)
        self.thread = run_aside("reader", self._read)
        if at_once:
            self.let(self.count)

    def _read(self) -> None:
        for name, p in self._named:
            self._may.acquire()
            with self._snapshot.reading(p) as weight:
                self.weights[name] = weight.clone()
                self.masters[id(p)] = self._snapshot.master(p).clone()
        self._snapshot.close()

    def let(self, more: int) -> None:
        self._may.release(more)

    def expect(self, model: nn.Module, opt: sluiceway.ZoSgd, read_from: sluiceway.ZoSgd) -> None:
        """Equal to another model of that step, and to the state of its optimizer."""
        state, saved = opt.state_dict(), self._snapshot.state
        for name, theta in model.state_dict(keep_vars=False).items():
            if name in self.weights:  # A tied one has a name more.
                assert torch.equal(self.weights[name], theta), name
        assert {*self.weights} == {name for name, _ in model.named_parameters()}
        assert saved["param_groups"] == state["param_groups"]
        assert {**saved, "state": 0, "param_groups": 0} == {**state, "state": 0, "param_groups": 0}
        assert saved["state"].keys() == state["state"].keys()
        numbered = [p for group in read_from.param_groups for p in group["params"]]
        for number, values in state["state"].items():
            assert torch.equal(self.masters[id(numbered[number])], values["master"])


@pytest.mark.parametrize("depth", [2, 8])
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_has_what_a_state_has_whoever_reads_when(variant: str, depth: int) -> None:
    for follow, at_once in ((0, True), (3, True), (3, False)):
        (model, opt), (other, flushing) = twins(variant, depth=depth)
        snapshot = opt.snapshot()
        assert snapshot.step == 3
        reading = Reading(snapshot, model, at_once)
        if not at_once:
            reading.let(reading.count // 2)
        losses = zo_train(opt, model, range(3, 3 + min(follow, 1)))
        if not at_once:
            reading.let(reading.count)
        losses += zo_train(opt, model, range(4, 3 + follow))
        assert snapshot.finish()
        reading.thread.result()
        reading.expect(other, flushing, opt)
        assert losses == zo_train(flushing, other, range(3, 3 + follow))
        for each in (opt, flushing):
            each.close()
        assert same(model.state_dict(), other)


@pytest.mark.parametrize("variant", ["bf16", "narrow"])
@pytest.mark.parametrize(
    "ends",
    [
        lambda model, opt: opt.close(),
        lambda model, opt: opt.state_dict(),
        lambda model, opt: opt.theta(model.embed.weight),
        lambda model, opt: model.state_dict(),
        lambda model, opt: opt.load_state_dict(copy.deepcopy(opt.state_dict())),
    ],
    ids=["close", "state", "theta", "model", "load"],
)
def test_whoever_looks_at_weights_or_ends_it_waits_until_it_was_read(variant: str, ends) -> None:
    for follow in (0, 2):
        (model, opt), (other, flushing) = twins(variant)
        snapshot = opt.snapshot()
        reading = Reading(snapshot, model)
        zo_train(opt, model, range(3, 3 + follow))
        ends(model, opt)
        assert snapshot.finish(0)
        reading.thread.result()
        reading.expect(other, flushing, opt)


def test_whoever_gives_up_holds_up_no_step() -> None:
    (model, opt), (other, plain) = twins()
    for ends in ("forgotten", "closed", "read"):
        snapshot = opt.snapshot()
        zo_train(opt, model, range(3, 4)), zo_train(plain, other, range(3, 4))
        if ends == "forgotten":
            del snapshot
        elif ends == "closed":
            snapshot.close()
            with (
                pytest.raises(sluiceway.InvalidArgument, match="was let go already"),
                snapshot.reading(model.embed.weight),
            ):
                pass
        else:
            reading = Reading(snapshot, model)
        assert zo_train(opt, model, range(4, 8)) == zo_train(plain, other, range(4, 8))
    reading.thread.result()
    assert same(model.state_dict(), other)


def test_a_step_that_fails_leaves_it_whole() -> None:
    (model, opt), (other, flushing) = twins("bf16")
    snapshot = opt.snapshot()
    reading = Reading(snapshot, model, at_once=False)

    def failing() -> torch.Tensor:
        zo_loss(model, zo_ids(0))
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        opt.step(failing)
    reading.let(reading.count)
    assert snapshot.finish()
    reading.thread.result()
    reading.expect(other, flushing, opt)


def test_it_is_refused_where_there_is_none() -> None:
    model = decoder()
    with (
        sluiceway.ZoSgd(model, tier="host") as opt,
        pytest.raises(sluiceway.InvalidArgument, match="mode is 'log' and tier 'host'"),
    ):
        opt.snapshot()
    opt, refused = writing_back(model), []
    taken = opt.snapshot()
    with pytest.raises(sluiceway.InvalidArgument, match="snapshot of step 0 is still being read"):
        opt.snapshot()
    taken.close()

    def within() -> torch.Tensor:
        with pytest.raises(sluiceway.InvalidArgument, match="a step is under way") as error:
            opt.snapshot()
        refused.append(error)
        return zo_loss(model, zo_ids(0))

    zo_train(opt, model, range(1))
    opt.step(within)
    assert refused
    opt.close()
