"""Noise and perturbed weights as the bindings give them; the kernels' own tests are C++."""

import pytest
import torch
from sluiceway import _core

KEY = {"seed": 3, "step": 4, "tensor": _core.stable_hash("layer.weight"), "purpose": 1}


def noise(family: str, count: int, first: int = 0, **key: int) -> torch.Tensor:
    out = torch.full((count,), float("nan"))
    _core.draw_noise(out, family, **(KEY | key), first=first)
    return out


@pytest.mark.parametrize("family", ["rademacher", "byte_quantile", "gaussian"])
def test_perturbed_weights_are_what_torch_computes(family: str) -> None:
    # Powers of two and an exact z keep torch's two roundings apart from one by no more than an ulp.
    w, plus, minus = torch.randn(5, 131), torch.empty(5, 131), torch.empty(5, 131)
    pending = [(3, step, KEY["tensor"], 1, 0.25 * step) for step in (1, 2)]
    _core.perturb(w, plus, minus, pending, 0.5, 0.125, family, **KEY, first=7)
    theta = w.double()
    for seed, step, tensor, purpose, scale in pending:
        theta = theta + scale * noise(
            family, w.numel(), 7, seed=seed, step=step, tensor=tensor, purpose=purpose
        ).view_as(w)
    z = noise(family, w.numel(), 7).view_as(w).double()
    torch.testing.assert_close(plus.double(), 0.5 * theta + 0.125 * z, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(minus.double(), 0.5 * theta - 0.125 * z, atol=1e-6, rtol=1e-6)
    out = torch.empty(5, 131, dtype=torch.bfloat16)
    _core.materialise(w, out, pending, 0.5, family, first=7)
    torch.testing.assert_close(out.double(), 0.5 * theta, atol=1e-6, rtol=2**-8)
    low = torch.empty_like(out)
    _core.materialise(w, low, pending, 0.5, family, first=7, stochastic=(1, 2, 3, 4))
    assert not torch.equal(out, low)
    torch.testing.assert_close(low.double(), 0.5 * theta, atol=1e-6, rtol=2**-7)


def test_noise_does_not_depend_on_where_a_call_starts() -> None:
    whole = noise("gaussian", 5000)
    torch.testing.assert_close(noise("gaussian", 900, 1234), whole[1234:2134], rtol=0, atol=0)


def test_wrong_arguments_are_named() -> None:
    w = torch.zeros(4)
    with pytest.raises(ValueError, match="expected rademacher, byte_quantile or gaussian"):
        noise("normal", 4)
    with pytest.raises(ValueError, match="minus has 12 bytes, expected 16"):
        _core.perturb(w, w.clone(), torch.zeros(3), [], 1.0, 1.0, "gaussian", **KEY)
    with pytest.raises(ValueError, match="plus: is not contiguous"):
        _core.perturb(w, torch.zeros(8)[::2], w.clone(), [], 1.0, 1.0, "gaussian", **KEY)
