"""A chunk store in Python: what was committed is read again, by one writer or several readers."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
import sluiceway as sw
import torch  # noqa: F401  A module with CUDA finds its libraries where torch has loaded them.
from sluiceway import _core
from sluiceway.store.drives import drive_path, drive_warnings, find_drives
from small_store import BLOCK, CHUNK, CHUNKS, contents, flip, make_store, place_of_chunk


def test_commit_is_found_again_and_what_is_staged_is_not(tmp_path):
    paths = make_store(tmp_path, drives=2, steps=1)
    store = _core.open_store(paths, writable=True)
    store.write(0, 3, contents(2, 3))
    assert store.read(0, 3, "staged") == contents(2, 3)
    store.close()
    store = _core.open_store(paths)
    assert [store.read(0, chunk) for chunk in range(CHUNKS)] == [
        contents(1, chunk) for chunk in range(CHUNKS)
    ]
    assert (store.run_state(), store.catalogue()) == (b"state of step 1", b"tensors")


def test_dropped_writes_are_forgotten_and_a_chunk_may_be_short(tmp_path):
    paths = make_store(tmp_path, steps=1)
    store = _core.open_store(paths, writable=True)
    store.write(0, 0, contents(2, 0))
    store.drop()
    store.write(0, 1, bytes(BLOCK))
    store.commit(2)
    assert store.read(0, 0) == contents(1, 0)
    assert store.read(0, 1) == bytes(BLOCK)
    assert store.describe()["live"] == {"generation": 3, "step": 2, "run_state_bytes": 0}


def test_pinned_step_is_read_beside_the_live_one_until_it_is_unpinned(tmp_path):
    paths = make_store(tmp_path, steps=3, slots=3)
    store = _core.open_store(paths, writable=True)
    assert store.describe()["pinned"]["step"] == 1
    assert store.read(0, 5, "pinned") == contents(1, 5)
    assert store.read(0, 5) == contents(3, 5)
    assert store.run_state(pinned=True) == b"state of step 1"
    store.unpin()
    with pytest.raises(sw.InvalidArgument, match="no version is pinned"):
        store.run_state(pinned=True)


def test_description_is_what_was_asked_for(tmp_path):
    paths = make_store(tmp_path, drives=2, weights=[2, 1], io="posix")
    store = _core.open_store(paths, io="posix")
    found = store.describe()
    assert len(bytes.fromhex(found["id"])) == 16
    assert (found["version"], found["generation"], found["damage"]) == (1, 3, "")
    assert (found["spares"], found["run_state_most_bytes"], found["catalogue_bytes"]) == (
        8,
        BLOCK,
        7,
    )
    state, gradient = found["regions"]
    assert state == {
        "kind": "state", "slots": 2, "chunks": CHUNKS, "chunk_bytes": CHUNK,
        "live_chunks": CHUNKS, "live_bytes": CHUNKS * CHUNK
    }  # fmt: skip
    assert (gradient["kind"], gradient["slots"], gradient["live_chunks"]) == ("gradient", 1, 0)
    for drive, path, weight in zip(found["drives"], paths, (2, 1), strict=True):
        size = os.path.getsize(path)
        assert (drive["path"], drive["weight"], drive["backend"]) == (path, weight, "posix")
        assert drive["bytes"] == drive["size_bytes"] == size
    assert found["drives"][0]["bytes"] > found["drives"][1]["bytes"]


def test_one_writer_or_several_readers(tmp_path):
    paths = make_store(tmp_path)
    readers = [_core.open_store(paths), _core.open_store(paths)]
    assert [reader.verify() for reader in readers] == [[], []]
    with pytest.raises(sw.IoError, match="open in another process") as refused:
        _core.open_store(paths, writable=True)
    assert (refused.value.errno, refused.value.filename) == (errno.EBUSY, paths[0])
    for reader in readers:
        reader.close()
    _core.open_store(paths, writable=True).write(0, 0, contents(9, 0))


def test_reader_cannot_write_and_a_closed_store_says_so(tmp_path):
    paths = make_store(tmp_path)
    store = _core.open_store(paths)
    with pytest.raises(sw.IoError):
        store.write(0, 0, contents(3, 0))
    assert store.read(0, 0) == contents(2, 0)
    store.close()
    store.close()
    with pytest.raises(sw.InvalidArgument, match="is closed"):
        store.describe()


def test_verify_counts_chunks_and_names_each_that_is_damaged(tmp_path):
    (path,) = make_store(tmp_path, steps=2, slots=3)
    for step, chunk in ((1, 2), (2, 2), (2, 4)):
        flip(path, place_of_chunk(path, step, chunk) + 100)
    told = []
    wrong = _core.open_store([path]).verify(lambda done, count: told.append((done, count)))
    assert told == [(k, 2 * CHUNKS) for k in range(1, 2 * CHUNKS + 1)]
    assert [line.partition(" at byte ")[0] for line in wrong] == [
        f"store: chunk {chunk} of region 0 (state)" for chunk in (2, 2, 4)
    ]


def test_ctrl_c_and_errors_of_progress_end_verify_and_the_store_goes_on(tmp_path):
    paths = make_store(tmp_path)
    store, told = _core.open_store(paths), []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press(done, count):
        told.append(done)
        os.kill(os.getpid(), signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            store.verify(press)
    finally:
        signal.signal(signal.SIGINT, before)
    assert told == [1]
    with pytest.raises(ZeroDivisionError):
        store.verify(lambda done, count: 1 // 0)
    assert store.verify() == []


def test_interrupted_making_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError):
        make_store(tmp_path, drives=2, progress=lambda done, count: 1 // 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"regions": [("states", BLOCK, 1, 2)]}, 'kind is "states", expected state, gradient'),
        ({"regions": [("state", 1000, 1, 2)]}, "chunks of 1000 bytes, expected a multiple of 4096"),
        ({"io": "aio"}, 'io is "aio", expected auto, uring or posix'),
        ({"weights": [1, 1]}, "1 paths, expected 2, one per weight"),
    ],
)
def test_what_cannot_be_made_is_refused_and_leaves_nothing(tmp_path, change, words):
    arguments = {"regions": [("state", BLOCK, 1, 2)], **change}
    with pytest.raises(sw.InvalidArgument, match=words):
        _core.create_store([str(tmp_path / "drive0.sws")], **arguments)
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_has_both_byte_counts_and_leaves_nothing(tmp_path):
    with pytest.raises(sw.IoError, match=r"needs \d+ bytes .* \d+ bytes .* are free") as full:
        _core.create_store([str(tmp_path / "drive0.sws")], [("state", 1 << 40, 4, 2)])
    assert full.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_there_is_not_overwritten(tmp_path):
    drive_path(tmp_path, 1).write_bytes(b"precious")
    with pytest.raises(sw.IoError, match="exists"):
        make_store(tmp_path, drives=2)
    assert [path.name for path in tmp_path.iterdir()] == ["drive1.sws"]
    assert drive_path(tmp_path, 1).read_bytes() == b"precious"


def test_drives_of_a_folder_are_in_order_of_their_numbers(tmp_path):
    for name in ("drive10.sws", "drive2.sws", "drive0.sws", "drive.sws", "drive1.sws.old", "notes"):
        (tmp_path / name).touch()
    expected = [str(drive_path(tmp_path, number)) for number in (0, 2, 10)]
    assert find_drives([tmp_path]) == expected
    assert find_drives([Path(path) for path in reversed(expected)]) == expected[::-1]
    with pytest.raises(sw.IoError, match="none does not exist"):
        find_drives([tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(sw.InvalidArgument, match=r"empty holds no drive3\.sws, so it is not"):
        find_drives([tmp_path, tmp_path / "empty"])


def test_drive_in_memory_is_a_warning_only(tmp_path):
    (path,) = make_store(tmp_path, io="posix")
    described = _core.open_store([path]).describe()
    (drive,) = described["drives"]
    drive |= {"direct": False, "note": "io_uring_setup: not permitted; using threads"}
    memory, note = drive_warnings(described)
    assert memory.startswith(f"{path}: its file system has no direct I/O")
    assert note == f"{path}: io_uring_setup: not permitted; using threads"
    drive |= {"direct": True, "note": ""}
    assert drive_warnings(described) == []


def test_store_that_a_forked_child_inherits_is_left_to_the_parent(tmp_path):
    store = _core.open_store(make_store(tmp_path))
    child = os.fork()
    if child == 0:
        try:
            del store
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.verify() == []
