"""Lightning's Trainer, its clipping and its averages of weights, beside torch's AdamW."""

from __future__ import annotations

import gc
from functools import partial

import lightning
import pytest
import sluiceway as sw
from agreement import LINK, STEPS, check_row, error_of_update, native, seen_weights
from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging
from small_models import Stack, loss_of, make
from test_examples import run_program
from torch.utils.data import DataLoader
from twins import LR, identity


class Inner(lightning.LightningModule):
    """A model inside of a module, which makes the optimizer when it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make(Stack)
        self.make_optimizer = native
        self.held_out = []

    def forward(self, x):
        return self.model(x)

    def trained(self):
        return self.model

    def training_step(self, step, _):
        return loss_of(self.trained(), int(step))

    def validation_step(self, step, _):
        self.held_out.append(float(loss_of(self.trained(), 90 + int(step))))

    def configure_optimizers(self):
        return self.make_optimizer(self.trained())


class Whole(Inner):
    """The optimizer takes the module itself, and a step goes through its forward."""

    def trained(self):
        return self


def fit(folder, module, callbacks=(), accumulate=1, epochs=(4,), **changes):
    """Some calls of `fit`, of `STEPS` steps together."""
    trainer = None
    for last in epochs:
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=last, default_root_dir=folder, logger=False,
            enable_progress_bar=False, enable_model_summary=False,
            callbacks=[make_callback() for make_callback in callbacks],
            accumulate_grad_batches=accumulate,
            **{"enable_checkpointing": False, **changes},
        )  # fmt: skip
        batches = DataLoader(range(STEPS * accumulate // sum(epochs)))
        trainer.fit(module, batches, DataLoader(range(2)))
    assert trainer.global_step == STEPS * epochs[-1] // sum(epochs)


def twins_of(kind, folder, eps=1e-8, **changes):
    """Train twins by Lightning; return the error of the update, and both."""
    ours, theirs = kind(), kind()
    theirs.make_optimizer = partial(native, eps=eps)
    before, opened = seen_weights(ours), []

    def make_ours(model):
        for opt in opened:
            opt.close()
        opened.append(identity(model, link=LINK, eps=eps))
        return opened[-1]

    ours.make_optimizer = make_ours
    fit(folder / "ours", ours, **changes)
    opened[-1].close()
    fit(folder / "theirs", theirs, **changes)
    return error_of_update(before, ours, theirs), ours, theirs


# A second `fit` makes a new optimizer, and with moments of zero AdamW's first step is lr g / (|g| +
# eps): weights that differ by a rounding have gradients that do, and where g is not far above its
# rounding a small eps makes a whole step of that.
EPS_OF_A_NEW_START = 1e-5
CASES = {
    "plain": {},
    "clipped": {"gradient_clip_val": 0.1},
    "accumulated": {"accumulate": 2, "gradient_clip_val": 0.1},
    "saved": {"enable_checkpointing": True},
    "twice": {"epochs": (2, 2), "eps": EPS_OF_A_NEW_START},
    "swa": {"callbacks": [lambda: StochasticWeightAveraging(LR, 0.25, annealing_epochs=2)]},
    "ema": {"callbacks": [lambda: EMAWeightAveraging(decay=0.5)]},
}


@pytest.mark.parametrize("kind", [Inner, Whole])
@pytest.mark.parametrize("case", CASES)
def test_lightning(record_property, tmp_path, case, kind):
    error, ours, theirs = twins_of(kind, tmp_path, **CASES[case])
    assert ours.held_out == pytest.approx(theirs.held_out, rel=1e-5)
    check_row(record_property, "Lightning (clipping, accumulation, SWA, EMA)", error)


class ByHand(Inner):
    """Optimization by hand, through the object that Lightning wraps around the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, step, _):
        optimizer = self.optimizers()
        self.manual_backward(loss_of(self.model, int(step)))
        self.clip_gradients(optimizer, gradient_clip_val=0.1)
        optimizer.step()
        optimizer.zero_grad()


def test_optimization_by_hand(record_property, tmp_path):
    error, _, _ = twins_of(ByHand, tmp_path)
    check_row(record_property, "Lightning (clipping, accumulation, SWA, EMA)", error)


def test_the_optimizer_goes_on_when_lightning_is_done(record_property, tmp_path):
    """Lightning's wrapper around the optimizer is deleted, and must not remove its hooks."""
    ours, theirs, made = Inner(), Inner(), {}
    before = seen_weights(ours)
    for module, make_optimizer in ((ours, identity), (theirs, native)):
        made[module] = make_optimizer(module.model)
        module.make_optimizer = lambda _, module=module: made[module]
        fit(tmp_path, module, epochs=(2,))
        gc.collect()
        for step in range(STEPS, 2 * STEPS):
            loss_of(module.model, step).backward()
            made[module].step()
            made[module].zero_grad()
    made[ours].close()
    error = error_of_update(before, ours, theirs)
    check_row(record_property, "Lightning (clipping, accumulation, SWA, EMA)", error)


def test_clipping_by_value_is_refused(tmp_path):
    clipped = {"gradient_clip_val": 1e-3, "gradient_clip_algorithm": "value"}
    with pytest.raises(sw.Error, match="clip by norm"):
        twins_of(Inner, tmp_path, **clipped)


def test_example_of_the_page_trains(small_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_program("Lightning", small_model)
