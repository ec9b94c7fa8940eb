"""Ctrl-C at any moment of a step: the step was made or was not, and the next one is right."""

from __future__ import annotations

import contextlib
import copy
import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import sluiceway
import torch
from sluiceway.base.undisturbed import Undisturbed
from zo_models import decoder, zo_ids, zo_loss

STEPS = 8
TIERS = {
    "device": {},
    "host": {"tier": "host"},
    "write_back": {"tier": "host", "mode": "write_back"},
    "images": {"tier": "host", "mode": "write_back", "wire": "bf16"},
    "disk": {"tier": "disk", "consolidate": 3},
    "low-rank": {"noise": "lowrank", "period": 3},
}


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Ctrl-C is what it is in a program; a timer sends it, in the main thread."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    alarm = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, alarm)
    signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def disarmed() -> Iterator[None]:
    """An error is reported without a timer that is still to go off."""
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def trained(options: dict, folder, draw: random.Random | None = None) -> tuple[dict, int]:
    """Weights after STEPS steps, and how often a step was interrupted."""
    model, interrupted = decoder(), 0
    if options.get("tier") == "disk":
        options = options | {"store": sluiceway.StoreOptions(path=folder)}
    with sluiceway.ZoSgd(model, lr=0.05, seed=5, **options) as opt, disarmed():
        began = time.monotonic()
        opt.step(lambda: zo_loss(model, zo_ids(0)))
        longest = 2 * (time.monotonic() - began)
        while (step := opt.committed_steps) < STEPS:
            with contextlib.suppress(KeyboardInterrupt):
                if draw is not None and draw.random() < 0.8:
                    signal.setitimer(signal.ITIMER_REAL, 1e-5 + longest * draw.random())
                interrupted += 1
                opt.step(lambda s=step: zo_loss(model, zo_ids(s)))
                signal.setitimer(signal.ITIMER_REAL, 0)
                interrupted -= 1
        with contextlib.suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0)
        found = copy.deepcopy(model.state_dict())
    assert all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(found[name], t) for name, t in model.state_dict().items())
    return found, interrupted


@pytest.mark.parametrize("options", TIERS.values(), ids=TIERS)
def test_a_run_that_is_interrupted_at_random_ends_in_the_same_bits(options, tmp_path):
    whole, _ = trained(options, tmp_path / "whole")
    draw, interrupted = random.Random(), 0
    for number in range(8):
        found, times = trained(options, tmp_path / str(number), draw)
        interrupted += times
        assert all(torch.equal(found[name], t) for name, t in whole.items())
    assert interrupted > 4


def test_a_first_signal_is_handled_at_the_end_and_a_second_one_at_once():
    def signalled(times: int) -> list[int]:
        handled = []
        with contextlib.suppress(KeyboardInterrupt):
            with Undisturbed():
                for number in range(times):
                    signal.raise_signal(signal.SIGINT)
                    handled.append(number)
            handled.append(-1)
        return handled

    assert signalled(0) == [-1]
    assert signalled(1) == [0]
    assert signalled(3) == [0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_pending_signal_is_handled_once_where_it_may_be_and_wakes_who_waits():
    woken = []
    with Undisturbed() as quiet:
        quiet.wake = lambda: woken.append(1)
        quiet.handle_pending()
        signal.raise_signal(signal.SIGINT)
        assert woken == [1]
        with pytest.raises(KeyboardInterrupt):
            quiet.handle_pending()
        quiet.handle_pending()


def test_another_thread_has_no_signals_and_other_handlers_stay():
    seen = []

    def body() -> None:
        with Undisturbed():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Undisturbed():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
