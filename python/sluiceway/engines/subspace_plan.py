"""Predicts memory, traffic and seconds of a step of training through compressed gradients."""

from __future__ import annotations

from typing import Any

from torch import nn

from sluiceway import _core
from sluiceway.config.schema import Config
from sluiceway.engines.plan import DevicePlan, pass_seconds
from sluiceway.machine.placement import DTYPES, Placement, choose_placement
from sluiceway.model.rehearsal import Rehearsal
from sluiceway.model.speeds import link_of
from sluiceway.model.targets import CompressedWeight, Selection, select_weights
from sluiceway.optim.common.tier_limits import planned_device_limit, tier_limits
from sluiceway.optim.subspace.arguments import FUSED_CODEC, resolve_embeddings, weight_keywords
from sluiceway.optim.subspace.choices import AS_CONFIGURED, FOR_FUSED, RunLength, automatic_reason
from sluiceway.optim.subspace.fused.fused_plan import FusedPlan
from sluiceway.optim.subspace.fused.fusing import fused_lines

_ADAM_BYTES = 28  # Bytes read and written for each element of a core: gradient, moments, result.
_TIERS = ("device", "host", "pinned")
_MOMENT_BYTES = 4  # Size of a moment of what is trained plainly: f32 for every dtype of weights.


class SubspacePlan(DevicePlan):
    """The plan of `kind: subspace`, from the shapes of its weights and the cost model of lanes."""

    def __init__(self, config: Config, model: nn.Module) -> None:
        engine = config.engine
        selection = select_weights(model, engine.target, resolve_embeddings(engine))
        ordinary = sum(p.numel() for _, p in selection.ordinary)
        super().__init__(config, ordinary, moment_bytes=_MOMENT_BYTES)
        placement = choose_placement(config, of_plan=True)
        self._on_host = placement.name == "host"
        codec, why = self._codec(model, selection, placement)
        self._costs = self._costs_of(selection, codec)
        self._held_bytes = self._held(self._costs)
        keywords = weight_keywords(engine, config.train.seed) | {"codec": codec}
        self._scratch_bytes = _core.shared_device_bytes(
            _shapes(selection), config.model.dtype, self._refreshed, self._on_host, **keywords
        )
        learns = any(f.name == codec and f.learns for f in _core.codec_families())
        # Weights are fitted one after the other.
        self._fit_bytes = max((cost["fit_bytes"] for cost in self._costs), default=0)
        self.freed = frozenset(w.name for w in selection.compressed)
        if codec != "none":
            smaller = [] if codec == "identity" else ["a smaller engine.ratio"]
            without = [] if engine.residual == "none" else ["engine.codec: none"]
            self.advice = f"try {' or '.join([*smaller, *without]) or 'a smaller model'}"
            self.on_device = " or ".join([super().on_device, *without])
        self.figures = {"codec": codec, "why": why, "compressed_weights": len(self._costs)}
        self._fused: FusedPlan | None = None
        if engine.fused and selection.compressed:
            has_residual = keywords["residual"] != "none"
            forms_all = learns or self._refreshed
            self._fused = FusedPlan(engine, codec, selection, self._costs, has_residual, forms_all)
            self.figures["fused"] = self._fused.described()
            self.like_native = False

    def as_trained(self, model: nn.Module) -> nn.Module:
        """Fuse the layers that a run fuses, too."""
        model = super().as_trained(model)
        return model if self._fused is None else self._fused.as_trained(model)

    def layers(self) -> list[str]:
        """Say how many layers are fused, and why the others are not."""
        return fused_lines(self.figures.get("fused"))

    @property
    def _refreshed(self) -> bool:
        """True if projectors are replaced during the run."""
        engine = self._config.engine
        if engine.refresh is not None:
            return engine.refresh.every > 0
        return any(f.name == engine.codec and f.refresh_every > 0 for f in _core.codec_families())

    def _codec(
        self, model: nn.Module, selection: Selection, placement: Placement
    ) -> tuple[str, str]:
        """The config's codec and the reason for it, with "auto" resolved as the engine does."""
        config, engine = self._config, self._config.engine
        if engine.codec != "auto":
            return engine.codec, AS_CONFIGURED
        if engine.fused:
            return FUSED_CODEC, FOR_FUSED
        choice = _core.auto_codec(
            [
                (weight.shape, weight_keywords(engine, config.train.seed, weight))
                for weight in selection.compressed
                for _ in weight.names
            ],
            self._free(model, placement),
            config.model.dtype,
            config.tokens_per_step,
            config.train.steps,
            config.backwards,
            engine.refresh.every if engine.refresh else 0,
            engine.residual_every,
            self._speculative,
            self._on_host,
        )
        run = RunLength(config.tokens_per_step, config.train.steps, config.backwards)
        return choice.name, automatic_reason(choice, run)

    def _free(self, model: nn.Module, placement: Placement) -> dict[str, int]:
        """Bytes of each tier that compressed weights may use in a run.

        If this machine lacks the card, its memory is assumed to suffice, unless a budget limits it.
        """
        budget = self._config.budget
        free = dict(zip(_TIERS, tier_limits(budget), strict=False))
        limit = planned_device_limit(budget.device, placement)
        if limit is None:
            del free["device"]
        else:
            whole = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
            free["device"] = max(0, limit - whole)
        return free

    @property
    def _speculative(self) -> bool:
        """True if moments are kept twice from the start.

        With "auto" the engine makes a second copy only if it shortens steps and the budget has
        room, so the plan leaves that copy out.
        """
        schedule = self._config.schedule
        return schedule.norm == "speculative" and schedule.order != "barrier"

    def _costs_of(self, selection: Selection, codec: str) -> list[dict[str, Any]]:
        """Bytes and shape of each weight's core."""
        costs = []
        for weight in selection.compressed:
            costs += [self._cost_of(weight, codec)] * len(weight.names)
        return costs

    def _held(self, costs: list[dict[str, Any]]) -> int:
        """Bytes of whole gradients that wait for `step()`, one turn of residuals at a time."""
        config = self._config
        if config.backwards == 1 and config.model.autocast != "fp16":
            return 0
        every = config.engine.residual_every
        in_turn = [sum(cost["held_bytes"] for cost in costs[turn::every]) for turn in range(every)]
        # Without a core the norm is that of the gradient itself, which waits in every step.
        return max(in_turn) if any(cost["core_rows"] for cost in costs) else sum(in_turn)

    def _cost_of(self, weight: CompressedWeight, codec: str) -> dict[str, Any]:
        keywords = weight_keywords(self._config.engine, self._config.train.seed, weight)
        if not weight.is_embedding:
            keywords["codec"] = codec
        m, n = weight.shape
        dtype = self._config.model.dtype
        return {
            **_core.weight_plan(m, n, dtype, self._speculative, self._on_host, **keywords),
            "elements": m * n,
        }

    def tiers(self, rehearsal: Rehearsal) -> dict[str, int]:
        """Add cores, projectors and staging to the bytes of plainly trained weights."""
        tiers = {
            tier: count + sum(cost[f"{tier}_bytes"] for cost in self._costs)
            for tier, count in super().tiers(rehearsal).items()
        }
        tiers["device"] += self._scratch_bytes + self._fit_bytes + self._held_bytes
        tiers["device"] += sum(cost["scan_bytes"] for cost in self._costs)
        tiers["pinned"] += _core.shared_pinned_bytes(len(self._costs), self._on_host)
        tiers["host"] += max((cost["host_scratch_bytes"] for cost in self._costs), default=0)
        return tiers

    def links(self) -> dict[str, int]:
        """Add up the bytes of all cores in each direction."""
        return {
            link: count + sum(cost[f"{link}_bytes"] for cost in self._costs)
            for link, count in super().links().items()
        }

    def seconds(self, rehearsal: Rehearsal, speeds: dict[str, Any]) -> float:
        """Add up earlier micro-batches, and the last one, which overlaps with the lanes."""
        forward, backward = pass_seconds(rehearsal, speeds, len(self._costs))
        times = self._times(forward, backward, speeds)
        barriers = {"exact": (True,), "speculative": (False,)}
        order, norm = self._config.schedule.order, self._config.schedule.norm
        step = min(
            _core.predict_step(order=order, norm_barrier=barrier, **times)
            for barrier in barriers.get(norm, (True, False))
        )
        seconds = self._earlier(forward, backward) + step + self._update(speeds)
        return max(seconds, self._least_seconds(speeds))

    def _times(
        self, forward: float, backward: float, speeds: dict[str, Any]
    ) -> dict[str, list[float]]:
        """Seconds of each weight on each lane."""
        config = self._config
        bandwidth, host_bandwidth = 1e9 * speeds["memory_gbps"], 1e9 * speeds["host_gbps"]
        link = link_of(config, speeds)
        costs = self._costs
        whole = sum(cost["elements"] for cost in costs)
        element = DTYPES[config.model.dtype].itemsize
        on_host = config.engine.tier != "device"

        def crossing(cost: dict[str, Any], direction: str, rate: float) -> float:
            count = cost[f"{direction}_bytes"]
            return count / (1e9 * rate) + 1e-6 * link.latency_us if count else 0.0

        return {
            "forward_s": [forward * cost["elements"] / whole for cost in costs],
            "backward_s": [backward * cost["elements"] / whole for cost in costs],
            "d2h_s": [crossing(cost, "d2h", link.d2h_gbps) for cost in costs],
            "host_s": [
                _ADAM_BYTES * cost["core_rows"] * cost["core_cols"] / host_bandwidth
                if on_host
                else 0.0
                for cost in costs
            ],
            "h2d_s": [crossing(cost, "h2d", link.h2d_gbps) for cost in costs],
            "apply_s": [2 * element * cost["elements"] / bandwidth for cost in costs],
        }


def _shapes(selection: Selection) -> list[tuple[int, ...]]:
    """Shapes of the weights that the config's codec compresses."""
    return [w.shape for w in selection.compressed if not w.is_embedding for _ in w.names]
