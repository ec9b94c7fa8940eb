"""What a run will need and take, predicted from the model's config.json before anything is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sluiceway.base.columns import columns
from sluiceway.base.json_text import json_text
from sluiceway.base.sizes import format_bytes
from sluiceway.config.schema import Config, LinkRate, SubspaceEngine
from sluiceway.errors import InvalidArgument, OutOfMemory, Unavailable
from sluiceway.machine.placement import DTYPES, Placement, choose_placement
from sluiceway.machine.roofs import best_seconds
from sluiceway.model.folder import (
    check_context,
    check_model_folder,
    prepare_model,
    quiet_transformers,
)
from sluiceway.model.rehearsal import Rehearsal, rehearse

_ADAM_BYTES = 28  # Read and written per parameter: gradient, moments, weight.
_TIERS = ("device", "host", "pinned")
_MEASURED_WEIGHTS = 1 << 24  # One larger layer is a matrix product, for the clock.
_MEASURED_TOKENS = 1024


def make_plan(config: Config) -> dict[str, Any]:
    """Predict bytes per tier, bytes per link and seconds per step.

    Returns
    -------
    dict
        Plain numbers. `over_budget` is None, or says which tier is too small and by how much.
    """
    shape = check_model_folder(config.model.path, weights=False)
    check_context(shape, config.model.path, config.data.sequence_length)
    placement = choose_placement(config)
    if config.device.threads is not None:
        torch.set_num_threads(config.device.threads)
    selected = _select(config)
    weights, ordinary = selected.weights, selected.ordinary
    rehearsal = rehearse(
        lambda: _build(config),
        selected.freed,
        config.train.micro_batch,
        config.data.sequence_length,
        placement.autocast_dtype,
    )
    tiers = _tiers(config, rehearsal, weights, ordinary)
    speeds = _speeds(config, placement)
    links = {link: sum(w[f"{link}_bytes"] for w in weights) for link in ("d2h", "h2d")}
    return {
        "model": config.model.path,
        "engine": config.engine.kind,
        "codec": selected.codec,
        "parameters": _count(config),
        "compressed_weights": len(weights),
        "peak_bytes": tiers,
        "budget_bytes": {tier: getattr(config.budget, tier) for tier in _TIERS},
        "bytes_per_step": links,
        "seconds_per_step": _seconds(config, rehearsal, weights, ordinary, speeds),
        "native_device_bytes": _native_bytes(config, rehearsal),
        "tokens_per_step": config.train.micro_batch
        * config.train.accumulate
        * config.data.sequence_length,
        "assumed": speeds,
        "over_budget": _over_budget(config, tiers),
    }


def _build(config: Config, layers: int | None = None) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    quiet_transformers()
    try:
        shape = AutoConfig.from_pretrained(config.model.path, local_files_only=True)
        if layers is not None:
            shape.num_hidden_layers = layers
        model = AutoModelForCausalLM.from_config(shape, dtype=DTYPES[config.model.dtype])
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidArgument(
            f"model.path: transformers knows no causal language model by the config.json of "
            f"{config.model.path}, {reason}"
        ) from None
    embeddings = getattr(config.engine, "embeddings", "trained")
    return prepare_model(model, embeddings, config.model.checkpointing)


def _on_meta(config: Config, layers: int | None = None) -> torch.nn.Module:
    with torch.device("meta"):
        return _build(config, layers)


def _count(config: Config) -> dict[str, int]:
    parameters = list(_on_meta(config).parameters())
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    return {"trained": trained, "frozen": sum(p.numel() for p in parameters) - trained}


def _core() -> Any:
    try:
        from sluiceway import _core
    except ImportError as error:
        raise Unavailable(
            f"plan: engine.kind subspace needs the compiled module sluiceway._core ({error})"
        ) from None
    return _core


@dataclass(frozen=True)
class _Selected:
    """Which codec there will be, what each compressed weight costs, and what else is trained."""

    codec: str | None
    weights: list[dict[str, Any]]
    ordinary: int  # Elements.
    freed: set[str]  # Weights whose gradient goes as soon as it exists.


def _select(config: Config) -> _Selected:
    model, engine = _on_meta(config), config.engine
    if not isinstance(engine, SubspaceEngine):
        ordinary = sum(p.numel() for p in model.parameters() if p.requires_grad)
        return _Selected(None, [], ordinary, set())
    from sluiceway.model.targets import select_weights
    from sluiceway.optim.subspace.arguments import (
        device_limit,
        resolve_residual,
        resolve_second_moment,
    )

    selection = select_weights(model, engine.target, engine.embeddings)
    keywords = {
        "ratio": engine.ratio,
        "d": engine.d or 0,
        "nnz": engine.nnz,
        "block": engine.block,
        "wire": engine.wire,
        "tier": engine.tier,
        "weight_update": engine.weight_update,
        "weight_dtype": config.model.dtype,
        "residual": resolve_residual(engine.codec, engine.residual, engine.nnz),
        "second_moment": resolve_second_moment(engine.codec, engine.second_moment),
    }
    plain = {
        "d": 0,
        "residual": "none",
        "second_moment": "full",
    }  # Of embeddings that go through the identity codec.
    codec = engine.codec
    if codec == "auto":
        whole = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
        free = device_limit(config.budget.device) - whole
        free -= sum(
            _core().weight_plan("identity", *w.parameter.shape, False, False, **keywords | plain)[
                "device_bytes"
            ]
            for w in selection.compressed
            if w.identity
        )
        shapes = [tuple(w.parameter.shape) for w in selection.compressed if not w.identity]
        codec = _core().auto_codec(shapes, max(0, free), **keywords)
    order, norm = config.schedule.order, config.schedule.norm
    speculative = norm == "speculative" or (norm == "auto" and order != "barrier")
    weights = []
    for weight in selection.compressed:
        m, n = weight.parameter.shape
        cost = _core().weight_plan(
            codec="identity" if weight.identity else codec,
            m=m,
            n=n,
            speculative=speculative,
            held=config.train.accumulate > 1 or config.model.autocast == "fp16",
            **keywords | (plain if weight.identity else {}),
        )
        weights.append({**cost, "elements": m * n})
    ordinary = sum(p.numel() for _, p in selection.ordinary)
    return _Selected(codec, weights, ordinary, {w.name for w in selection.compressed})


def _tiers(
    config: Config, rehearsal: Rehearsal, weights: list[dict[str, Any]], ordinary: int
) -> dict[str, int]:
    tiers = {tier: sum(w[f"{tier}_bytes"] for w in weights) for tier in _TIERS}
    tiers["device"] += 2 * max((w["scratch_bytes"] for w in weights), default=0)
    # Moments of what is trained on the device: f32 in our engine, the weight's dtype in torch's.
    is_ours = isinstance(config.engine, SubspaceEngine)
    moment = 4 if is_ours else DTYPES[config.model.dtype].itemsize
    tiers["device"] += rehearsal.peak_bytes + 2 * moment * ordinary
    return tiers


def _native_bytes(config: Config, rehearsal: Rehearsal) -> int:
    """What plain AdamW on the same trained weights would hold: gradients and moments whole."""
    element = DTYPES[config.model.dtype].itemsize
    trained = _count(config)["trained"]
    gradients = max(rehearsal.after_forward_bytes, rehearsal.weight_bytes + element * trained)
    return max(gradients, rehearsal.peak_bytes) + 2 * element * trained


def _over_budget(config: Config, tiers: dict[str, int]) -> str | None:
    for tier in _TIERS:
        limit = getattr(config.budget, tier)
        if limit is not None and tiers[tier] > limit:
            return (
                f"budget.{tier}: the run needs {tiers[tier]} bytes ({format_bytes(tiers[tier])}), "
                f"the budget is {limit} bytes ({format_bytes(limit)}); "
                + (
                    "try model.checkpointing: true or a smaller train.micro_batch"
                    if tier == "device"
                    else "try a smaller engine.ratio"
                )
            )
    return None


def _speeds(config: Config, placement: Placement) -> dict[str, Any]:
    """Rates that times are predicted from: the config's, else measured on this machine."""
    device = config.device
    host = device.host_gbps or _measured_gbps()
    return {
        **_tflops(config, placement),
        "memory_gbps": device.memory_gbps or host,
        "host_gbps": host,
        "host_gbps_from": "config" if device.host_gbps else "copies measured here",
    }


