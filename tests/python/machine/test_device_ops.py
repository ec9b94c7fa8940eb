"""Streams reach engines through one object of ten calls at most, asked where work is enqueued."""

from __future__ import annotations

import types

import pytest
import sluiceway as sw
import torch
from sluiceway import _core
from sluiceway.machine import device_ops as device_ops_module
from sluiceway.machine.device_ops import CudaOps, DeviceOps, HostOps, device_ops
from sluiceway.optim.common import engine_optimizer
from small_models import loss_of, make


class RecordingOps(HostOps):
    """Writes down who asks for the stream."""

    def __init__(self, told):
        self.told = told

    def compute(self):
        self.told.append("compute")
        return super().compute()

    def release(self, value):
        self.told.append("release")


class RecordingEngine:
    """Passes every call on, and writes down those that enqueue work or wait for it."""

    ASKED = frozenset(
        (
            "begin",
            "resume",
            "add_gradient",
            "end_backward",
            "gradient_sizes",
            "step",
            "wait",
            "synchronize",
        )
    )

    def __init__(self, engine, told):
        vars(self).update(engine=engine, told=told)

    def __getattr__(self, name):
        found = getattr(self.engine, name)
        if name not in self.ASKED:
            return found

        def call(*arguments):
            on_stream = any(isinstance(each, _core.Stream) for each in arguments)
            self.told.append(name if on_stream else f"{name}, no stream")
            return found(*arguments)

        return call

    def __len__(self):
        return len(self.engine)


def record(monkeypatch, optimizer):
    """Record the calls to the device and the engine of such an optimizer, in order."""
    told = []
    monkeypatch.setattr(engine_optimizer, "device_ops", lambda *_: RecordingOps(told))
    made = optimizer._make_engine

    def make_engine(self, model):
        return RecordingEngine(made(self, model), told)

    monkeypatch.setattr(optimizer, "_make_engine", make_engine)
    return told


@pytest.fixture
def recorded(monkeypatch):
    """An optimizer, its model, and what was asked."""
    told = record(monkeypatch, sw.SubspaceAdamW)
    model = make(seed=0)
    with sw.SubspaceAdamW(model, accumulate=1, ratio=0.5, codec="block_random") as opt:
        told.clear()
        yield opt, model, told


def test_one_step_asks_in_this_order(recorded):
    opt, model, told = recorded
    weights = len(opt.weights)
    loss = loss_of(model, 0)
    told.clear()
    loss.backward()
    gradients = ["compute", "add_gradient"] * weights
    assert told == [*gradients, "end_backward, no stream", "gradient_sizes, no stream"]
    told.clear()
    opt.step()
    assert told == ["compute", "step", "compute"], "AdamW of norms and biases is ours, too"
    told.clear()
    opt.zero_grad()
    assert told == []
    loss_of(model, 0)
    assert told == ["compute", "wait"] * weights, "work of the forward comes after the update"


def test_a_weight_is_waited_for_once_a_step_on_each_stream(monkeypatch):
    told = record(monkeypatch, sw.OffloadAdamW)
    stream = {"now": _core.Stream.host()}

    def compute(ops):
        return stream["now"]

    monkeypatch.setattr(RecordingOps, "compute", compute)
    model = make(seed=0)
    with sw.OffloadAdamW(model, accumulate=1) as opt:
        weights = len(opt.weights)
        for _ in range(2):
            loss_of(model, 0).backward()
            opt.step()
            told.clear()
            loss_of(model, 0)
            assert told == ["wait"] * weights
            loss_of(model, 0)
            assert told == ["wait"] * weights, "they have landed for this stream"
            told.clear()
            stream["now"] = _core.Stream.host()
            loss_of(model, 0)
            assert told == ["wait"] * weights, "and not for another one"
            opt.zero_grad()


def test_gradients_of_residuals_go_behind_the_update_that_reads_them(monkeypatch):
    told = record(monkeypatch, sw.SubspaceAdamW)
    model = make(seed=0)
    options = {"accumulate": "auto", "ratio": 0.5, "codec": "block_random", "residual": "factored"}
    with sw.SubspaceAdamW(model, **options) as opt:
        weights = len(opt.weights)
        loss_of(model, 0).backward()
        opt.step()
        opt.zero_grad()
        told.clear()
        loss_of(model, 0)
        assert told == ["compute", "wait", "release"] * weights


