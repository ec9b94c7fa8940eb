"""Computes the mean loss of a held-out set, for training and for `sluiceway eval`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.text.batches import Batch, Sequences, in_order
from sluiceway.text.sequences import IGNORED

_TOKENS = 16  # Of the sequence that shows what a loss depends on.
# Largest change of a loss, relative to the loss, that is rounding: products have the same shapes.
# Tokens of a model with experts are grouped, so other tokens may change how a product is rounded.
_ROUNDING, _ROUNDING_OF_EXPERTS = 1e-6, 1e-2


def mean_loss(
    model: torch.nn.Module,
    sequences: Sequences,
    micro_batch: int,
    losses: Callable[[Sequence[Batch]], list[float]],
    most: int | None = None,
    advance: Callable[[int], None] = lambda count: None,
    at_once: int = 1,
) -> tuple[float, int]:
    """Compute the mean loss over the learned tokens of a set; the model's mode stays as it was.

    Parameters
    ----------
    micro_batch : int
        Number of sequences in one forward.
    losses : callable
        Computes the mean loss of each of several batches.
    most : int or None
        Evaluate only the first `most` sequences; None: all.
    advance : callable
        Called for each batch with the number of its sequences, as soon as its loss is known.
    at_once : int
        Largest number of batches to give to `losses` in one call.

    Returns
    -------
    tuple of float and int
        Nats per token, and the number of tokens that were predicted.
    """
    total, learned = 0.0, 0
    with _evaluating(model):
        batches = in_order(sequences, micro_batch, most)
        while group := list(islice(batches, at_once)):
            for batch, loss in zip(group, losses(group), strict=True):
                total += loss * batch.learned
                learned += batch.learned
                advance(len(batch.inputs["input_ids"]))
    return total / learned, learned


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, without an auxiliary loss of its router."""
    trains = model.training
    configs = {id(c): c for c in (model.config, model.config.get_text_config())}.values()
    routed = [c for c in configs if getattr(c, "output_router_logits", False)]
    model.eval()
    for config in routed:
        config.output_router_logits = False
    try:
        with torch.no_grad():
            yield
    finally:
        for config in routed:
            config.output_router_logits = True
        model.train(trains)


def check_next_token(
    model: torch.nn.Module, losses: Callable[[Sequence[Batch]], list[float]], length: int
) -> None:
    """Refuse a model whose loss is not that of the next token, or that sees later tokens.

    The loss of one token is computed twice; the second time, that token and all later ones are
    others in the input, and the label is the same. Cost: two forwards of at most 16 tokens.

    Parameters
    ----------
    losses : callable
        Computes the mean loss of each of several batches.
    length : int
        Tokens of the sequences that the run has, at least 2.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        The two losses differ by more than rounding.
    """
    ids, vocabulary = _random_tokens(model, length)
    count = ids.shape[1]
    label = count // 2
    labels = torch.full_like(ids, IGNORED)
    labels[:, label] = ids[:, label]
    batches = _with_others(ids, slice(label, count), vocabulary, labels=labels)
    first, second, differ = _compared(model, losses, batches)
    if differ:
        raise InvalidArgument(
            f"model.path: {type(model).__name__} is no model of the next token: its loss for a "
            f"token changes from {first:.4f} to {second:.4f} with that token and later ones in the "
            "input, which it must not see; expected a causal language model"
        )


def check_apart(
    model: torch.nn.Module, losses: Callable[[Sequence[Batch]], list[float]], length: int
) -> None:
    """Refuse a model in which a packed document sees the one before it.

    The loss of a document is computed twice, behind two documents whose position ids end before
    it. Products of the same shapes round alike, in 16 bits too. Parameters and cost are those of
    `check_next_token`.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        The model takes no position ids, or the two losses differ by more than rounding.
    """
    ids, vocabulary = _random_tokens(model, length)
    count = ids.shape[1]
    if count < 4:
        return  # Too short for two documents with something to learn.
    first = count // 2
    positions = torch.cat([torch.arange(first), torch.arange(count - first)])[None]
    labels = ids.clone()
    labels[:, : first + 1] = IGNORED
    inputs = {"labels": labels, "position_ids": positions}
    batches = _with_others(ids, slice(0, first), vocabulary, **inputs)
    name = type(model).__name__
    try:
        behind, other, differ = _compared(model, losses, batches)
    except (TypeError, ValueError) as error:  # Bloom raises the second.
        raise InvalidArgument(
            f"data.packing: apart needs a model that takes position_ids, and {name} does not: "
            f"{error}; set data.packing: true or false"
        ) from None
    if differ:
        raise InvalidArgument(
            f"data.packing: apart does not keep documents apart in {name}: the loss of a document "
            f"is {behind:.4f} behind one document, and {other:.4f} behind another; set "
            "data.packing: true or false"
        )


def _random_tokens(model: torch.nn.Module, length: int) -> tuple[torch.Tensor, int]:
    """Draw one short sequence, always the same, and return it with the size of the vocabulary."""
    vocabulary = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary, (1, min(length, _TOKENS)), generator=generator), vocabulary


def _with_others(
    ids: torch.Tensor, part: slice, vocabulary: int, **inputs: torch.Tensor
) -> list[Batch]:
    """Return a batch, and one with other tokens in a part of the sequence."""
    others = ids.clone()
    others[:, part] = (ids[:, part] + 1) % vocabulary
    learned = int((inputs["labels"] != IGNORED).sum())
    return [Batch({"input_ids": i, **inputs}, ids.shape[1], learned) for i in (ids, others)]


def _compared(
    model: torch.nn.Module,
    losses: Callable[[Sequence[Batch]], list[float]],
    batches: Sequence[Batch],
) -> tuple[float, float, bool]:
    """Return the losses of two batches, and whether they differ by more than rounding."""
    with _evaluating(model):
        first, second = (losses([batch])[0] for batch in batches)
    names = (f"{name} {type(module).__name__}".lower() for name, module in model.named_modules())
    experts = any("expert" in name for name in names)
    rounding = _ROUNDING_OF_EXPERTS if experts else _ROUNDING
    return first, second, abs(first - second) > rounding * max(1.0, abs(first))
