"""Finds the fastest options of every engine with which a model trains on a machine.

Each engine has some options that trade memory for time. All sensible combinations are planned, and
the fastest one that fits the machine is the engine's way. Nothing is loaded or trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from sluiceway.base.sizes import format_bytes
from sluiceway.config.engines.zo import STREAMED
from sluiceway.config.file import check_config
from sluiceway.config.schema import PYDOC, Config
from sluiceway.config.shape import context_of, stored_dtype
from sluiceway.engines.plan import EnginePlan
from sluiceway.errors import first_line
from sluiceway.machine.placement import DTYPES, choose_placement
from sluiceway.model.folder import check_model_folder
from sluiceway.model.skeleton import build_skeleton
from sluiceway.model.speeds import disk_speed, measure_speeds
from sluiceway.run.planning import Prediction
from sluiceway.run.target_machine import TargetMachine

_LONGEST = 2048  # Tokens of a sequence, if the model's context is longer.
_STORED = {"float32": "fp32", "bfloat16": "bf16", "float16": "bf16"}  # Type in which we train.
_NATIVE_BYTES = 16  # A parameter's weight, gradient and moments in fp32.
_LOGIT_BYTES = 12  # In the model's type, in fp32, and their gradients.
_LOGITS = 1 / 8  # Share of the device above which the loss is computed in slices.
_KEPT_TENSORS = 8  # Of the size of a block's input.
_MOST_PARTS = 16  # Of a step, since a rehearsal runs each.
_WORTH = 0.95  # A later way of an engine has to take less than this share of an earlier one's time.

# What the ways do not have of AdamW, by their names; those that give up least come first.
_GIVES_UP = {
    "native": "nothing",
    "offload": "nothing",
    "offload, 8bit": "moments of 32 bits: they have 8, masters have 24",
    "native, bf16": "small updates: weights and moments are rounded to bf16",
    "subspace": "moments",
    "zo": "most of a step's gain: two losses give one number",
}

Changes = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Way:
    """One way to train the model on the machine, with its plan."""

    name: str  # Kind of the engine, and the format of weights or states if that is not fp32.
    config: Config
    tiers: dict[str, int]  # Peak bytes.
    links: dict[str, int]  # Bytes of a step.
    written: float  # Bytes written to the drive in a step, with those between steps.
    seconds: float
    short: str  # The tier that is too small, and what the way needs there; empty if it fits.

    @property
    def gives_up(self) -> str:
        """Features of AdamW that the engine lacks."""
        return _GIVES_UP[self.name]


@dataclass
class Choices:
    """The way of each engine. Those that fit come first, the fastest of them at the top.

    If several are about as fast as the first, the one of them that gives up least is at the top. Of
    those that fit `zo` comes last, since its steps gain little.
    """

    parameters: int = 0
    tokens: int = 0  # Of a step.
    sequence_length: int = 0
    ways: list[Way] = field(default_factory=list)
    # Reasons by name for engines that cannot fit whatever their options are.
    impossible: dict[str, str] = field(default_factory=dict)
    note: str = ""  # On the type of the weights.


def find_choices(
    model: str, machine: TargetMachine, tokens: int, note: Callable[[str], None] = lambda _: None
) -> Choices:
    """Plan every engine with its sensible options.

    Parameters
    ----------
    model : str
        A folder with a config.json.
    tokens : int
        Tokens of a step, rounded to whole sequences.
    note : callable
        Called with the name of each engine before it is planned, which takes seconds.

    Raises
    ------
    sluiceway.errors.InvalidArgument, sluiceway.errors.IoError
        The folder has no model that transformers can build.
    """
    search = _Search(model, machine, tokens)
    tokens = search.count * search.length
    found = Choices(search.parameters, tokens, search.length, note=search.note)
    for engine in (search.native, search.offload, search.subspace, search.zo):
        note(engine.__name__)
        search.error, search.has_fit = "", False
        ways: dict[str, list[Way]] = {}
        reasons = {}
        for group in engine():
            if group.least_bytes > machine.device_bytes:
                reasons[group.engine["kind"]] = (
                    f"device: weights{group.least_of or ' and inputs of blocks'} take at least "
                    f"{format_bytes(group.least_bytes)}, "
                    f"{format_bytes(machine.device_bytes)} are left"
                )
                continue
            for way in search.planned(group):
                ways.setdefault(way.name, []).append(way)
            search.has_fit = bool(ways) and all(map(_fits, ways.values()))
            if group.stops and search.has_fit:
                break
        found.ways += [_fastest(of_name) for of_name in ways.values()]
        planned = {name.partition(",")[0] for name in ways}
        if not ways and search.error:
            reasons[engine.__name__] = search.error
        found.impossible |= {k: v for k, v in reasons.items() if k not in planned}
    found.ways.sort(key=lambda way: (bool(way.short), way.name == "zo", way.seconds))
    _put_best_first(found.ways)
    return found


def _put_best_first(ways: list[Way]) -> None:
    """Move the way that gives up least to the top, of those about as fast as the first one."""
    if not ways or ways[0].short:
        return
    first = ways[0]
    near = [w for w in ways if not w.short and _WORTH * w.seconds < first.seconds]
    best = min(near, key=lambda way: [*_GIVES_UP].index(way.name))
    ways.remove(best)
    ways.insert(0, best)


def _fits(ways: list[Way]) -> bool:
    return any(not way.short for way in ways)


def _fastest(ways: list[Way]) -> Way:
    """Return the fastest way that fits, or else the one that takes least of the device."""
    fitting = [way for way in ways if not way.short]
    if not fitting:
        return min(ways, key=lambda way: way.tiers["device"])
    best, *others = fitting
    for way in others:
        if way.seconds < _WORTH * best.seconds:
            best = way
    return best


@dataclass(frozen=True)
class _Group:
    """Configs of one engine that compute the same, and differ in where bytes are."""

    engine: dict[str, Any]
    shared: Changes  # Keys and values for sections of the config.
    variants: list[dict[str, Any]]  # Further keys and values for the section `engine`.
    least_bytes: int = 0  # Bytes that all of them need on the device.
    least_of: str = ""
    stops: bool = True  # If it fits, later groups of the engine take more time.


class _Search:
    """The ways to train one model on one machine."""

    def __init__(self, model: str, machine: TargetMachine, tokens: int) -> None:
        self._model, self._machine = model, machine
        shape = check_model_folder(model, weights=False)
        context = context_of(shape) or _LONGEST
        self.length = max(2, min(_LONGEST, context, tokens))
        count = max(1, round(tokens / self.length))
        self._part = max(1, round(count / _MOST_PARTS))  # Sequences of the smallest micro-batch.
        self.count = self._part * max(1, round(count / self._part))
        stored = stored_dtype(shape)
        self._dtype = _STORED.get(stored, "fp32")
        self.note = "weights of float16 train as bf16" if stored == "float16" else ""
        with torch.device("meta"):
            skeleton = build_skeleton(model, DTYPES[self._dtype])
        self.parameters = sum(p.numel() for p in skeleton.parameters())
        self._weight_bytes = sum(p.nbytes for p in skeleton.parameters())
        text = skeleton.config.get_text_config()
        width, layers = (getattr(text, k, 0) for k in ("hidden_size", "num_hidden_layers"))
        self._on_card = machine.device != "host"
        element = 2 if self._on_card else DTYPES[self._dtype].itemsize
        self._input_bytes = element * self.length * width * layers  # Of one sequence.
        self._vocabulary = skeleton.get_input_embeddings().num_embeddings
        self._speeds: dict[str, dict[str, Any]] = {}  # By dtype.
        self._disk_rates: dict[str, Any] = {}
        self.error = ""  # Of the last way of an engine that could not be planned.
        self.has_fit = False  # All ways so far of an engine fit by some of their options.

    # ---- Options of each engine, those that need the most memory and the least time first ----

    def native(self) -> Iterator[_Group]:
        """AdamW of torch."""
        least, least_of = _NATIVE_BYTES * self.parameters, ", gradients and moments"
        for dtype, least_bytes in (("fp32", least), ("bf16", least // 2)):
            if dtype == "fp32" or (dtype == self._dtype and not self.has_fit):
                for rows in sorted({self.count, self._part}, reverse=True):
                    for checkpointing in (False, True):
                        yield _Group(
                            {"kind": "native"},
                            self._computing(rows, checkpointing, dtype),
                            [{}],
                            least_bytes + self._kept_bytes(rows, checkpointing),
                            least_of,
                            stops=False,  # Recomputing may be slower than several passes.
                        )

    def offload(self) -> Iterator[_Group]:
        """AdamW with its states elsewhere, with resident and with streamed weights."""
        engine, least = {"kind": "offload"}, self._weight_bytes
        for checkpointing in (False, True):  # All sequences at once: gradients cross once.
            computing = self._computing(self.count, checkpointing)
            kept = self._kept_bytes(self.count, checkpointing)
            yield _Group(engine, computing, self._states(["device"]), least + kept)
        blockwise = self._computing(self._part, checkpointing=False)
        engine |= {"order": "block"} if self.count > self._part else {}
        yield _Group(engine, blockwise, self._states(["host", "disk"]), least)
        engine |= {"weights": "streamed"}
        yield _Group(engine, blockwise, self._states(["device", "host", "disk"]))

    def subspace(self) -> Iterator[_Group]:
        """The residual, or cores."""
        engine, least = {"kind": "subspace"}, self._weight_bytes
        for rows, checkpointing in ((self.count, False), (self.count, True), (self._part, True)):
            kept = self._kept_bytes(rows, checkpointing)
            computing = self._computing(rows, checkpointing)
            yield _Group(engine, computing, [{}], least + kept)
        away = engine | {"activations": "host"}
        yield _Group(away, self._computing(self.count, True), [{}], least)

    def zo(self) -> Iterator[_Group]:
        """Losses alone."""
        for tier in ("device", *STREAMED):
            if tier == "disk" and not self._machine.disk_bytes:
                continue
            least = self._weight_bytes if tier == "device" else 0
            engine = {"kind": "zo", "tier": tier}
            for rows in sorted({self.count, self._part}, reverse=True):
                yield _Group(engine, self._computing(rows, checkpointing=False), [{}], least)

    def _computing(self, rows: int, checkpointing: bool, dtype: str | None = None) -> Changes:
        """Changes of the config for so many sequences in a micro-batch."""
        return {
            "model": {"checkpointing": checkpointing, "dtype": dtype or self._dtype},
            "train": {"micro_batch": rows, "accumulate": self.count // rows},
        }

    def _kept_bytes(self, rows: int, checkpointing: bool) -> int:
        """Bytes that blocks keep for their backward, at least: one input, or eight such tensors.

        Each of a block's linear layers and norms keeps an input of its own.
        """
        return (1 if checkpointing else _KEPT_TENSORS) * rows * self._input_bytes

    def _states(self, activations: list[str]) -> list[dict[str, Any]]:
        """Formats and places of AdamW's states, with places of blocks' inputs."""
        tiers = ["host", *(["disk", "auto"] if self._machine.disk_bytes else [])]
        return [
            {"state_codec": codec, "tier": tier, "activations": place}
            for codec in ("fp32", "8bit")
            for tier in tiers
            for place in activations
            if place != "disk" or tier != "host"
        ]

    # ---- Plans ----

    def planned(self, group: _Group) -> Iterator[Way]:
        """Plan a group."""
        like = None
        for variant in group.variants:
            try:
                config = self._config(group, variant)
                like = found = Prediction(config, self._rates(config), like)
                if variant.get("tier") == "auto":  # Memory beside what is page-locked has states.
                    tiers = found.plan.tiers(found.rehearsal)
                    taken = tiers["pinned"] + tiers["device"] * self._machine.shares_memory
                    room = max(0, self._machine.host_bytes - taken)
                    config = self._config(group, variant, room)
                    found = Prediction(config, self._rates(config), like)
            except Exception as error:  # Whatever a model raises that is called in this way.
                self.error = first_line(error)
                continue
            yield self._way(found)

    def _config(
        self, group: _Group, variant: dict[str, Any], host_bytes: int | None = None
    ) -> Config:
        machine, train = self._machine, dict(group.shared["train"])
        engine = group.engine | variant
        has_backward = engine["kind"] != "zo"
        if has_backward:
            rows = self.count if engine.get("order") == "block" else train["micro_batch"]
            logits = _LOGIT_BYTES * rows * self.length * self._vocabulary
            train["loss"] = "sliced" if logits > _LOGITS * machine.device_bytes else "whole"
        return check_config(
            {
                "model": {
                    "path": self._model,
                    "autocast": "bf16" if self._on_card and has_backward else None,
                    **group.shared["model"],
                },
                "data": {"train": [PYDOC], "sequence_length": self.length},
                "train": train,
                "engine": engine,
                "device": {"name": machine.device},
                "budget": {
                    "device": machine.device_bytes,
                    "host": machine.host_bytes if host_bytes is None else host_bytes,
                    "pinned": machine.host_bytes,
                },
            }
        )

    def _rates(self, config: Config) -> dict[str, Any]:
        """Return the machine's rates; those that it does not have are measured here, once a dtype.

        The drive's rate is measured in the machine's folder.
        """
        machine, dtype = self._machine, config.model.dtype
        if dtype not in self._speeds:
            self._speeds[dtype] = (self._measured(config) if machine.is_here else {}) | self._disk()
        rates = self._speeds[dtype] | machine.rates
        if getattr(config.engine, "tier", None) in ("disk", "auto"):
            return rates
        return {key: value for key, value in rates.items() if not key.startswith("disk")}

    def _measured(self, config: Config) -> dict[str, Any]:
        dtype = DTYPES[config.model.dtype]
        placement = choose_placement(config, of_plan=True)
        return measure_speeds(
            config, placement, lambda layers: build_skeleton(self._model, dtype, layers)
        )

    def _disk(self) -> dict[str, Any]:
        """Measure the drive of the machine's folder, once; empty if it is not here."""
        folder = self._machine.folder
        if folder is not None and not self._disk_rates:
            asked = check_config(
                {
                    "model": {"path": self._model},
                    "data": {"train": [PYDOC]},
                    "engine": {"kind": "offload", "tier": "disk"},
                    "store": {"path": str(folder)},
                }
            )
            self._disk_rates = disk_speed(asked)
        return self._disk_rates

    def _way(self, found: Prediction) -> Way:
        plan: EnginePlan = found.plan
        tiers, links = plan.tiers(found.rehearsal), plan.links()
        seconds = plan.seconds(found.rehearsal, found.speeds)
        written = links.get("disk_written", 0) + plan.written_between_steps()
        short = self._short(tiers)
        name = _name_of(found.config)
        return Way(name, found.config, tiers, links, written, seconds, short)

    def _short(self, tiers: dict[str, int]) -> str:
        machine = self._machine
        device, host = tiers["device"], tiers["host"] + tiers["pinned"]
        if machine.shares_memory:
            needs = {"memory": (device + host, machine.host_bytes)}
        else:
            needs = {
                "device": (device, machine.device_bytes),
                "host memory": (host, machine.host_bytes),
            }
        needs["disk"] = (tiers.get("disk", 0), machine.disk_bytes)
        return "; ".join(
            f"{tier}: takes {format_bytes(needed)}, {format_bytes(limit)} are left"
            for tier, (needed, limit) in needs.items()
            if needed > limit
        )


def _name_of(config: Config) -> str:
    """Return the engine's kind, and the format of weights or states if that is not fp32."""
    engine = config.engine
    formats = {"native": config.model.dtype, "offload": getattr(engine, "state_codec", None)}
    found = formats.get(engine.kind, "fp32")
    return engine.kind if found == "fp32" else f"{engine.kind}, {found}"
