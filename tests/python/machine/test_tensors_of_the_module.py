"""Tensors cross into the compiled module and out of it, without libtorch in between."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import sluiceway as sw
import torch
from sluiceway import _core, _host_allocator
from sluiceway.machine import device_ops
from small_models import make

HOST = _core.Stream.host()


def test_the_module_loads_without_torch():
    code = "import importlib, sys; importlib.import_module('sluiceway._core'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "sluiceway._core" in done.stdout.split()
    assert "torch" not in done.stdout.split()


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        (torch.zeros(3, device="meta"), sw.Unavailable, "out: is on meta"),
        (torch.zeros(3).to_sparse(), sw.InvalidArgument, "out, a tensor: has no memory of its own"),
        (torch.zeros(3).to_mkldnn(), sw.InvalidArgument, "out, a tensor: has no memory of its own"),
        (torch.zeros(3, dtype=torch.float64), sw.InvalidArgument, "out: is float64, expected"),
        (torch.zeros(3, dtype=torch.complex64), sw.InvalidArgument, "out: is complex64, expected"),
        (torch.zeros(6)[::2], sw.InvalidArgument, "expected contiguous float32"),
        ([0.0, 0.0], TypeError, "incompatible function arguments"),
        (torch.zeros(3).numpy(), TypeError, "incompatible function arguments"),
        (None, TypeError, "incompatible function arguments"),
    ],
    ids=str,
)
def test_what_is_no_dense_f32_tensor_of_the_host_is_refused(out, error, words):
    with pytest.raises(error, match=words):
        _core.draw_noise(out, "rademacher", 1, 2, 3, 4)


def test_a_checksum_of_what_has_no_memory_is_refused():
    words = "tensor: has no memory of its own"
    with pytest.raises(sw.InvalidArgument, match=words):
        _core.bits_checksum(torch.zeros(3).to_mkldnn())
    with pytest.raises(sw.InvalidArgument, match=words):
        torch.func.vmap(_core.bits_checksum)(torch.zeros(2, 3))


class Marked(torch.Tensor):
    """A class of tensors as users have them."""


@pytest.mark.parametrize("size", [0, 1, 65])
def test_elements_are_those_of_the_tensor_whatever_its_class_or_offset(size):
    expected = torch.zeros(size)
    _core.draw_noise(expected, "rademacher", 1, 2, 3, 4)
    room = torch.full((size + 9,), float("nan"))
    for out in (
        room[3 : 3 + size],
        torch.nn.Parameter(torch.zeros(size)),
        torch.zeros(size).as_subclass(Marked),
        torch.zeros(1, size, 1),
    ):
        _core.draw_noise(out, "rademacher", 1, 2, 3, 4)
        assert torch.equal(out.detach().flatten().as_subclass(torch.Tensor), expected)
    assert room[:3].isnan().all()
    assert room[3 + size :].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (3, 5, 7)])
def test_a_tensor_of_the_module_keeps_its_memory(dtype, shape):
    source = torch.randn(shape).to(dtype)
    made = _core.page_locked_copy(source.t() if len(shape) == 2 else source, HOST)
    alias = made.view(-1)
    del made
    gc.collect()
    assert torch.equal(alias, source.flatten())
    assert alias.dtype is dtype
    alias += 1  # It is as any other tensor.
    assert not alias.requires_grad


def test_gradients_are_freed_when_they_have_left_the_device():
    device_ops.HostOps().count_allocations()
    model = make(blocks=4)
    with sw.OffloadAdamW(model, lr=1e-3) as opt:
        held = []
        for _ in range(4):
            model(torch.randn(8, 16)).square().mean().backward()
            opt.step()
            opt.zero_grad()
            opt.synchronize()
            held.append(_host_allocator.allocated_bytes())
    assert held[-1] <= held[1] + 4096


def test_a_torch_whose_allocator_is_not_known_is_told_and_its_memory_counts_as_zero(monkeypatch):
    monkeypatch.setattr(device_ops, "_NEWEST_ALLOCATOR", (2, 1))
    device_ops._allocator.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match=r"reported as 0: torch \S+ is newer than 2\.1,"):
            device_ops.HostOps().count_allocations()
        assert device_ops.HostOps().allocated_bytes() == device_ops.HostOps().peak_bytes() == 0
        device_ops.HostOps().reset_peak()
    finally:
        device_ops._allocator.cache_clear()
