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
                logits = _capped(functional.linear(hidden[part].float(), w, b), cap)
                _take_in(logits, labels[part] - first, log_sum[part], at_label[part])
    return _mean(log_sum, at_label, labels != ignored)


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
    backward computes the logits again, for a slice of the vocabulary and all tokens at a time. So
    each gradient of a word is one product, and those of hidden states add up in f32.

    Parameters
    ----------
    slice_elems : int
        Most logits of a slice, unless a single word has more.

    Returns
    -------
    torch.Tensor
        An f32 scalar. Cost: 8 T V width flop with its backward, which holds T x width f32 and the
        gradients.
    """
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        computes_in = torch.get_autocast_dtype(device)
    else:
        computes_in = torch.promote_types(hidden.dtype, weight.dtype)
    size = max(1, slice_elems // max(1, len(hidden)))
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
        log_sum = torch.full(labels.shape, -torch.inf, dtype=torch.float64, device=hidden.device)
        at_label = torch.full_like(log_sum, torch.nan)
        for words, _, logits in _slices(hidden.to(computes_in), weight, bias, cap, size):
            _take_in(logits, labels - words.start, log_sum, at_label)
        ctx.save_for_backward(hidden, weight, bias, labels, log_sum.float())
        ctx.how = cap, size, computes_in
        return _mean(log_sum, at_label, labels != IGNORED)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        hidden, weight, bias, labels, log_sum = ctx.saved_tensors
        (cap, size, computes_in), needs = ctx.how, ctx.needs_input_grad
        of_hidden = torch.zeros_like(hidden, dtype=torch.float32) if needs[0] else None
        of_weight = torch.empty_like(weight) if needs[1] else None
        of_bias = torch.empty_like(bias) if needs[2] else None
        learned = labels != IGNORED
        scale = (gradient / learned.sum() * learned).unsqueeze(1)
        narrow = hidden.to(computes_in)
        for words, w, logits in _slices(narrow, weight, bias, cap, size):
            each = (logits - log_sum.unsqueeze(1)).exp_()  # Of softmax, less 1 at the label.
            inside = (labels - words.start).unsqueeze(1)
            is_here = (inside >= 0) & (inside < len(w))
            each.scatter_add_(1, inside.clamp(0, len(w) - 1), -is_here.to(each.dtype))
            each.mul_(scale)
            if cap is not None:
                each.mul_(1 - (logits / cap).square_())
            each = each.to(computes_in)
            if of_hidden is not None:
                of_hidden += each @ w
            if of_weight is not None:
                of_weight[words] = each.t() @ narrow
            if of_bias is not None:
                of_bias[words] = each.sum(0)
        of_hidden = None if of_hidden is None else of_hidden.to(hidden.dtype)
        return of_hidden, of_weight, of_bias, None, None, None, None


def _slices(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    cap: float | None,
    size: int,
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """Yield slices of the vocabulary, their rows of W in the type of H, and their logits in f32."""
    with torch.autocast(hidden.device.type, enabled=False):
        for first in range(0, len(weight), size):
            words = slice(first, first + size)
            w = weight[words].to(hidden.dtype)
            b = None if bias is None else bias[words].to(hidden.dtype)
            yield words, w, _capped(functional.linear(hidden, w, b).float(), cap)


def _capped(logits: torch.Tensor, cap: float | None) -> torch.Tensor:
    """Cap logits in place."""
    return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


def _take_in(
    logits: torch.Tensor, inside: torch.Tensor, log_sum: torch.Tensor, at_label: torch.Tensor
) -> None:
    """Add a slice of the vocabulary to ln sum exp, and note the logits of labels that it has.

    Overwrites the logits. `inside` has the labels, counted from the slice's first word.
    """
    found = logits.gather(1, inside.clamp(0, logits.shape[1] - 1).unsqueeze(1)).squeeze(1)
    is_here = (inside >= 0) & (inside < logits.shape[1])
    at_label.copy_(torch.where(is_here, found.double(), at_label))
    log_sum.copy_(torch.logaddexp(log_sum, _log_sum_exp(logits)))


def _mean(log_sum: torch.Tensor, at_label: torch.Tensor, learned: torch.Tensor) -> torch.Tensor:
    return ((log_sum - at_label).where(learned, 0.0).sum() / learned.sum()).float()
