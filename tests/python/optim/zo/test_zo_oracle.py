"""ZoSgd against the equations: the same bits of every loss and weight."""

from __future__ import annotations

import pytest
import sluiceway
import torch
from zo_follow import follow, shared_oracle
from zo_models import decoder, of_dtype
from zo_noise import gaussian
from zo_oracle import Oracle, oracle_of


@pytest.mark.parametrize(
    ("directions", "weight_decay", "seed"), [(1, 0.0, 0), (1, 0.5, 0), (3, 0.5, 2**40 + 1)]
)
def test_losses_and_weights_are_the_oracles(directions, weight_decay, seed) -> None:
    model = decoder()
    opt = sluiceway.ZoSgd(
        model, lr=0.02, weight_decay=weight_decay, directions=directions, seed=seed
    )
    follow(opt, model, shared_oracle(Oracle, seed, directions, weight_decay))


def test_losses_and_weights_are_the_oracles_along_gaussian_directions() -> None:
    ours, theirs = decoder(), decoder()
    opt = sluiceway.ZoSgd(ours, lr=0.02, weight_decay=0.5, directions=2, seed=3, noise="gaussian")
    follow(opt, ours, oracle_of(theirs, 3, 2, 0.5, gaussian), 60)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_are_images_of_a_float32_master(dtype: torch.dtype) -> None:
    ours = of_dtype(decoder(), dtype)
    opt = sluiceway.ZoSgd(ours, lr=0.02, weight_decay=0.5)
    if dtype is torch.bfloat16:
        follow(opt, ours, shared_oracle(weight_decay=0.5, dtype=dtype))
    else:
        follow(opt, ours, oracle_of(of_dtype(decoder(), dtype), weight_decay=0.5), 40)
