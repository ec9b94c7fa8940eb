"""What the sections of all engines have: a kind, and a say in what a run may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sluiceway.config.fields import Section
from sluiceway.errors import Unavailable

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

    @property
    def commits(self) -> bool:
        """Whether each step is durable without a save, and a resume may go on from it."""
        return False

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
