"""The loss of a causal language model, without storing its logits.

The model is called as usual, but the input of its head is marked. For a marked input, the product
with the output matrix is replaced by a cross entropy in slices, with the matrix that the head has
at that moment. Hooks of the model and of the head fire, and the tensors that they replace are used.
Only a hook that reads the head's output sees a few made-up columns in place of logits. From these
columns we also see whether the model changes its logits after the head.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sluiceway.errors import InvalidArgument
from sluiceway.model.chunked_loss.cross_entropy import (
    IGNORED,
    chunked_cross_entropy,
    sliced_cross_entropy,
)

_COLUMNS = (-30.0, 0.75, 70.0)


class ChunkedLoss:
    """Computes `model(**inputs).loss` with bounded memory for its logits.

    By default the loss is in f32, and has no graph. With `graph` it is the loss to train with: its
    products are in the types of the model, as usual, and its backward computes the logits again.

    Works for models of transformers whose loss is the mean cross entropy of the next token, and
    whose logits come from an `nn.Linear`, with or without a cap (`final_logit_softcapping`). Other
    models compute their own loss, which is converted to f32; a warning gives the reason.

    Parameters
    ----------
    model : torch.nn.Module
        Is not changed.
    graph : bool
        Whether the loss has a graph, if gradients are enabled.
    slice_elems : int, optional
        See `chunked_cross_entropy`, and `sliced_cross_entropy` with a graph.

    Attributes
    ----------
    refusal : str or None
        Reason why the model computes its own loss. Only the first call finds a reason that lies in
        the model's treatment of its logits.

    Thread safety: calls in several threads may overlap if only one of them runs at any time, as in
    the two forwards of a zeroth-order step.
    """

    def __init__(
        self, model: nn.Module, *, graph: bool = False, slice_elems: int | None = None
    ) -> None:
        self._model, self._graph = model, graph
        entropy = sliced_cross_entropy if graph else chunked_cross_entropy
        sizes = {} if slice_elems is None else {"slice_elems": slice_elems}
        self._entropy = partial(entropy, **sizes)
        self._seen = self._warned = False  # Logits were checked; the refusal was reported.
        self.refusal = refusal_of(model)
        self._cap = None if self.refusal else cap_of(model)

    def __call__(self, **inputs: Any) -> torch.Tensor:
        """Compute the loss of a batch.

        Parameters
        ----------
        inputs : dict
            Keyword arguments of the model, with labels.

        Raises
        ------
        InvalidArgument
            Labels are missing or not in the vocabulary, or do not fit the tokens of the head; or
            the inputs ask for another loss.
        """
        with torch.set_grad_enabled(self._graph and torch.is_grad_enabled()):
            return self._loss_of(inputs)

    def _loss_of(self, inputs: dict[str, Any]) -> torch.Tensor:
        labels = inputs.get("labels")
        if labels is None:
            raise InvalidArgument(
                "ChunkedLoss: labels are missing; pass labels=, for example input_ids"
            )
        for name in ("num_items_in_batch", "shift_labels"):
            if inputs.get(name) is not None:
                raise InvalidArgument(
                    f"ChunkedLoss: {name} is given, but this is the mean loss of the next tokens "
                    f"of labels; leave out {name}, or call model(**inputs).loss"
                )
        if self.refusal is None:
            head = self._model.get_output_embeddings()
            _check_labels(labels, head.out_features)
            wanted = _Wanted(labels, self._cap, self._entropy)
            output = wanted.run(self._model, head, inputs)
            if not self._seen:
                self.refusal, self._seen = wanted.refusal(output), True
            if self.refusal is None:
                return wanted.loss
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"ChunkedLoss: {type(self._model).__name__} computes its own loss from whole "
                f"logits, since {self.refusal}",
                stacklevel=2,
            )
        return self._model(**inputs).loss.float()


class _Wanted:
    """One call of the model, with the loss that its head computed."""

    def __init__(
        self, labels: torch.Tensor, cap: float | None, entropy: Callable[..., torch.Tensor]
    ) -> None:
        self._labels, self._cap, self._entropy = labels, cap, entropy
        self._thread = threading.get_ident()
        self.losses: list[torch.Tensor] = []

    @property
    def loss(self) -> torch.Tensor:
        return self.losses[0]

    def run(self, model: nn.Module, head: nn.Module, inputs: dict[str, Any]) -> Any:
        """Call the model; the logits in the returned output are made up."""
        handle = head.register_forward_pre_hook(self._mark)
        try:
            return model(**{name: x for name, x in inputs.items() if name != "labels"})
        finally:
            handle.remove()

    def _mark(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if threading.get_ident() != self._thread:
            return None  # Another thread's call, which has a hook of its own.
        marked = args[0].as_subclass(_Marked)
        marked.wanted = self
        return (marked, *args[1:])

    def product(
        self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute the loss in place of the head's product, and return a few columns."""
        if hidden.shape[:-1] != self._labels.shape:
            raise InvalidArgument(
                f"ChunkedLoss: the head runs on tokens of shape {tuple(hidden.shape[:-1])}, labels "
                f"are {tuple(self._labels.shape)}, expected equal ones; pass no logits_to_keep, or "
                "call model(**inputs).loss"
            )
        following = functional.pad(self._labels, (0, 1), value=IGNORED)[..., 1:].to(hidden.device)
        rows = hidden.flatten(0, -2)
        self.losses.append(self._entropy(rows, weight, following.flatten(), bias, cap=self._cap))
        return self._columns(hidden)

    def _columns(self, hidden: torch.Tensor) -> torch.Tensor:
        columns = torch.tensor(_COLUMNS, dtype=torch.float32, device=hidden.device)
        return columns.repeat(*hidden.shape[:-1], 1)

    def refusal(self, output: Any) -> str | None:
        """Reason why the loss computed in the head is not the model's loss; None if it is."""
        if len(self.losses) != 1:
            return f"its head ran {len(self.losses)} times in a forward, expected once"
        if getattr(output, "aux_loss", None) is not None:
            return "it adds an auxiliary loss; expected output_router_logits=False"
        logits = getattr(output, "logits", None)
        if not isinstance(logits, torch.Tensor):
            return f"it returned a {type(output).__name__} without logits"
        expected = self._columns(logits)
        if self._cap is not None:
            expected.div_(self._cap).tanh_().mul_(self._cap)
        if logits.shape != expected.shape or not torch.allclose(logits.float(), expected):
            return "it changes logits after its head, other than by final_logit_softcapping"
        return None


