"""Finds the order in which a model's forward reads its weights, and the module that reads each.

A unit is a module that reads weights: its own, or those of children that it does not call, like
`nn.MultiheadAttention`. A unit that calls no other unit is streamed: its weights arrive before its
forward and leave after it. Weights that a module reads around other units are held meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.optim.common.compilation import uncompiled
from sluiceway.optim.common.random_state import RandomState
from sluiceway.optim.zo.reader import Call, Reader
from sluiceway.optim.zo.weights import TrainedWeight


@dataclass(frozen=True)
class ForwardOrder:
    """Order of the reads in one run of a closure."""

    modules: list[nn.Module]  # Units; each once.
    weights: list[list[TrainedWeight]]  # Weights of each unit.
    held: set[int]  # Units that call others.
    calls: list[int]  # Units that are streamed, in the order of the forward.
    throughout: list[TrainedWeight]  # Weights that are read outside of all modules.


def watch_forward(
    owner: str, reader: Reader, weights: list[TrainedWeight], closure: Callable[[], Any]
) -> ForwardOrder:
    """Run a closure once on the unperturbed weights, and note the order of its reads.

    Raises
    ------
    InvalidArgument
        A trained weight is not read.
    BaseException
        Raised by the closure.
    """
    random = RandomState.now()
    try:
        with uncompiled(), torch.no_grad(), reader.watching() as calls:
            closure()
    finally:
        random.restore()
    return _order_of(owner, weights, calls)


def _order_of(owner: str, weights: list[TrainedWeight], calls: list[Call]) -> ForwardOrder:
    reads: dict[nn.Module | None, list[nn.Parameter]] = {}
    calls_of: dict[nn.Module | None, list[Call]] = {}
    for call in calls:
        calls_of.setdefault(call.module, []).append(call)
        known = reads.setdefault(call.module, [])
        known += [p for p in call.reads if not _has(known, p)]
    for module, of_module in calls_of.items():  # Weights that are present are not read again.
        reads[module] = [
            p
            for p in reads[module]
            if not all(any(_has(reads[o.module], p) for o in c.around()) for c in of_module)
        ]
    weight_of = {id(w.parameter): w for w in weights}
    read = {id(p) for found in reads.values() for p in found}
    for weight in weights:
        if id(weight.parameter) not in read:
            raise InvalidArgument(
                f"{owner}.step: {weight.name} is trained but was not read in the closure; let the "
                "closure use it, or freeze it"
            )
    throughout = [weight_of[id(p)] for p in reads.pop(None, [])]
    modules = [module for module, found in reads.items() if found]
    number = {id(module): i for i, module in enumerate(modules)}
    held = {
        number[id(outer.module)]
        for call in calls
        if id(call.module) in number
        for outer in call.around()
        if id(outer.module) in number
    }
    order = [number[id(call.module)] for call in calls if id(call.module) in number]
    return ForwardOrder(
        modules,
        [[weight_of[id(p)] for p in reads[module]] for module in modules],
        held,
        [unit for unit in order if unit not in held],
        throughout,
    )


def _has(parameters: list[nn.Parameter], p: nn.Parameter) -> bool:
    return any(p is q for q in parameters)
