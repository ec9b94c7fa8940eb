"""Base classes of the config sections of engines, which also check the rest of the config."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import PrivateAttr

from sluiceway.config.fields import Section
from sluiceway.config.options import option
from sluiceway.errors import InvalidArgument, Unavailable

if TYPE_CHECKING:
    from sluiceway.config.schema import Config


STORE_FOLDER = "store"  # The store in the folder of a run, if the config has no path for it.


class EngineSection(Section):
    """The keys of one kind of engine."""

    kind: str
    embeddings: Literal["trained", "frozen"] = option(
        "trained", "Embeddings and head are trained, or frozen."
    )
    # Keys of the section that a resume may change, as it may change `train.lr` with every engine.
    changeable: ClassVar[tuple[str, ...]] = ()
    # Values that a plan compares where a key is "auto"; of equals the first.
    compared: ClassVar[dict[str, tuple[str, ...]]] = {}
    # Defaults for keys of `train`, if those of AdamW do not fit.
    train_defaults: ClassVar[dict[str, Any]] = {}
    _settled: tuple[str, ...] = PrivateAttr(())  # Keys with "auto" whose value is from a save.

    @property
    def commits(self) -> bool:
        """True if steps are durable without a save; a resume may then start from the last step."""
        return False

    @property
    def compared_keys(self) -> list[str]:
        """Keys that are "auto" until a plan has compared their values."""
        return [key for key in self.compared if getattr(self, key) == "auto"]

    def alternatives(self, config: Config) -> dict[str, Self]:
        """Sections by name, of which a plan chooses the fastest that fits, or the first.

        A name has the values of `compared_keys`, in their order.
        """
        keys, found = self.compared_keys, {}
        if not keys:
            return {"": self}
        for values in itertools.product(*(self.compared[key] for key in keys)):
            section = self.model_copy(update=dict(zip(keys, values, strict=True)))
            if section.is_alternative(config):
                found["+".join(values)] = section
        return found

    def is_alternative(self, config: Config) -> bool:
        """True if a plan may choose these values of `compared`; those listed first always are."""
        return True

    @property
    def awaits_plan(self) -> bool:
        """True if keys are "auto" until a plan sets them, so that a new run is planned first."""
        return bool(self.compared_keys)

    def planned(self, plan: dict[str, Any]) -> Self:
        """Return the section with the values that a plan chose."""
        first = {key: self.compared[key][0] for key in self.compared_keys}
        chosen = plan["alternatives"]["chosen"] if "alternatives" in plan else first
        return self.model_copy(update=chosen if first else {})

    def settled(self, saved: dict[str, Any]) -> Self:
        """Return the section with each "auto" replaced by the value that the save has."""
        auto = {key: value for key, value in saved.items() if getattr(self, key, None) == "auto"}
        copy = self.model_copy(update=auto)
        copy._settled = tuple(auto)
        return copy

    def is_settled(self, key: str) -> bool:
        """True if the value of a key with "auto" was taken from a save."""
        return key in self._settled

    def misfits(self, config: Config) -> Iterator[tuple[str, str]]:
        """Find keys of other sections whose values this engine cannot use.

        Yields
        ------
        tuple of str
            The key, and the rest of the error text.
        """
        yield from ()

    def check_available(self, config: Config) -> None:
        """Refuse values that are valid names but that this engine does not support.

        Raises
        ------
        sluiceway.errors.Unavailable
            The text names the key and the supported values.
        """
        if config.store.path is not None:
            raise Unavailable(
                f"store.path: engine.kind {self.kind} keeps nothing on disk while it trains; leave "
                "it out, or take engine.kind offload with engine.tier: disk"
            )

    def in_folder(self, config: Config, folder: Path) -> Config:
        """Return the config of the run in `folder`, with default paths inside that folder."""
        return config


class TieredSection(EngineSection):
    """A section of an engine that keeps weights or states in a store on disk with some tiers."""

    tiers_with_drives: ClassVar[tuple[str, ...]] = ("disk",)

    @property
    def _has_drives(self) -> bool:
        return self.tier in self.tiers_with_drives

    def check_available(self, config: Config) -> None:
        """Refuse options of the store that go with no tier, or not with each other."""
        if not self._has_drives and config.store.path is not None:
            raise InvalidArgument(
                f"store.path is {config.store.place}, but engine.tier is {self.tier}, which keeps "
                "nothing on disk; leave it out, or set engine.tier: disk"
            )
        if not self._has_drives and config.store.rate_gbps is not None:
            raise InvalidArgument(
                f"store.rate_gbps is {config.store.rate_gbps:g}, but engine.tier is {self.tier}, "
                "which has no drive to pace; leave it out, or set engine.tier: disk"
            )
        if config.store.io == "block" and self.tier == "auto":
            raise InvalidArgument(
                "store.io is block, but engine.tier is auto, which makes files; take another io "
                "and a folder, or engine.tier: disk"
            )
        if config.store.io == "block" and config.store.path is None:
            raise InvalidArgument("store.io is block, but store.path is missing; name the device")

    def in_folder(self, config: Config, folder: Path) -> Config:
        """Put the store into the folder of the run if the config has no path for it."""
        if not self._has_drives or config.store.path is not None:
            return config
        store = config.store.model_copy(update={"path": str(folder / STORE_FOLDER)})
        return config.model_copy(update={"store": store})
