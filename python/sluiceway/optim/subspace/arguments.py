"""From the arguments of SubspaceAdamW to the options of its engine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.config.values import Budget, Link, Refresh
from sluiceway.errors import InvalidArgument, Unavailable
from sluiceway.model.targets import CompressedWeight

# Codecs whose columns are orthonormal, or that have none, leave a true complement of the core.
_LEAVES_A_COMPLEMENT = ("auto", "svd", "block_random", "block_pca", "none")


_TYPES = {"refresh": Refresh, "link": Link, "budget": Budget}


def _is_number(value: Any) -> bool:
    """Whether it is one number, of torch or numpy too; its spelling is none."""
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False
    return not isinstance(value, str | bytes)


def _check_number(name: str, value: Any, low: float, high: float, ends: str = "[]") -> None:
    inside = _is_number(value) and (
        (low <= value if ends[0] == "[" else low < value)
        and (value <= high if ends[1] == "]" else value < high)
    )
    if not inside:
        raise InvalidArgument(
            f"SubspaceAdamW: {name} is {value!r}, expected in {ends[0]}{low:g}, {high:g}{ends[1]}"
        )


def _check_count(name: str, value: Any, low: int) -> None:
    if not isinstance(value, Integral) or not low <= value < 2**63:
        raise InvalidArgument(
            f"SubspaceAdamW: {name} is {value!r}, expected a whole number in [{low}, 2^63)"
        )


def check_hyperparameters(group: dict[str, Any]) -> None:
    """Refuse learning rates, betas, eps and weight decay that AdamW cannot have."""
    _check_number("lr", group["lr"], 0, math.inf)
    try:
        _, _ = group["betas"]
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"SubspaceAdamW: betas are {group['betas']}, expected two numbers"
        ) from None
    for index, beta in enumerate(group["betas"]):
        _check_number(f"betas[{index}]", beta, 0, 1, "[)")
    _check_number("eps", group["eps"], 0, math.inf)
    _check_number("weight_decay", group["weight_decay"], 0, math.inf)


def check_arguments(a: dict[str, Any]) -> None:
    """Refuse what cannot be, or what this version does not have; nothing was changed."""
    check_hyperparameters(a)
    for name, kind in _TYPES.items():
        if a[name] is not None and not isinstance(a[name], kind):
            raise InvalidArgument(
                f"SubspaceAdamW: {name} is {a[name]!r}, expected a sluiceway.{kind.__name__}"
            )
    if not isinstance(a["codec"], str):
        raise InvalidArgument(f"SubspaceAdamW: codec is {a['codec']!r}, expected a name")
    if a["d"] is None:
        _check_number("ratio", a["ratio"], 0, 1, "(]")
    else:
        _check_count("d", a["d"], 1)
    _check_count("nnz", a["nnz"], 1)
    _check_count("block", a["block"], 1)
    _check_count("seed", a["seed"], 0)
    if a["max_norm"] is not None:
        _check_number("max_norm", a["max_norm"], 0, math.inf, "(]")
    if a["accumulate"] != "auto":
        _check_count("accumulate", a["accumulate"], 1)
    if a["scale"] != "auto":
        _check_number("scale", a["scale"], 0, math.inf, "(]")
    if a["residual"] not in ("auto", "factored", "sign", "none"):
        raise InvalidArgument(
            f"SubspaceAdamW: residual is {a['residual']!r}, expected auto, factored, sign or none"
        )
    if a["second_moment"] not in ("auto", "full", "factored"):
        raise InvalidArgument(
            f"SubspaceAdamW: second_moment is {a['second_moment']!r}, expected auto, full or "
            "factored"
        )
    _check_count("residual_every", a["residual_every"], 1)
    if a["device"] not in ("auto", "host"):
        raise Unavailable(
            f"SubspaceAdamW: device {a['device']!r} is not in this build, it has 'host'; move the "
            "model to the CPU"
        )


def plain_numbers(a: dict[str, Any]) -> dict[str, Any]:
    """Checked arguments, those of numpy as Python's: a state_dict has to load `weights_only`."""

    def plain(value: Any) -> Any:
        if isinstance(value, Integral):
            return int(value)
        return float(value) if isinstance(value, Real) else value

    return {name: plain(value) for name, value in a.items()}


