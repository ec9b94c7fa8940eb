"""Folders of logs that go with their optimizer, or after a kill with the next one."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest
import sluiceway
from sluiceway.optim.zo.log_folder import LogFolder
from zo_models import decoder, zo_ids, zo_loss


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def held_by_a_child() -> tuple[int, Path]:
    """A process that has a folder with a log in it, and waits."""
    ready, told = os.pipe()
    if (child := os.fork()) == 0:
        try:
            folder = LogFolder(None)
            folder.log.write_bytes(b"log")
            os.write(told, str(folder.path).encode())
            signal.pause()
        finally:
            os._exit(1)
    os.close(told)
    path = Path(os.read(ready, 4096).decode())
    os.close(ready)
    return child, path


def test_what_a_killed_process_has_left_goes_and_what_is_in_use_stays(temporary: Path) -> None:
    (temporary / "sluiceway-zo-file").write_text("no folder")
    (temporary / "other").mkdir()
    mine = LogFolder(None)
    child, its = held_by_a_child()
    LogFolder(None).close()
    assert (its / "scalars.log").read_bytes() == b"log"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert its.exists()
    LogFolder(None).close()
    assert not its.exists()
    assert sorted(path.name for path in temporary.iterdir()) == sorted(
        [mine.path.name, "other", "sluiceway-zo-file"]
    )
    given = LogFolder(temporary / "given")
    given.close()
    mine.close()
    mine.close()
    assert given.path.is_dir()
    assert not mine.path.exists()


def test_a_forked_child_leaves_the_folder_to_who_made_it() -> None:
    folder = LogFolder(None)
    if (child := os.fork()) == 0:
        folder.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.path.is_dir()
    folder.close()


def test_an_optimizer_takes_its_log_along(temporary: Path) -> None:
    model = decoder()
    with sluiceway.ZoSgd(model, tier="host") as opt:
        opt.step(lambda: zo_loss(model, zo_ids(0)))
        assert len(list(temporary.glob("sluiceway-zo-*/scalars.log"))) == 1
    assert list(temporary.iterdir()) == []
