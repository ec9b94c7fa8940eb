"""torch.compile around a model and inside of it, before and after the optimizer is made.

The backend here is the one that compiles nothing: what Dynamo captures, and where it asks for
weights, does not depend on it. `check_compile.py` has Inductor.
"""

from __future__ import annotations

import pytest
import torch
from agreement import check_row, disagreement, loop
from small_models import Stack, loss_of, make


def whole(model, blocks, **arguments):
    return torch.compile(model, **arguments)


def fullgraph(model, blocks, **arguments):
    return torch.compile(model, fullgraph=True, **arguments)


def in_place(model, blocks, **arguments):
    model.compile(**arguments)
    return model


def layers(model, blocks, **arguments):
    blocks[0] = torch.compile(blocks[0], **arguments)
    return model


def layers_in_place(model, blocks, **arguments):
    for block in blocks:
        block.compile(**arguments)
    return model


WAYS = pytest.mark.parametrize("way", [whole, fullgraph, in_place, layers, layers_in_place])
ORDERS = pytest.mark.parametrize("order", ["before", "after", "before-and-one-step"])


def compiled_error(order, way, make_model, blocks_of, loss, **arguments):
    """Disagreement of twins that are compiled in one way at one time."""

    def compiled(model):
        return way(model, blocks_of(model), **arguments)

    def trained_once():  # By another optimizer, so that what is compiled knows no hook of ours.
        model = compiled(make_model())
        loss(model, 50).backward()
        model.zero_grad()
        return model

    def compile_and_train(model, optimizer):
        loop(loss)(compiled(model), optimizer)

    if order == "after":
        return disagreement(make_model, compile_and_train)
    return disagreement(
        trained_once if order == "before-and-one-step" else lambda: compiled(make_model()),
        loop(loss),
    )


def stack_error(order, way, **arguments):
    return compiled_error(order, way, lambda: make(Stack), lambda m: m.blocks, loss_of, **arguments)


@WAYS
@ORDERS
def test_each_way_at_each_time(record_property, order, way):
    check_row(record_property, "`torch.compile`", stack_error(order, way, backend="eager"))