def _tflops(config: Config, placement: Placement) -> dict[str, Any]:
    """Rate of a whole forward and backward: products are a small part of it where a model is."""
    if config.device.tflops:
        return {"tflops": config.device.tflops, "tflops_from": "config"}
    threads = torch.get_num_threads()
    try:
        if placement.device_cpu is not None:
            torch.set_num_threads(1)  # As the run, which has one core for torch.
        if (measured := _one_layer_tflops(config, placement)) is not None:
            return {"tflops": measured, "tflops_from": "one layer, forward and backward, here"}
        dtype = placement.autocast_dtype or DTYPES[config.model.dtype]
        a, b = torch.ones(1024, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)
        rate = 2 * 1024 * 512 * 512 / best_seconds(lambda: a @ b) / 1e12
        return {"tflops": rate, "tflops_from": "matrix products measured here"}
    finally:
        torch.set_num_threads(threads)


def _one_layer_tflops(config: Config, placement: Placement) -> float | None:
    """Of the model with one layer, at most _MEASURED_TOKENS a sequence; None where it is large."""
    try:
        weights = sum(p.numel() for p in _on_meta(config, layers=1).parameters())
    except InvalidArgument:  # Of a kind that cannot have one layer alone.
        return None
    if weights > _MEASURED_WEIGHTS:
        return None
    length = min(config.data.sequence_length, _MEASURED_TOKENS)
    batch = min(config.train.micro_batch, max(1, _MEASURED_TOKENS // length))
    work = rehearse(lambda: _build(config, 1), set(), batch, length, placement.autocast_dtype)
    model = _build(config, 1).train()
    ids = torch.randint(model.get_input_embeddings().num_embeddings, (batch, length))

    def step() -> None:
        with placement.cast():
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()

    return (work.forward_flops + work.backward_flops) / best_seconds(step) / 1e12


def _measured_gbps() -> float:
    source = torch.ones(16 << 20)
    target = torch.empty_like(source)
    return 2 * source.nbytes / best_seconds(lambda: target.copy_(source)) / 1e9


def _seconds(
    config: Config,
    rehearsal: Rehearsal,
    weights: list[dict[str, Any]],
    ordinary: int,
    speeds: dict[str, Any],
) -> float:
    """Per-step seconds: earlier micro-batches compute alone, the last overlaps with the lanes."""
    flops, bandwidth = 1e12 * speeds["tflops"], 1e9 * speeds["memory_gbps"]
    host_bandwidth = 1e9 * speeds["host_gbps"]
    forward, backward = rehearsal.forward_flops / flops, rehearsal.backward_flops / flops
    updates = _ADAM_BYTES * ordinary / bandwidth
    earlier = (config.train.accumulate - 1) * (forward + backward)
    if not weights:
        return earlier + forward + backward + updates
    link = config.device.link or LinkRate(
        d2h_gbps=speeds["host_gbps"], h2d_gbps=speeds["host_gbps"]
    )
    whole = sum(w["elements"] for w in weights)
    element = DTYPES[config.model.dtype].itemsize
    on_host = getattr(config.engine, "tier", "host") != "device"

    def crossing(weight: dict[str, Any], direction: str, rate: float) -> float:
        count = weight[f"{direction}_bytes"]
        return count / (1e9 * rate) + 1e-6 * link.latency_us if count else 0.0

    host = [
        _ADAM_BYTES * w["core_rows"] * w["core_cols"] / host_bandwidth if on_host else 0.0
        for w in weights
    ]
    times = {
        "forward_s": [forward * w["elements"] / whole for w in weights],
        "backward_s": [backward * w["elements"] / whole for w in weights],
        "d2h_s": [crossing(w, "d2h", link.d2h_gbps) for w in weights],
        "host_s": host,
        "h2d_s": [crossing(w, "h2d", link.h2d_gbps) for w in weights],
        "apply_s": [2 * element * w["elements"] / bandwidth for w in weights],
    }
    barriers = {"exact": (True,), "speculative": (False,)}
    step = min(
        _core().predict_step(order=config.schedule.order, norm_barrier=barrier, **times)
        for barrier in barriers.get(config.schedule.norm, (True, False))
    )
    return earlier + step + updates


def show_plan(config: Config, as_json: bool) -> None:
    """Print the plan.

    Raises
    ------
    sluiceway.errors.OutOfMemory
        A budget is too small for it.
    """
    figures = make_plan(config)
    print(json_text(figures) if as_json else describe_plan(figures), flush=True)
    if figures["over_budget"]:
        raise OutOfMemory(figures["over_budget"])


def describe_plan(plan: dict[str, Any]) -> str:
    """The table that a person gets."""
    rows = [["", "predicted", "budget"]]
    for tier, count in plan["peak_bytes"].items():
        budget = plan["budget_bytes"][tier]
        rows.append([f"{tier} memory", format_bytes(count), format_bytes(budget)])
    for link, count in plan["bytes_per_step"].items():
        rows.append([f"{link} a step", format_bytes(count), ""])
    rows.append(["seconds a step", f"{plan['seconds_per_step']:.3g}", ""])
    for part in ("trained", "frozen"):
        rows.append([f"parameters {part}", f"{plan['parameters'][part]:,}", ""])
    rows.append(["native AdamW: device", format_bytes(plan["native_device_bytes"]), ""])
    engine = f"{plan['engine']} {plan['codec'] or ''}".rstrip()
    speeds = plan["assumed"]
    return (
        f"{Path(plan['model']).name}: {engine}\n{columns(rows, '12')}\n"
        f"times assume {speeds['tflops']:.3g} TFLOP/s ({speeds['tflops_from']}), "
        f"{speeds['memory_gbps']:.3g} GB/s of device memory and {speeds['host_gbps']:.3g} GB/s "
        f"of host memory ({speeds['host_gbps_from']})"
    )
