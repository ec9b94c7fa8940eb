"""Ctrl-C ends a wait at once, and nothing is lost by it."""

import os
import signal
import threading
import time

import pytest
import sluiceway as sw
import torch
from small_models import WIDTH, loss_of, same_bits
from torch import nn
from twins import LR

CORE_BYTES = 2 * (WIDTH // 4) ** 2  # bf16, a quarter of each side.
HOP_S = 2.6
ENOUGH_S = 2.0
SLOW = sw.Link(d2h_gbps=CORE_BYTES / HOP_S / 1e9, h2d_gbps=1e3)


@pytest.fixture(autouse=True)
def heard():
    """SIGINT raises here, also where the suite was started in the background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class CtrlC:
    """Sends SIGINT a moment after it is entered; `latency` is how long the block went on then."""

    def __enter__(self):
        self._timer = threading.Timer(0.23, self._press)
        self._timer.start()
        return self

    def _press(self):
        self._pressed = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    def __exit__(self, *_):
        self.latency = time.monotonic() - self._pressed
        self._timer.join()


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8))


def block_random(model, **arguments):
    return sw.SubspaceAdamW(model, lr=LR, codec="block_random", residual="none", **arguments)


def train_step(model, opt, step=0):
    loss_of(model, step).backward()
    opt.step()
    opt.zero_grad()


def overflow(model):
    (loss_of(model, 0) * float("inf")).backward()


def same_state(ours, theirs):
    """Assert that two optimizers have the same state, in every tensor and number."""
    ours, theirs = ours.state_dict()["state"], theirs.state_dict()["state"]
    assert ours.keys() == theirs.keys()
    for number, values in theirs.items():
        for name, value in values.items():
            same = torch.equal if isinstance(value, torch.Tensor) else lambda a, b: a == b
            assert same(ours[number][name], value), (number, name)


# What is done before, what blocks, and what the same run does without being interrupted.
WAITS = {
    "synchronize": (train_step, lambda model, opt: opt.synchronize()),
    "forward": (train_step, lambda model, opt: loss_of(model, 1)),
    "state_dict": (train_step, lambda model, opt: opt.state_dict()),
    "close": (train_step, lambda model, opt: opt.close()),
    "zero_grad": (lambda model, opt: loss_of(model, 5).backward(), lambda m, opt: opt.zero_grad()),
    "step": (lambda model, opt: overflow(model), lambda model, opt: opt.step()),
    "backward": (
        lambda model, opt: loss_of(model, 5).backward(),
        lambda model, opt: loss_of(model, 6).backward(),
    ),
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait_and_training_goes_on_as_if_it_had_not_come(wait):
    before, blocks = WAITS[wait]
    ours, plain = make(), make()
    with block_random(ours, link=SLOW) as opt, block_random(plain) as other:
        before(ours, opt)
        with pytest.raises(KeyboardInterrupt), CtrlC() as ctrl_c:
            blocks(ours, opt)
        assert ctrl_c.latency < ENOUGH_S
        if before is train_step:
            train_step(plain, other)
        else:
            opt.zero_grad()
        if wait == "step":
            other._progress.skipped_steps += 1
        train_step(ours, opt, 1)
        train_step(plain, other, 1)
        same_state(opt, other)
    assert same_bits(ours, plain)


def test_a_step_that_was_interrupted_can_be_called_again():
    ours, plain = make(), make()
    with block_random(ours, link=SLOW) as opt, block_random(plain) as other:
        for model in (ours, plain):
            overflow(model)
        with pytest.raises(KeyboardInterrupt), CtrlC() as ctrl_c:
            opt.step()
        assert ctrl_c.latency < ENOUGH_S
        opt.step()
        other.step()
        assert opt.overflowed
        assert opt.skipped_steps == 1
        same_state(opt, other)
    assert same_bits(ours, plain)


def test_another_thread_waits_on_and_the_main_thread_gets_the_interrupt():
    model = make()
    came_back = []
    with block_random(model, link=SLOW) as opt:
        train_step(model, opt)
        waiting = threading.Thread(target=lambda: (opt.synchronize(), came_back.append(True)))
        waiting.start()
        with pytest.raises(KeyboardInterrupt), CtrlC() as ctrl_c:
            time.sleep(HOP_S)
        assert ctrl_c.latency < ENOUGH_S
        assert not came_back
        waiting.join()
    assert came_back
