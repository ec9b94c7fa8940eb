"""What compressed gradients take on each tier and link, and how long a step is with its lanes."""

from __future__ import annotations

from typing import Any

from torch import nn

from sluiceway import _core
from sluiceway.config.schema import Config
from sluiceway.config.values import Link
from sluiceway.engines.plan import DevicePlan, micro_batch_seconds
from sluiceway.machine.placement import DTYPES
from sluiceway.model.rehearsal import Rehearsal
from sluiceway.model.targets import CompressedWeight, Selection, select_weights
from sluiceway.optim.subspace.arguments import weight_keywords
from sluiceway.optim.subspace.choices import AS_CONFIGURED, automatic_reason
from sluiceway.optim.tier_limits import device_limit

_ADAM_BYTES = 28  # Read and written per element of a core: gradient, moments, result.
_FIT_BYTES = 6  # Per element of a gradient that projectors learn from: copies in f32 and bf16.
_MOMENT_BYTES = 4  # Of what is trained plainly on the device: f32 for every dtype of weights.


class SubspacePlan(DevicePlan):
    """Predicted from the shapes of the compressed weights, by the cost model of the lanes."""

    advice = "try a smaller engine.ratio"

    def __init__(self, config: Config, model: nn.Module) -> None:
        engine = config.engine
        selection = select_weights(model, engine.target, engine.embeddings)
        ordinary = sum(p.numel() for _, p in selection.ordinary)
        super().__init__(config, ordinary, moment_bytes=_MOMENT_BYTES)
        codec, why = self._codec(model, selection)
        self._costs = self._costs_of(selection, codec)
        keywords = weight_keywords(engine, config.train.seed) | {"codec": codec}
        self._scratch_bytes = _core.scratch_bytes(
            _shapes(selection), config.model.dtype, self._refreshed, **keywords
        )
        learns = any(f.name == codec and f.learns for f in _core.codec_families())
        largest = max((cost["elements"] for cost in self._costs), default=0)
        self._fit_bytes = _FIT_BYTES * largest if learns else 0
        self.freed = frozenset(w.name for w in selection.compressed)
        self.figures = {"codec": codec, "why": why, "compressed_weights": len(self._costs)}

    @property
    def _refreshed(self) -> bool:
        """Whether projectors are replaced while the run goes on."""
        engine = self._config.engine
        if engine.refresh is not None:
            return engine.refresh.every > 0
        return any(f.name == engine.codec and f.refresh_every > 0 for f in _core.codec_families())

    def _codec(self, model: nn.Module, selection: Selection) -> tuple[str, str]:
        """The codec of the config, "auto" resolved as the engine will, and why."""
        config, engine = self._config, self._config.engine
        if engine.codec != "auto":
            return engine.codec, AS_CONFIGURED
        whole = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
        free = device_limit(config.budget.device) - whole
        free -= sum(
            len(w.names) * self._cost_of(w, speculative=False, held=False)["device_bytes"]
            for w in selection.compressed
            if w.identity
        )
        choice = _core.auto_codec(
            _shapes(selection),
            max(0, free),
            config.model.dtype,
            config.tokens_per_step,
            config.train.steps,
            config.train.accumulate,
            engine.refresh.every if engine.refresh else 0,
            **weight_keywords(engine, config.train.seed),
        )
        return choice.name, automatic_reason(choice, config.tokens_per_step, config.train.steps)

    def _costs_of(self, selection: Selection, codec: str) -> list[dict[str, Any]]:
        """Bytes and shape of each weight's core."""
        config = self._config
        # With "auto" a second copy of the moments is made only where that makes steps shorter and
        # the budget has room: no run needs it.
        order, norm = config.schedule.order, config.schedule.norm
        speculative = norm == "speculative" and order != "barrier"
        held = config.train.accumulate > 1 or config.model.autocast == "fp16"
        costs = []
        for weight in selection.compressed:
            costs += [self._cost_of(weight, speculative, held, codec)] * len(weight.names)
        return costs

    def _cost_of(
        self, weight: CompressedWeight, speculative: bool, held: bool, codec: str | None = None
    ) -> dict[str, Any]:
        keywords = weight_keywords(self._config.engine, self._config.train.seed, weight.identity)
        if codec is not None and not weight.identity:
            keywords["codec"] = codec
        m, n = weight.shape
        dtype = self._config.model.dtype
        return {**_core.weight_plan(m, n, dtype, speculative, held, **keywords), "elements": m * n}

    def tiers(self, rehearsal: Rehearsal) -> dict[str, int]:
        """Cores, projectors and staging beside what is trained plainly."""
        tiers = {
            tier: count + sum(cost[f"{tier}_bytes"] for cost in self._costs)
            for tier, count in super().tiers(rehearsal).items()
        }
        tiers["device"] += self._scratch_bytes + self._fit_bytes
        tiers["host"] += max((cost["host_scratch_bytes"] for cost in self._costs), default=0)
        return tiers

    def links(self) -> dict[str, int]:
        """Of every core, each way."""
        return {
            link: sum(cost[f"{link}_bytes"] for cost in self._costs) for link in super().links()
        }

    def seconds(self, rehearsal: Rehearsal, speeds: dict[str, Any]) -> float:
        """Earlier micro-batches compute alone, the last overlaps with the lanes."""
        forward, backward = micro_batch_seconds(rehearsal, speeds)
        times = self._times(forward, backward, speeds)
        barriers = {"exact": (True,), "speculative": (False,)}
        order, norm = self._config.schedule.order, self._config.schedule.norm
        step = min(
            _core.predict_step(order=order, norm_barrier=barrier, **times)
            for barrier in barriers.get(norm, (True, False))
        )
        return self._earlier(forward, backward) + step + self._update(speeds)

    def _times(
        self, forward: float, backward: float, speeds: dict[str, Any]
    ) -> dict[str, list[float]]:
        """Seconds of each weight on each lane."""
        config = self._config
        bandwidth, host_bandwidth = 1e9 * speeds["memory_gbps"], 1e9 * speeds["host_gbps"]
        link = config.device.link or Link(
            d2h_gbps=speeds["host_gbps"], h2d_gbps=speeds["host_gbps"]
        )
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
    """Of the weights that go through the codec of the config."""
    return [w.shape for w in selection.compressed if not w.identity for _ in w.names]
