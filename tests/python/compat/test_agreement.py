"""The comparison itself: what it has to notice."""

from __future__ import annotations

import pytest
import sluiceway as sw
from agreement import TOLERANCE, disagreement, language_loss, loop
from sluiceway.optim.common.in_flight import WeightsInFlight
from small_llama import small_llama
from small_models import loss_of, make
from test_peft import TRAINED, with_adapters

# A tenth of the rate that others use: the forward of a busy machine comes before this link, too.
SLOW = {"link": sw.Link(d2h_gbps=5e-3, h2d_gbps=5e-3)}
CASES = {
    "linear layers": (make, loop(loss_of), SLOW),
    "language model": (small_llama, loop(language_loss), SLOW),
    "adapters": (
        with_adapters,
        loop(language_loss),
        {**TRAINED, "link": sw.Link(d2h_gbps=5e-4, h2d_gbps=5e-4)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_forwards_that_do_not_wait_are_seen(monkeypatch, case):
    make_model, drive, arguments = CASES[case]
    monkeypatch.setattr(WeightsInFlight, "wait", lambda _in_flight, _weight: None)
    monkeypatch.setattr(WeightsInFlight, "take_off", lambda _in_flight: None)
    assert disagreement(make_model, drive, **arguments) > 1000 * TOLERANCE


def test_another_rate_is_seen():
    def faster(model, optimizer):
        if isinstance(optimizer, sw.SubspaceAdamW):
            optimizer.param_groups[0]["lr"] *= 1 + 10 * TOLERANCE
        loop(loss_of)(model, optimizer)

    assert disagreement(make, faster) > TOLERANCE
