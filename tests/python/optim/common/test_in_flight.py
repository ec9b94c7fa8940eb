"""Code that reads a weight waits for its update; other code does not wait."""

from __future__ import annotations

import ctypes
import threading

import pytest
import sluiceway as sw
import torch
from small_models import Stack, loss_of, make, update_error
from torch import nn
from torch.nn import functional
from twins import LR, identity, train
from updates import SLOW, trained_error


class Bare(Stack):
    """A model that never calls a module with a compressed weight."""

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            up = functional.linear(block.norm(x), block.up.weight, block.up.bias)
            x = x + functional.gelu(up) @ block.down.weight.t()
        return self.leave(x)


class Early(Stack):
    """A weight is read before its own module runs; another has been run by then."""

    def forward(self, x):
        x = self.enter(x)
        x = self.blocks[0](x)
        x = x + 0.1 * functional.linear(x, self.blocks[1].down.weight)
        return self.leave(self.blocks[1](x))


class Alternating(Stack):
    """Every other step reads weights outside of their modules, so no step is like the last."""

    step = 0

    def forward(self, x):
        self.step += 1
        return (Bare if self.step % 2 else Stack).forward(self, x)


class Held(Stack):
    """Reads parameters that it keeps in a list of its own."""

    def __init__(self):
        super().__init__()
        self.kept = [block.down.weight for block in self.blocks]

    def forward(self, x):
        x = self.enter(x)
        for weight in self.kept:
            x = x + torch.tanh(x @ weight)
        return self.leave(self.blocks[1](self.blocks[0](x)))


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x


class Fused(Stack):
    """Weights go into a function of the user's."""

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = x + Custom.apply(functional.gelu(block.up(x)), block.down.weight)
        return self.leave(x)


@pytest.mark.parametrize("kind", [Bare, Early, Alternating, Held, Fused])
def test_weights_read_outside_of_their_modules_have_their_updates(kind):
    assert trained_error(lambda: make(kind)) <= 1e-5


@pytest.mark.parametrize("part", [lambda m: m, lambda m: m.blocks], ids=["model", "children"])
def test_a_model_whose_children_are_called_by_the_loop_is_waited_for(part):
    def loss(model, step):
        torch.manual_seed(step)
        x, weight = torch.randn(8, 256), part(model).get_parameter
        names = [name for name, p in part(model).named_parameters() if p.numel() == 256 * 256]
        for name in names:
            x = torch.tanh(functional.linear(x, weight(name)))
        return x.square().sum()

    assert trained_error(make, loss=loss) <= 1e-5


READS = {
    "data": lambda p: p.data,
    "detach": lambda p: p.detach(),
    "norm": lambda p: p.norm(),
    "clone": lambda p: p.clone(),
    "numpy": lambda p: torch.from_numpy(p.detach().numpy()),
    "vector": lambda p: nn.utils.parameters_to_vector([p]),
    "foreach": lambda p: torch._foreach_norm([p])[0],
    "mapping": lambda p: torch.func.functional_call(
        nn.Linear(256, 256, bias=False), {"weight": p}, torch.eye(256)
    ),
    "stack": lambda p: torch.stack([p, p]),
    "keyword": lambda p: functional.linear(input=torch.eye(256), weight=p),
    "aten": lambda p: torch.ops.aten.mul.Tensor(p, 1.0),
    "dlpack": lambda p: torch.from_dlpack(p.detach()),
    "text": lambda p: torch.tensor([ord(c) for c in repr(p)]),
    "pointer": lambda p: torch.tensor((ctypes.c_float * p.numel()).from_address(p.data_ptr())[:]),
    "iteration": lambda p: torch.stack(list(p)),
    "element": lambda p: torch.tensor(p[3, 5].item()),
    "as subclass": lambda p: p.as_subclass(torch.Tensor).clone(),
    "parameter": lambda p: nn.Parameter(p).clone(),
    "frozen parameter": lambda p: nn.Parameter(p, requires_grad=False).clone(),
    "from pretrained": lambda p: nn.Embedding.from_pretrained(p).weight.clone(),
    "as a tensor": lambda p: torch.as_tensor(p).clone(),
    "gradient of a function": lambda p: torch.func.grad(_energy)(p),
    "gradient and value": lambda p: torch.func.grad_and_value(_energy)(p)[1],
    "gradient of a mapping": lambda p: torch.func.grad(lambda of: _energy(of["p"]))({"p": p})["p"],
    "vector-Jacobian product": lambda p: torch.func.vjp(_energy, p)[0],
    "Jacobian-vector product": lambda p: torch.func.jvp(_energy, (p,), (torch.ones(256, 256),))[1],
    "Jacobian": lambda p: torch.func.jacrev(lambda w: w.sum(0))(p).sum(0) * p.detach(),
    "batches": lambda p: torch.vmap(lambda row: row.square().sum())(p),
    "a batch of inputs": lambda p: torch.vmap(lambda x, w: x @ w, (0, None))(torch.eye(256), p),
    "functionalized": lambda p: torch.func.functionalize(_energy)(p),
    "linearized": lambda p: torch.func.linearize(_energy, p)[0],
}


