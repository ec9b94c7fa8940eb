"""`opt.state` as in torch, and hooks that see whole states.

`opt.state` has ordinary states as in torch, and states of compressed weights, which the engine
keeps. Reading the entry of a compressed weight makes it: a dict of copies on the host. Values that
you change in it, assign or delete go back to the engine before the next backward, so loops over
`opt.state` do what they do with torch's optimizers.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from sluiceway import _core
from sluiceway.errors import InvalidArgument
from sluiceway.optim.common.state import check_count, check_moment

if TYPE_CHECKING:
    from sluiceway.optim.common.engine_optimizer import EngineOptimizer

_TENSORS = ("exp_avg", "exp_avg_sq", "residual")
_COUNTS = ("step", "residual_step")


class EngineStates(MutableMapping):
    """State by parameter; holds the optimizer weakly.

    If `keep`, all entries handed out stay live until the next backward. Otherwise only the last one
    does, as all of them would not fit into memory.
    """

    def __init__(self, optimizer: EngineOptimizer, keep: bool) -> None:
        self._optimizer, self._keep = weakref.ref(optimizer), keep
        self._parameters = [weight.parameter for weight in optimizer.weights]
        self._numbers = {id(p): number for number, p in enumerate(self._parameters)}
        # By weight, entries that the user may hold, each with its first contents.
        self._handed: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self.ordinary: dict[Any, Any] = {}  # States of the parameters that are not compressed.

    # ---- Entries of compressed weights ----

    def _engine_has_states(self) -> bool:
        optimizer = self._optimizer()
        return optimizer is not None and optimizer.has_states()

    def _number(self, key: Any) -> int | None:
        """Return the number of a compressed weight that has a state, else None."""
        number = self._numbers.get(id(key))
        return number if number is not None and self._engine_has_states() else None

    def _entry(self, number: int) -> dict[str, Any]:
        if number not in self._handed:
            if not self._keep:
                self.take_back()
            optimizer = self._optimizer()
            optimizer.synchronize()
            states = optimizer.engine_states_of(number)
            entry = _shown(states, optimizer.weights[number].is_batch)
            self._handed[number] = entry, _seen(entry)
        return self._handed[number][0]

    def take_back(self) -> None:
        """Load changed entries into the engine; later changes of entries handed out have no effect.

        Raises InvalidArgument if gradients are gathered, or a value does not fit its weight.
        """
        handed, self._handed = self._handed, {}
        optimizer = self._optimizer()
        if optimizer is None or not handed:
            return
        for number, (entry, seen) in handed.items():
            if _seen(entry) == seen:
                continue
            weight = optimizer.weights[number]
            if optimizer.engine.has_gradient():
                raise InvalidArgument(
                    f"{type(optimizer).__name__}.state: the state of {weight.name} was changed "
                    "while gradients are gathered; change it between step() and backward(), or "
                    "call zero_grad() first"
                )
            optimizer.synchronize()
            states = optimizer.engine_states_of(number)
            new = _taken(weight.name, entry, states, weight.is_batch)
            optimizer.take_engine_states(number, new)

    def drop_entries(self) -> None:
        """Forget all entries handed out, because other states were loaded."""
        self._handed = {}

    # ---- A mapping that creates a missing entry when it is read, as in torch ----

    def __getitem__(self, key: Any) -> Any:
        number = self._number(key)
        if number is not None:
            return self._entry(number)
        if id(key) in self._numbers:  # The weight is not trained yet, or the optimizer is closed.
            return {}
        return self.ordinary.setdefault(key, {})

    def __setitem__(self, key: Any, value: Any) -> None:
        number = self._number(key)
        if number is not None:
            entry, value = self._entry(number), dict(value)
            entry.clear()
            entry.update(value)
        elif id(key) not in self._numbers:
            self.ordinary[key] = value

    def __delitem__(self, key: Any) -> None:
        number = self._number(key)
        if number is None:
            del self.ordinary[key]
            return
        self._entry(number).clear()  # An empty entry means a weight without steps.
        if not self._keep:
            self.take_back()

    def __contains__(self, key: Any) -> bool:
        return self._number(key) is not None or key in self.ordinary

    def __iter__(self) -> Iterator[Any]:
        yield from list(self.ordinary)
        if self._engine_has_states():
            yield from self._parameters

    def __len__(self) -> int:
        return len(self.ordinary) + self._engine_has_states() * len(self._parameters)

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - this is get().

    def pop(self, key: Any, *default: Any) -> Any:
        if key not in self:
            return self.ordinary.pop(key, *default)
        entry = dict(self[key])
        del self[key]
        return entry

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        for key in list(self):
            del self[key]

    def replace(self, states: Any) -> None:
        """Replace all states, when the user assigns `opt.state`."""
        if states is not self:
            states = dict(states)
            self.clear()
            self.update(states)

    def copy(self) -> dict[Any, Any]:
        return dict(self)

    __copy__ = copy
    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _shown(states: list[dict[str, Any]], is_batch: bool) -> dict[str, Any]:
    """Make an entry of counts and float32 tensors; a batch has one entry for all its slices."""
    entry: dict[str, Any] = {}
    for key in (key for key in (*_COUNTS, *_TENSORS) if key in states[0]):
        values = [state[key] for state in states]
        if key in _COUNTS:
            entry[key] = max(values)
        elif values[0].numel():
            values = [value.view(torch.float32) for value in values]
            entry[key] = torch.stack(values) if is_batch else values[0]
    if "residual" not in entry:
        entry.pop("residual_step", None)
    return entry


def _seen(entry: dict[str, Any]) -> dict[str, Any]:
    """Return counts and checksums of an entry, to detect changes."""
    return {
        key: (value.dtype, value.shape, _core.bits_checksum(value.detach().cpu()))
        if isinstance(value, torch.Tensor)
        else value
        for key, value in entry.items()
    }


def _taken(
    name: str, entry: dict[str, Any], states: list[dict[str, Any]], is_batch: bool
) -> list[dict[str, Any]]:
    """Return the engine's states with the values of an entry; an empty entry starts from zero."""
    was = _shown(states, is_batch)
    new = [dict(state) for state in states]
    begins_anew = not entry or entry.get("step") == 0
    for key in was:
        value = entry.get(key, 0)
        if key in _COUNTS:
            value = 0 if key == "residual_step" and begins_anew else value
            value = int(value)
            check_count(f"{key} of {name}", value)
            for state in new:
                state[key] = value
            continue
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
        elif not entry:
            value = torch.zeros_like(was[key])
        check_moment(f"{key} of {name}", value, tuple(was[key].shape))
        for state, one in zip(new, value.unbind() if is_batch else [value], strict=True):
            state[key] = one.contiguous().view(states[0][key].dtype)
    return new


