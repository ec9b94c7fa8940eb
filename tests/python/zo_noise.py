"""The random numbers of kernels/noise.h and one fma, in numpy: nothing of the package is called.

Philox4x32-10, the Rademacher rule and rounding at random are integers. The Gaussian is Box-Muller
by fma-only polynomials, of which the coefficients are the header's; all else is written anew.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

M0, M1, W0, W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
MASK = 0xFFFFFFFF


def from_hex(values: str) -> np.ndarray:
    return np.array([float.fromhex(value) for value in values.split()], np.float32)


# kLogTerms, kSinTerms and kCosTerms, lowest first.
LOG_TERMS = from_hex(
    "-0x1.fffffap-2 0x1.5556f4p-2 -0x1.00049ap-2 0x1.98d2cp-3 "
    "-0x1.535d3p-3 0x1.318526p-3 -0x1.25049ap-3 0x1.65c766p-4"
)
SIN_TERMS = from_hex("0x1.921fb6p+2 -0x1.4abbbap+5 0x1.465e92p+6 -0x1.2d9302p+6")
COS_TERMS = from_hex("-0x1.3bd3ccp+4 0x1.03c1dep+6 -0x1.55c664p+6 0x1.d9f7bcp+5")
LN_2, SQRT_HALF = from_hex("0x1.62e43p-1 0x1.6a09e6p-1")


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """Ten rounds [Salmon 2011]; of arrays each element by itself."""
    c, k = counter, key
    for _ in range(10):
        p0, p1 = M0 * c[0], M1 * c[2]
        c = ((p1 >> 32) ^ c[1] ^ k[0], p1 & MASK, (p0 >> 32) ^ c[3] ^ k[1], p0 & MASK)
        k = ((k[0] + W0) & MASK, (k[1] + W1) & MASK)
    return c


def stream_words(
    word: np.ndarray, seed: int, step: int, tensor: int | np.ndarray, purpose: int
) -> np.ndarray:
    """Words by their numbers, of one tensor or of one for each."""
    halves = (seed & MASK, seed >> 32)
    key = philox((step & MASK, step >> 32, purpose, 0), halves)[:2]
    block = 16 * (word // 64) + word % 16
    drawn = philox((block & MASK, block >> 32, tensor & MASK, tensor >> 32), key)
    return np.choose((word % 64 // 16).astype(int), drawn)


def elements_of(counts: list[int], tensors: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The number of each element, and the tensor that it is of; tensors one after another."""
    i = np.concatenate([np.arange(count, dtype=np.uint64) for count in counts])
    return i, np.repeat(np.array(tensors, dtype=np.uint64), counts)


def rademacher(
    counts: list[int], seed: int, step: int, tensors: list[int], purpose: int
) -> list[np.ndarray]:
    """z of the first elements of each tensor, as many as its count."""
    i, tensor = elements_of(counts, tensors)
    word = 64 * (i // 2048) + 16 * (i % 2048 // 512) + i % 16
    bits = stream_words(word, seed, step, tensor, purpose)
    z = np.where(bits >> (31 - i // 16 % 32) & 1, np.float32(-1), np.float32(1))
    return np.split(z, np.cumsum(counts)[:-1])


def to_bfloat16_at_random(
    x: np.ndarray, seed: int, step: int, tensor: int, purpose: int
) -> np.ndarray:
    """Round stochastically to bf16 with 16 random bits an element; return float32."""
    i = np.arange(x.size, dtype=np.uint64)
    drawn = stream_words(i // 2, seed, step, tensor, purpose) >> (16 * (i % 2)) & 0xFFFF
    bits = x.reshape(-1).view(np.uint32).astype(np.uint64) + drawn
    return (bits & 0xFFFF0000).astype(np.uint32).view(np.float32).reshape(x.shape)


def fma(a: np.float32 | np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """a x + y, rounded once.

    The product of two float32 is exact in float64, their sum with a third is not: what it loses is
    found exactly, and makes its last bit odd, so that rounding to float32 cannot err twice.
    """
    product = np.float64(a) * x.astype(np.float64)
    other = y.astype(np.float64)
    total = product + other
    with np.errstate(invalid="ignore"):  # Where it is not finite, and nothing is done.
        back = total - product
        lost = (product - (total - back)) + (other - back)
    bits = total.view(np.int64)
    even = np.isfinite(total) & (lost != 0) & (bits & 1 == 0)
    outwards = (lost > 0) == (total > 0)
    odd = np.where(even, np.where(outwards, bits + 1, bits - 1), bits).view(np.float64)
    return odd.astype(np.float32)


def nearest_float32(exact: Fraction) -> np.float32:
    """Rounded once, half to even, by integers alone; a zero is positive."""
    if exact == 0:
        return np.float32(0)
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent  # Now 2^exponent <= size < 2^(exponent + 1).
    last = max(exponent - 23, -149)
    value = round(size / Fraction(2) ** last) * Fraction(2) ** last
    rounded = np.float32(np.inf) if value >= 2**128 else np.float32(float(value))
    return -rounded if exact < 0 else rounded


def horner(terms: np.ndarray, x: np.ndarray) -> np.ndarray:
    total = np.full_like(x, terms[-1])
    for term in terms[-2::-1]:
        total = fma(total, x, np.full_like(x, term))
    return total


def gaussian_of_words(u: np.ndarray, v: np.ndarray, across: np.ndarray) -> np.ndarray:
    """Box and Muller's z of words of 32 bits, by the polynomials of kernels/noise.h.

    r cos of the angle, or r sin where it is `across`.
    """
    one = np.ones(len(u), np.float32)
    uniform = fma((u >> 1).astype(np.float32), one * 2.0**-31, one * 2.0**-32)
    m, exponent = np.frexp(uniform)  # From 1/2 on, below 1; the logarithm's is from SQRT_HALF on.
    low = m < SQRT_HALF
    f = np.where(low, 2 * m, m) - one
    log = fma(f * f, horner(LOG_TERMS, f), f)
    log = fma((exponent - low).astype(np.float32), one * LN_2, log)
    r = np.sqrt(np.float32(-2) * log)

    quarter = (v + 2**29 >> 30) % 4
    rest = (v.astype(np.int64) - (quarter << 30).astype(np.int64) + 2**31) % 2**32 - 2**31
    t = rest.astype(np.float32) * np.float32(2.0**-32)
    s = t * t
    sine, cosine = t * horner(SIN_TERMS, s), fma(s, horner(COS_TERMS, s), one)
    # A quarter of a turn on, cos is -sin and sin is cos.
    turned = (quarter + 3 * across) % 4  # sin is cos, three quarters on.
    return r * np.choose(turned.astype(int), (cosine, -sine, -cosine, sine))


def gaussian(
    counts: list[int], seed: int, step: int, tensors: list[int], purpose: int
) -> list[np.ndarray]:
    """The same of a Gaussian z."""
    i, tensor = elements_of(counts, tensors)
    word = 32 * (i // 32) + i % 16
    u, v = (stream_words(w, seed, step, tensor, purpose) for w in (word, word + 16))
    z = gaussian_of_words(u, v, i % 32 >= 16)
    return np.split(z, np.cumsum(counts)[:-1])
