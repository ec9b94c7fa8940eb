"""The processes that train one model together: a process group of torch, or this process alone.

Every rank makes the same steps, so what a step depends on is the same on each of them: options and
weights when they begin, and in each step what `Together.every` returns. If one rank fails before
that, all of them give the step up.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.base.undisturbed import Undisturbed
from sluiceway.errors import Error, InvalidArgument, Timeout, Unavailable, first_line
from sluiceway.optim.common import torch_private

_POLL = 50e-6  # Seconds, at first.
_LONGEST_POLL = 5e-3
_ASK = 0.5  # Seconds after which a rank that waits asks whether another one has failed.
_DIGEST = 2  # Numbers of a digest.
_BUCKET_BYTES = 4 << 20
_UNDER_WAY = 4  # Buckets at a time.
_ROLL_CALL = 5.0  # Seconds in which a rank that lives answers.


class Ranks:
    """This process among the ranks of torch's default process group, or alone without one.

    Attributes
    ----------
    rank, count : int
        Number of this process, and of all; 0 and 1 without a group.
    bytes : int
        What this rank gave the others in the last step.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        there = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.rank = torch.distributed.get_rank() if there else 0
        self.count = torch.distributed.get_world_size() if there else 1
        self.bytes = self._given = 0
        self._calls = 0

    def check_alike(self, facts: Mapping[str, Any]) -> None:
        """Compare values by name with those of all other ranks.

        Raises
        ------
        InvalidArgument
            A value differs; all ranks raise it, and name the first difference.
        """
        if self.count == 1:
            return
        first, *others = self.gather(dict(facts))
        for rank, theirs in enumerate(others, start=1):
            for name in first | theirs:
                mine, its = first.get(name), theirs.get(name)
                if mine != its:
                    raise InvalidArgument(
                        f"{self._owner}: {name} is {mine!r} on rank 0 and {its!r} on rank {rank}, "
                        "expected the same on every rank"
                    )

    def check_same_group(self) -> None:
        """Refuse a process group that was made or changed since."""
        now = Ranks(self._owner)
        if (now.rank, now.count) != (self.rank, self.count):
            raise Unavailable(
                f"{self._owner}: the process group has {now.count} ranks, and had {self.count} "
                "when the optimizer was made; call init_process_group() before that"
            )

    @contextmanager
    def together(self, what: str, count: int) -> Iterator[Together]:
        """Enter a block in which every rank calls `every` once, with `count` values.

        An error of this rank before that is told to the others, which raise one that names it. With
        other ranks a first Ctrl-C waits for the end of the block, as they may finish it, too.
        """
        block = Together(self, f"{self._owner}.{what}", count)
        with Undisturbed() if self.count > 1 else nullcontext():
            try:
                yield block
            except BaseException as error:
                if block.is_due and self.count > 1:
                    block.fail(error)
                raise

    def gather(self, value: Any) -> list[Any]:
        """Return a picklable value of every rank."""
        found: list[Any] = [None] * self.count
        with self._naming_who_is_missing():
            torch.distributed.all_gather_object(found, value)
        return found

    def of_first(self, value: Any) -> Any:
        """Return the first rank's picklable value."""
        found = [value]
        with self._naming_who_is_missing():
            torch.distributed.broadcast_object_list(found)
        return found[0]

    def stats(self) -> dict[str, Any]:
        """Return the place of this rank, and the bytes that it gave the others in the last step."""
        if self.count == 1:
            return {}
        return {"ranks": {"rank": self.rank, "count": self.count, "sent_bytes": self.bytes}}

    def every(self, values: torch.Tensor) -> torch.Tensor:
        """Return float32 numbers of every rank, a row for each.

        Raises
        ------
        Timeout
            A rank did not come, or died; the text names it.
        """
        self._calls += 1
        found = values.new_empty(self.count, len(values), device=self._device())
        self._given += values.nbytes
        with self._naming_who_is_missing():
            self._wait(
                torch.distributed.all_gather_into_tensor(
                    found.view(-1), values.to(found.device), async_op=True
                )
            )
        return found.cpu()

    def any_of(self, flags: list[bool]) -> list[bool]:
        """Return for each flag whether it is set on some rank."""
        return self.every(torch.tensor(flags, dtype=torch.float32)).any(0).tolist()

    def average(self, tensors: list[torch.Tensor]) -> None:
        """Replace each tensor by its mean over ranks, with the same bits on each.

        Every rank passes tensors of the same types and shapes. Small ones cross together.

        Raises
        ------
        Timeout
            A rank did not come, or died; the text names it.
        """
        self._calls += 1
        under_way: deque[_Bucket] = deque()
        for bucket in _buckets(tensors):
            if len(under_way) == _UNDER_WAY:
                self._land(under_way.popleft())
            flat = _joined(bucket).div_(self.count)
            self._given += flat.nbytes
            with self._naming_who_is_missing():
                work = torch.distributed.all_reduce(flat, async_op=True)
            under_way.append((work, flat, bucket))
        while under_way:
            self._land(under_way.popleft())

    def _land(self, bucket: _Bucket) -> None:
        work, flat, tensors = bucket
        with self._naming_who_is_missing():
            self._wait(work)
        parts = flat.split([t.numel() for t in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            if tensor.data_ptr() != part.data_ptr():
                tensor.copy_(part.view(tensor.shape))

    @staticmethod
    def _device() -> str:
        return "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"

    @contextmanager
    def _naming_who_is_missing(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch's classes for this differ by backend.
            raise Timeout(
                f"{self._owner}: {self._missing()} did not come to step with the others "
                f"({first_line(error)}); end all ranks, and resume from the last save"
            ) from None

    def end_step(self) -> None:
        """Count from now what the next step gives to other ranks."""
        self.bytes, self._given = self._given, 0

    def _wait(self, work: Any) -> None:
        """Wait without keeping this process from handling signals, or from hearing of a failure."""
        pause, asked = _POLL, time.monotonic()
        while not work.is_completed():
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL)
            if time.monotonic() - asked > _ASK:
                asked = time.monotonic()
                if torch_private.group_store().check([self._key("failed")]):
                    raise RuntimeError("another rank told so")
        work.wait()  # Raises what went wrong.

    def _key(self, name: object) -> str:
        return f"sluiceway/{self._owner}/{self._calls}/{name}"

    def _missing(self) -> str:
        """Name the ranks that do not answer within some seconds."""
        others = [rank for rank in range(self.count) if rank != self.rank]
        try:
            store = torch_private.group_store()
            for name in (self.rank, "failed"):
                store.set(self._key(name), "")
            deadline = time.monotonic() + _ROLL_CALL
            while others and time.monotonic() < deadline:
                others = [rank for rank in others if not store.check([self._key(rank)])]
                time.sleep(_LONGEST_POLL)
        except RuntimeError:
            return "the rank that has the group's store"
        if not others:
            return "a rank"
        return f"rank{'s' * (len(others) > 1)} {', '.join(map(str, others))}"


def facts_of(model: nn.Module) -> dict[str, str]:
    """Return the type, shape and checksum of every parameter, which ranks compare.

    Cost: one read of the weights.
    """
    return {
        name: f"{p.dtype} {tuple(p.shape)} {_core.bits_checksum(p.detach().cpu()):016x}"
        f"{'' if p.requires_grad else ', frozen'}"
        for name, p in model.named_parameters()
    }


class Together:
    """One call of an optimizer that every rank makes."""

    def __init__(self, ranks: Ranks, what: str, count: int) -> None:
        self._ranks, self._what, self._count = ranks, what, count
        self.is_due = True

    def every(self, values: list[float], same: Mapping[str, Any]) -> list[list[float]]:
        """Return the float32 numbers of every rank, a row for each, if they agree on `same`.

        Raises
        ------
        Error
            Another rank failed before; the text quotes it.
        InvalidArgument
            A value of `same` differs; all ranks raise it, and name the first difference.
        Timeout
            A rank did not come, or died.
        """
        self.is_due = False
        if self._ranks.count == 1:
            return [values]
        found = self._exchanged([*values, *_digest(same)], "")
        if (found[:, -_DIGEST:] != found[0, -_DIGEST:]).any():
            self._ranks.check_alike(same)
        return found[:, :-_DIGEST].tolist()

    def fail(self, error: BaseException) -> None:
        """Take part with nothing, and tell the error."""
        text = first_line(error) or type(error).__name__
        with suppress(Error):  # The error that is told is the one to raise.
            self._exchanged([0.0] * (self._count + _DIGEST), text)

    def _exchanged(self, values: list[float], error: str) -> torch.Tensor:
        self.is_due = False
        mine = torch.tensor([*values, float(bool(error))], dtype=torch.float32)
        found = self._ranks.every(mine)
        if found[:, -1].any():
            said = self._ranks.gather(error)
            first = next((f"rank {rank}: {text}" for rank, text in enumerate(said) if text), "")
            raise Error(f"{self._what}: no rank makes this step, since it failed on {first}")
        return found[:, :-1]


def _digest(values: Mapping[str, Any]) -> list[float]:
    """Return two whole numbers that a float32 holds, and that change with any value."""
    raw = hashlib.blake2b(repr(dict(values)).encode(), digest_size=6).digest()
    return [float(int.from_bytes(raw[k : k + 3], "little")) for k in (0, 3)]


_Bucket = tuple[Any, torch.Tensor, list[torch.Tensor]]


def _buckets(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Join neighbours of one type and device up to some size; others cross by themselves."""
    bucket: list[torch.Tensor] = []
    for tensor in tensors:
        joins = bucket and (tensor.dtype, tensor.device) == (bucket[0].dtype, bucket[0].device)
        if bucket and not (joins and sum(t.nbytes for t in [*bucket, tensor]) <= _BUCKET_BYTES):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _joined(bucket: list[torch.Tensor]) -> torch.Tensor:
    """Return the elements of all tensors in a row: the memory of a single one, if it can be."""
    if len(bucket) == 1:
        return bucket[0].reshape(-1)
    return torch.cat([tensor.reshape(-1) for tensor in bucket])
