"""The base classes of the sections of engines: a kind, and checks of the whole config."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import PrivateAttr

from sluiceway.config.fields import Section
from sluiceway.errors import InvalidArgument, Unavailable

if TYPE_CHECKING:
    from sluiceway.config.schema import Config


STORE_FOLDER = "store"  # The store in the folder of a run, if the config has no path for it.


class EngineSection(Section):
    """The keys of one kind of engine."""

    kind: str
    # Keys of the section that a resume may change, as it may change `train.lr` with every engine.
    changeable: ClassVar[tuple[str, ...]] = ()
    # Defaults for keys of `train`, if those of AdamW do not fit.
    train_defaults: ClassVar[dict[str, Any]] = {}
    _settled: tuple[str, ...] = PrivateAttr(())  # Keys with "auto" whose value is from a save.

    @property
    def commits(self) -> bool:
        """True if steps are durable without a save, so that a resume may start from the last."""
        return False

    @property
    def awaits_plan(self) -> bool:
        """True if keys are left to the plan, so that a new run is planned first."""
        return False

    def planned(self, plan: dict[str, Any]) -> Self:
        """Return the section with the choices of a plan."""
        return self

    def settled(self, saved: dict[str, Any]) -> Self:
        """Return the section with the values that keys with "auto" had in a save."""
        auto = {key: value for key, value in saved.items() if getattr(self, key, None) == "auto"}
        copy = self.model_copy(update=auto)
        copy._settled = tuple(auto)
        return copy

    def is_settled(self, key: str) -> bool:
        """True if the value of a key with "auto" was taken from a save."""
        return key in self._settled

    def misfits(self, config: Config) -> Iterator[tuple[str, str]]:
        """Find keys of other sections that this engine has no use for.

        Yields
        ------
        tuple of str
            The key, and the rest of the error text.
        """
        yield from ()

    def check_available(self, config: Config) -> None:
        """Refuse values that are spelled right but that this engine does not have.

        Raises
        ------
        sluiceway.errors.Unavailable
            The text names the key, and the values that there are.
        """
        if config.store.path is not None:
            raise Unavailable(
                f"store.path: engine.kind {self.kind} keeps nothing on disk while it trains; leave "
                "it out, or take engine.kind offload with engine.tier: disk"
            )

    def in_folder(self, config: Config, folder: Path) -> Config:
        """Return the config of a run in a folder, with paths for what lies there by default."""
        return config


class TieredSection(EngineSection):
    """A section of an engine that keeps something in a store if its `tier` is disk."""

    @property
    def _is_on_disk(self) -> bool:
        return self.tier == "disk"

    def check_available(self, config: Config) -> None:
        """Refuse a path at which nothing would be kept."""
        if not self._is_on_disk and config.store.path is not None:
            raise InvalidArgument(
                f"store.path is {config.store.place}, but engine.tier is {self.tier}, which keeps "
                "nothing on disk; leave it out, or set engine.tier: disk"
            )
        if config.store.io == "block" and config.store.path is None:
            raise InvalidArgument("store.io is block, but store.path is missing; name the device")

    def in_folder(self, config: Config, folder: Path) -> Config:
        """Put the store into the folder of the run, if the config has no path."""
        if not self._is_on_disk or config.store.path is not None:
            return config
        store = config.store.model_copy(update={"path": str(folder / STORE_FOLDER)})
        return config.model_copy(update={"store": store})
