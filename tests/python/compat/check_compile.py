"""torch.compile with Inductor, whose first kernel takes a minute to compile."""

from __future__ import annotations

import functools

from agreement import check_row, disagreement
from small_llama import small_llama
from test_compile import WAYS, stack_error, whole
from test_trainer import run

ROW = "`torch.compile` (Inductor)"


@WAYS
def test_each_way_with_inductor(record_property, way):
    check_row(record_property, ROW, stack_error("before", way))


def test_inductor_before_and_one_step(record_property):
    check_row(record_property, ROW, stack_error("before-and-one-step", whole))


def test_trainer_that_compiles(record_property, tmp_path):
    make_model = functools.partial(small_llama, num_hidden_layers=1)
    error = disagreement(make_model, functools.partial(run, tmp_path, torch_compile=True))
    check_row(record_property, "Trainer, `torch_compile=True`", error)
