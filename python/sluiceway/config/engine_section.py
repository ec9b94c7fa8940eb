"""What the sections of all engines have: a kind, and a say in what a run may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import PrivateAttr

from sluiceway.config.fields import Section
from sluiceway.errors import InvalidArgument, Unavailable

if TYPE_CHECKING:
    from sluiceway.config.schema import Config


STORE_FOLDER = "store"  # Inside of a run's, where an engine keeps something and no path is said.


class EngineSection(Section):
    """The keys of one kind of engine."""

    kind: str
    # Keys of the section that a resume may change, as `train.lr` may be changed for every engine.
    changeable: ClassVar[tuple[str, ...]] = ()
    # Of keys of `train` that a config leaves out, where the defaults of AdamW do not fit.
    train_defaults: ClassVar[dict[str, Any]] = {}
    _settled: tuple[str, ...] = PrivateAttr(())  # Keys that "auto" came to in a save.

    @property
    def commits(self) -> bool:
        """Whether steps are durable without a save, and a resume may go on from the last one."""
        return False

    @property
    def awaits_plan(self) -> bool:
        """Whether a new run is planned first, as keys are left to the plan."""
        return False

    def planned(self, plan: dict[str, Any]) -> Self:
        """The same with what the plan has chosen."""
        return self

    def settled(self, saved: dict[str, Any]) -> Self:
        """The same with what keys that are "auto" had come to in a save."""
        auto = {key: value for key, value in saved.items() if getattr(self, key, None) == "auto"}
        copy = self.model_copy(update=auto)
        copy._settled = tuple(auto)
        return copy

    def is_settled(self, key: str) -> bool:
        """Whether a key that is "auto" was taken from a save."""
        return key in self._settled

    def misfits(self, config: Config) -> Iterator[tuple[str, str]]:
        """Keys of other sections that say what this engine has no use for.

        Yields
        ------
        tuple of str
            The key, and what its error says of it.
        """
        yield from ()

    def check_available(self, config: Config) -> None:
        """Refuse what the whole config spells right but this engine does not have.

        Raises
        ------
        sluiceway.errors.Unavailable
            The text names the key, and what there is.
        """
        if config.store.path is not None:
            raise Unavailable(
                f"store.path: engine.kind {self.kind} keeps nothing on disk while it trains, "
                "expected null; offload has engine.tier: disk"
            )

    def in_folder(self, config: Config, folder: Path) -> Config:
        """The same run where its own folder is known: what is kept there by default gets a path."""
        return config


class TieredSection(EngineSection):
    """Of an engine that keeps something in a store, where its `tier` is disk."""

    @property
    def _is_on_disk(self) -> bool:
        return self.tier == "disk"

    def check_available(self, config: Config) -> None:
        """Refuse a path that nothing would be kept at."""
        if not self._is_on_disk and config.store.path is not None:
            raise InvalidArgument(
                f"store.path is {config.store.place}, but engine.tier is {self.tier}, which keeps "
                "nothing on disk, expected null; leave it out, or set engine.tier: disk"
            )
        if config.store.io == "block" and config.store.path is None:
            raise InvalidArgument("store.io is block, expected store.path to name the device")

    def in_folder(self, config: Config, folder: Path) -> Config:
        """What is on disk is in the folder of the run, if nothing else is said."""
        if not self._is_on_disk or config.store.path is not None:
            return config
        store = config.store.model_copy(update={"path": str(folder / STORE_FOLDER)})
        return config.model_copy(update={"store": store})