def test_one_step_that_is_offloaded_asks_in_this_order(monkeypatch):
    told = record(monkeypatch, sw.OffloadAdamW)
    model = make(seed=0)
    with sw.OffloadAdamW(model, accumulate=1) as opt:
        assert told == ["compute", "compute", "begin"], "masters are what the stream has made"
        weights = len(opt.weights)
        assert weights == len(list(model.parameters()))
        loss = loss_of(model, 0)
        told.clear()
        loss.backward()
        ends = ["end_backward, no stream", "gradient_sizes, no stream"]
        assert told == [*["compute", "add_gradient"] * weights, *ends]
        told.clear()
        opt.step()
        assert told == ["compute", "step", "compute"], "of parameters that are left to the device"
        told.clear()
        opt.zero_grad()
        assert told == []
        loss_of(model, 0)
        assert told == ["compute", "wait"] * weights, "work of the forward comes after the update"


def test_a_store_is_taken_up_behind_what_the_stream_was_given(monkeypatch, tmp_path):
    where = {"tier": "disk", "path": tmp_path / "store"}
    model = make(seed=0)
    with sw.OffloadAdamW(model, **where) as opt:
        loss_of(model, 0).backward()
        opt.step()
    told = record(monkeypatch, sw.OffloadAdamW)
    with sw.OffloadAdamW(make(seed=0), **where) as opt:
        told.clear()
        opt.resume()
        assert told == ["compute", "resume"]


def test_a_device_that_works_beside_python_is_asked_for_the_norm_by_the_step_alone(
    recorded, monkeypatch
):
    monkeypatch.setattr(RecordingOps, "asynchronous", True)
    late = make(seed=0)
    with sw.SubspaceAdamW(late, accumulate=1, ratio=0.5, codec="block_random") as opt:
        told, weights = recorded[2], len(opt.weights)
        loss = loss_of(late, 0)
        told.clear()
        loss.backward()
        assert told == [*["compute", "add_gradient"] * weights, "end_backward, no stream"]
        told.clear()
        opt.step()
        assert told == ["gradient_sizes, no stream", "compute", "step", "compute"]


def test_it_has_twelve_calls_at_most():
    calls = {name for name in vars(DeviceOps) if not name.startswith("_")}
    assert {"compute", "offered_bytes"} <= calls
    assert len(calls) <= 12
    for kind in (HostOps, CudaOps):
        assert calls <= set(dir(kind))


def test_a_card_is_asked_for_its_own_stream(monkeypatch):
    current = {3: 4096}
    monkeypatch.setattr(device_ops_module, "_current_native", current.__getitem__)
    ops = CudaOps(3)
    first = ops.compute()
    assert first == _core.Stream.cuda(3, 4096)
    current[3] = 8192
    assert ops.compute() == _core.Stream.cuda(3, 8192)
    current[3] = 4096
    assert ops.compute() is first, "hooks compare streams by identity"
    assert ops.name == "cuda:3"


def test_a_torch_without_the_short_way_is_asked_the_long_way(monkeypatch):
    streams = {3: types.SimpleNamespace(cuda_stream=4096)}
    monkeypatch.setattr(torch.cuda, "current_stream", streams.__getitem__)
    assert device_ops_module._native_of_torch(3) == 4096


def test_a_card_releases_memory_behind_the_present_stream(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda ordinal: f"stream of {ordinal}")
    behind = []
    CudaOps(3).release(types.SimpleNamespace(record_stream=behind.append))
    assert behind == ["stream of 3"]


class FakeEvent:
    def __init__(self, told, **made):
        self.told = told
        told.append(("event", made))

    def record(self, stream):
        self.told.append(("record", stream))

    def synchronize(self):
        self.told.append("synchronize")


