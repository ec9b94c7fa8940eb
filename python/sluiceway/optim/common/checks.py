"""Checks that parameters, groups and processes are as they were when the optimizer was made."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from sluiceway.errors import InvalidArgument, Unavailable
from sluiceway.model.targets import CompressedWeight, Selection
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.norm_gradient import NormGradient
from sluiceway.optim.common.parameters import check_group


def refuse_sparse(owner: str, name: str, gradient: torch.Tensor) -> None:
    """Refuse a sparse gradient."""
    if gradient.layout is not torch.strided:
        raise InvalidArgument(
            f"{owner}: the gradient of {name} is {gradient.layout}, expected a dense one, as "
            "AdamW takes no other; leave sparse=True out"
        )


class WeightWatch:
    """Remembers every trained parameter as it was when the optimizer was made.

    Each check raises InvalidArgument with the name of the first parameter that differs. No check
    waits for an update in flight.
    """

    def __init__(self, owner: str, model: nn.Module, selection: Selection) -> None:
        self._owner, self._selection = owner, selection
        self._compressed = selection.compressed
        self._trained = names = {id(p): name for name, p in selection.trained}
        compressed = {id(weight.parameter) for weight in self._compressed}
        # Our hooks go with the tensor inside of a compressed weight; others have none.
        self._made_with = [
            (name, p, p.dtype, p.device, torch_private.inside(p) if id(p) in compressed else None)
            for name, p in selection.trained
        ]
        self._held = [
            (names[id(p)], module, local, p)
            for module in model.modules()
            for local, p in torch_private.held_parameters(module).items()
            if id(p) in names
        ]
        self._last_hooks: list[int | None] = []

    def check(self) -> None:
        """Refuse a parameter that was converted, moved or swapped for another tensor."""
        with torch_private.asking_no_class():
            differing = [
                (name, p, dtype, device)
                for name, p, dtype, device, inside in self._made_with
                if p.dtype is not dtype
                or p.device != device
                or inside not in (None, torch_private.inside(p))
            ]
        for name, p, dtype, device in differing:
            if p.dtype is not dtype or p.device != device:
                raise InvalidArgument(
                    f"{self._owner}: {name} is {p.dtype} on {p.device}, expected {dtype} on "
                    f"{device} as when the optimizer was made; convert or move the model before "
                    "you make the optimizer, or make a new one afterwards"
                )
            raise InvalidArgument(
                f"{self._owner}: {name} was swapped for another tensor (torch.utils."
                "swap_tensors, or set_swap_module_params_on_conversion) after the optimizer "
                "was made; make a new optimizer after the swap"
            )

    def check_step(self, groups: list[dict[str, Any]]) -> None:
        """Refuse groups that hold other parameters now, and gradients that AdamW cannot use."""
        for group in groups:
            check_group(f"{self._owner}.step", group)
        held = {id(p) for group in groups for p in group["params"]}
        if held != self._trained.keys():
            missing = [name for key, name in self._trained.items() if key not in held]
            what = f"{missing[0]} is in none" if missing else "another tensor is in one"
            raise InvalidArgument(
                f"{self._owner}.step: {what} of the parameter groups now, but an optimizer keeps "
                "the parameters of its constructor; set lr and weight_decay of a group to 0 to "
                "leave it as it is, or make a new optimizer"
            )
        for name, p in self._selection.ordinary:
            if p.grad is not None:
                refuse_sparse(f"{self._owner}.step", name, p.grad)
        for name, p in self._selection.left_out:
            if p.requires_grad and p.grad is not None:
                raise InvalidArgument(
                    f"{self._owner}.step: {name} has a gradient, but was frozen when the optimizer "
                    "was made; make a new optimizer after unfreezing (embeddings and head: "
                    "embeddings='trained'), or choose by param_groups= what to train"
                )

    def check_buffers(self) -> None:
        """Refuse gradients in a shared buffer, which would be empty after backward."""
        with torch_private.asking_no_class():
            gradients = [weight.parameter.grad for weight in self._compressed]
        for weight, gradient in zip(self._compressed, gradients, strict=True):
            if gradient is None or isinstance(gradient, NormGradient) or gradient.is_sparse:
                continue
            if gradient.untyped_storage().nbytes() > gradient.numel() * gradient.element_size():
                raise InvalidArgument(
                    f"{self._owner}: .grad of {weight.name} is a part of a larger tensor, but "
                    "backward() takes the gradient of a compressed weight out of it; use such a "
                    "buffer only for parameters that are not compressed"
                )

    def note_hooks(self) -> None:
        """Remember the last hook of each compressed weight, which is our own."""
        self._last_hooks = _last_hooks(self._compressed)

    def check_hooks(self) -> None:
        """Refuse a hook that was registered after ours, since it would find `.grad` empty."""
        for weight, last, now in zip(
            self._compressed, self._last_hooks, _last_hooks(self._compressed), strict=True
        ):
            if now not in (last, None):
                raise InvalidArgument(
                    f"{self._owner}.step: {weight.name} got a post-accumulate hook after the "
                    "optimizer was made, and this hook finds .grad empty; register it before you "
                    "make the optimizer, or use register_hook()"
                )

    def check_held(self) -> None:
        """Refuse a module that holds another parameter now, which no optimizer trains.

        Call this between steps: within one, `torch.func.functional_call` may swap parameters.
        """
        for name, module, local, p in self._held:
            now = torch_private.held_parameters(module).get(local)
            if now is not p and now is not None:
                raise InvalidArgument(
                    f"{self._owner}: {name} is another parameter now than when the optimizer was "
                    "made; make a new optimizer after moving the model or loading with assign=True"
                )


def _last_hooks(weights: list[CompressedWeight]) -> list[int | None]:
    with torch_private.asking_no_class():
        hooks = [torch_private.accumulation_hooks(weight.parameter) for weight in weights]
    return [numbers[-1] if numbers else None for numbers in hooks]


def refuse_split_model(owner: str, model: nn.Module) -> None:
    """Refuse a model that is wrapped or sharded, and a process that is one of several ranks."""
    for name, module in model.named_modules():
        if (wrapper := _wrapper(module)) is not None:
            place = f"the model's {name}" if name else "the model"
            raise Unavailable(
                f"{owner}: {place} is wrapped in {wrapper}, but training needs a plain module in "
                "one process; pass the module inside of it, and train without the wrapper"
            )
    sharding = sys.modules.get("torch.distributed.tensor")
    for name, parameter in model.named_parameters():
        if sharding is not None and isinstance(parameter, sharding.DTensor):
            raise Unavailable(
                f"{owner}: {name} is sharded (a DTensor), but training needs whole parameters in "
                "one process; train without fully_shard() and FSDP"
            )


def refuse_split_since(owner: str, weights: list[CompressedWeight]) -> None:
    """Refuse wrappers that came after the optimizer; nearly free without a process group."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    if torch_private.is_wrapped(module for weight in weights for module in weight.modules):
        raise Unavailable(
            f"{owner}: the model was wrapped in DistributedDataParallel or FSDP, which reduces "
            "gradients that the optimizer takes; train without the wrapper, or, with several "
            "ranks, make the optimizer before DistributedDataParallel, which then leaves them alone"
        )


def _wrapper(module: nn.Module) -> str | None:
    """Return the name of a wrapper that spreads a module over devices or processes."""
    if isinstance(module, DistributedDataParallel | DataParallel):
        return type(module).__name__
    # FSDP can have wrapped a model only if it was imported already.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return None
    if isinstance(module, fsdp.FullyShardedDataParallel):
        return "FullyShardedDataParallel (FSDP1)"
    return "fully_shard (FSDP2)" if isinstance(module, fsdp.FSDPModule) else None
