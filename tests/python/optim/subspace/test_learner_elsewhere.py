"""The learner works where its gradient lies, and only numbers cross to the host.

The device is made up: tensors that say they are on a GPU, with the memory of the host. Every
operator is passed on to the CPU's, with two exceptions: an operator whose operands lie on two
devices fails, as on a GPU; so does one that draws random numbers, since a device's own generator
would draw different ones than the host's. The mode counts what crosses to the host.
"""

from __future__ import annotations

import pytest
import torch
from optim.subspace.test_learner import Drawn, copied
from sluiceway.optim.subspace.learner import (
    _EXTRA_DIRECTIONS,
    _POWER_ITERATIONS,
    LearnOptions,
    SparsePattern,
    leading_directions,
    learn_values,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

THERE = torch.device("meta")


class Elsewhere(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    @staticmethod
    def __new__(cls, held):
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=THERE
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        raise AssertionError(f"{operator} outside of the device's mode")


class Device(TorchDispatchMode):
    """Runs operators of `Elsewhere`, and counts crossings and elements that cross to the host."""

    def __init__(self):
        super().__init__()
        self.crossings, self.elements = 0, 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = []
        tree_map_only(torch.Tensor, tensors.append, (args, kwargs))
        is_there = [isinstance(x, Elsewhere) for x in tensors]
        to = kwargs.get("device")
        copies = operator in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        if not any(is_there) and (to is None or torch.device(to).type == "cpu"):
            return operator(*args, **kwargs)
        # A GPU also accepts single numbers of the host.
        apart = [x for x, there in zip(tensors, is_there, strict=True) if not there and x.dim()]
        if apart and any(is_there) and not copies:
            raise RuntimeError(f"{operator}: operands on two devices")
        if torch.Tag.nondeterministic_seeded in operator.tags:
            raise RuntimeError(f"{operator}: draws random numbers on {THERE}")
        result = operator(*self._held(args), **self._held({**kwargs, **self._on_host(kwargs)}))
        leaves = to is not None and torch.device(to).type == "cpu"
        if leaves or operator is torch.ops.aten._local_scalar_dense.default:
            self.crossings += 1
            self.elements += tensors[0].numel()
            return result
        return self._there(result, args)

    @staticmethod
    def _on_host(kwargs):
        return {"device": torch.device("cpu")} if kwargs.get("device") is not None else {}

    @staticmethod
    def _held(tree):
        return tree_map_only(Elsewhere, lambda x: x.held, tree)

    @staticmethod
    def _there(result, args):
        """Wrap results; one that an operator changed in place is its argument."""
        known = {id(x.held): x for x in args if isinstance(x, Elsewhere)}
        return tree_map_only(
            torch.Tensor, lambda x: known[id(x)] if id(x) in known else Elsewhere(x), result
        )


@pytest.fixture
def device():
    with Device() as found:
        yield found


def there(x):
    return Elsewhere(x.clone())


def learned(case, move, options):
    """A copy of the pair, learned where `move` puts things, and the outcome."""
    sides = copied(case.p), copied(case.q)
    patterns = [SparsePattern(move(index.long()), cols) for index, _, cols in sides]
    values = [move(value) for _, value, _ in sides]
    outcome = learn_values(move(case.g), *patterns, *values, options)
    return outcome, [x.held if isinstance(x, Elsewhere) else x for x in values]


def test_operands_on_two_devices_are_refused(device):
    here = torch.ones(3, 2)
    with pytest.raises(RuntimeError, match="two devices"):
        here + there(here)
    with pytest.raises(RuntimeError, match="two devices"):
        there(here).index_select(0, torch.zeros(3, dtype=torch.int64))
    assert (there(here) + there(here)).device == THERE
    assert (there(here) + torch.tensor(1.0)).device == THERE
    with pytest.raises(RuntimeError, match="draws random numbers"):
        torch.randn(3, 2, device=THERE)
    assert torch.randn(3, 2).to(THERE).device == THERE


def test_learning_is_where_the_gradient_lies_as_on_the_host(device):
    case, options = Drawn(3), LearnOptions(max_steps=12)
    found, values = learned(case, there, options)
    crossings, elements = device.crossings, device.elements
    expected, on_host = learned(case, torch.clone, options)
    assert found[2] == expected[2] == 12
    assert found[0] == pytest.approx(expected[0], abs=1e-5)
    assert found[1] == pytest.approx(expected[1], abs=1e-4)
    assert found[1] < found[0]
    torch.testing.assert_close(values[0], on_host[0], rtol=0, atol=1e-3)
    # Four numbers at each evaluation of the objective, and the size of the gradient.
    assert crossings == options.max_steps + 1 + 1
    assert elements == 4 * (options.max_steps + 1) + 1


def test_directions_are_found_where_the_gradient_lies_as_on_the_host(device):
    case, columns = Drawn(3), 12
    left, right = leading_directions(there(case.g), columns, columns, 1)
    # Pivots of four range finders, of 20 columns each, and the largest element.
    assert device.crossings == 2 * _POWER_ITERATIONS + 1
    assert device.elements == 2 * _POWER_ITERATIONS * (columns + _EXTRA_DIRECTIONS) + 1
    assert left.device == right.device == THERE
    here = leading_directions(case.g.clone(), columns, columns, 1)
    # The same spaces: their projections of the gradient agree, whatever the signs.
    energies = [(p.t() @ case.g @ q).norm().item() for p, q in ((left.held, right.held), here)]
    assert energies[0] == pytest.approx(energies[1], rel=1e-3)


def test_equal_calls_give_equal_bits_there(device):
    case, options = Drawn(3), LearnOptions(max_steps=5)
    first, second = (learned(case, there, options)[1] for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
