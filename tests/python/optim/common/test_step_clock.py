"""StepClock tells the cost model how long a device took, without ever waiting for the device."""

from __future__ import annotations

import types

import pytest
import torch
from sluiceway.machine.device_ops import CudaOps, HostOps
from sluiceway.optim.common.step_clock import StepClock


class SlowCard(HostOps):
    """A card that comes to its marks when the test says so; marks are numbers of microseconds."""

    def __init__(self):
        self.now, self.reached = 1000.0, 1000.0

    def mark(self):
        return self.now

    def us_between(self, earlier, later):
        return later - earlier if later <= self.reached else None


class Engine:
    """Writes down what it is told."""

    def __init__(self):
        self.times, self.ranges = [], []
        self.trace = self

    def take_stats(self):
        return {}

    def note_device_times(self, forward_s, backward_s):
        self.times.append((forward_s, backward_s))

    def add_range(self, row, name, began_us, ended_us):
        assert row == "device"
        self.ranges.append((name, began_us, ended_us))


def clock_of(device):
    engine = Engine()
    return StepClock(engine, device, 0), engine


def one_pass(clock, card, forward_us, backward_us):
    forward_began = card.mark()
    card.now += forward_us
    backward_began = card.mark()
    card.now += backward_us
    clock.backward(forward_began, backward_began)


def test_a_pass_is_told_of_when_the_device_is_through_with_it():
    card = SlowCard()
    clock, engine = clock_of(card)
    one_pass(clock, card, 300, 500)
    assert engine.times == []
    card.reached = card.now - 1
    one_pass(clock, card, 310, 520)
    assert engine.times == []
    card.reached += 1
    one_pass(clock, card, 320, 540)
    assert engine.times == [pytest.approx((300e-6, 500e-6))]
    card.reached = card.now
    clock.step(1.0)
    assert engine.times[1:] == [pytest.approx((310e-6, 520e-6)), pytest.approx((320e-6, 540e-6))]


def test_ranges_of_the_trace_follow_one_another():
    card = SlowCard()
    clock, engine = clock_of(card)
    began = clock._known_us
    for _ in range(2):
        one_pass(clock, card, 300, 500)
        card.reached = card.now
        card.now += 200
    clock.step(1.0)
    expected = [("forward", 0, 300), ("backward", 300, 800), ("forward", 1000, 1300),
                ("backward", 1300, 1800)]  # fmt: skip
    assert [name for name, _, _ in engine.ranges] == [name for name, _, _ in expected]
    for (_, start, end), (_, wanted_start, wanted_end) in zip(engine.ranges, expected, strict=True):
        assert start - began == pytest.approx(wanted_start, abs=1e-3)
        assert end - began == pytest.approx(wanted_end, abs=1e-3)


def test_a_backward_without_a_forward_has_none():
    card = SlowCard()
    clock, engine = clock_of(card)
    card.now += 100
    began = card.mark()
    card.now += 50
    card.reached = card.now
    clock.backward(None, began)
    assert engine.times == [pytest.approx((0.0, 50e-6))]


def test_the_host_device_knows_at_once():
    device = HostOps()
    clock, engine = clock_of(device)
    forward, backward = device.mark(), device.mark()
    clock.backward(forward, backward)
    ((forward_s, backward_s),) = engine.times
    assert 0 <= forward_s == pytest.approx((backward - forward) * 1e-6)
    assert 0 <= backward_s < 60


def test_a_cards_marks_are_events_on_its_own_stream_and_nobody_waits_for_them(monkeypatch):
    told = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            self.done = False

        def record(self, stream):
            told.append(f"record on {stream}")

        def query(self):
            told.append("query")
            return self.done

        def elapsed_time(self, other):
            assert self.done
            assert other.done
            return 2.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda ordinal: f"stream of {ordinal}")
    monkeypatch.setattr(
        torch.cuda, "synchronize", types.SimpleNamespace()
    )  # Not to be called, and not callable.
    ops = CudaOps(3)
    first, second = ops.mark(), ops.mark()
    assert told == ["record on stream of 3"] * 2
    assert ops.us_between(first, second) is None
    first.done = True
    assert ops.us_between(first, second) is None
    second.done = True
    assert ops.us_between(first, second) == 2500.0
