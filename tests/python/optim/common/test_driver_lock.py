"""Training ends with a driver that has one lock and waits for lanes; planted deadlocks show."""

from __future__ import annotations

import ctypes
import threading

import driver_lock
import pytest
import sluiceway as sw
import torch
import twins
from small_models import loss_of, make, same_bits
from test_late_device import clip, clip_ours, leave, train
from updates import SLOW

WAYS = {
    "hooks": {},
    "fused": {"fused": True},
    "turns": {"fused": True, "residual": "factored", "residual_every": 2},
    "residual": {"residual": "factored"},
    "slow link": {"link": SLOW},
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize(("act", "micro_batches"), [(leave, 1), (clip, 2), (clip_ours, 1)])
def test_training_gives_the_same_bits_and_ends(monkeypatch, way, act, micro_batches):
    expected, norms = train(act, micro_batches, **WAYS[way])
    with driver_lock.use(monkeypatch) as driver:
        found, late_norms = train(act, micro_batches, **WAYS[way])
    assert driver.waits_for_lanes > 50
    assert same_bits(expected, found)
    assert norms == late_norms


def test_offloading_gives_the_same_bits_and_ends(monkeypatch):
    def offload():
        model = make()
        with sw.OffloadAdamW(model, tier="host", link=SLOW) as opt:
            return twins.train(model, opt, steps=4)

    expected = offload()
    with driver_lock.use(monkeypatch) as driver:
        found = offload()
    assert driver.waits_for_lanes > 50
    assert same_bits(expected, found)


class Planted:
    """An engine with one lane and one hop, which begins when somebody first waits for the lane."""

    def __init__(self, hop):
        self.lane = threading.Thread(target=hop, name="planted lane")
        self._began = False

    def synchronize(self):
        if not self._began:
            self._began = True
            self.lane.start()
            self.lane.join()


class Native:
    """An engine whose lane is a thread that Python did not start."""

    def __init__(self, hop):
        kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        self._hop = kind(lambda _: hop())

    def synchronize(self):
        here, thread = ctypes.CDLL(None), ctypes.c_ulong()
        assert here.pthread_create(ctypes.byref(thread), None, self._hop, None) == 0
        here.pthread_join(thread, None)


def test_a_lane_that_calls_the_driver_is_reported(monkeypatch):
    engine = Planted(lambda: torch.empty(3, 5))
    with driver_lock.use(monkeypatch, limit_s=1) as driver:
        driver.watch(engine)
        with pytest.raises(driver_lock.DeadlockError) as report:
            torch.empty(7, 11)
        engine.lane.join()
    told = str(report.value)
    assert "MainThread in aten.empty.memory_format holds the driver's lock" in told
    assert "planted lane waits for the driver's lock, for aten.empty.memory_format" in told
    assert "torch.empty(3, 5)" in told  # The stack of the lane.


def test_a_lane_that_needs_a_lock_of_a_hook_is_reported(monkeypatch):
    lock = threading.Lock()

    def hop():
        with lock:
            pass

    def hook(gradient):
        with lock:
            return gradient * torch.ones(gradient.shape)

    engine = Planted(hop)
    with driver_lock.use(monkeypatch, limit_s=1) as driver:
        model = make()
        with twins.identity(model) as opt:
            loss_of(model, 0).backward()  # What the next one does is not new, but for the hook.
            opt.step()
            opt.zero_grad()
            driver.watch(engine)
            model.leave.bias.register_hook(hook)
            with pytest.raises(driver_lock.DeadlockError) as report:
                loss_of(model, 1).backward()
            engine.lane.join()
    told = str(report.value)
    assert "MainThread in aten.ones.default holds the driver's lock" in told
    assert "planted lane waits for nothing that the driver knows" in told
    assert "in hop" in told
    assert "in hook" in told


def test_a_lane_that_needs_the_gil_is_reported_at_once(monkeypatch):
    engine = Native(lambda: None)
    with driver_lock.use(monkeypatch) as driver:
        driver.watch(engine)
        with pytest.raises(driver_lock.DeadlockError, match="asked for the GIL"):
            torch.empty(7, 11)


def test_threads_that_are_no_lanes_may_call_the_driver(monkeypatch):
    def work():
        for size in range(1, 50):
            torch.empty(size)

    engine = Planted(lambda: None)
    with driver_lock.use(monkeypatch) as driver:
        driver.watch(engine)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
    assert driver.waits_for_lanes >= 49
