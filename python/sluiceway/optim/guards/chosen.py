"""Which parameters an optimizer trains, freezes or leaves alone, by its options and its groups."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import Selection, embedding_parameters, select_weights
from sluiceway.optim.hyperparameters import groups_of_model
from sluiceway.optim.open_model.ownership import refuse_taken


def choose_parameters(
    owner: str,
    model: nn.Module,
    param_groups: Iterable[dict[str, Any]] | None,
    select: Callable[[Collection[int]], Selection],
) -> tuple[Selection, list[dict[str, Any]]]:
    """What becomes of each parameter, and the groups as torch.optim takes them.

    Parameters of no group are left to others as they are.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    model : torch.nn.Module
    param_groups : iterable of dict, optional
        As torch's; default is one group of everything.
    select : callable
        Sorts the parameters that have one of these id().

    Raises
    ------
    InvalidArgument
        Options and groups contradict each other, or nothing is left to train.
    """
    given = [{"params": model.parameters()}] if param_groups is None else param_groups
    groups = groups_of_model(owner, model, given)
    named = {id(p) for group in groups for p in group["params"]}
    refuse_taken(owner, [(name, p) for name, p in model.named_parameters() if id(p) in named])
    wanted = {id(p) for group in groups for p in group["params"] if p.requires_grad}
    selection = select(wanted)
    trained = {id(p) for _, p in selection.trained}
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) in trained]
    selection.left_out = [
        (name, p)
        for name, p in model.named_parameters()
        if id(p) in named - trained and p.numel() > 0
    ]
    return selection, groups


def select_compressed(
    owner: str, model: nn.Module, options: Any, wanted: Collection[int], written: bool
) -> Selection:
    """Sort the parameters that have an id() in `wanted`.

    Embeddings and head are frozen unless the options say otherwise; but where a user wrote the
    groups, what stands in them is trained, as it is by torch's optimizers, embeddings and head
    through the identity codec.

    Parameters
    ----------
    options : SubspaceOptions
    written : bool
        Whether there are groups, and they are a user's choice of what to train.

    Raises
    ------
    InvalidArgument
        Options and groups contradict each other, or nothing is left to compress.
    """
    if written:
        _refuse_contradiction(owner, model, options, wanted)
    embeddings = "identity" if written else options.embeddings
    return select_weights(model, options.target, embeddings, wanted)


def _refuse_contradiction(
    owner: str, model: nn.Module, options: Any, named: Collection[int]
) -> None:
    """Refuse embeddings that a user asked for twice, to be trained and to be frozen."""
    if options.embeddings != "frozen" or "embeddings" not in options.model_fields_set:
        return
    for name, parameter in embedding_parameters(model):
        if id(parameter) in named:
            raise InvalidArgument(
                f"{owner}: {name} is in param_groups, but embeddings='frozen', expected one of the "
                "two; leave it out of the groups, or leave embeddings= out to train it"
            )


def check_model(owner: str, model: Any) -> None:
    """Refuse what torch's own optimizers take in the place of a model."""
    if not isinstance(model, nn.Module):
        raise InvalidArgument(
            f"{owner}: model is a {type(model).__name__}, expected the torch.nn.Module itself, "
            f"whose hooks give the gradients; write {owner}(model, lr=...), and param_groups= for "
            "parameters of your choice"
        )
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise InvalidArgument(
                f"{owner}: {name} has no shape yet, expected one; run a forward before the "
                "optimizer is made"
            )
