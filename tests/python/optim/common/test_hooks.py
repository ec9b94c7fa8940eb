"""Hooks tell a sink of forwards and backwards, whatever it is, in the order of the protocol."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from sluiceway import _core
from sluiceway.model.targets import select_weights
from sluiceway.optim.common.model_hooks import ModelHooks
from small_models import CheckpointedReentrant, Tied, loss_of, make


class Recorder:
    """Writes down what it is told, and keeps the gradients."""

    def __init__(self, model):
        weights = select_weights(model).compressed
        self.told, self.gradients = [], {}
        self.hooks = ModelHooks(self, model, weights)
        self.names = [weight.name for weight in weights]

    def before_forward(self, training):
        self.told.append(f"forward {training}")

    def wait(self, weight):
        self.told.append(f"wait {weight}")

    def used_again(self, weight):
        self.told.append(f"again {weight}")

    def expect_scaled_loss(self):
        self.told.append("scaled")

    def begin_backward(self):
        self.told.append("begin")

    def add_gradient(self, weight, gradient):
        self.told.append(f"gradient {weight}")
        self.gradients[weight] = gradient + self.gradients.get(weight, 0)

    def mark(self):
        return _core.now_us()

    def end_backward(self, forward_began, backward_began):
        assert forward_began < backward_began
        self.told.append("end")

    def synchronize(self):
        self.told.append("synchronize")


def test_a_step_is_told_in_order_and_its_gradients_are_those_of_autograd():
    model, plain = make(), make()
    sink = Recorder(model)
    loss_of(model, 0).backward()
    loss_of(plain, 0).backward()
    assert sink.told == [
        *("forward True", "wait 0", "wait 1", "wait 2", "wait 3"),
        *("begin", "gradient 3", "gradient 2", "gradient 1", "gradient 0", "end"),
    ]
    for number, name in enumerate(sink.names):
        assert torch.equal(sink.gradients[number], plain.get_parameter(name).grad)
        assert model.get_parameter(name).grad is None


def test_evaluation_waits_for_every_weight_before_it_begins():
    model = make()
    sink = Recorder(model)
    with torch.inference_mode():
        model.eval()(torch.zeros(1, 16))
    assert sink.told[:5] == ["wait 0", "wait 1", "wait 2", "wait 3", "forward False"]


def test_a_weight_that_is_used_twice_is_said_to_be():
    model = make(Tied)
    sink = Recorder(model)
    loss_of(model, 0).backward()
    assert sink.told.count("again 0") == 1
    assert [told for told in sink.told if told.startswith("gradient")].count("gradient 0") == 1


def test_a_repeated_forward_waits_and_is_not_a_second_use():
    model = make(CheckpointedReentrant)
    sink = Recorder(model)
    loss_of(model, 0).backward()
    assert not [told for told in sink.told if told.startswith("again")]
    assert sink.told.count("wait 0") == 2
    assert sink.told.count("begin") == sink.told.count("end")


def test_float16_is_noticed_before_the_gradients_come():
    model = make()
    sink = Recorder(model)
    with torch.autocast("cpu", dtype=torch.float16):
        loss_of(model, 0)
    assert "scaled" in sink.told
    assert "begin" not in sink.told


def test_a_backward_that_raised_has_ended_where_it_raised():
    model = make()
    sink = Recorder(model)
    hook = model.blocks[0].up.weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss_of(model, 0).backward()
    hook.remove()
    assert sink.told[-5:] == ["begin", "gradient 3", "gradient 2", "gradient 1", "end"]
    loss_of(model, 0).backward()
    assert sink.told.count("begin") == sink.told.count("end") == 2


def test_states_of_the_model_are_read_and_written_synchronized():
    model = make()
    sink = Recorder(model)
    state = model.state_dict()
    reads = sink.told.count("synchronize")
    assert reads >= 1
    model.load_state_dict(state)
    assert sink.told.count("synchronize") > reads


def test_removed_hooks_tell_nothing_and_a_taken_gradient_names_the_owner():
    model = make()
    sink, other = Recorder(model), Recorder(model)
    with pytest.raises(sw.InvalidArgument, match="Recorder: another optimizer took the gradient"):
        loss_of(model, 0).backward()
    other.hooks.remove()
    sink.hooks.remove()
    sink.told.clear()
    loss_of(model, 0).backward()
    assert sink.told == []
    assert model.blocks[0].up.weight.grad is not None
