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


def test_neighbours_along_a_product_are_what_torch_computes_on_either_side() -> None:
    w, x = torch.randn(37, 19), torch.randn(6, 19)
    pending = torch.randn(3, 37), torch.randn(3, 19)
    u, v = torch.randn(2, 37), torch.randn(2, 19)
    plus, minus = torch.full_like(w, torch.nan), torch.full_like(w, torch.nan)
    _core.perturb_low_rank(w, plus, minus, pending, 0.5, 0.125, (u, v))
    theta = 0.5 * (w.double() + pending[0].double().T @ pending[1].double())
    z = u.double().T @ v.double()
    torch.testing.assert_close(plus.double(), theta + 0.125 * z, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(minus.double(), theta - 0.125 * z, atol=1e-5, rtol=1e-6)
    # y = x theta^T + (x V) U^T, as a layer has it that leaves its weights alone.
    beside = x.double() @ theta.T + 0.125 * (x.double() @ v.double().T) @ u.double()
    torch.testing.assert_close(x.double() @ plus.double().T, beside, atol=1e-4, rtol=1e-6)
    out = torch.full_like(w, torch.nan)
    _core.materialise_low_rank(w, out, pending, 0.5)
    torch.testing.assert_close(out.double(), theta, atol=1e-5, rtol=1e-6)


def test_a_matrix_is_rounded_at_random_as_its_elements_are() -> None:
    w = torch.randn(37, 19)
    found, expected, nearest = (torch.zeros(37, 19, dtype=torch.bfloat16) for _ in range(3))
    options = {"first": 7, "stochastic": (1, 2, 3, 4)}
    _core.materialise_low_rank(w, found, None, 0.9, **options)
    _core.materialise(w, expected, [], 0.9, "gaussian", **options)
    _core.materialise_low_rank(w, nearest, None, 0.9)
    assert torch.equal(found, expected)
    assert not torch.equal(found, nearest)


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
    m, factors = torch.zeros(2, 3), (torch.zeros(4, 2), torch.zeros(4, 3))
    with pytest.raises(
        ValueError, match="factors of direction are 4 x 2 and 3 x 3, expected k x 2"
    ):
        _core.perturb_low_rank(
            m, m.clone(), m.clone(), None, 1.0, 1.0, (factors[0], torch.zeros(3, 3))
        )
    with pytest.raises(ValueError, match="a left factor: is float64"):
        _core.materialise_low_rank(m, m, (factors[0].double(), factors[1]), 1.0)
    with pytest.raises(ValueError, match="a right factor: is float16, expected float32"):
        _core.materialise_low_rank(m, m, (factors[0], factors[1].half()), 1.0)
    with pytest.raises(ValueError, match="w: has 1 dimensions"):
        _core.materialise_low_rank(m[0], m, None, 1.0)
