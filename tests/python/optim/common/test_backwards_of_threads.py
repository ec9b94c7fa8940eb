"""Threads share a model: forwards of one leave the backward of another alone."""

from __future__ import annotations

import threading

import pytest
import sluiceway as sw
import torch
from small_models import backward_that_calls, elsewhere, loss_of, make, update_error
from twins import LR, identity, train
from updates import driven_error

STEPS = 8


def forward_while_a_backward_runs(model, opt):
    def look():
        with torch.no_grad():
            loss_of(model, 0)

    for step in range(STEPS):
        backward_that_calls(model, lambda: elsewhere(look) and None, step)
        opt.step()
        opt.zero_grad()


def training_forward_while_a_backward_runs(model, opt):
    for step in range(STEPS):
        backward_that_calls(model, lambda: elsewhere(lambda: loss_of(model, 0)) and None, step)
        opt.step()
        opt.zero_grad()


def evaluation_all_the_time(model, opt):
    stop = threading.Event()

    def evaluate():
        while not stop.is_set():
            with torch.no_grad():
                loss_of(model, 0)

    thread = threading.Thread(target=evaluate)
    thread.start()
    try:
        train(model, opt, STEPS)
    finally:
        stop.set()
        thread.join()


def backwards_under_a_lock(model, opt):
    lock = threading.Lock()

    def work(number):
        loss = loss_of(model, number)
        with lock:
            loss.backward()

    for step in range(STEPS):
        threads = [threading.Thread(target=work, args=(3 * step + i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        opt.step()
        opt.zero_grad()


@pytest.mark.parametrize(
    "drive",
    [
        forward_while_a_backward_runs,
        training_forward_while_a_backward_runs,
        evaluation_all_the_time,
        backwards_under_a_lock,
    ],
)
def test_threads_that_share_a_model_train_as_with_adamw(drive):
    assert driven_error(drive) <= 1e-5


def test_two_backwards_at_once_are_refused_and_lose_nothing_silently():
    ours, native = make(), make()
    with identity(ours) as opt:
        loss, refused = loss_of(ours, 5), []
        backward_that_calls(ours, lambda: refused.append(elsewhere(loss.backward)))
        assert isinstance(refused[0], sw.InvalidArgument)
        assert "backward() is called in elsewhere while" in str(refused[0])
        with pytest.raises(sw.InvalidArgument, match=r"lost the gradient .*call opt.zero_grad\(\)"):
            opt.step()
        opt.zero_grad()
        train(ours, opt, 2)
    train(native, torch.optim.AdamW(native.parameters(), lr=LR, foreach=False), 2)
    assert update_error(make(), ours, native) <= 1e-5


@pytest.mark.parametrize("call", ["step", "zero_grad"])
def test_what_changes_gradients_while_another_thread_gathers_them_is_refused(call):
    ours, native = make(), make()
    with identity(ours) as opt:
        refused = []
        backward_that_calls(ours, lambda: refused.append(elsewhere(getattr(opt, call))))
        assert isinstance(refused[0], sw.InvalidArgument)
        assert f"{call}() is called in elsewhere while" in str(refused[0])
        opt.step()
        opt.zero_grad()
    train(native, torch.optim.AdamW(native.parameters(), lr=LR, foreach=False), 1)
    assert update_error(make(), ours, native) <= 1e-5


def test_a_backward_beside_a_calibration_of_another_thread_is_refused():
    model, raised = make(), []

    def closure():
        raised.append(elsewhere(lambda: loss_of(model, 7).backward()))
        return loss_of(model, 8)

    refresh = sw.Refresh(every=1, source="closure", closure=closure, learn_steps=2)
    opt = sw.SubspaceAdamW(model, lr=LR, codec="sparse_learned", refresh=refresh)
    with opt, pytest.raises(sw.InvalidArgument, match="lost the gradient"):
        train(model, opt, 3)
    assert "backward() is called in elsewhere" in str(raised[0])