@pytest.fixture
def card(monkeypatch):
    """Record the calls to a card, in order; its stream is called "stream"."""
    told = []
    monkeypatch.setattr(torch.cuda, "Event", lambda **made: FakeEvent(told, **made))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "stream")

    def empty_like(value, **where):
        told.append(("empty_like", where))
        return types.SimpleNamespace(copy_=lambda *_, **how: told.append(("copy_", how)))

    monkeypatch.setattr(torch, "empty_like", empty_like)
    return told


def test_a_value_is_fetched_without_waiting_until_it_is_read(card):
    read = CudaOps(0).fetch(torch.ones(()))
    assert card == [
        ("empty_like", {"device": "cpu", "pin_memory": True}),
        ("copy_", {"non_blocking": True}),
        ("event", {}),
        ("record", "stream"),
    ]
    read()
    assert card[4:] == ["synchronize"]


@pytest.fixture
def cards(monkeypatch):
    """Simulate a machine with two cards, and return a maker of parameters on one of them."""
    monkeypatch.setattr(_core, "cuda_device_count", lambda: 2)

    def on(device):
        return types.SimpleNamespace(device=torch.device(device))

    return on


@pytest.mark.parametrize(
    ("asked", "where", "name"),
    [("auto", "cpu", "host"), ("host", "cpu", "host"), ("auto", "cuda:1", "cuda:1"),
     ("cuda:1", "cuda:1", "cuda:1"), ("cuda", "cuda:0", "cuda:0")],
)  # fmt: skip
def test_the_model_says_which_device(cards, asked, where, name):
    assert device_ops("SubspaceAdamW", asked, [("w", cards(where))]).name == name


def test_parameters_on_two_devices_are_refused(cards):
    with pytest.raises(sw.errors.InvalidArgument, match="a on cpu and b on cuda:1, expected"):
        device_ops("SubspaceAdamW", "auto", [("a", cards("cpu")), ("b", cards("cuda:1"))])


@pytest.mark.parametrize(("asked", "to"), [("host", "'cpu'"), ("cuda:0", "'cuda:0'")])
def test_another_device_than_the_models_is_refused(cards, asked, to):
    with pytest.raises(sw.errors.InvalidArgument, match=r"is on cuda:1; call model\.to") as error:
        device_ops("SubspaceAdamW", asked, [("w", cards("cuda:1"))])
    assert f"model.to({to})" in str(error.value)


def test_a_device_that_is_not_there_is_named_with_those_that_are(cards):
    with pytest.raises(sw.errors.Unavailable, match=r"is on cuda:2, .* have 'host', 'cuda:0', 'cu"):
        device_ops("SubspaceAdamW", "auto", [("w", cards("cuda:2"))])
    with pytest.raises(sw.errors.Unavailable, match=r"no device 'tpu', they have 'host', 'cuda:0'"):
        device_ops("SubspaceAdamW", "tpu", [("w", cards("cpu"))])


@pytest.mark.parametrize("optimizer", [sw.SubspaceAdamW, sw.OffloadAdamW])
def test_an_optimizer_says_so_too(optimizer):
    beyond = f"cuda:{_core.cuda_device_count()}"
    with pytest.raises(sw.errors.Unavailable, match=f"no device '{beyond}', they have 'host'"):
        optimizer(make(seed=0), device=beyond)


def test_a_tensor_elsewhere_is_refused_where_it_becomes_a_view():
    weight = torch.zeros(64, 64, device="meta")
    with pytest.raises(sw.errors.Unavailable, match="w: is on meta, this build and machine have"):
        _core.WeightSpec("w", weight)


def test_another_device_than_the_streams_is_refused():
    weight, gradient = torch.zeros(8), torch.ones(8)
    hyper = {"factor": 1.0, "step": 1, "lr": 1.0, "beta1": 0.9, "beta2": 0.9, "eps": 1e-8,
             "weight_decay": 0.0, "seed": 0}  # fmt: skip
    moments = torch.zeros(8), torch.zeros(8)
    with pytest.raises(sw.errors.InvalidArgument, match="is on the host device, expected CUDA dev"):
        _core.adam_step("w", weight, gradient, *moments, compute=_core.Stream.cuda(0, 0), **hyper)
    assert not weight.any()