def _registers(kind: str, call: str) -> Callable[..., RemovableHandle]:
    def register(
        self: StateHooks, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        hooks = self._hooks_of(kind)
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        if prepend:
            hooks.move_to_end(handle.id, last=False)
        return handle

    register.__doc__ = f"Call `hook({call}."
    return register


class StateHooks(torch.optim.Optimizer):
    """An optimizer whose state hooks see the whole state, which is more than torch's part.

    torch would call the hooks with its own part of the state. This class keeps them apart, and a
    subclass calls them around the whole state.
    """

    register_state_dict_pre_hook = _registers("saves", "optimizer)` before a state is taken")
    register_state_dict_post_hook = _registers(
        "saved", "optimizer, state_dict)` with the whole state; it may return another"
    )
    register_load_state_dict_pre_hook = _registers(
        "loads", "optimizer, state_dict)` before a load; it may return another state to load"
    )
    register_load_state_dict_post_hook = _registers(
        "loaded", "optimizer)` after the whole state was loaded"
    )

    def _hooks_of(self, kind: str) -> OrderedDict[int, Callable[..., Any]]:
        return self.__dict__.setdefault("_state_hooks", {}).setdefault(kind, OrderedDict())

    def _changed_by(self, kind: str, *state: Any) -> Any:
        """Call all hooks of a kind; return the state after they have seen it, if there is one."""
        for hook in list(self._hooks_of(kind).values()):
            changed = hook(self, *state)
            state = state if changed is None or not state else (changed,)
        return state[0] if state else None

    def _before_save(self) -> None:
        self._changed_by("saves")

    def _before_load(self, state_dict: Any) -> Any:
        """Return the state to load; hooks get a shallow copy, as in torch."""
        is_dict = isinstance(state_dict, dict)
        return self._changed_by("loads", state_dict.copy() if is_dict else state_dict)

    def _after_load(self) -> None:
        self._changed_by("loaded")
