"""ZoSgd against the equations: the same bits of every loss and weight."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import sluiceway
import torch
from sluiceway import _core
from zo_models import decoder, of_dtype
from zo_oracle import fma, follow, follow_images, gaussian, oracle_of, philox, rademacher


def test_the_oracles_philox_has_the_published_answers() -> None:
    answer = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((0, 0, 0, 0), (0, 0)) == answer
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    answer = (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)
    assert philox(pi, (0xA4093822, 0x299F31D0)) == answer


def test_the_oracles_fma_rounds_once() -> None:
    random = np.random.default_rng()
    x = random.standard_normal(3000).astype(np.float32)
    y = (random.standard_normal(3000) * 10.0 ** random.integers(-12, 9, 3000)).astype(np.float32)
    a = np.float32(random.standard_normal())
    # A float64 between two float32 whose own rounding hides on which side of the middle it is.
    x[0], y[0], hard = np.float32(2.0**-30), np.float32(1 + 2.0**-23), np.float32(2.0**-30)
    for scale, some, others in ((a, x, y), (hard, x[:1], y[:1])):
        for got, one, other in zip(fma(scale, some, others), some, others, strict=True):
            exact = Fraction(float(scale)) * Fraction(float(one)) + Fraction(float(other))
            near = [np.nextafter(got, np.float32(s * np.inf)) for s in (-1, 1)]
            error = abs(Fraction(float(got)) - exact)
            assert all(error <= abs(Fraction(float(n)) - exact) for n in near)


def test_noise_is_the_oracles() -> None:
    seed, step, tensor = (int(v) for v in np.random.default_rng().integers(0, 2**63, 3))
    out = torch.full((5003,), torch.nan)
    _core.draw_noise(out, "rademacher", seed, step, tensor, 2)
    assert np.array_equal(out.numpy(), rademacher(5003, seed, step, tensor, 2))


@pytest.mark.parametrize(
    ("directions", "weight_decay", "seed", "noise", "steps"),
    [
        (1, 0.0, 0, "rademacher", 200),
        (1, 0.5, 7, "rademacher", 200),
        (3, 0.5, 2**40 + 1, "rademacher", 200),
        (2, 0.5, 3, "gaussian", 60),
    ],
)
def test_losses_and_weights_are_the_oracles(directions, weight_decay, seed, noise, steps) -> None:
    ours, theirs = decoder(), decoder()
    opt = sluiceway.ZoSgd(
        ours, lr=0.02, weight_decay=weight_decay, directions=directions, seed=seed, noise=noise
    )
    draw = gaussian if noise == "gaussian" else rademacher
    oracle = oracle_of(theirs, seed, directions, weight_decay, draw)
    follow(opt, ours, oracle, steps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_are_images_of_a_float32_master(dtype: torch.dtype) -> None:
    ours, theirs = (of_dtype(decoder(), dtype) for _ in range(2))
    opt = sluiceway.ZoSgd(ours, lr=0.01, weight_decay=0.1, seed=1)
    follow_images(opt, ours, oracle_of(theirs, 1, 1, 0.1))
