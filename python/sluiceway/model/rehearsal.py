"""Rehearses a training step on tensors without bytes, to predict its memory and operations.

The real model runs forward and backward, and gradients are freed where the engine frees them.
Each storage is counted while it lives. Scratch memory inside of kernels is not counted.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from sluiceway.errors import InvalidArgument
from sluiceway.model.blocks import find_blocks
from sluiceway.model.grouped_products import GROUPED_PRODUCT, grouped_flops, grouped_product

_INPUTS_HERE = 3  # Of the block that computes and of the next one, and one on its way out.
_FLOPS = {**flop_registry, GROUPED_PRODUCT: grouped_flops}


@dataclass(frozen=True)
class Rehearsal:
    """Bytes on the device, and floating-point operations, of a forward and its backward."""

    weight_bytes: int
    after_forward_bytes: int  # Weights and tensors saved for the backward.
    peak_bytes: int
    forward_flops: int
    backward_flops: int
    # Operations that compute, each of which a card's driver has to be asked for.
    forward_launches: int = 0
    backward_launches: int = 0
    # Bytes of the largest input with a gradient of each block; and the peak if all but a few of
    # these are elsewhere until their block's backward.
    block_inputs: tuple[int, ...] = ()
    peak_without_inputs: int = 0


class _Account(TorchDispatchMode):
    """Counts living bytes and operations; torch's own flop counter would keep tensors alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self.recent_peak = 0
        self.flops = 0
        self.launches = 0
        self.peak_without_inputs = 0
        self._seen: set[int] = set()
        self._inputs: dict[int, int] = {}  # Storages of blocks' inputs, and their bytes.
        self._largest = 0

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        self.recent_peak = max(self.recent_peak, self.now)
        away = max(0, sum(self._inputs.values()) - _INPUTS_HERE * self._largest)
        self.peak_without_inputs = max(self.peak_without_inputs, self.now - away)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self._inputs.pop(key, None)
        self.now -= size

    def note_input(self, tensor: torch.Tensor) -> None:
        """Note that a tensor may leave the device until the backward of a block."""
        storage = tensor.untyped_storage()
        self._inputs[storage._cdata] = storage.nbytes()
        self._largest = max(self._largest, storage.nbytes())

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        grouped = function._overloadpacket is GROUPED_PRODUCT
        result = (grouped_product if grouped else function)(*args, **(kwargs or {}))
        if (count := _FLOPS.get(function._overloadpacket)) is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=result)
        self.launches += not _is_view(function)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return result


def rehearse(
    build: Callable[[], torch.nn.Module],
    freed: set[str],
    batch: int,
    sequence_length: int,
    autocast: torch.dtype | None,
    backward: bool = True,
    apart: bool = False,
) -> Rehearsal:
    """Run one batch through the model that `build` makes.

    Parameters
    ----------
    freed : set of str
        Names of parameters whose gradient is freed as soon as it exists; one with a true attribute
        `held_back` keeps it.
    backward : bool
        Run a backward; if False, the forward runs without gradients and without dropout.
    apart : bool
        Sequences hold several documents, which position ids keep apart.
    """
    cast = torch.autocast("cpu", dtype=autocast) if autocast else contextlib.nullcontext()
    with FakeTensorMode():
        model = build().train(backward)
        _keep_all_layers(model)
        for name, parameter in model.named_parameters():
            if name in freed and parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(_free)
        ids = torch.zeros(batch, sequence_length, dtype=torch.long)
        given = {"input_ids": ids, "labels": ids} | ({"position_ids": ids} if apart else {})
        with _Account() as account:
            inputs = _note_inputs(model, account) if backward else []
            for parameter in model.parameters():
                account.add(parameter)
            weights = account.now
            with cast, torch.set_grad_enabled(backward):
                loss = model(**given, use_cache=False).loss
            kept, forward, inputs = account.now, account.flops, tuple(inputs)
            launched = account.launches
            if backward:
                loss.backward()
        return Rehearsal(
            weights,
            kept,
            account.peak,
            forward,
            account.flops - forward,
            launched,
            account.launches - launched,
            inputs,
            account.peak_without_inputs,
        )


@functools.cache
def _is_view(function: Any) -> bool:
    """True if an operation only looks at its input in another way."""
    infos = [returned.alias_info for returned in function._schema.returns]
    return any(info is not None and not info.is_write for info in infos)


def _note_inputs(model: torch.nn.Module, account: _Account) -> list[int]:
    """Return a list that gets the bytes of the largest tensor that each block is called with."""
    found: list[int] = []

    def note(_module: torch.nn.Module, given: tuple, named: dict[str, Any]) -> None:
        tensors = [t for t in tree_leaves((given, named)) if isinstance(t, torch.Tensor)]
        leaving = max((t for t in tensors if t.requires_grad), key=lambda t: t.nbytes, default=None)
        found.append(0 if leaving is None else leaving.nbytes)
        if leaving is not None:
            account.note_input(leaving)

    with contextlib.suppress(InvalidArgument):  # It has no blocks.
        for _, block in find_blocks("plan", model).blocks:
            block.register_forward_pre_hook(note, with_kwargs=True)
    return found


def living_bytes() -> tuple[int, int]:
    """Bytes that live now in the running rehearsal, and their maximum since the previous call.

    For hooks of the rehearsed model.
    """
    account = _get_current_dispatch_mode()
    most, account.recent_peak = account.recent_peak, account.now
    return account.now, most


def _keep_all_layers(model: torch.nn.Module) -> None:
    """Switch off LayerDrop: it reads a random number, and rehearsed tensors have no values."""
    for module in model.modules():
        if hasattr(module, "layerdrop"):
            module.training = False  # The module's own flag: dropout inside of layers stays.


def _free(parameter: torch.nn.Parameter) -> None:
    if not getattr(parameter, "held_back", False):
        parameter.grad = None
