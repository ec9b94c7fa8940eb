"""The oracle's noise, fma and rounding: against published answers, formulas, exact fractions."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from sluiceway import _core
from zo_noise import (
    fma,
    gaussian,
    gaussian_of_words,
    nearest_float32,
    philox,
    rademacher,
    to_bfloat16_at_random,
)


def test_the_oracles_philox_has_the_published_answers() -> None:
    answer = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((0, 0, 0, 0), (0, 0)) == answer
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    answer = (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)
    assert philox(pi, (0xA4093822, 0x299F31D0)) == answer


# ---- One fma ----


def exact_fma(a: np.float32, x: np.float32, y: np.float32) -> np.float32:
    """Compute a x + y in fractions with one rounding; a zero has IEEE's sign."""
    product, other = Fraction(float(a)) * Fraction(float(x)), Fraction(float(y))
    negative = bool(np.signbit(a)) != bool(np.signbit(x))
    if product + other != 0:
        negative = product + other < 0
    elif product != 0 or negative != bool(np.signbit(y)):
        negative = False
    size = nearest_float32(abs(product + other))
    return -size if negative else size


def assert_exact(a: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        found = fma(a, x, y)
    expected = np.array([exact_fma(*triple) for triple in zip(a, x, y, strict=True)], np.float32)
    differ = np.flatnonzero(found.view(np.uint32) != expected.view(np.uint32))
    assert not len(differ), [(a[i], x[i], y[i], found[i], expected[i]) for i in differ[:3]]


def test_the_reference_of_an_fma_rounds_halves_to_even_at_either_end_of_the_range() -> None:
    whole, least, largest = Fraction(2**24), Fraction(2) ** -149, (2 - Fraction(2) ** -23) * 2**127
    for exact, expected in (
        (whole + 1, 2.0**24),
        (whole + 3, 2.0**24 + 4),
        (whole + 1 + least, 2.0**24 + 2),
        (least / 2, 0.0),
        (least / 2 + least / 2**90, 2.0**-149),
        (least * 3 / 2, 2.0**-148),
        (largest, float(largest)),
        (largest + Fraction(2) ** 103 - 1, float(largest)),
        (largest + Fraction(2) ** 103, np.inf),
        (Fraction(1, 3), float.fromhex("0x1.555556p-2")),
    ):
        assert nearest_float32(exact) == expected
        assert nearest_float32(-exact) == -expected


def test_the_oracles_fma_rounds_once_what_is_drawn() -> None:
    random = np.random.default_rng()
    a, x, y = (random.standard_normal(3000).astype(np.float32) for _ in range(3))
    assert_exact(a, x, (y * 10.0 ** random.integers(-12, 9, 3000)).astype(np.float32))
    # Of any bits, infinities and NaN apart; then what nearly cancels.
    bits = random.integers(0, 2**32, (3, 3000), dtype=np.uint32)
    bits = np.where(bits >> 23 & 255 == 255, bits ^ 1 << 30, bits).astype(np.uint32)
    a, x, y = bits.view(np.float32)
    assert_exact(a, x, y)
    x = random.standard_normal(3000).astype(np.float32)
    a = random.standard_normal(3000).astype(np.float32)
    near = (-(a * x)).view(np.uint32) + random.integers(0, 3, 3000, dtype=np.uint32) - np.uint32(1)
    assert_exact(a, x, near.view(np.float32))


def test_the_oracles_fma_rounds_once_at_the_edges() -> None:
    sizes = [
        0.0, 2.0**-149, 2.0**-148, 3 * 2.0**-149, 2.0**-126 - 2.0**-149, 2.0**-126, 2.0**-75,
        2.0**-30, 2.0**-24, 2.0**-12, 0.5, 1 - 2.0**-24, 1.0, 1 + 2.0**-23, 1 + 2.0**-11, 1.5, 3.0,
        2.0**24 - 1, 2.0**63, 2.0**127, 2.0**128 - 2.0**104,
    ]  # fmt: skip
    edges = np.array([s * size for size in sizes for s in (1, -1)], np.float32)
    triples = np.array([*itertools.product(sizes, sizes, edges)], np.float32)
    a, x, y = np.ascontiguousarray(triples.T)
    assert_exact(a, x, y)
    assert_exact(-a[::7], x[::7], y[::7])


def test_the_oracles_fma_of_what_is_not_finite_is_not_finite() -> None:
    infinity, one = np.full(4, np.inf, np.float32), np.ones(4, np.float32)
    assert np.array_equal(fma(one, infinity, one), infinity)
    assert np.array_equal(fma(-one, infinity, one), -infinity)
    assert np.array_equal(fma(one, one, -infinity), -infinity)
    with np.errstate(invalid="ignore"):
        assert np.isnan(fma(one, infinity, -infinity)).all()


# ---- Noise ----


@pytest.mark.parametrize(("family", "draw"), [("rademacher", rademacher), ("gaussian", gaussian)])
def test_noise_is_the_oracles(family, draw) -> None:
    random = np.random.default_rng()
    for purpose in (0, 2, 2**32 - 1):
        seed, step, *tensors = (int(v) for v in random.integers(0, 2**63, 4))
        counts = [5003, 31]
        for count, tensor, z in zip(
            counts, tensors, draw(counts, seed, step, tensors, purpose), strict=True
        ):
            out = torch.full((count,), torch.nan)
            _core.draw_noise(out, family, seed, step, tensor, purpose)
            assert np.array_equal(out.numpy().view(np.uint32), z.view(np.uint32))


def test_the_oracles_gaussian_is_the_formula_at_every_octant_and_at_the_ends() -> None:
    ends = [0, 1, 2, 3, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]
    ends += [k * 2**29 + d for k in range(1, 8) for d in (-1, 0, 1)]
    ends += [int(np.sqrt(0.5) * 2**32) + d for d in range(-600, 601, 100)]  # Where f changes sign.
    drawn = np.random.default_rng().integers(0, 2**32, 40)
    words = np.array([*itertools.product([*ends, *drawn], repeat=2)], np.uint64)
    u, v = np.ascontiguousarray(words.T)
    uniform = (u >> 1).astype(np.float32) * np.float64(2.0**-31) + 2.0**-32
    radius = np.sqrt(-2 * np.log(uniform.astype(np.float32).astype(np.float64)))
    for across, circle in ((False, np.cos), (True, np.sin)):
        exact = radius * circle(2 * np.pi * (v * 2.0**-32))
        z = gaussian_of_words(u, v, np.full(len(u), across))
        assert z.dtype == np.float32
        assert (np.abs(z - exact) <= 5e-7 * np.maximum(np.abs(z), 1)).all()
        assert np.abs(z).max() <= 6.661


def test_what_is_rounded_at_random_is_the_oracles() -> None:
    random = np.random.default_rng()
    seed, step, tensor = (int(v) for v in random.integers(0, 2**63, 3))
    x = random.standard_normal((3, 1667)).astype(np.float32)
    found = torch.zeros(x.shape, dtype=torch.bfloat16)
    rounding = (seed, step, tensor, 2**31)
    _core.materialise(torch.from_numpy(x), found, [], 1.0, "gaussian", stochastic=rounding)
    assert np.array_equal(found.float().numpy(), to_bfloat16_at_random(x, *rounding))


def test_numbers_are_rounded_at_random_to_a_neighbour_and_right_on_average() -> None:
    x = np.full(40_000, 1 + 2.0**-9, np.float32)  # A quarter of the way to 1 + 2^-7.
    found = to_bfloat16_at_random(x, 3, 4, 5, 2**31)
    up = found == 1 + 2.0**-7
    assert (up | (found == 1)).all()
    assert abs(up.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / len(x))
    assert np.array_equal(to_bfloat16_at_random(found, 6, 7, 8, 9), found)
