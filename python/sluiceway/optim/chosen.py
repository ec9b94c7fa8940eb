"""Which parameters an optimizer trains, freezes or leaves alone, by its options and its groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import Selection, embedding_parameters, select_weights
from sluiceway.optim.hyperparameters import trainable_groups


def choose_parameters(
    owner: str,
    model: nn.Module,
    options: Any,
    param_groups: Iterable[dict[str, Any]] | None,
) -> tuple[Selection, list[dict[str, Any]]]:
    """What becomes of each parameter, and the groups as torch.optim takes them.

    Without `param_groups` all trainable parameters are the optimizer's, and embeddings and head
    are frozen unless the options say otherwise. With them, whoever wrote them has said what is to
    be trained: nothing is frozen, embeddings and head that stand in a group are trained through
    the identity codec, and parameters of no group are left to others as they are.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    model : torch.nn.Module
    options : SharedOptions
        With `target` and `embeddings` beside what is shared.
    param_groups : iterable of dict, optional
        As torch's.

    Raises
    ------
    InvalidArgument
        Options and groups contradict each other, or nothing is left to compress.
    """
    if param_groups is None:
        selection = select_weights(model, options.target, options.embeddings)
        frozen = {id(p) for _, p in selection.frozen}
        everything = [{"params": [p for p in model.parameters() if id(p) not in frozen]}]
        return selection, trainable_groups(owner, model, everything)
    groups = trainable_groups(owner, model, param_groups)
    named = {id(p) for group in groups for p in group["params"]}
    if options.embeddings == "frozen" and "embeddings" in options.model_fields_set:
        for name, parameter in embedding_parameters(model):
            if id(parameter) in named:
                raise InvalidArgument(
                    f"{owner}: {name} is in param_groups, but embeddings='frozen', expected one of "
                    "the two; leave it out of the groups, or leave embeddings= out to train it"
                )
    return select_weights(model, options.target, "identity", named), groups


def check_model(owner: str, model: Any) -> None:
    """Refuse what torch's own optimizers take in the place of a model."""
    if not isinstance(model, nn.Module):
        raise InvalidArgument(
            f"{owner}: model is a {type(model).__name__}, expected the torch.nn.Module itself, "
            f"whose hooks give the gradients; write {owner}(model, lr=...), and param_groups= for "
            "parameters of your choice"
        )
