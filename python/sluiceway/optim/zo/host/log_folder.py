"""Where the log of a run is."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

LOG = "scalars.log"


class LogFolder:
    """A folder that is given, or one that goes with whoever has this.

    Parameters
    ----------
    path : path-like, optional
        Made if it is not there.
    """

    def __init__(self, path: str | os.PathLike | None) -> None:
        self.is_temporary = path is None
        if path is None:
            self.path = Path(tempfile.mkdtemp(prefix="sluiceway-zo-"))
            self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        else:
            self.path = Path(path)
            self.path.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> Path:
        """The file."""
        return self.path / LOG

    def close(self) -> None:
        """A temporary folder goes."""
        if self.is_temporary:
            self._remove()
