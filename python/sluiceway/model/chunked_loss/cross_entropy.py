"""Computes cross entropy from hidden states and an output matrix, without storing all logits.

    logits = cap tanh((H W^T + b) / cap)      no cap: H W^T + b
    loss   = mean over learned tokens of (ln sum_v exp logits_v - logits_label)

The outer loop runs over slices of the vocabulary and the inner one over slices of tokens, so each
slice of W is converted once. For each slice and token we keep ln sum exp of the logits, and the
label's logit if the label is in the slice.

Numerics: products and their sums in f32 for any types of H and W; exponentials and their sum over
          a slice in f32; sums over slices and tokens in f64. autocast does not apply.
Cost:     2 T V width flop in f32. Holds a few arrays of `slice_elems` f32, and a few of one f64 per
          token, beside its arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

IGNORED = -100  # Label of a token that is not learned, in torch and transformers.
_SLICE_ELEMS = 1 << 24  # 64 MiB.
_TOKENS = 1024
_TRAINED_ELEMS = 1 << 25  # Logits of a slice with a graph; about five arrays of them are there.


@torch.no_grad()
def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    cap: float | None = None,
    ignored: int = IGNORED,
    slice_elems: int = _SLICE_ELEMS,
) -> torch.Tensor:
    """Compute `torch.nn.functional.cross_entropy` of the logits; NaN if no token is learned.

    Parameters
    ----------
    hidden : torch.Tensor
        T x width.
    weight : torch.Tensor
        V x width.
    labels : torch.Tensor
        T integers. One that is neither in the vocabulary nor `ignored` makes the loss NaN.
    bias : torch.Tensor, optional
        V.
    cap : float, optional
        Largest magnitude of a logit (see above).
    slice_elems : int
        Most elements in an array of logits, converted weights or hidden states, unless a single
        row has more.

    Returns
    -------
    torch.Tensor
        An f32 scalar without a graph.
    """
    tokens = max(1, min(_TOKENS, slice_elems // hidden.shape[1]))
    rows = max(1, slice_elems // max(hidden.shape[1], tokens))
    log_sum = torch.full(labels.shape, -torch.inf, dtype=torch.float64, device=hidden.device)
    at_label = torch.full_like(log_sum, torch.nan)
    with torch.autocast(hidden.device.type, enabled=False):
        for first in range(0, len(weight), rows):
            w = weight[first : first + rows].float()
            b = None if bias is None else bias[first : first + rows].float()
            for start in range(0, len(hidden), tokens):
                part = slice(start, start + tokens)
                logits = functional.linear(hidden[part].float(), w, b)
                if cap is not None:
                    logits.div_(cap).tanh_().mul_(cap)
                inside = labels[part] - first
                found = logits.gather(1, inside.clamp(0, len(w) - 1).unsqueeze(1)).squeeze(1)
                is_here = (inside >= 0) & (inside < len(w))
                at_label[part] = torch.where(is_here, found.double(), at_label[part])
                log_sum[part] = torch.logaddexp(log_sum[part], _log_sum_exp(logits))
    learned = labels != ignored
    return ((log_sum - at_label).where(learned, 0.0).sum() / learned.sum()).float()


def _log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """Compute ln sum exp of each row in f64, overwriting the logits."""
    most = logits.amax(1)
    most.masked_fill_(most == -torch.inf, 0.0)  # Every word of the slice is impossible.
    return logits.sub_(most.unsqueeze(1)).exp_().sum(1).double().log_().add_(most)


def sliced_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    cap: float | None = None,
    slice_elems: int = _TRAINED_ELEMS,
) -> torch.Tensor:
    """Compute the same mean as `chunked_cross_entropy`, with a graph.

    Products have the types of the model's own head, autocast included; what follows is f32. The
    backward computes the logits again, a slice of tokens at a time, and adds each slice to the
    gradient of W in the type of W.

    Parameters
    ----------
    slice_elems : int
        Most logits of a slice, unless a single token has more.

    Returns
    -------
    torch.Tensor
        An f32 scalar. Cost: 8 T V width flop with its backward, and the gradient of W.
    """
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        computes_in = torch.get_autocast_dtype(device)
    else:
        computes_in = torch.promote_types(hidden.dtype, weight.dtype)
    size = max(1, slice_elems // len(weight))
    return _Sliced.apply(hidden, weight, bias, labels, cap, size, computes_in)


class _Sliced(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        cap: float | None,
        size: int,
        computes_in: torch.dtype,
    ) -> torch.Tensor:
        ctx.save_for_backward(hidden, weight, bias, labels)
        ctx.cap, ctx.size, ctx.computes_in = cap, size, computes_in
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for _, part, w, b, to in _slices(ctx, hidden, weight, bias, labels):
            total += _summed(functional.linear(part, w, b), to, cap)
        return total / (labels != IGNORED).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        hidden, weight, bias, labels = ctx.saved_tensors
        of_hidden, of_weight, of_bias = (
            torch.zeros_like(tensor) if needed else None
            for tensor, needed in zip((hidden, weight, bias), ctx.needs_input_grad, strict=False)
        )
        scale = gradient / (labels != IGNORED).sum()
        for rows, part, w, b, to in _slices(ctx, hidden, weight, bias, labels):
            logits = functional.linear(part, w, b).requires_grad_()
            with torch.enable_grad():
                (each,) = torch.autograd.grad(_summed(logits, to, ctx.cap), logits, scale)
            if of_hidden is not None:
                of_hidden[rows] = each @ w
            if of_weight is not None and of_weight.dtype == each.dtype:
                of_weight.addmm_(each.t(), part)
            elif of_weight is not None:
                of_weight += each.t() @ part
            if of_bias is not None:
                of_bias += each.sum(0)
        return of_hidden, of_weight, of_bias, None, None, None, None


def _slices(
    ctx: Any,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]]:
    """Yield the rows of each slice of tokens, and what its logits and its loss are made from."""
    w = weight.to(ctx.computes_in)
    b = None if bias is None else bias.to(ctx.computes_in)
    with torch.autocast(hidden.device.type, enabled=False):
        for first in range(0, len(hidden), ctx.size):
            rows = slice(first, first + ctx.size)
            yield rows, hidden[rows].to(ctx.computes_in), w, b, labels[rows]


def _summed(logits: torch.Tensor, labels: torch.Tensor, cap: float | None) -> torch.Tensor:
    if cap is not None:
        logits = (logits / cap).tanh() * cap
    return functional.cross_entropy(logits.float(), labels, reduction="sum", ignore_index=IGNORED)
