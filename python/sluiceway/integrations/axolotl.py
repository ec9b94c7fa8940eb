"""Lets Axolotl train with Sluiceway's optimizers.

    plugins: [sluiceway.integrations.axolotl.SluicewayPlugin]
    sluiceway: {kind: offload, tier: disk, path: /mnt/nvme/run1}

`sluiceway` has the arguments of `sluiceway.for_trainer`. Learning rate, betas, eps and decay come
from Axolotl's own keys; its key `optimizer` is then without effect.
"""

from __future__ import annotations

from typing import Any

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel

from sluiceway.errors import InvalidArgument
from sluiceway.optim.for_trainer import for_trainer


class SluicewayArgs(BaseModel):
    """The key that the plugin adds to Axolotl's config."""

    sluiceway: dict[str, Any] | None = None


class SluicewayPlugin(BasePlugin):
    """Makes Axolotl's trainer create one of our optimizers."""

    def get_input_args(self) -> str:
        """Return the name of the class that describes the plugin's keys."""
        return f"{__name__}.{SluicewayArgs.__name__}"

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Choose the optimizer that the trainer creates when training begins.

        Raises
        ------
        InvalidArgument
            An option of `sluiceway` is wrong, or the trainer has made an optimizer already.
        """
        if trainer.optimizer is not None:
            raise InvalidArgument(
                "axolotl: the trainer has an optimizer already; leave out the plugin that made it"
            )
        options = {"lr": trainer.args.learning_rate, **(cfg.sluiceway or {})}
        trainer.optimizer_cls_and_kwargs = for_trainer(trainer.model, **options)
