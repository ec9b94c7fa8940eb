"""Tensors that pass between streams are ordered: a made-up device records the waits.

Autograd runs a part of a backward on the stream of its forward, and an accumulation on the stream
that was current when somebody first asked for it: for a fused layer, when the optimizer was made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sluiceway as sw
import torch
from sluiceway.machine import device_ops
from sluiceway.machine.device_ops import CudaOps, HostOps
from sluiceway.optim.common.model_hooks import ModelHooks
from sluiceway.optim.offload.weight_bits import differ, sums_of_bits
from sluiceway.optim.subspace.fused.fused_weight import FusedWeight
from sluiceway.optim.subspace.fused.sampled_bias import SampledBias
from sluiceway.optim.subspace.fused.shared_input import SharedInput
from sluiceway.optim.subspace.residual_gradients import ResidualGradients
from small_models import Bare, loss_of, make
from twins import LR


class Streams(HostOps):
    """Streams by name; `waits` has who waited for whom, and with which tensor."""

    def __init__(self) -> None:
        self.current = "main"
        self.waits: list[tuple[str, str, torch.Tensor]] = []

    def stream(self) -> str:
        return self.current

    def follow(self, stream: str, value: torch.Tensor) -> None:
        if stream != self.current:
            self.waits.append((self.current, stream, value))

    @contextlib.contextmanager
    def on(self, name: str) -> Iterator[None]:
        before, self.current = self.current, name
        yield
        self.current = before

    def running(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            with self.on(name):
                return act(*arguments)

        return run

    def waited(self) -> list[tuple[str, str]]:
        return [(here, there) for here, there, _ in self.waits]


@pytest.fixture
def streams(monkeypatch) -> Streams:
    made = Streams()
    monkeypatch.setattr(device_ops, "ops_on", lambda _: made)
    return made


class Twice(Bare):
    """A model whose layers run twice, the second time as on another stream."""

    def forward(self, x: torch.Tensor, skipped: int | None = None) -> torch.Tensor:
        return super().forward(super().forward(x).repeat(1, 2)[:, :16])


@pytest.mark.parametrize("kind", [Bare, Twice])
def test_a_core_is_there_before_the_stream_that_accumulates_reads_it(monkeypatch, streams, kind):
    taken, uses = [], []

    def take_core(self: ModelHooks, weight: int, core: torch.Tensor, whole: bool) -> None:
        assert streams.current == "accumulation"
        assert any(value is core and here == "accumulation" for here, _, value in streams.waits)
        taken.append(weight)
        real(self, weight, core, whole)

    def add(self: FusedWeight, *arguments: Any) -> None:
        uses.append(self)
        with streams.on(f"use {uses.count(self)}"):
            added(self, *arguments)

    real, added = ModelHooks.take_core, FusedWeight.add
    monkeypatch.setattr(ModelHooks, "take_core", take_core)
    monkeypatch.setattr(FusedWeight, "add", add)
    handed = streams.running("accumulation", FusedWeight._hand_over)
    monkeypatch.setattr(FusedWeight, "_hand_over", handed)
    model = make(kind)
    arguments = {"codec": "block_random", "fused": True, "residual": "none"}
    with sw.SubspaceAdamW(model, lr=LR, **arguments) as opt:
        loss_of(model, 0).backward()
        assert opt.fused_linears.names
        assert sorted(taken) == list(range(len(opt.weights)))
    last = "use 2" if kind is Twice else "use 1"
    assert ("accumulation", last) in streams.waited()
    assert (("use 2", "use 1") in streams.waited()) is (kind is Twice)


def test_layers_that_share_an_input_wait_for_who_projected_it(streams):
    shared, x = SharedInput(), torch.ones(2, 3)
    for _ in range(2):
        shared.join()
    with streams.on("first"):
        rows = shared.projected(x, x.dtype, lambda: torch.zeros(2, 1))
    assert streams.waits == []
    with streams.on("second"):
        assert shared.projected(x, x.dtype, lambda: torch.ones(2, 1)) is rows
    assert streams.waited() == [("second", "first")]


def test_a_sum_of_gradients_follows_its_streams(streams):
    gradients = ResidualGradients(streams)
    for micro, name in enumerate(("first", "second", "second")):
        with streams.on(name):
            total = gradients.added(0, torch.full((2,), float(micro + 1)))
            gradients.keep(0, total)
    assert total.tolist() == [6, 6]
    gradients.lend(0)
    assert streams.waited() == [("second", "first"), ("main", "second")]


def test_a_measured_bias_is_read_behind_the_stream_that_measured_it(streams):
    bias = SampledBias()
    with streams.on("side"):
        bias.note("a", torch.tensor(0.5))
    bias.end_step()
    assert streams.waits == []  # It is read one step later.
    bias.end_step()
    assert streams.waited() == [("main", "side")]
    assert bias.last == 0.5


def test_checksums_are_compared_behind_the_streams_that_made_them(streams):
    with streams.on("side"):
        known = sums_of_bits(torch.ones(3))
    assert differ([(sums_of_bits(torch.ones(3)), known)]) == [False]
    assert streams.waited() == [("main", "side")]


class Recorded:
    """A stream of torch, as far as `CudaOps` knows one."""

    def __init__(self) -> None:
        self.waited: list[tuple[int, int]] = []

    def wait_stream(self, other: tuple[int, int]) -> None:
        self.waited.append(other)


def test_a_card_waits_by_an_event_and_keeps_the_memory(monkeypatch):
    one, kept = Recorded(), []
    monkeypatch.setattr(device_ops, "_current_native", lambda _: 4096)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: one)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda native, ordinal: (native, ordinal))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _, stream: kept.append(stream))
    ops = CudaOps(3)
    assert ops.stream() == 4096
    ops.follow(4096, torch.ones(1))
    assert (one.waited, kept) == ([], [])
    ops.follow(0, torch.ones(1))
    assert (one.waited, kept) == ([(0, 3)], [one])


def test_step_is_told_the_stream_that_calls_it(monkeypatch):
    """The engine orders updates behind that one (tests of the engines, on a simulated device)."""
    told = []

    class Engine:
        def __init__(self, engine: Any) -> None:
            self.engine = engine

        def __getattr__(self, name: str) -> Any:
            return getattr(self.engine, name)

        def __len__(self) -> int:
            return len(self.engine)

        def step(self, *arguments: Any) -> Any:
            told.append(arguments[-1])
            return self.engine.step(*arguments)

    for made in (sw.SubspaceAdamW, sw.OffloadAdamW):
        model = make()
        with made(model, lr=LR) as opt:
            loss_of(model, 0).backward()
            host, opt.engine = opt.device.compute(), Engine(opt.engine)
            opt.step()
            opt.engine = opt.engine.engine
        assert told.pop() is host
