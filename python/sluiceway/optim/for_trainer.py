"""Lets transformers' Trainer, which creates its optimizer itself, train with our optimizers."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Literal

from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import select_weights
from sluiceway.optim.common.parameters import check_model
from sluiceway.optim.offload.optimizer import OffloadAdamW
from sluiceway.optim.subspace.optimizer import SubspaceAdamW


def for_trainer(
    model: nn.Module, kind: Literal["subspace", "offload"] = "subspace", **options: Any
) -> tuple[type[SubspaceAdamW | OffloadAdamW], dict[str, Any]]:
    """Return `optimizer_cls_and_kwargs` for transformers' `Trainer`, and for TRL's trainers.

    Trainer creates the optimizer after it has moved the model to its device. It makes its own
    groups: matrices with `weight_decay`, biases and norms without. Learning rate, betas, eps and
    `optim_target_modules` come from its `TrainingArguments` unless you pass them here. Trainer's
    groups always include embeddings and head; with kind="subspace", `embeddings="frozen"` leaves
    them as they are.

    Parameters
    ----------
    model : torch.nn.Module
        The model that you pass to Trainer.
    kind : str
        "subspace" trains with SubspaceAdamW, "offload" with OffloadAdamW.
    **options
        Options of that optimizer except `param_groups`. With kind="subspace" you may pass
        `optim_target_modules` in place of `target`, which Trainer's own optimizers take too:
        "all-linear", a regular expression that matches whole module names, or a list of such
        expressions and of parts of module names.

    Returns
    -------
    tuple of type and dict

    Raises
    ------
    InvalidArgument
        `model` is not a module, there is no such kind, or you passed `param_groups`. Other options
        are checked when Trainer creates the optimizer.

    Examples
    --------
    >>> door = sw.for_trainer(model, kind="offload", tier="disk", path="/mnt/nvme/states")
    >>> Trainer(model=model, args=args, train_dataset=data, optimizer_cls_and_kwargs=door).train()
    """
    check_model("for_trainer", model)
    kinds = {"subspace": TrainersSubspaceAdamW, "offload": TrainersOffloadAdamW}
    if kind not in kinds:
        more = "; for zo write a loop, since it takes no backward" if kind == "zo" else ""
        raise InvalidArgument(f"for_trainer: kind is {kind!r}, expected subspace or offload{more}")
    if "param_groups" in options:
        raise InvalidArgument(
            "for_trainer: param_groups are given, but Trainer makes its own groups; for groups "
            f"of your own pass Trainer(optimizers=(sw.{kinds[kind].__base__.__name__}(...), None))"
        )
    # The key is not "model": Trainer would take that out and pass it in place of its groups.
    return kinds[kind], {"of": model, **options}


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
        settled = _settled(groups, of, options, sys._getframe(1).f_locals.get("self"))
        if (modules := settled.pop("optim_target_modules", None)) is not None:
            if "target" in options:
                raise InvalidArgument(
                    "for_trainer: target and optim_target_modules are both given; pass one of them"
                )
            settled["target"] = _target(of, modules)
        super().__init__(of, param_groups=groups, **settled)


class TrainersOffloadAdamW(OffloadAdamW):
    """OffloadAdamW with the constructor that Trainer calls; see TrainersSubspaceAdamW."""

    def __init__(
        self, param_groups: Iterable[dict[str, Any]], *, of: nn.Module, **options: Any
    ) -> None:
        groups = [dict(group) for group in param_groups]
        settled = _settled(groups, of, options, sys._getframe(1).f_locals.get("self"))
        if settled.pop("optim_target_modules", None) is not None:
            raise InvalidArgument(
                "for_trainer: optim_target_modules is given, but kind offload trains every "
                "parameter; leave it out, or freeze the others with requires_grad_(False)"
            )
        super().__init__(of, param_groups=groups, **settled)


def _settled(
    groups: list[dict[str, Any]], model: nn.Module, options: dict[str, Any], caller: Any
) -> dict[str, Any]:
    """Return the options with those of a Trainer that calls: it passes no arguments itself."""
    ours = {id(p) for p in model.parameters()}
    if any(id(p) not in ours for group in groups for p in group["params"]):
        raise InvalidArgument(
            "for_trainer: Trainer has parameters that the model given to for_trainer does not "
            "have; pass one model to both for_trainer and Trainer"
        )
    settled = {**_told(caller), **options}
    if "lr" not in settled:
        raise InvalidArgument(
            "for_trainer: there is no learning rate, as the caller is not a Trainer; pass lr="
        )
    return settled


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
