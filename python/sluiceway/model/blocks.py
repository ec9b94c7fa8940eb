"""Finds the list of blocks that a model runs one after another, without knowing its class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import owners_of

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
_MOST_NAMED = 6


@dataclass(frozen=True)
class BlockList:
    """Blocks of a model, in the order of their list; each module once."""

    name: str  # The list's name in `named_modules`; empty for the model itself.
    blocks: list[tuple[str, nn.Module]]


def find_blocks(owner: str, model: nn.Module) -> BlockList:
    """Choose the module list with which a forward must hold the fewest elements at once.

    A forward must hold all parameters outside of the list, and one block of it at a time. In a
    decoder this rule chooses the list of layers, and neither a module around it nor the experts of
    one layer.

    Raises
    ------
    InvalidArgument
        The model has no such list; the text says what was expected and what the model has.
    """
    candidates = list(_candidates(model))
    if not candidates:
        seen = [f"{name} ({type(module).__name__})" for name, module in model.named_children()]
        more = f" and {len(seen) - _MOST_NAMED} more" if len(seen) > _MOST_NAMED else ""
        raise InvalidArgument(
            f"{owner}: {type(model).__name__} has no block list, expected an nn.ModuleList or "
            "nn.Sequential whose members have parameters, such as model.layers in a decoder of "
            f"transformers; its children are {', '.join(seen[:_MOST_NAMED]) or 'none'}{more}; put "
            "the modules that run one after another into such a list"
        )
    return min(candidates, key=lambda found: _held_at_once(model, found))


def _candidates(model: nn.Module) -> Iterator[BlockList]:
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        members = {id(m): (k, m) for k, m in module.named_children() if _elements(m)}.values()
        if members and not any(isinstance(m, _CONTAINERS) for _, m in members):
            prefix = f"{name}." if name else ""
            yield BlockList(name, [(prefix + k, m) for k, m in members])


def _elements(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _held_at_once(model: nn.Module, found: BlockList) -> int:
    """Count the elements outside of the blocks, and in the largest block."""
    inside = {id(p): p.numel() for _, block in found.blocks for p in block.parameters()}
    largest = max(_elements(block) for _, block in found.blocks)
    return _elements(model) - sum(inside.values()) + largest


def weights_by_block(
    model: nn.Module, found: BlockList
) -> Iterator[tuple[str, nn.Parameter, int | None]]:
    """Yield each parameter once, by its first name, with the number of the block that reads it.

    The number is None if the parameter is read outside of the blocks, or by several of them.
    """
    number_of = {
        id(m): number for number, (_, block) in enumerate(found.blocks) for m in block.modules()
    }
    for name, parameter, holders in owners_of(model).values():
        readers = {number_of.get(id(module)) for module, _ in holders}
        yield name, parameter, readers.pop() if len(readers) == 1 else None
