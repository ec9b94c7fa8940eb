"""Lets transformers' Trainer, which creates its optimizer itself, train with our optimizers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from sluiceway.config.options import refuse_unknown
from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import select_weights
from sluiceway.optim.common.parameters import check_model
from sluiceway.optim.offload.arguments import OffloadArguments
from sluiceway.optim.offload.optimizer import OffloadAdamW
from sluiceway.optim.subspace.arguments import SubspaceArguments
from sluiceway.optim.subspace.optimizer import SubspaceAdamW
from sluiceway.optim.zo.arguments import ZoArguments
from sluiceway.optim.zo.optimizer import ZoSgd


def for_trainer(
    model: nn.Module, kind: Literal["subspace", "offload", "zo"] = "subspace", **options: Any
) -> tuple[type[SubspaceAdamW | OffloadAdamW | ZoSgd], dict[str, Any]]:
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
        "subspace" trains with SubspaceAdamW, "offload" with OffloadAdamW, "zo" with ZoSgd and its
        tier "device". ZoSgd has no backward: it replaces the `training_step` of the Trainer that
        creates it, which then calls `compute_loss` at least twice for a batch, without gradients.
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
    kinds = {
        "subspace": (TrainersSubspaceAdamW, SubspaceArguments),
        "offload": (TrainersOffloadAdamW, OffloadArguments),
        "zo": (TrainersZoSgd, ZoArguments),
    }
    if kind not in kinds:
        raise InvalidArgument(f"for_trainer: kind is {kind!r}, expected {', '.join(kinds)}")
    make, arguments = kinds[kind]
    known = [*inspect.signature(make.__base__).parameters, *arguments.keywords()]
    refuse_unknown("for_trainer", options, [*known, "optim_target_modules"])
    if "param_groups" in options:
        raise InvalidArgument(
            "for_trainer: param_groups are given, but Trainer makes its own groups; for groups "
            f"of your own pass Trainer(optimizers=(sw.{make.__base__.__name__}(...), None))"
        )
    # The key is not "model": Trainer would take that out and pass it in place of its groups.
    return make, {"of": model, **options}


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
        _refuse_target("offload", settled)
        super().__init__(of, param_groups=groups, **settled)


class TrainersZoSgd(ZoSgd):
    """ZoSgd that makes its step inside of Trainer's `training_step`; see TrainersSubspaceAdamW."""

    def __init__(
        self, param_groups: Iterable[dict[str, Any]], *, of: nn.Module, **options: Any
    ) -> None:
        groups = [dict(group) for group in param_groups]
        trainer = sys._getframe(1).f_locals.get("self")
        settled = _settled(groups, of, options, trainer)
        if not _is_trainer(trainer):
            raise InvalidArgument(
                "for_trainer: kind is zo, but the caller is not a Trainer, whose training_step "
                "would make the steps; use sluiceway.ZoSgd"
            )
        _refuse_target("zo", settled)
        for name in ("betas", "eps"):  # Of AdamW; eps of ZoSgd is another number.
            if name not in options:
                settled.pop(name, None)
        if settled.get("tier", "device") != "device":
            raise InvalidArgument(
                f"for_trainer: tier is {settled['tier']!r}, but Trainer moves the whole model to "
                "its device; leave tier out, or train with the command line or a loop of your own"
            )
        if trainer.args.fp16:
            raise InvalidArgument(
                "for_trainer: fp16 is set, but kind zo has no gradients that a loss scale could "
                "help; set bf16=True, or neither"
            )
        super().__init__(of, param_groups=groups, **settled)
        self._trainer = trainer
        self._batches: list[tuple[dict[str, Any], Any]] = []  # Of the step that is not made yet.
        trainer.training_step = self._training_step

    def step(self, closure: Any = None) -> Any:
        """Do nothing if Trainer calls: the step is made by then."""
        return None if closure is None else super().step(closure)

    def _training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Take one micro-batch; make the step with the last one, and return the step's loss."""
        trainer = self._trainer
        model.train()
        self._batches.append((trainer._prepare_inputs(inputs), num_items_in_batch))
        if not trainer.accelerator.sync_gradients:
            return torch.zeros((), device=trainer.args.device)
        batches, self._batches = self._batches, []
        # With the number of items in all micro-batches, their losses add up to the step's loss.
        is_sum = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
        factor = len(batches) if is_sum and num_items_in_batch is not None else 1

        def loss_of(batch: dict[str, Any], items: Any) -> torch.Tensor:
            with trainer.compute_loss_context_manager():
                return factor * trainer.compute_loss(model, batch, num_items_in_batch=items)

        loss = super().step([partial(loss_of, *batch) for batch in batches])
        return loss.to(trainer.args.device)


def _refuse_target(kind: str, settled: dict[str, Any]) -> None:
    if settled.pop("optim_target_modules", None) is not None:
        raise InvalidArgument(
            f"for_trainer: optim_target_modules is given, but kind {kind} trains every "
            "parameter; leave it out, or freeze the others with requires_grad_(False)"
        )


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
    if not _is_trainer(caller):
        return {}
    arguments = caller.args
    return {
        "lr": arguments.learning_rate,
        "betas": (arguments.adam_beta1, arguments.adam_beta2),
        "eps": arguments.adam_epsilon,
        "optim_target_modules": arguments.optim_target_modules,
    }


def _is_trainer(caller: Any) -> bool:
    module = sys.modules.get("transformers.trainer")
    return module is not None and isinstance(caller, module.Trainer)


def _target(model: nn.Module, modules: str | list[str]) -> str | list[str]:
    """Return the weights' names of the modules that Trainer's own optimizers would find."""
    if isinstance(modules, str) and modules.replace("_", "-") == "all-linear":
        return "all-linear"
    from transformers.trainer_utils import check_target_module_exists

    linear = [w.name for w in select_weights(model, embeddings="frozen").compressed]
    found = [n for n in linear if check_target_module_exists(modules, n.rpartition(".")[0])]
    if not found:
        raise InvalidArgument(
            f"for_trainer: optim_target_modules is {modules!r}, which matches no linear layer; "
            f"pass a part of a layer's name or a regular expression for it, as for {linear[0]}"
        )
    return found