def resolve_residual(codec: str, residual: str, nnz: int = 0) -> str:
    """What "auto" stands for: factored where the codec leaves a complement of its core."""
    if residual != "auto":
        return residual
    sketch = codec == "sparse_random" and nnz == 1
    return "factored" if codec in _LEAVES_A_COMPLEMENT or sketch else "none"


def resolve_second_moment(codec: str, second_moment: str) -> str:
    """What "auto" stands for: factored where it was measured to cost nothing, else as AdamW's."""
    if second_moment != "auto":
        return second_moment
    return "factored" if codec in _LEAVES_A_COMPLEMENT else "full"


def residual_at_once(a: dict[str, Any]) -> bool:
    """Whether residuals need not wait for `step()`: backwards are promised, the loss is plain."""
    return a["accumulate"] != "auto" and a["loss_scale"] is None


def _half_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def device_limit(given: int | None) -> int:
    """Bytes of the device tier: what the budget gives, else half of memory on the host device."""
    return _half_of_memory() if given is None else given


def _limits(budget: Budget | None) -> list[int | None]:
    """Bytes for device, host, pinned, disk; on the host device half of memory by default."""
    given = budget or Budget()
    memory = _half_of_memory()
    host, pinned = (memory if tier is None else tier for tier in (given.host, given.pinned))
    return [device_limit(given.device), host, pinned, given.disk]


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of the model's parameters and buffers, each storage once."""
    seen = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())


def engine_for(
    model: nn.Module, weights: list[CompressedWeight], a: dict[str, Any]
) -> _core.SubspaceEngine:
    """Build the engine that `a`, the arguments of SubspaceAdamW, describe."""
    refresh: Refresh | None = a["refresh"]
    link = a["link"]
    pin = a["_pin"] or (-1, -1)
    options = _core.EngineOptions(
        link=(link.d2h_gbps, link.h2d_gbps, link.latency_us) if link else (0.0, 0.0, 0.0),
        limits=_limits(a["budget"]),
        resident_bytes=parameter_bytes(model),
        order=a["schedule"],
        norm_mode=a["norm_mode"],
        max_norm=a["max_norm"] or 0.0,
        promised_backwards=0 if a["accumulate"] == "auto" else a["accumulate"],
        seed=a["seed"],
        codec=a["codec"],
        refresh_every=None if refresh is None else refresh.every,
        refresh_source="rolling" if refresh is None else refresh.source,
        refresh_threshold=0.0
        if refresh is None or refresh.threshold is None
        else refresh.threshold,
        learn_steps=100 if refresh is None else refresh.learn_steps,
        transport="projected" if refresh is None else refresh.transport,
        residual_at_once=residual_at_once(a),
        residual_every=a["residual_every"],
        residual_max_rms=a["_residual_max_rms"],
        device_cpu=pin[0],
        lane_cpu=pin[1],
    )
    residual = resolve_residual(a["codec"], a["residual"], a["nnz"])
    second_moment = resolve_second_moment(a["codec"], a["second_moment"])
    specs = [
        _core.WeightSpec(
            name=w.name,
            weight=w.parameter.detach(),
            codec="identity" if w.identity else a["codec"],
            ratio=a["ratio"],
            d=0 if w.identity else a["d"] or 0,
            nnz=a["nnz"],
            block=a["block"],
            seed=a["seed"],
            wire=a["wire"],
            tier=a["tier"],
            weight_update=a["weight_update"],
            residual="none" if w.identity else residual,
            second_moment="full" if w.identity else second_moment,
        )
        for w in weights
    ]
    return _core.SubspaceEngine(options, specs)


def trainable_groups(
    model: nn.Module, param_groups: Iterable[dict[str, Any]] | None, frozen: set[int]
) -> list[dict[str, Any]]:
    """The parameter groups as torch.optim takes them, without those that will be frozen."""
    if param_groups is None:
        param_groups = [{"params": list(model.parameters())}]
    of_model = {id(p) for p in model.parameters()}
    groups = []
    for given in param_groups:
        group = dict(given)
        params = group["params"]
        group["params"] = [params] if isinstance(params, torch.Tensor) else list(params)
        if any(id(p) not in of_model for p in group["params"]):
            raise InvalidArgument(
                "SubspaceAdamW: param_groups holds a tensor that is not a parameter of the model, "
                "expected groups of model.parameters()"
            )
        group["params"] = [p for p in group["params"] if p.requires_grad and id(p) not in frozen]
        groups.append(group)
    return groups
