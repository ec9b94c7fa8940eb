"""The codec of one weight without an engine, which `sluiceway bench` measures."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from sluiceway import _core

HOST = _core.Stream.host()


@pytest.fixture
def codec():
    return _core.Codec("block_random", 0.5, 96, 64, HOST)


@pytest.fixture
def core(codec):
    return torch.full((codec.core_rows, codec.core_cols), 7.0)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_what_goes_through_both_ways_is_the_projection(codec, core, dtype, within):
    assert core.shape == (48, 32)
    gradient = torch.randn(96, 64, generator=torch.Generator().manual_seed(1))
    codec.compress(gradient, core, HOST)
    weight = torch.zeros(96, 64, dtype=dtype)
    codec.apply(weight, core, -0.5, HOST)
    back = weight.double() / -0.5
    # Columns are orthonormal, so a projection is as long as its core, and as its share of G.
    squares = core.double().square().sum().item()
    assert back.square().sum().item() == pytest.approx(squares, rel=within)
    assert (back * gradient).sum().item() == pytest.approx(squares, rel=within)


def test_what_is_no_core_and_another_device_are_refused(codec, core):
    gradient = torch.randn(96, 64)
    with pytest.raises(sw.InvalidArgument, match="core: is bf16, expected f32"):
        codec.compress(gradient, core.bfloat16(), HOST)
    with pytest.raises(sw.InvalidArgument, match="expected CUDA device 0"):
        codec.compress(gradient, core, _core.Stream.cuda(0, 0))
    with pytest.raises(sw.InvalidArgument, match="96x63"):
        codec.compress(gradient[:, :63], core, HOST)
    assert (core == 7.0).all()
