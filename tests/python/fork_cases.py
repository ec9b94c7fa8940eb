"""A forked child has no lanes: it reads what is applied, and says so where it cannot."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from small_models import loss_of, make
from torch.nn import functional
from twins import identity, train
from updates import SLOW

SECONDS = 30.0


def in_child(act):
    """Run `act` in a forked child; return its result or error as text, None if it hangs."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)  # A child has none of the threads of a parallel region.
        try:
            said = f"returned {act()}"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + SECONDS
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.01)
    with os.fdopen(reading) as file:
        return file.read()


def assert_refused(said):
    """A child came back with our error that says what it is."""
    assert said is not None, "it hangs"
    assert said.startswith("InvalidArgument: SubspaceAdamW")
    assert "forked child" in said


READS = {
    "forward": lambda model, _: loss_of(model, 1).item(),
    "evaluation": lambda model, _: loss_of(model.eval(), 1).item(),
    "attribute": lambda model, _: functional.linear(torch.eye(256), model.blocks[1].up.weight),
    "parameter": lambda model, _: [p.norm() for p in model.parameters()],
    "state": lambda model, _: model.state_dict(),
    "synchronize": lambda _, opt: opt.synchronize(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_a_child_of_a_step_in_flight_is_refused_at_once(read):
    model = make()
    with identity(model, link=SLOW) as opt:
        train(model, opt, 1)
        said = in_child(lambda: read(model, opt))
        assert_refused(said)
        assert said.startswith("InvalidArgument: SubspaceAdamW: blocks.")
        assert "call synchronize() before the fork" in said


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_a_child_of_applied_steps_reads_them(read):
    model = make()
    with identity(model, link=SLOW) as opt:
        train(model, opt, 1)
        opt.synchronize()
        assert in_child(lambda: bool([read(model, opt)])) == "returned True"


ACTS = {
    "backward": lambda model, _: loss_of(model, 1).backward(),
    "step": lambda _, opt: opt.step(),
    "state": lambda _, opt: opt.state_dict(),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS.keys())
def test_a_child_does_not_train(act):
    model = make()
    with identity(model, link=SLOW) as opt:
        train(model, opt, 1)
        opt.synchronize()
        assert_refused(in_child(lambda: act(model, opt)))
        train(model, opt, 1)


def test_a_child_gives_nothing_back_and_the_parent_goes_on():
    model, plain = make(), make()
    with identity(model, link=SLOW) as opt, identity(plain) as other:
        train(model, opt, 2)
        assert in_child(lambda: (opt.zero_grad(), model.zero_grad(), opt.close())) is not None
        train(model, opt, 2, first=2)
        train(plain, other, 4)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True)
    )


def test_a_child_can_have_an_optimizer_of_its_own():
    def trains():
        mine = make()
        with identity(mine) as third:
            train(mine, third, 2)
        return loss_of(mine, 5).item()

    model = make()
    with identity(model, link=SLOW) as opt:
        train(model, opt, 1)
        assert in_child(trains) == f"returned {trains()}"
