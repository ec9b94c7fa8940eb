"""The error classes are also those of Python that a caller would expect to catch."""

from __future__ import annotations

import pickle

import pytest
import sluiceway
from sluiceway import errors


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("InvalidArgument", ValueError),
        ("OutOfMemory", MemoryError),
        ("IoError", OSError),
        ("Corrupt", Exception),
        ("Timeout", TimeoutError),
        ("CudaError", Exception),
        ("Unavailable", Exception),
    ],
)
def test_each_error_is_an_error_of_ours_and_of_pythons(name, base):
    kind = getattr(sluiceway, name)
    assert kind is getattr(errors, name)
    assert issubclass(kind, sluiceway.Error)
    assert issubclass(kind, base)


def test_io_error_carries_errno_and_filename_and_shows_its_own_text():
    error = sluiceway.IoError("x: cannot write 4096 bytes", 28, "x")
    again = pickle.loads(pickle.dumps(error))
    for one in (error, again):
        assert (str(one), one.errno, one.filename) == ("x: cannot write 4096 bytes", 28, "x")


def test_name_that_never_was_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        sluiceway.Nothing  # noqa: B018


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sluiceway.Link(0, 1), "d2h_gbps is 0, expected above 0 GB/s"),
        (lambda: sluiceway.Link(1, 1, -1), "latency_us is -1"),
        (lambda: sluiceway.Budget(device="4 XB"), "'4 XB'"),
        (lambda: sluiceway.Refresh(every=-1), "every is -1"),
        (lambda: sluiceway.Refresh(transport="drop"), "transport is 'drop'"),
        (lambda: sluiceway.Refresh(every=1, source="closure"), "but closure= is missing"),
        (lambda: sluiceway.Refresh(every=1, closure=print), 'set source="closure"'),
    ],
)
def test_values_refuse_what_cannot_be(make, words):
    with pytest.raises(sluiceway.InvalidArgument) as refused:
        make()
    assert words in str(refused.value)


def test_budget_reads_sizes_as_people_write_them():
    assert sluiceway.Budget(device="4GiB", host=7) == sluiceway.Budget(2**32, 7)
