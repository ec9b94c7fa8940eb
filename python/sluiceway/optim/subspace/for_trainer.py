"""Lets transformers' Trainer, which creates its optimizer itself, train with SubspaceAdamW."""

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
    """Return `optimizer_cls_and_kwargs` for transformers' `Trainer` to train with SubspaceAdamW.

    Trainer creates the optimizer after it has moved the model to its device. It makes its own
    groups: matrices with `weight_decay`, biases and norms without. Learning rate, betas, eps and
    `optim_target_modules` come from its `TrainingArguments` unless you pass them here. Trainer's
    groups always include embeddings and head; these are frozen unless `embeddings="identity"`.

    Parameters
    ----------
    model : torch.nn.Module
        The model that you pass to Trainer.
    **options
        Options of SubspaceAdamW except `param_groups`. In place of `target` you may pass
        `optim_target_modules`, which Trainer's own optimizers take too: "all-linear", a regular
        expression that matches whole module names, or a list of such expressions and of parts of
        module names.

    Returns
    -------
    tuple of type and dict

    Raises
    ------
    InvalidArgument
        `model` is not a module, or you passed `param_groups`. Other options are checked when
        Trainer creates the optimizer.

    Examples
    --------
    >>> door = sw.for_trainer(model, tokens_per_step=65_536, total_steps=500)
    >>> Trainer(model=model, args=args, train_dataset=data, optimizer_cls_and_kwargs=door).train()
    """
    check_model("for_trainer", model)
    if "param_groups" in options:
        raise InvalidArgument(
            "for_trainer: param_groups are given, but Trainer makes its own groups; for groups "
            "of your own pass Trainer(optimizers=(sw.SubspaceAdamW(...), None))"
        )
    # The key is not "model": Trainer would take that out and pass it in place of its groups.
    return TrainersSubspaceAdamW, {"of": model, **options}


class TrainersSubspaceAdamW(SubspaceAdamW):
    """SubspaceAdamW with the constructor that Trainer calls; see `for_trainer`.

    Parameters
    ----------
    param_groups : iterable of dict
        Trainer's groups, which hold every trainable parameter.
    of : torch.nn.Module
        The model that you passed to `for_trainer`.
    **options
        The options that you passed to `for_trainer`.

    Raises
    ------
    InvalidArgument
        Trainer trains another model, or neither Trainer nor `options` has a learning rate.
    """

    _groups_are_written = False

    def __init__(
        self, param_groups: Iterable[dict[str, Any]], *, of: nn.Module, **options: Any
    ) -> None:
        groups = [dict(group) for group in param_groups]
        ours = {id(p) for p in of.parameters()}
        if any(id(p) not in ours for group in groups for p in group["params"]):
            raise InvalidArgument(
                "for_trainer: Trainer has parameters that the model given to for_trainer does not "
                "have; pass one model to both for_trainer and Trainer"
            )
        # Trainer passes no arguments here, so we read those of the Trainer that calls us.
        settled = {**_told(sys._getframe(1).f_locals.get("self")), **options}
        if "lr" not in settled:
            raise InvalidArgument(
                "for_trainer: there is no learning rate, as the caller is not a Trainer; pass lr="
            )
        if (modules := settled.pop("optim_target_modules", None)) is not None:
            if "target" in options:
                raise InvalidArgument(
                    "for_trainer: target and optim_target_modules are both given; pass one of them"
                )
            settled["target"] = _target(of, modules)
        super().__init__(of, param_groups=groups, **settled)


def _told(caller: Any) -> dict[str, Any]:
    """Return a Trainer's arguments for its optimizer; the groups have the weight decay."""
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
    """Return the weights' names of the modules that Trainer's own optimizers would find."""
    if isinstance(modules, str) and modules.replace("_", "-") == "all-linear":
        return "all-linear"
    from transformers.trainer_utils import check_target_module_exists

    linear = [w.name for w in select_weights(model).compressed]
    found = [n for n in linear if check_target_module_exists(modules, n.rpartition(".")[0])]
    if not found:
        raise InvalidArgument(
            f"for_trainer: optim_target_modules is {modules!r}, which matches no linear layer; "
            f"pass a part of a layer's name or a regular expression for it, as for {linear[0]}"
        )
    return found
