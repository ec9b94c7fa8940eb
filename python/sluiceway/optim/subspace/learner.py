"""Learns projectors of a weight from a gradient, with torch's own linear algebra.

    minimise  |b(G)|_F / |G|_F + beta (|P|_F + |Q|_F)     docs/algorithm.md section 2, divided by
                                                           |G|_F: a loss scale changes nothing

over the values (positions stay) with Adam, until the relative bias is at most `threshold` or
`max_steps` are done; and the leading singular directions of a gradient, by a randomised range
finder. The engine calls both through `ProjectorLearner` (compress/learner.h), which has shapes,
bounds of memory and cost.

Everything lies where the gradient lies, so one on a GPU is never copied to the host. Only small
data crosses: the numbers that decide when to stop, one copy for each learning step, and the pivots
of a range finder, one for each of its columns. Random numbers are drawn on the host, the same for
every device. Each kind of device sums in one order, so equal calls give equal bits on one kind of
processor with an equal number of threads, and on one kind of GPU.

Sources: LSP-Offload (docs/algorithm.md); Halko, Martinsson, Tropp, arXiv 0909.4061.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# As compress/learner.h counts them: columns of a range finder beyond the requested ones, and its
# power iterations.
_EXTRA_DIRECTIONS, _POWER_ITERATIONS = 8, 2


class _FullPrecision:
    """Holds f32 products to full precision, if the user allows TF32 or bf16 for those of the model.

    The setting is of the process, so the first learner that begins changes it, and the last one
    that ends restores it.
    """

    def __init__(self, backend: Any) -> None:
        self._backend, self._lock = backend, threading.Lock()
        self._learners, self._before = 0, ""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it during a block."""
        begun = False
        try:
            with self._lock:
                begun = True
                self._learners += 1
                if self._learners == 1:
                    self._begin()
            yield
        finally:
            with self._lock:
                self._learners -= begun
                if begun and self._learners == 0:
                    self._end()

    def _begin(self) -> None:
        # torch.get_float32_matmul_precision() raises where the user has set these newer options.
        allowed = self._backend.matmul.fp32_precision
        if allowed in ("ieee", "none"):
            return
        inherited = allowed in (self._backend.fp32_precision, torch.backends.fp32_precision)
        self._before = "none" if inherited else allowed
        self._backend.matmul.fp32_precision = "ieee"

    def _end(self) -> None:
        if self._before:
            self._backend.matmul.fp32_precision = self._before
        self._before = ""


_ON_GPU, _ON_HOST = _FullPrecision(torch.backends.cuda), _FullPrecision(torch.backends.mkldnn)