class _Marked(torch.Tensor):
    """Marks hidden states whose product with the output matrix becomes a loss."""

    wanted: _Wanted

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func is functional.linear and isinstance(args[0], cls):
                hidden = args[0].as_subclass(torch.Tensor)
                return args[0].wanted.product(hidden, *args[1:], **(kwargs or {}))
            return func(*args, **(kwargs or {}))


def refusal_of(model: nn.Module) -> str | None:
    """Reason why `ChunkedLoss` cannot compute a model's loss, found without a call; else None."""
    forward = inspect.unwrap(type(model).forward)
    if "loss_function" not in getattr(getattr(forward, "__code__", None), "co_names", ()):
        return "its forward has a loss of its own, without transformers' loss_function"
    if getattr(found := model.loss_function, "__name__", "") != "ForCausalLMLoss":
        return f"it computes a loss by {found}, expected ForCausalLMLoss of transformers"
    if getattr(model.config, "is_encoder_decoder", False):
        return "it is an encoder and a decoder, whose labels may not be shifted"
    head = model.get_output_embeddings()
    if getattr(type(head), "forward", None) is not nn.Linear.forward or "forward" in vars(head):
        return f"its head is {type(head).__name__}, expected an nn.Linear with its own forward"
    return None


def cap_of(model: nn.Module) -> float | None:
    config = model.config.get_text_config()
    return getattr(config, "final_logit_softcapping", None)


def _check_labels(labels: torch.Tensor, vocabulary: int) -> None:
    wrong = ((labels < 0) | (labels >= vocabulary)) & (labels != IGNORED)
    if wrong.any():
        raise InvalidArgument(
            f"ChunkedLoss: a label is {labels[wrong][0].item()}, expected 0 to {vocabulary - 1}, "
            f"or {IGNORED} for a token that is not learned"
        )
