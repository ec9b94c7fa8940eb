"""`sluiceway train` of streamed weights where a layer is larger than what the ring may have."""

from __future__ import annotations

import re

import pytest
from conftest import assert_short_error


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_layer_larger_than_the_ring_is_refused_and_a_larger_budget_trains(
    sluiceway, small_model, write_config, tmp_path, tier
):
    config = write_config(
        small_model, engine={"kind": "zo", "tier": tier}, train={"steps": 1, "lr": 1e-4},
    )  # fmt: skip
    folder = tmp_path / "run"

    def train(device: int):
        return sluiceway("train", config, "--out", folder, "--set", f"budget.device={device}")

    layer = 512 * 256 * 4  # A matrix of the perceptron: it arrives, and is perturbed to both sides.
    done = train(layer)
    assert_short_error(done, 3, "budget: device tier: the ring of", "raise budget.device")
    needed, available = map(int, re.findall(r"(?:needs|only) (\d+) bytes", done.err))
    assert needed >= 3 * layer
    beside = layer - available  # Of the model, on the device beside the ring.
    assert 0 < beside < layer
    assert not folder.exists()  # Nothing is left that would be in the way of the same command.
    done = train(needed + beside - 1)
    assert_short_error(done, 3, f"needs {needed} bytes", f"only {needed - 1} bytes (")
    # Norms are there besides, and a copy of each to both sides.
    done = train(needed + beside + layer)
    assert done.code == 0, done.err