@contextmanager
def _in_f32(device: torch.device) -> Iterator[None]:
    """Compute in f32 without a graph, whatever autocast a hook inherits from its backward."""
    with (
        (_ON_GPU if device.type == "cuda" else _ON_HOST).held(),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        yield


def _wait(device: torch.device) -> None:
    """Return when all work that torch has enqueued on a GPU is done."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


# ---- Leading directions --------------------------------------------------------------------------


def _orthonormal(x: Tensor) -> Tensor:
    return torch.linalg.qr(x).Q


def _rows_by_pivot(count: int, pivots: Tensor) -> Tensor:
    """Return the place to which an LU decomposition moves each row."""
    rows = list(range(count))
    for here, pivot in enumerate(pivots.cpu().tolist()):  # Counted from 1.
        rows[here], rows[pivot - 1] = rows[pivot - 1], rows[here]
    return torch.tensor(rows, device="cpu").to(pivots.device)


def _well_conditioned(x: Tensor) -> Tensor:
    """Return a basis of the range of x that later products use without losing small directions.

    It is the unit lower triangle of an LU decomposition, which takes a third of a QR's time.
    """
    lu, pivots, _ = torch.linalg.lu_factor_ex(x)  # A gradient of low rank has pivots of 0.
    lower = lu.tril_(-1)
    lower.diagonal().fill_(1)
    empty = torch.empty_like(x, memory_format=torch.contiguous_format)
    return empty.index_copy_(0, _rows_by_pivot(len(x), pivots), lower)


@cache
def _multiplies_bf16_faster() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) is True for name in ("avx512_bf16", "amx_bf16"))


def _product(a: Tensor, x: Tensor) -> Tensor:
    return (a @ x.to(a.dtype)).float()


def _normal_numbers(rows: int, cols: int, seed: int) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn((rows, cols), generator=generator, dtype=torch.float32, device="cpu")


def leading_directions(
    g: Tensor, left_count: int, right_count: int, seed: int
) -> tuple[Tensor | None, Tensor | None]:
    """Find the leading left and right singular directions of a dense f32 matrix, and consume it.

    Products with the gradient have factors in bf16 if the processor multiplies it faster. The bases
    are still orthonormal to f32, and hold within 0.1 % of the energy. If the rank of a gradient is
    below the number of requested directions, the surplus ones come from rounding.

    Parameters
    ----------
    left_count, right_count : int
        Columns of each side, at most the shorter side of the matrix; for 0 the result is None.
    seed : int
        Keys the random start.
    """
    # f32 would lose powers of a gradient of 1e-12.
    lowest, highest = torch.aminmax(g)
    largest = torch.maximum(highest, lowest.neg())
    if largest.item() > 0:
        g.div_(largest)
    a = g.bfloat16() if g.device.type == "cpu" and _multiplies_bf16_faster() else g
    del g  # The range reuses its memory.
    k = min(*a.shape, max(left_count, right_count) + _EXTRA_DIRECTIONS)
    basis = _product(a, _normal_numbers(a.shape[1], k, seed).to(a.device))
    for _ in range(_POWER_ITERATIONS):
        basis = _product(a, _well_conditioned(_product(a.t(), _well_conditioned(basis))))
    left = _orthonormal(basis)
    # a is about left rest^T. Eigenvectors of rest^T rest, which are sorted ascending, order both.
    rest = _product(a.t(), left)
    order = torch.linalg.eigh(rest.t() @ rest).eigenvectors.flip(1)
    return (
        left @ order[:, :left_count] if left_count else None,
        _orthonormal(rest @ order[:, :right_count]) if right_count else None,
    )


# ---- The objective -------------------------------------------------------------------------------


class SparsePattern:
    """The fixed positions of one sparse projector, arranged for products from either side.

    Parameters
    ----------
    index : Tensor
        i64[rows, nnz], the columns of each row's entries.
    cols : int
    """

    def __init__(self, index: Tensor, cols: int) -> None:
        self._cols = cols
        self._index = index = index.contiguous()
        rows, nnz = index.shape
        flat = index.flatten()
        self._row_start = torch.arange(0, flat.numel(), nnz, device=index.device)
        self._row_of_entry = torch.arange(rows, device=index.device).repeat_interleave(nnz)
        self._by_column = flat.argsort(stable=True)
        self._column_row = self._by_column.div(nnz, rounding_mode="floor")
        counts = flat.bincount(minlength=cols)
        self._column_start = counts.cumsum(0) - counts
        # Flat position in the Gram matrix, i64[rows, nnz, nnz].
        self._pair = (index.unsqueeze(2) * cols + index.unsqueeze(1)).flatten()

    def times(self, value: Tensor, x: Tensor) -> Tensor:
        """Return P x; `value` is [rows, nnz] in the type of `x`."""
        return _sum_of_rows(x, self._index.flatten(), self._row_start, value.flatten())

    def transposed_times(self, value: Tensor, x: Tensor) -> Tensor:
        """Return P^T x."""
        weight = value.flatten().index_select(0, self._by_column)
        return _sum_of_rows(x, self._column_row, self._column_start, weight)

    def gram(self, value: Tensor) -> Tensor:
        """Return P^T P, dense."""
        products = (value.unsqueeze(2) * value.unsqueeze(1)).flatten()
        flat = value.new_zeros(self._cols * self._cols)
        # Elements with equal positions are added in one order, so that equal calls give equal bits:
        # a GPU's index_add_ has no fixed order, and index_put_ sorts there.
        if flat.device.type == "cpu":
            flat.index_add_(0, self._pair, products)
        else:
            flat.index_put_((self._pair,), products, accumulate=True)
        return flat.view(self._cols, self._cols)

    def sampled_product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the entries of a b^T at the nonzeros, [rows, nnz]; a is rows x k, b cols x k."""
        # The gradient of an embedding bag's weights is an inner product of rows for each of them.
        found = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            a, b, self._index.flatten(), self._row_start, self._row_of_entry, 0
        )
        return found.view(self._index.shape)


