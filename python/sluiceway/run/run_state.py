"""What each commit of an engine's store carries: all that a save has, but weights and states.

Buffers that a model keeps are among it, as a save has them with the weights; a store has parameters
alone.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from sluiceway.engines.protocol import Engine
from sluiceway.errors import Corrupt
from sluiceway.run.checkpoint import Position, noise_of, put_noise_back

_FORMAT = 1


@dataclass(frozen=True)
class RunState:
    """A run between two steps.

    Parameters
    ----------
    position : Position
        How far it had come.
    extra : dict
        Plain values, as a save has them.
    rest : dict
        Random generators, the scale of the loss, buffers.
    """

    position: Position
    extra: dict[str, Any]
    rest: dict[str, Any]

    def put_back(self, engine: Engine) -> None:
        """Restore what the engine's own state does not have."""
        put_noise_back(self.rest["noise"], engine)
        for name, buffer in _buffers(engine.model):
            buffer.copy_(self.rest["buffers"][name])


def packed(position: Position, engine: Engine, extra: dict[str, Any]) -> bytes:
    """A run between two steps as bytes."""
    state = {
        "format": _FORMAT,
        "position": asdict(position),
        "extra": extra,
        "noise": noise_of(engine),
        "buffers": dict(_buffers(engine.model)),
    }
    out = io.BytesIO()
    torch.save(state, out)
    return out.getvalue()


def unpacked(run: bytes) -> RunState:
    """What `packed` was given.

    Raises
    ------
    Corrupt
        They are other bytes.
    """
    try:
        state = torch.load(io.BytesIO(run), weights_only=True, map_location="cpu")
        known = state["format"] == _FORMAT
        position = Position(**state["position"])
    except Exception as error:  # Whatever is raised by bytes that are not its own.
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise Corrupt(f"resume: the run state of the last commit cannot be read, {first}") from None
    if not known:
        raise Corrupt(
            f"resume: format of the run state is {state['format']}, this version reads {_FORMAT}"
        )
    return RunState(position, state["extra"], {key: state[key] for key in ("noise", "buffers")})


def _buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Those that a save has."""
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}".lstrip("."), buffer
