"""Weights in host memory, never written to: theta is what the log makes of them.

    theta = float(Gamma) (base + sum of c z)

A parameter's own data is the base. Inside of a step layers find slots of the engine's ring in their
parameters, and outside of one, theta, made when it is read.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.errors import InvalidArgument
from sluiceway.optim.tier_limits import tier_limits
from sluiceway.optim.zo.forward_order import ForwardOrder, watch_forward
from sluiceway.optim.zo.host_memory import move_to_host
from sluiceway.optim.zo.log_folder import LOG, LogFolder
from sluiceway.optim.zo.measurement import Measured, Measurement
from sluiceway.optim.zo.rates import GroupUpdate
from sluiceway.optim.zo.reader import Reader
from sluiceway.optim.zo.tier import Closure, Training
from sluiceway.optim.zo.units import Copies, Unit, plain_halves
from sluiceway.optim.zo.weights import TrainedWeight

Use = tuple[int, nn.Parameter]


class HostTier:
    """Halves meet at every layer that reads weights.

    Parameters
    ----------
    training : Training
        Its parameters are moved to host memory, page-locked for a CUDA device.

    Raises
    ------
    InvalidArgument, IoError, Corrupt, Unavailable
        The log is of another base or of other options, or is none.
    """

    blocks = None

    def __init__(self, training: Training) -> None:
        self._of = training
        self._folder = LogFolder(training.options.path)
        self.base_hash = _hash_of(training.weights)
        self._engine = self._open()
        move_to_host(training)
        self._base = {id(w.parameter): w.parameter.data for w in training.weights}
        self._weight_of = {id(w.parameter): w for w in training.weights}
        self._resident: dict[int, torch.Tensor] = {}
        self._order: ForwardOrder | None = None
        self._holding: dict[tuple[int, int], list[Use]] = {}
        self._evaluating = False
        self._reader = Reader(training.model, [w.parameter for w in training.weights], self._theta)
        self._undo_state = _give_theta(self, training.model)
        self._raw: dict[str, Any] = {}
        self._set_gammas()

    def _open(self) -> _core.ZoEngine:
        options, training = self._of.options, self._of
        link, pin = options.link, options.pin or (-1, -1)
        return _core.ZoEngine(
            compute=training.device.compute(),
            link=(link.d2h_gbps, link.h2d_gbps, link.latency_us) if link else (0.0, 0.0, 0.0),
            limits=tier_limits(options.budget, training.device),
            resident_bytes=_bytes_beside(training),
            resident_room=options.resident,
            depth=options.depth,
            perturb_lanes=options.perturb_lanes,
            eps=options.eps,
            family=options.family,
            seed=options.seed,
            groups=len(training.param_groups),
            directions=options.directions,
            log=os.fspath(self._folder.log),
            base_hash=self.base_hash,
            device_cpu=pin[0],
            lane_cpu=pin[1],
        )

    @property
    def committed_steps(self) -> int:
        """As the log says."""
        return self._opened().next_step

    def _opened(self) -> _core.ZoEngine:
        if self._engine is None:
            raise InvalidArgument(f"{self._of.owner}: it is closed, expected an open optimizer")
        return self._engine

    # ---- Theta ----

    def _theta(self, p: nn.Parameter) -> torch.Tensor:
        """A copy on the device."""
        return self._made(self._weight_of[id(p)], self._on_device(p))

    def _made(self, weight: TrainedWeight, base: torch.Tensor) -> torch.Tensor:
        pending, gamma = self._pending(weight)
        out = torch.empty_like(base)
        compute = self._of.device.compute() if base.is_cuda else _core.Stream.host()
        _core.materialise(base, out, pending, gamma, self._of.options.family, compute=compute)
        return out

    def _on_device(self, p: nn.Parameter) -> torch.Tensor:
        base = self._base[id(p)]
        if not self._of.device.asynchronous:
            return base
        return base.to(self._of.device.name, non_blocking=True)

    def _pending(self, weight: TrainedWeight) -> tuple[list[tuple], float]:
        updates, gamma = self._opened().pending(weight.group)
        tensor = weight.tensor
        return [(seed, step, tensor, d, scale) for seed, step, d, scale in updates], gamma

    def theta_on_host(self, p: nn.Parameter) -> torch.Tensor:
        """A copy in host memory."""
        return self._made(self._weight_of[id(p)], self._base[id(p)])

    # ---- A pass ----

    def _poison(self) -> dict[int, torch.Tensor]:
        """NaN, for who reads a weight that is not there: no base is taken for theta."""
        device = torch.device("cpu" if self._of.device.name == "host" else self._of.device.name)
        return {
            key: torch.full((1,), torch.nan, dtype=base.dtype, device=device).expand(base.shape)
            for key, base in self._base.items()
        }

    def begin(self, closures: Sequence[Closure]) -> None:
        """Know the forward, and begin a step."""
        self._know(closures)
        self._engine.begin_step()
        self._evaluating = False

    def _know(self, closures: Sequence[Closure]) -> None:
        self._opened()
        self._settle()  # A pass whose end was interrupted.
        if self._order is None:
            order = watch_forward(self._of.owner, self._reader, self._of.weights, closures[0])
            self._stream(order)
        self._position = -1

    def _stream(self, order: ForwardOrder) -> None:
        """Let the engine know what it streams."""
        uses, self._uses_of_call, self._calls_of_unit = [], [], {}
        for call, unit in enumerate(order.calls):
            weights = order.weights[unit]
            first = len(uses)
            uses += [
                (w.name, self._base[id(w.parameter)], w.group, call, w.parameter.dim() < 2)
                for w in weights
            ]
            self._uses_of_call.append([(first + i, w.parameter) for i, w in enumerate(weights)])
            self._calls_of_unit.setdefault(unit, []).append(call)
        if uses:
            self._engine.stream(uses)
            self._engine.enable_trace(self._of.options.trace is not None)
        self.measured = self._measured(order)
        self._order = order

    def _measured(self, order: ForwardOrder) -> Measured:
        """Units are modules that read weights."""
        names = {module: name for name, module in self._of.model.named_modules()}
        units = [Unit(f"module {names[m] or type(m).__name__}", m) for m in order.modules]
        parameters = [w.parameter for w in self._of.weights]
        return Measured(self._of.owner, self._of.model, units, parameters, self._poison())

    def acquire(self, unit: int, direction: int) -> list[Copies]:
        """Slots of the ring; copies of what is held around other units."""
        order, compute = self._order, self._of.device.compute()
        if unit in order.held:
            return self._perturbed(order.weights[unit], direction)
        if direction == 0:
            calls = self._calls_of_unit[unit]
            later = bisect_right(calls, self._position)
            self._position = calls[later % len(calls)]
        copies, held = [], self._holding.setdefault((unit, direction), [])
        for use, p in self._uses_of_call[self._position]:
            plus = self._engine.acquire(use, direction, False, compute)
            held.append((use, p))
            sides = (plus,)
            if not self._evaluating:
                sides = (plus, self._engine.acquire(use, direction, True, compute))
            copies.append(Copies(p, sides))
        return copies

    def release(self, unit: int, direction: int) -> None:
        """Give slots back."""
        compute = self._of.device.compute()
        for use, _ in self._holding.pop((unit, direction), []):
            self._engine.release(use, direction, compute)

    def throughout(self, direction: int) -> list[Copies]:
        """Of what the closure reads itself."""
        return self._perturbed(self._order.throughout, direction)

    def _perturbed(self, weights: list[TrainedWeight], direction: int) -> list[Copies]:
        if self._evaluating:
            return [Copies(w.parameter, (self._theta(w.parameter),)) for w in weights]
        return [Copies(w.parameter, self._neighbours(w, direction)) for w in weights]

    def _neighbours(
        self, weight: TrainedWeight, direction: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        p, options = weight.parameter, self._of.options
        base = self._resident.get(id(p))
        if base is None:
            base = self._resident[id(p)] = self._on_device(p)
        plus, minus = torch.empty_like(base), torch.empty_like(base)
        pending, gamma = self._pending(weight)
        _core.perturb(
            base, plus, minus, pending, gamma, options.eps, options.family, options.seed,
            self.committed_steps, weight.tensor, direction, compute=self._of.device.compute(),
        )  # fmt: skip
        return plus, minus

    def commit(self, gradients: list[float], updates: list[GroupUpdate], non_finite: bool) -> None:
        """Log the step."""
        rates = [(float(g["lr"]), float(g["weight_decay"])) for g in self._of.param_groups]
        try:
            self._engine.commit(gradients, rates, non_finite)
        finally:
            self._end()

    def abandon(self) -> None:
        """End the pass."""
        if self._engine is not None:
            self._end()

    def _end(self) -> None:
        self._settle()
        if self._engine.streams:
            self._raw = self._engine.take_stats()

    def _settle(self) -> None:
        for unit, direction in list(self._holding):
            self.release(unit, direction)
        self._engine.finish()
        self._set_gammas()

    def _set_gammas(self) -> None:
        for group, gamma in zip(self._of.param_groups, self._engine.gammas, strict=True):
            group["gamma"] = gamma

    def measuring(self) -> AbstractContextManager:
        """Around a measurement: units bring the weights, and nobody else."""
        return self._reader.off()

    def evaluate(self, closures: Sequence[Closure]) -> list[Any]:
        """One pass for all."""
        self._know(closures)
        self._engine.begin_evaluation()
        self._evaluating = True
        try:
            with self.measuring():
                return Measurement(self.measured, self, plain_halves(len(closures))).run(closures)
        finally:
            self._end()

    # ---- The log ----

    def rollback(self, step: int) -> None:
        """Go on from an older theta."""
        self._opened().rollback(step)
        self._set_gammas()

    def branch(self, step: int, path: str | os.PathLike) -> None:
        """A log of its own, of the same base."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        self._opened().branch(step, os.fspath(folder / LOG))

    def saved(self) -> dict[str, Any]:
        """All that a new optimizer of the same base needs."""
        engine = self._opened()
        engine.sync()
        return {
            "base": self.base_hash.hex(),
            "log_id": engine.log_id,
            "log": self._folder.log.read_bytes(),
            "entries": engine.entries,
        }

    def check_saved(self, saved: dict[str, Any]) -> None:
        """Refuse a state of another base, or of a log that is not here.

        Raises
        ------
        InvalidArgument
            Both are named.
        """
        engine = self._opened()
        if saved["base"] != self.base_hash.hex():
            raise InvalidArgument(
                f"load_state_dict: is of the base {saved['base']}, expected "
                f"{self.base_hash.hex()}, that of the model; load the weights that its run began "
                "with"
            )
        if engine.entries and saved["log_id"] != engine.log_id:
            raise InvalidArgument(
                f"load_state_dict: is of log {saved['log_id']}, expected {engine.log_id}, that of "
                f"{self._folder.path}, which has {engine.entries} entries; make the optimizer with "
                "an empty path"
            )

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from a state that was checked."""
        if self._engine.log_id != saved["log_id"] or self._engine.entries < saved["entries"]:
            self._replace_log(saved["log"])
        if self._engine.entries != saved["entries"]:
            self._engine.restore(saved["entries"])
        self._set_gammas()

    def _replace_log(self, log: bytes) -> None:
        path = self._folder.log
        before, self._engine = path.read_bytes(), None  # Lets go of the file.
        path.write_bytes(log)
        try:
            self._engine = self._open()
        except BaseException:
            path.write_bytes(before)
            self._engine = self._open()
            raise
        finally:
            if self._order is not None:
                self._stream(self._order)

    # ---- Numbers, and the end ----

    def state_shapes(self, p: torch.Tensor) -> dict[str, tuple[int, ...]]:
        """All of it is in the log."""
        return {}

    def stats(self) -> dict[str, Any]:
        """Bytes that crossed in the last pass, and how long the device waited for them."""
        raw = self._raw
        if not raw:
            return {}
        return {
            "bytes": {"d2h": raw["d2h_bytes"], "h2d": raw["h2d_bytes"]},
            "stall_seconds": raw["stall_seconds"],
            "peak_bytes": raw["peak_bytes"],
        }

    def close(self) -> None:
        """Leave theta in the parameters, which no log knows any more."""
        if self._engine is None:
            return
        self._reader.close()
        for handle in self._undo_state:
            handle.remove()
        if self._of.options.trace is not None and self._engine.streams:
            self._engine.write_trace(os.fspath(self._of.options.trace))
        for weight in self._of.weights:
            with torch.no_grad():
                weight.parameter.copy_(self.theta_on_host(weight.parameter))
        self._engine = None
        self._folder.close()


def _hash_of(weights: list[TrainedWeight]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for weight in weights:
        p = weight.parameter.detach().cpu()
        digest.update(f"{weight.name} {p.dtype} {tuple(p.shape)} ".encode())
        digest.update(_core.bits_checksum(p).to_bytes(8, "little"))
    return digest.digest()


def _bytes_beside(training: Training) -> int:
    """Of the model, on the device beside what is streamed."""
    trained = {id(w.parameter) for w in training.weights}
    others = [p for p in training.model.parameters() if id(p) not in trained]
    return sum(t.nbytes for t in (*others, *training.model.buffers()))


class _StateHook:
    """Lets `state_dict()` of a module hold theta; does nothing for a copy of the module."""

    def __init__(self, tier: HostTier, module: nn.Module) -> None:
        self._tier, self._module = weakref.ref(tier), weakref.ref(module)

    def __call__(self, called: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        tier = self._tier()
        if tier is None or called is not self._module():
            return
        for name, p in called._parameters.items():
            if id(p) in tier._base and prefix + name in state:
                state[prefix + name] = tier.theta_on_host(p)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


def _give_theta(tier: HostTier, model: nn.Module) -> list[Any]:
    """For the model, and for its parts."""
    return [
        module.register_state_dict_post_hook(_StateHook(tier, module))
        for module in model.modules()
        if any(id(p) in tier._base for p in module._parameters.values())
    ]