def _sum_of_rows(x: Tensor, row: Tensor, start: Tensor, weight: Tensor) -> Tensor:
    """Return sums over j in [start[b], start[b + 1]) of weight[j] x[row[j]], for each b."""
    return functional.embedding_bag(
        row, x.contiguous(), start, mode="sum", per_sample_weights=weight
    )


def _ratio(a: float, b: float) -> float:
    """Divide as C does: a gradient whose squares are no f32 has a norm of 0."""
    return a / b if b else math.copysign(math.inf, a) if a else math.nan


def _inner_f64(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dtype=torch.float64)


@dataclass(frozen=True)
class Evaluation:
    """The objective at some values.

    Attributes
    ----------
    bias : float
        |R|_F / |G|_F.
    objective : float
    dp, dq : Tensor
        Gradient of the objective, shaped like the values.
    """

    bias: float
    objective: float
    dp: Tensor
    dq: Tensor


class BiasObjective:
    """The function that learning minimises, and its gradient, in any floating type.

        f(P, Q) = |R|_F / |G|_F + beta (|P|_F + |Q|_F),     R = P P^T G Q Q^T - G
        d(|R|^2 / 2)/dP = R Q (Q^T G^T P) + G Q (Q^T R^T P)       masked to the pattern of P
        d(|R|^2 / 2)/dQ = R^T P (P^T G Q) + G^T P (P^T R Q)       masked to the pattern of Q

    R is never formed. With A = P^T G Q, the Gram matrices K = P^T P and L = Q^T Q, and C = K A L:

        |R|^2 = <C, A> - 2 <A, A> + |G|^2     R Q = P (A L) - G Q     R^T P = Q (K A)^T - G^T P
        P^T R Q = C - A

    Inner products are summed in double: in f32, a relative bias below about 1e-3 is rounding error.

    Parameters
    ----------
    g : Tensor
        Dense, f32 or f64; its transpose is copied.
    p, q : SparsePattern
    beta : float
    """

    def __init__(self, g: Tensor, p: SparsePattern, q: SparsePattern, beta: float) -> None:
        self._g, self._g_transposed = g.contiguous(), g.t().contiguous()
        self._p, self._q, self._beta = p, q, beta
        self._grad_sq = _inner_f64(self._g, self._g).item()

    def evaluate(self, p_value: Tensor, q_value: Tensor) -> Evaluation:
        """Evaluate at the values of both; copies four numbers to the host."""
        p, q = self._p, self._q
        gq = q.transposed_times(q_value, self._g_transposed).t().contiguous()
        gtp = p.transposed_times(p_value, self._g).t().contiguous()
        a = p.transposed_times(p_value, gq)
        al = a @ q.gram(q_value)
        k = p.gram(p_value)
        c, ka = k @ al, k @ a

        ptrq = c - a
        rq = p.times(p_value, al) - gq
        rtp = q.times(q_value, ka.t()) - gtp
        dp = p.sampled_product(rq, a) + p.sampled_product(gq, ptrq)
        dq = q.sampled_product(rtp, a.t().contiguous()) + q.sampled_product(
            gtp, ptrq.t().contiguous()
        )

        # Copies all numbers at once, and last, so that a GPU already has the rest of the work.
        pairs = ((c, a), (a, a), (p_value, p_value), (q_value, q_value))
        ca, aa, pp, qq = torch.stack([_inner_f64(x, y) for x, y in pairs]).cpu().tolist()
        bias_norm = math.sqrt(max(ca - 2 * aa + self._grad_sq, 0.0))
        p_norm, q_norm, grad_norm = math.sqrt(pp), math.sqrt(qq), math.sqrt(self._grad_sq)
        per_half_square = _ratio(1, bias_norm * grad_norm) if bias_norm else 0.0
        for gradient, value, norm in ((dp, p_value, p_norm), (dq, q_value, q_norm)):
            gradient.mul_(per_half_square).add_(value, alpha=self._beta / norm if norm else 0.0)
        bias = _ratio(bias_norm, grad_norm)
        return Evaluation(bias, bias + self._beta * (p_norm + q_norm), dp, dq)


