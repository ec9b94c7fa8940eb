"""The gradient that stands in for all compressed ones, so that clipping and AMP see their norm.

Compressed weights have no `.grad`. `clip_grad_norm_` would then not clip and `GradScaler` would
refuse to run. So one small compressed weight carries a gradient of zeros but for a few elements,
whose norm is that of all compressed gradients together. Whoever scales gradients scales it, and
`factor()` reads back by how much. The elements are a mark of the gradients they stand for: their
places and their ratios are new each time, so that what was masked, clipped by value, added to or
taken from another step is told from what was scaled. What else it cannot carry: norms of other
orders, which clip/sentinel_gradient.py refuses, and factors that differ from weight to weight,
which clip/clip_witness.py notices where ordinary gradients tell of them.

On a device that works beside Python, the norm is known late, and every look at a value waits for
all that was enqueued. There the elements are written when somebody looks, and where nobody has,
nobody has scaled them either.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from itertools import pairwise
from random import Random

import torch
from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.optim.common.sentinel_gradient import SentinelGradient, refusing_graph

_KEPT, _DRAWN = 12, 16  # How many elements stay where they are, how many are drawn each time.
ROOM = 64  # Parameters that are smaller are filled whole.
_FIRST = 0.995  # The part of the norm that one element has: no smaller one escapes `clamp_`.
_ROUNDING = 4e-6  # Of several multiplications in float32.
# What float32 can hold. Whoever squares a larger one gets infinity, as of ordinary gradients.
_LARGEST = 3.4e38
_TINY = 1e-30  # Ratios of smaller numbers are rounded away.


class Sentinel:
    """The stand-in gradient of one parameter.

    Parameters
    ----------
    parameter : torch.nn.Parameter
        A small compressed weight, of two elements at least.
    owner : str
        The optimizer's name, for errors.
    """

    def __init__(self, parameter: nn.Parameter, owner: str) -> None:
        self.parameter = parameter
        self._owner = owner
        self._grad: torch.Tensor | None = None
        self._places: list[int] = []
        self._empty: list[int] = []  # Some places that hold zeros.
        self._written: list[float] = []
        self.stands = False  # It was placed, and we have not taken it away.
        # Of `place_unread`: what it asks, what stands where, and its version; None: all is written.
        self._norm: Callable[[], float] | None = None
        self._placed: tuple[torch.Tensor | None, int] = (None, 0)
        if parameter.dtype != torch.float32:
            parameter.grad_dtype = torch.float32  # A 16-bit gradient would round the norm.

    def place(self, norm: float, of_graph: bool = False) -> None:
        """Make `parameter.grad` carry `norm`; `of_graph`: and refuse to be differentiated."""
        self._clear()
        self._write(norm)
        self._stand(refusing_graph(self._grad) if of_graph else self._grad)

    def place_unread(self, norm: Callable[[], float]) -> None:
        """Make `parameter.grad` carry `norm()`, which is asked for when somebody looks at it."""
        self._clear()
        gradient = self._stand(self._grad)
        self._norm, self._placed = norm, (gradient, gradient._version)
        held, of = weakref.ref(self), weakref.ref(gradient)

        def write() -> None:  # Holds nothing, as the gradient may outlive the optimizer.
            sentinel, looked_at = held(), of()
            if sentinel is not None and sentinel._placed[0] is looked_at:
                sentinel._write_unread()

        gradient.unread = write

    def settle(self) -> None:
        """Ask for the norm while it can be told; whoever looks later gets that."""
        if self._norm is not None:
            norm = self._norm()
            self._norm = lambda: norm

    def _leave_unread(self) -> None:
        if self._norm is not None:
            self._placed[0].void = True
        self._norm, self._placed = None, (None, 0)

    def _clear(self) -> None:
        self._leave_unread()
        if self._grad is None:
            self._grad = torch.zeros(
                self.parameter.shape, dtype=torch.float32, device=self.parameter.device
            )
        else:
            self._grad.zero_()

    def _write_unread(self) -> None:
        if self._norm is not None:
            norm, self._norm = self._norm(), None
            self._write(norm)

    def _unread(self) -> bool:
        """Whether nobody has looked at what stands, so that it is as it was placed."""
        gradient, version = self._placed
        with torch._C.DisableTorchFunctionSubclass():
            now = self.parameter.grad
            edited = gradient is not None and gradient._version != version
        if isinstance(now, SentinelGradient) and now.void:
            raise InvalidArgument(
                f"{self._owner}: the .grad that stands for all compressed gradients was edited, an "
                "earlier one is in its place, that nobody had looked at, expected this step's; put "
                "no earlier .grad back"
            )
        if self._norm is None:
            return False
        if now is not gradient:
            self._write_unread()  # Another is there, which is compared with what this would be.
            return False
        if edited:
            raise InvalidArgument(
                f"{self._owner}: the .grad that stands for all compressed gradients was edited "
                "where torch's function protocol is off (DisableTorchFunctionSubclass), expected "
                "it on, as the values are written when they are looked at; leave it on"
            )
        return True

    def _write(self, norm: float) -> None:
        # By the norm, so that a run that is resumed has the same bits as one that is not.
        drawn = Random(norm) if norm < math.inf else Random(0)
        self._draw_places(drawn)
        values = torch.tensor(
            _mark(norm, len(self._places), drawn), dtype=torch.float32, device="cpu"
        )
        self._grad.view(-1)[_index(self._places)] = values.to(self._grad.device)
        self._written = values.tolist()

    def _stand(self, values: torch.Tensor) -> SentinelGradient:
        with torch._C.DisableTorchFunctionSubclass(), torch.enable_grad():
            gradient = SentinelGradient.of(values, self.parameter.data_ptr())
            self.parameter.grad = gradient
        self.stands = True
        return gradient

    def _draw_places(self, drawn: Random) -> None:
        count = self.parameter.numel()
        if count < ROOM:
            self._places = list(range(count))
            return
        row, kept = self.parameter.shape[-1], Random(count)
        places = [kept.randrange(count) for _ in range(_KEPT)]
        places += [0, row - 1, count - row, count - 1]  # Masks by rows and columns begin there.
        bands = [count * band // _DRAWN for band in range(_DRAWN + 1)]
        places += [drawn.randrange(begin, end) for begin, end in pairwise(bands)]
        self._places = list(dict.fromkeys(places))
        self._empty = [(p + 1) % count for p in places if (p + 1) % count not in set(places)]

    def remove(self) -> None:
        """Take it away, if it is there: more gradients are to be gathered."""
        if self.stands:
            self.parameter.grad = None
            self.stands = False

    def put_back(self, gradient: torch.Tensor | None) -> None:
        """Stand as before `remove()`; None: as somebody else had taken it away by then."""
        self.parameter.grad = gradient
        self.stands = True

    def forget(self) -> None:
        """Take it away for good: whoever still holds it holds nothing of the next one."""
        self.remove()
        self._grad = None
        self._leave_unread()

    def release(self) -> None:
        """Leave the parameter as it was found."""
        self.forget()
        dtype, gradient = self.parameter.dtype, self.parameter.grad
        if dtype != torch.float32:
            self.parameter.grad = None  # Somebody may have assigned one, of what was its dtype.
            self.parameter.grad_dtype = dtype
            self.parameter.grad = gradient if gradient is None else gradient.to(dtype)

    def removed(self) -> bool:
        """Whether it was taken away by somebody else: `model.zero_grad()`."""
        return not self.stands or self.parameter.grad is None

    def zeroed(self) -> bool:
        """Whether somebody made it zero: `model.zero_grad(set_to_none=False)`."""
        if self._unread():
            return False
        return any(self._written) and not any(self._read(self._places + self._empty))

    def remains(self) -> bool:
        """Whether nobody has removed it, or made it zero."""
        if self.removed():
            return False
        return self._norm() != 0 if self._unread() else any(self._read(self._places))

    def _read(self, places: list[int]) -> list[float]:
        with torch._C.DisableTorchFunctionSubclass():
            gradient = self.parameter.grad.detach()
            return gradient.reshape(-1)[_index(places)].tolist()

    def factor(self) -> float:
        """By how much the sentinel was scaled since it was placed; NaN or inf after overflow.

        Raises
        ------
        InvalidArgument
            It was edited in any other way, or rounded, or is that of other gradients.
        """
        if self._unread():
            return 1.0
        dtype = self.parameter.grad.dtype
        if dtype != torch.float32:
            raise InvalidArgument(
                f"{self._owner}.step: gradients were converted to {dtype} after backward, "
                "expected float32 where they stand for compressed ones; convert the model between "
                "steps"
            )
        found, before = self._read(self._places + self._empty), self._written
        now, zeros = found[: len(before)], found[len(before) :]
        if not math.isfinite(math.fsum(before)):
            self._check_overflow(now)
            return math.nan
        if not all(map(math.isfinite, now)):
            return math.nan
        size = math.fsum(b * b for b in before)
        factor = math.fsum(a * b for a, b in zip(now, before, strict=True)) / size if size else 1.0
        for is_now, was in zip(now, before, strict=True):
            if abs(is_now - factor * was) > _ROUNDING * max(abs(factor * was), _TINY):
                raise self._edited(now, zeros)
        if any(zeros):
            raise self._edited(now, zeros)
        return factor

    def _check_overflow(self, now: list[float]) -> None:
        if any(
            math.isfinite(n)
            for n, b in zip(now, self._written, strict=True)
            if not math.isfinite(b)
        ):
            raise InvalidArgument(
                f"{self._owner}.step: the gradients of this backward() were not finite and the "
                ".grad that stands for compressed ones is finite now, expected it untouched, as "
                "nan_to_num_() and masks do not reach what was compressed; leave them out, such a "
                "step is skipped, or call zero_grad() to go on without it"
            )

    def _edited(self, now: list[float], empty: list[float]) -> InvalidArgument:
        found = [a / b for a, b in zip(now, self._written, strict=True) if b] or [1.0]
        zeros = " and some of its zeros changed" if any(empty) else ""
        return InvalidArgument(
            f"{self._owner}.step: the .grad that stands for all compressed gradients was edited, "
            f"its elements scaled by {min(found):.6g} to {max(found):.6g}{zeros}, expected one "
            "factor for all of this step's; clip by norm, not by value, edit gradients by "
            "register_hook(), and put no earlier .grad back"
        )


def _index(places: list[int]) -> torch.Tensor:
    return torch.tensor(places, dtype=torch.int64, device="cpu")


def _mark(norm: float, count: int, drawn: Random) -> list[float]:
    """Elements of this norm, one of them nearly all of it."""
    if not norm < math.inf:  # Where zeros take the place of what is not finite, others remain.
        return [norm if place % 2 == 0 else 1.0 for place in range(count)]
    norm = min(norm, _LARGEST)
    small = [drawn.uniform(1.0, 2.0) for _ in range(count - 1)]
    rest = math.sqrt((1.0 - _FIRST**2) / math.fsum(x * x for x in small))
    return [norm * part for part in (_FIRST, *(rest * x for x in small))]
