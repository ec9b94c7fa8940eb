"""One process trains one whole model: what splits a model over ranks is refused by its name.

Gradients of compressed weights leave in backward, before any wrapper could average them. Ranks
would drift apart, each with the gradients of its own batches, and nothing would say so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from sluiceway.errors import Unavailable
from sluiceway.model.targets import CompressedWeight


def refuse_split_model(owner: str, model: nn.Module) -> None:
    """Refuse a model that is wrapped or sharded, and a process that is one of several ranks.

    Raises
    ------
    Unavailable
        What was found is named.
    """
    for name, module in model.named_modules():
        if (wrapper := _wrapper(module)) is not None:
            place = f"the model's {name}" if name else "the model"
            raise Unavailable(
                f"{owner}: {place} is wrapped in {wrapper}, expected a plain module in one "
                "process; pass the module inside of it, and train without the wrapper"
            )
    for name, parameter in model.named_parameters():
        if _is_dtensor(parameter):
            raise _sharded(owner, name)
    _refuse_ranks(owner)


def refuse_split_since(owner: str, weights: Iterable[CompressedWeight]) -> None:
    """Refuse the same where it came after the optimizer was made; nearly free where it did not.

    Raises
    ------
    Unavailable
        What was found is named.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    _refuse_ranks(owner)
    if DistributedDataParallel._active_ddp_module is not None:
        raise Unavailable(
            f"{owner}: the model runs inside of DistributedDataParallel, expected a plain module "
            "in one process; train without the wrapper"
        )
    for weight in weights:
        for module in weight.modules:
            # A plain read: whatever else the module's dict does when it is asked, is not wanted.
            held = list(dict.values(module._parameters))
            taken = getattr(module, "_is_fsdp_managed_module", False)  # FSDP1 says so.
            if taken or any(map(_is_dtensor, held)):
                raise _sharded(owner, weight.name)


def _refuse_ranks(owner: str) -> None:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    ranks = torch.distributed.get_world_size()
    if ranks > 1:
        raise Unavailable(
            f"{owner}: a process group of {ranks} ranks is initialised, expected one process, as "
            "gradients are not averaged over ranks; start one process, or use torch.optim.AdamW"
        )


def _wrapper(module: nn.Module) -> str | None:
    """What spreads this module over devices or processes, by the name that users know."""
    if isinstance(module, DistributedDataParallel | DataParallel):
        return type(module).__name__
    # Only a module that was imported already can have wrapped anything.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return None
    if isinstance(module, fsdp.FullyShardedDataParallel):
        return "FullyShardedDataParallel (FSDP1)"
    return "fully_shard (FSDP2)" if isinstance(module, fsdp.FSDPModule) else None


def _is_dtensor(parameter: torch.Tensor | None) -> bool:
    sharding = sys.modules.get("torch.distributed.tensor")
    return sharding is not None and isinstance(parameter, sharding.DTensor)


def _sharded(owner: str, name: str) -> Unavailable:
    return Unavailable(
        f"{owner}: {name} is sharded (a DTensor, or managed by FSDP), expected whole "
        "parameters in one process; train without fully_shard() and FSDP"
    )