# ---- Learning ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LearnOptions:
    """Says when learning ends, and has the hyperparameters of its Adam.

    Its eps is outside the square root.
    """

    threshold: float = 0.0
    max_steps: int = 100
    beta: float = 1e-4
    learning_rate: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


class _Adam:
    def __init__(self, value: Tensor, options: LearnOptions) -> None:
        self.value, self._options = value, options
        self._m, self._v = torch.zeros_like(value), torch.zeros_like(value)

    def step(self, gradient: Tensor, t: int) -> None:
        options = self._options
        self._m.mul_(options.beta1).add_(gradient, alpha=1 - options.beta1)
        self._v.mul_(options.beta2).addcmul_(gradient, gradient, value=1 - options.beta2)
        m_scale = 1 / (1 - options.beta1**t)
        v_scale = 1 / (1 - options.beta2**t)
        root = (self._v * v_scale).sqrt_().add_(options.eps)
        self.value.addcdiv_(self._m, root, value=-options.learning_rate * m_scale)


def learn_values(
    g: Tensor,
    p: SparsePattern,
    q: SparsePattern,
    p_value: Tensor,
    q_value: Tensor,
    options: LearnOptions,
) -> tuple[float, float, int]:
    """Put the best values found into `p_value` and `q_value`, f32[rows, nnz].

    Returns
    -------
    tuple
        Relative bias before and after, and steps done.
    """
    objective = BiasObjective(g, p, q, options.beta)
    p_adam, q_adam = (_Adam(value.clone(), options) for value in (p_value, q_value))
    before = after = 0.0
    best: tuple[Tensor, Tensor] | None = None
    steps = 0
    while True:
        now = objective.evaluate(p_adam.value, q_adam.value)
        if best is None:
            before = now.bias
        if best is None or now.bias < after:
            after, best = now.bias, (p_adam.value.clone(), q_adam.value.clone())
        if (
            now.bias <= options.threshold
            or steps >= options.max_steps
            or not math.isfinite(now.bias)
        ):
            break
        steps += 1
        p_adam.step(now.dp, steps)
        q_adam.step(now.dq, steps)
    p_value.copy_(best[0])
    q_value.copy_(best[1])
    return before, after, steps


class TorchLearner:
    """Learns for the engine, on torch's threads or on torch's current stream of a GPU.

    The input must have been written before a call; the results are there when it returns.
    """

    @torch.compiler.disable  # A compiled step must not compile this, too.
    def leading_directions(self, g: Tensor, p: Tensor | None, q: Tensor | None, seed: int) -> None:
        """Write orthonormal bases of the leading directions of `g` into `p`, `q` or both."""
        with _in_f32(g.device):
            left, right = (0 if x is None else x.shape[1] for x in (p, q))
            # Positional arguments, which nothing holds but the function.
            found = leading_directions(g.to(torch.float32, copy=True), left, right, seed)
            for into, basis in zip((p, q), found, strict=True):
                if into is not None:
                    into.copy_(basis)
            _wait(g.device)

    @torch.compiler.disable
    def learn(
        self,
        g: Tensor,
        p: tuple[Tensor, Tensor, int],
        q: tuple[Tensor, Tensor, int],
        options: dict[str, float],
    ) -> tuple[float, float, int]:
        """Learn the values of two sparse projectors.

        Parameters
        ----------
        p, q : tuple
            Positions i32[rows, nnz], values f32[rows, nnz], and the number of columns.
        options : dict
            Those of `LearnOptions`.

        Returns
        -------
        tuple
            Relative bias before and after, and steps done.
        """
        with _in_f32(g.device):
            patterns = (SparsePattern(index.long(), cols) for index, _, cols in (p, q))
            outcome = learn_values(g.float(), *patterns, p[1], q[1], LearnOptions(**options))
            _wait(g.device)
            return outcome
