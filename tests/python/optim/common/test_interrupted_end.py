"""Ctrl-C that comes while a backward that raised is being ended is raised by the next call."""

from __future__ import annotations

import gc

import pytest
import torch
from sluiceway.optim.common.one_backward import OneBackward


class BrokenError(RuntimeError):
    """Raised by the backward."""


def broken_backward(backward, ended):
    x = torch.randn(7, requires_grad=True)

    def hook(_gradient):
        backward.open(ended)
        raise BrokenError

    x.register_hook(hook)
    with pytest.raises(BrokenError):
        (x * 3).sum().backward()
    gc.collect()


def test_an_interrupt_in_a_finaliser_is_raised_once_by_the_next_call():
    backward, said = OneBackward("owner"), []

    def interrupted(raised):
        said.append(raised)
        raise KeyboardInterrupt

    broken_backward(backward, interrupted)
    assert said == [True]
    assert not backward.is_open
    with pytest.raises(KeyboardInterrupt):
        backward.refuse_elsewhere("step()")
    backward.refuse_elsewhere("step()")
    broken_backward(backward, said.append)
    assert said == [True, True]