def _energy(weight):
    return weight.square().sum()


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_every_way_of_reading_a_parameter_after_step_sees_the_update(read):
    ours, waited = make(), make()
    with identity(ours, link=SLOW) as opt, identity(waited) as other:
        for model, optimizer in ((waited, other), (ours, opt)):
            loss_of(model, 0).backward()
            optimizer.step()
        other.synchronize()
        parameter = ours.blocks[1].up.weight
        assert torch.equal(read(parameter), read(waited.blocks[1].up.weight))
        assert type(parameter) is nn.Parameter


def test_writing_a_weight_after_step_is_not_overwritten_by_its_update():
    model = make()
    with identity(model, link=SLOW) as opt:
        train(model, opt, 1)
        with torch.no_grad():
            for weight in opt.weights:
                weight.parameter.fill_(3.0)
        opt.synchronize()
    assert all((w.parameter == 3.0).all() for w in opt.weights)


def _clip(model, _):
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def _groups(model, _):
    assert [p.requires_grad and p.is_leaf and p.shape and p.dtype for p in model.parameters()]


LOOKS = {
    "zero_grad": lambda model, _: model.zero_grad(),
    "optimizer": lambda _, opt: opt.zero_grad(),
    "zeros": lambda model, _: model.zero_grad(set_to_none=False),
    "clip": _clip,
    "names": lambda model, _: dict(model.named_parameters()),
    "attributes": _groups,
    "count": lambda model, _: sum(p.numel() for p in model.parameters()),
    "train": lambda model, _: model.train(),
    "stats": lambda _, opt: opt.stats(),
    "freeze": lambda model, _: [p.requires_grad_(True) for p in model.parameters()],
    "group": lambda _, opt: [isinstance(p, nn.Parameter) for p in opt.param_groups[0]["params"]],
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_what_loops_do_between_step_and_forward_waits_for_nothing(look):
    model = make()
    very_slow = sw.Link(d2h_gbps=2e-3, h2d_gbps=2e-3)  # A quarter of a second for each weight.
    with identity(model, link=very_slow) as opt:
        loss_of(model, 0).backward()
        opt.step()
        look(model, opt)
        assert len(opt._in_flight.names()) == len(opt.weights) == 4
        assert torch.count_nonzero(model.blocks[1].down.weight)
        assert opt._in_flight.names() == [w.name for w in opt.weights[:-1]]


def test_a_second_step_without_a_forward_does_not_wait_either():
    model = make()
    with identity(model, link=SLOW) as opt:
        train(model, opt, 1)
        opt.step()
        assert len(opt._in_flight.names()) == len(opt.weights)


def test_a_parameter_that_is_made_of_one_is_like_any_other():
    model = make()
    with identity(model, link=SLOW) as opt:
        train(model, opt, 1)
        weight = model.blocks[1].up.weight
        made = nn.Parameter(weight)
        assert type(made) is nn.Parameter
        assert made.requires_grad
        assert made.is_leaf
        assert made.data_ptr() == weight.data_ptr()
        assert weight.detach().requires_grad is False


def test_torchscript_is_told_of_the_hooks_and_works_without():
    model = make()
    with identity(model, link=SLOW) as opt:
        train(model, opt, 1)
        with pytest.raises(sw.Unavailable, match=r"close\(\) the optimizer first"):
            torch.jit.script(model)
        x = torch.ones(2, 16)
        with torch.no_grad():
            assert torch.equal(torch.jit.trace(model, x)(x), model(x))
        assert not hasattr(next(iter(model._forward_pre_hooks.values())), "__name__")
    assert torch.equal(torch.jit.script(model)(x), model(x))


def test_a_closed_or_dropped_optimizer_leaves_plain_parameters():
    for end in (lambda opt: opt.close(), lambda _: None):
        model = make()
        opt = identity(model, link=SLOW)
        train(model, opt, 1)
        assert type(model.blocks[0].up.weight) is not nn.Parameter
        end(opt)
        del opt
        for parameter in model.parameters():
            assert type(parameter) is nn.Parameter
            assert not vars(parameter)


def test_another_thread_may_read_while_the_loop_goes_on():
    model, native = make(), make()
    stop = threading.Event()

    def read():
        while not stop.is_set():
            sum(p.sum() for p in model.parameters())

    reader = threading.Thread(target=read)
    with identity(model, link=SLOW) as opt:
        reader.start()
        train(model, opt, 8)
        stop.set()
        reader.join()
    train(native, torch.optim.AdamW(native.parameters(), lr=LR, foreach=False), 8)
    assert update_error(make(), model, native) <= 1e-5


def test_gradients_of_an_average_or_of_a_vector_of_weights_are_those_of_autograd():
    def loss(model, step):
        vector = nn.utils.parameters_to_vector(model.parameters())
        return loss_of(model, step) + 1e-3 * vector.square().sum()

    assert trained_error(make, loss=loss) <= 1e-5
