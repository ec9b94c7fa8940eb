"""ZoSgd with weights on disk against the equations: the same bits, whatever bases there were."""

from __future__ import annotations

from pathlib import Path

import pytest
import sluiceway
import torch
from zo_follow import follow, shared_oracle
from zo_models import decoder, of_dtype, same
from zo_oracle import BasesOracle, oracle_of


@pytest.mark.parametrize(
    ("dtype", "weight_decay", "depth", "lanes"),
    [(torch.float32, 0.0, 2, 1), (torch.bfloat16, 0.5, 8, 4)],
)
def test_losses_and_weights_are_the_oracles(
    dtype: torch.dtype, weight_decay: float, depth: int, lanes: int, tmp_path: Path
) -> None:
    """A new base changes no bit of float32 that does not decay; else it rounds, as the oracle."""
    model = of_dtype(decoder(), dtype)
    if weight_decay == 0:
        oracle = shared_oracle()
    else:
        theirs = of_dtype(decoder(), dtype)
        oracle = oracle_of(theirs, weight_decay=weight_decay, kind=BasesOracle, every=60)
    opt = sluiceway.ZoSgd(
        model, lr=0.02, weight_decay=weight_decay, depth=depth, perturb_lanes=lanes, tier="disk",
        store=sluiceway.StoreOptions(path=tmp_path, chunk=8192), consolidate=60, path=tmp_path,
    )  # fmt: skip
    follow(opt, model, oracle, every=10)
    assert opt.committed_steps == 200
    with pytest.raises(sluiceway.InvalidArgument, match="expected 180, the step of the base in"):
        opt.rollback(179)
    opt.close()
    assert same(model.state_dict(), oracle.model)
