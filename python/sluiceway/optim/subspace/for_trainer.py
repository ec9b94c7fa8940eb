"""The door for transformers' Trainer, which makes the optimizer itself."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import select_weights
from sluiceway.optim.common.parameters import check_model
from sluiceway.optim.subspace.optimizer import SubspaceAdamW


def for_trainer(
    model: nn.Module, **options: Any
) -> tuple[type[TrainersSubspaceAdamW], dict[str, Any]]:
    """What transformers' `Trainer` takes as `optimizer_cls_and_kwargs` to train with SubspaceAdamW.

    Trainer makes the optimizer once the model is where it trains, from groups of its own: matrices
    with `weight_decay`, biases and norms without. Learning rate, betas, eps and
    `optim_target_modules` are those of its `TrainingArguments`, unless they are said here.
    Embeddings and head, which stand in Trainer's groups in any case, are frozen unless
    `embeddings="identity"`.

    Parameters
    ----------
    model : torch.nn.Module
        The one that Trainer is given.
    **options
        As of SubspaceAdamW, but for `param_groups`; or `optim_target_modules`, which Trainer's own
        optimizers take too: "all-linear", a regular expression of whole module names, or a list of
        such expressions and of parts of module names. It stands for `target`.

    Returns
    -------
    tuple of type and dict

    Raises
    ------
    InvalidArgument
        `model` is none, or `param_groups` was given. What is wrong with the other options is said
        when Trainer makes the optimizer.

    Examples
    --------
    >>> door = sw.for_trainer(model, tokens_per_step=65_536, total_steps=500)
    >>> Trainer(model=model, args=args, train_dataset=data, optimizer_cls_and_kwargs=door).train()
    """
    check_model("for_trainer", model)
    if "param_groups" in options:
        raise InvalidArgument(
            "for_trainer: param_groups are given, expected none, as Trainer makes them; for groups "
            "of your own pass Trainer(optimizers=(sw.SubspaceAdamW(...), None))"
        )
    # Not under the name "model": Trainer would take it out and pass it in place of its groups.
    return TrainersSubspaceAdamW, {"of": model, **options}


class TrainersSubspaceAdamW(SubspaceAdamW):
    """SubspaceAdamW with the constructor that Trainer calls; see `for_trainer`.

    Parameters
    ----------
    param_groups : iterable of dict
        Trainer's, which hold every trainable parameter.
    of : torch.nn.Module
    **options
        As of `for_trainer`.

    Raises
    ------
    InvalidArgument
        Trainer trains another model, or a learning rate is neither there nor here.
    """

    _groups_are_written = False

    def __init__(
        self, param_groups: Iterable[dict[str, Any]], *, of: nn.Module, **options: Any
    ) -> None:
        groups = [dict(group) for group in param_groups]
        ours = {id(p) for p in of.parameters()}
        if any(id(p) not in ours for group in groups for p in group["params"]):
            raise InvalidArgument(
                "for_trainer: Trainer has parameters that are not of the model given here, "
                "expected one model; pass the same to for_trainer and to Trainer"
            )
        # That Trainer calls is the only way to learn what its user told it.
        settled = {**_told(sys._getframe(1).f_locals.get("self")), **options}
        if "lr" not in settled:
            raise InvalidArgument(
                "for_trainer: no learning rate, expected that of a Trainer, or lr=; pass lr="
            )
        if (modules := settled.pop("optim_target_modules", None)) is not None:
            if "target" in options:
                raise InvalidArgument(
                    "for_trainer: target and optim_target_modules are given, expected one of them"
                )
            settled["target"] = _target(of, modules)
        super().__init__(of, param_groups=groups, **settled)


def _told(caller: Any) -> dict[str, Any]:
    """What a Trainer's arguments say about its optimizer; weight decay is in the groups."""
    module = sys.modules.get("transformers.trainer")
    if module is None or not isinstance(caller, module.Trainer):
        return {}
    arguments = caller.args
    return {
        "lr": arguments.learning_rate,
        "betas": (arguments.adam_beta1, arguments.adam_beta2),
        "eps": arguments.adam_epsilon,
        "optim_target_modules": arguments.optim_target_modules,
    }


def _target(model: nn.Module, modules: str | list[str]) -> str | list[str]:
    """Names of the weights of the modules that Trainer's own optimizers would find."""
    if isinstance(modules, str) and modules.replace("_", "-") == "all-linear":
        return "all-linear"
    from transformers.trainer_utils import check_target_module_exists

    linear = [w.name for w in select_weights(model).compressed]
    found = [n for n in linear if check_target_module_exists(modules, n.rpartition(".")[0])]
    if not found:
        raise InvalidArgument(
            f"for_trainer: optim_target_modules is {modules!r}, which no linear layer's name "
            f"matches, expected a part of one or an expression for it, as of {linear[0]}"
        )
    return found
