"""ZoSgd with weights in host memory: the same bits as the equations, whatever the model is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import sluiceway
import torch
from sluiceway import _core
from small_llama import small_llama, tokens
from torch import nn
from torch.nn import functional
from zo_models import decoder, zo_ids, zo_loss
from zo_oracle import LowRankOracle, Oracle, gaussian


def groups_of(model: nn.Module, weight_decay: float) -> list[dict]:
    return [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]


def host(model: nn.Module, **options: object) -> sluiceway.ZoSgd:
    return sluiceway.ZoSgd(model, tier="host", **options)


def same(state: dict[str, torch.Tensor], model: nn.Module) -> bool:
    expected = model.state_dict()
    assert state.keys() == expected.keys()
    return all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("directions", "weight_decay", "seed", "depth", "lanes"),
    [(1, 0.5, 0, 2, 1), (3, 0.5, 2**40 + 1, 8, 4)],
)
def test_losses_and_weights_are_the_oracles(directions, weight_decay, seed, depth, lanes) -> None:
    steps = 200
    ours, theirs = decoder(), decoder()
    opt = host(
        ours, lr=0.02, weight_decay=weight_decay, directions=directions, seed=seed, depth=depth,
        perturb_lanes=lanes,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    oracle = Oracle(
        theirs, groups_of(theirs, weight_decay), 1e-3, seed, directions, _core.stable_hash
    )
    base = [p.detach().clone() for p in ours.parameters()]
    for step in range(steps):
        ids, rates = zo_ids(step), [group["lr"] for group in opt.param_groups]
        factor = 0.0 if step == 5 else float("nan") if step == 9 else 1.0  # g = 0, in two ways.

        def loss(model: nn.Module, ids: torch.Tensor = ids, f: float = factor) -> torch.Tensor:
            return f * zo_loss(model, ids)

        if step == 9:
            with pytest.warns(UserWarning, match="no finite g"):
                found = opt.step(lambda: loss(ours))
        else:
            found = opt.step(lambda: loss(ours))
        assert np.array_equal(found.item(), oracle.step(loss, rates), equal_nan=True), step
        schedule.step()
        if step % 10 == 9:
            assert same(ours.state_dict(), theirs), step
            with torch.no_grad():
                assert torch.equal(ours(ids), theirs(ids))
                assert opt.evaluate([lambda: zo_loss(ours, ids)] * 2) == zo_loss(theirs, ids)  # noqa: B023
    assert all(map(torch.equal, ours.parameters(), base))  # Nothing was written to.
    assert opt.committed_steps == steps
    opt.close()
    assert same(ours.state_dict(), theirs)


@pytest.mark.parametrize("depth", [2, 8])
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiers_give_the_same_bits(depth: int, lanes: int, dtype: torch.dtype) -> None:
    options = {"lr": 0.02, "weight_decay": 0.3, "directions": 2, "noise": "gaussian", "eps": 1e-2}
    models = [decoder(), decoder()]
    for model in models:
        for p in model.layers.parameters():
            p.data = p.data.to(dtype) if p.dim() >= 2 else p.data
        for layer in model.layers:
            for linear in (layer.up, layer.down):
                linear.forward = lambda x, m=linear: functional.linear(x, m.weight.float(), m.bias)
    opts = [
        host(models[0], depth=depth, perturb_lanes=lanes, resident=300, **options),
        sluiceway.ZoSgd(models[1], **options),
    ]
    for step in range(30):
        batches = [zo_ids(2 * step), zo_ids(2 * step + 1)]
        losses = [
            opt.step([lambda i=ids, m=model: zo_loss(m, i) for ids in batches])
            for opt, model in zip(opts, models, strict=True)
        ]
        assert losses[0] == losses[1]
        assert same(models[0].state_dict(), models[1])


# ---- Models ----


class Table(nn.Module):
    """Returns a part of its own weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))

    def forward(self, rows: int) -> torch.Tensor:
        return self.weight[:rows]


class Gate(nn.Module):
    """Has a weight of its own around a child, and a list that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(5))
        self.inner = nn.Linear(5, 5)
        self.biases = nn.ParameterList([torch.randn(5), torch.randn(5)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + torch.tanh(self.inner(x) + self.biases[0]) * self.biases[1]


class Anything(nn.Module):
    """No list of blocks; attention; a layer that runs twice; a head that only borrows a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.embed = Table(), nn.Embedding(7, 5)
        self.attention = nn.MultiheadAttention(5, 1, batch_first=True)
        self.twice, self.gate, self.norm = nn.Linear(5, 5), Gate(), nn.LayerNorm(5)
        self.last = nn.Linear(5, 5)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.table(ids.shape[1])
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.twice(torch.tanh(self.twice(x)))
        x = self.last.forward(self.frozen(self.norm(self.gate(x))))
        return functional.linear(x, self.embed.weight)


def anything() -> Anything:
    torch.manual_seed(3)
    return Anything()


def anythings_loss(model: nn.Module, step: int) -> torch.Tensor:
    ids = torch.randint(0, 7, (3, 6), generator=torch.Generator().manual_seed(step))
    penalty = 0.01 * model.norm.weight.square().sum()
    return functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()) + penalty


@pytest.mark.parametrize(
    ("directions", "noise"),
    [(1, {}), (2, {}), (2, {"noise": "lowrank", "rank": 2, "period": 3})],
)
def test_any_model_is_measured_with_its_own_half(directions: int, noise: dict) -> None:
    ours, theirs = anything(), anything()
    opt = host(ours, lr=0.05, directions=directions, weight_decay=0.1, **noise)
    trained = [p for p in theirs.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    of = theirs, groups, 1e-3, 0, directions, _core.stable_hash
    oracle = LowRankOracle(*of, gaussian, rank=2, period=3) if noise else Oracle(*of)
    for step in range(4):

        def loss(model: nn.Module, step: int = step) -> torch.Tensor:
            # torch folds a matmul otherwise where a weight requires gradients.
            return anythings_loss(model.requires_grad_(False), step)

        expected = oracle.step(loss, [0.05, 0.05])
        assert opt.step(lambda: anythings_loss(ours, step)).item() == expected  # noqa: B023
        assert same(ours.state_dict(), theirs)
        ids = torch.randint(0, 7, (2, 4))
        with torch.no_grad():
            assert torch.equal(ours(ids), theirs(ids))
            assert torch.equal(ours.gate(torch.ones(2, 5)), theirs.gate(torch.ones(2, 5)))
        assert same(ours.gate.state_dict(), theirs.gate)
    assert same(copy.deepcopy(ours).state_dict(), anything())  # A copy is of the base.


def test_a_decoder_of_transformers_streams_in_the_order_of_its_forward() -> None:
    models = [small_llama(num_hidden_layers=3) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    opts = [host(models[0], lr=1e-3), sluiceway.ZoSgd(models[1], lr=1e-3)]
    matrices = [p for p in models[0].parameters() if p.dim() >= 2]
    whole = sum(p.nbytes for p in matrices) + models[0].lm_head.weight.nbytes
    crossed = 0
    for step in range(4):
        ids = tokens(step)
        losses = [
            opt.step(lambda m=model: m(input_ids=ids, labels=ids).loss)  # noqa: B023
            for opt, model in zip(opts, models, strict=True)
        ]
        assert losses[0] == losses[1]
        crossed += opts[0].stats()["bytes"]["h2d"]
    assert same(models[0].state_dict(), models[1])
    assert crossed < 4.9 * whole  # Nothing was loaded twice; registered is another order.


def test_a_forward_that_runs_more_often_than_the_first_one_starts_again() -> None:
    models = [decoder(), decoder()]
    opts = [host(models[0], lr=0.1), sluiceway.ZoSgd(models[1], lr=0.1)]
    for times in (1, 3, 2):
        losses = []
        for opt, model in zip(opts, models, strict=True):

            def closure(model: nn.Module = model, times: int = times) -> torch.Tensor:
                return sum(zo_loss(model, zo_ids(k)) for k in range(times))

            losses.append((opt.step(closure), opt.evaluate(closure)))
        assert losses[0] == losses[1]
        assert same(models[0].state_dict(), models[1])


def test_autocast_keeps_no_cast_of_another_theta() -> None:
    models = [decoder(), decoder()]
    opts = [host(models[0], lr=0.5), sluiceway.ZoSgd(models[1], lr=0.5)]
    ids = zo_ids(0)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        for _ in range(3):
            losses = [
                opt.step(lambda m=m: zo_loss(m, ids)) for opt, m in zip(opts, models, strict=True)
            ]
            assert losses[0] == losses[1]
            torch.clear_autocast_cache()
            assert torch.equal(models[0](ids), models[1](ids))


def test_a_model_is_copied_and_saved_with_hooks_that_do_nothing(tmp_path: Path) -> None:
    model = decoder()
    opt = host(model, lr=0.1, trace=tmp_path / "trace.json")
    opt.step(lambda: zo_loss(model, zo_ids(0)))
    torch.save(model, tmp_path / "model.pt")
    for other in (copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)):
        assert same(other.state_dict(), decoder())
        assert torch.equal(other(zo_ids(1)), decoder()(zo_ids(1)))
    assert not torch.equal(model(zo_ids(1)), decoder()(zo_ids(1)))
    opt.close()
    assert "perturb" in (tmp_path / "trace.json").read_text()


def test_layers_arrive_once_for_all_halves_and_before_they_are_asked_for() -> None:
    model = decoder()
    opt = host(model, directions=3)
    closures = [lambda k=k: zo_loss(model, zo_ids(k)) for k in range(2)]
    crossed = []
    for _ in range(4):
        opt.step(closures)
        crossed.append(opt.stats()["bytes"])
    opt.evaluate(closures)
    crossed.append(opt.stats()["bytes"])
    matrices = [p for p in model.parameters() if p.dim() >= 2] + [model.head.weight]
    # What is tied crosses at either end; a pass may have fetched what is the next one's.
    whole = sum(p.nbytes for p in matrices)
    assert sum(one["h2d"] for one in crossed) == pytest.approx(5 * whole, abs=whole)
    assert not any(one["d2h"] for one in crossed)


# ---- The log ----


def train(opt: sluiceway.ZoSgd, model: nn.Module, steps: range) -> list[float]:
    return [opt.step(lambda: zo_loss(model, zo_ids(s))).item() for s in steps]  # noqa: B023


OPTIONS = {"lr": 0.02, "weight_decay": 0.5, "directions": 2, "seed": 5}


@pytest.fixture(params=[{}, {"noise": "lowrank", "period": 2}], ids=["elementwise", "low-rank"])
def options(request: pytest.FixtureRequest) -> dict:
    return OPTIONS | request.param


def test_a_log_goes_on_where_it_was_closed(options: dict, tmp_path: Path) -> None:
    whole = decoder()
    in_one_go = host(whole, **options)
    expected = train(in_one_go, whole, range(8))
    found = []
    for steps in (range(3), range(3, 5), range(5, 8)):
        model = decoder()
        opt = host(model, path=tmp_path, **options)
        assert opt.committed_steps == steps.start
        assert opt.param_groups[0]["gamma"] == pytest.approx(0.99**steps.start)
        found += train(opt, model, steps)
        opt.close()
    assert found == expected
    assert same(model.state_dict(), whole)
    in_one_go.close()
    assert [path.name for path in tmp_path.iterdir()] == ["scalars.log"]


def test_theta_of_a_log_is_there_before_any_step(options: dict, tmp_path: Path) -> None:
    first = decoder()
    opt = host(first, path=tmp_path, **options)
    train(opt, first, range(3))
    opt.close()
    model = decoder()
    opt = host(model, path=tmp_path, **options)
    assert same(model.state_dict(), first)
    with torch.no_grad():
        assert torch.equal(model(zo_ids(0)), first(zo_ids(0)))
        assert opt.evaluate(lambda: zo_loss(model, zo_ids(0))) == zo_loss(first, zo_ids(0))


@pytest.mark.parametrize("given", [True, False])
def test_a_state_has_all_that_a_new_optimizer_needs(
    given: bool, options: dict, tmp_path: Path
) -> None:
    whole = decoder()
    expected = train(host(whole, **options), whole, range(6))
    model = decoder()
    opt = host(model, path=tmp_path if given else None, **options)
    found = train(opt, model, range(3))
    state = copy.deepcopy(opt.state_dict())
    train(opt, model, range(10, 12))
    opt.load_state_dict(state)  # Back, on the same log.
    assert opt.committed_steps == 3
    assert found + train(opt, model, range(3, 6)) == expected
    again = decoder()
    other = host(again, **{**options, "lr": 9.0})
    other.load_state_dict(state)
    assert found + train(other, again, range(3, 6)) == expected
    assert same(again.state_dict(), model)


def test_rollback_and_branch(options: dict, tmp_path: Path) -> None:
    model = decoder()
    opt = host(model, path=tmp_path / "one", **options)
    losses = train(opt, model, range(5))
    opt.branch(2, tmp_path / "two")
    opt.rollback(2)
    assert train(opt, model, range(2, 5)) == losses[2:]
    twin = decoder()
    branch = host(twin, path=tmp_path / "two", **options)
    assert branch.committed_steps == 2
    assert train(branch, twin, range(2, 5)) == losses[2:]
    assert same(twin.state_dict(), model)
    with pytest.raises(sluiceway.InvalidArgument, match="rollback: step is 9"):
        opt.rollback(9)
    device = sluiceway.ZoSgd(decoder())
    with pytest.raises(sluiceway.InvalidArgument, match="which has no log"):
        device.rollback(0)
    with pytest.raises(sluiceway.InvalidArgument, match="expected no path, or tier='host'"):
        sluiceway.ZoSgd(decoder(), path=tmp_path)


def test_another_base_is_refused(tmp_path: Path) -> None:
    model = decoder()
    with host(model, path=tmp_path, **OPTIONS) as opt:
        state = opt.state_dict()
        train(opt, model, range(1))
    with pytest.raises(sluiceway.InvalidArgument, match="give the weights or the log that belong"):
        host(decoder(seed=1), path=tmp_path, **OPTIONS)
    with pytest.raises(sluiceway.InvalidArgument, match=r"expected .*run seed 6"):
        host(decoder(), path=tmp_path, **{**OPTIONS, "seed": 6})
    other = host(decoder(seed=1), **OPTIONS)
    with pytest.raises(sluiceway.InvalidArgument, match="load the weights that its run began"):
        other.load_state_dict(state)
    with pytest.raises(sluiceway.InvalidArgument, match="tier was 'host'"):
        sluiceway.ZoSgd(decoder(), **OPTIONS).load_state_dict(state)
    mine = host(decoder(), **OPTIONS)
    mine.load_state_dict(state)


def test_more_updates_than_a_weight_can_be_given_at_once_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    opt = host(model, lr=1e-3, directions=500)
    x = torch.ones(1, 2)
    closure: Callable = lambda: model(x).sum()  # noqa: E731
    opt.step(closure)
    opt.step(closure)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(sluiceway.InvalidArgument, match=r"1000 updates .* consolidate"):
        opt.step(closure)
    assert opt.committed_steps == 2
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


# ---- What cannot be ----


def test_what_is_not_read_is_named_and_what_ran_once_has_to_run_again() -> None:
    def closure(model: nn.Module) -> torch.Tensor:
        x = model.embed(zo_ids(0))
        for number, layer in enumerate(model.layers):
            x = x if number in left_out else layer(x)
        return model.norm(x).square().mean()

    left_out = {1}
    model = decoder()
    opt = host(model)
    with pytest.raises(sluiceway.InvalidArgument, match=r"layers.1.norm.weight was not read"):
        opt.step(lambda: closure(model))
    assert opt.committed_steps == 0
    left_out.clear()
    opt.step(lambda: closure(model))
    left_out.add(2)
    with pytest.raises(sluiceway.InvalidArgument, match=r"module layers.2.norm did not run in"):
        opt.step(lambda: closure(model))
    left_out.clear()
    opt.step(lambda: closure(model))
    assert opt.committed_steps == 2


def test_no_base_is_taken_for_theta() -> None:
    model = decoder()
    opt = host(model)
    opt.step(lambda: zo_loss(model, zo_ids(0)))
    extra = []

    def closure() -> torch.Tensor:
        extra.append(model.layers[0].up.weight.sum())  # Its layer is not running.
        return zo_loss(model, zo_ids(0)) + extra[-1]

    with pytest.warns(UserWarning, match="no finite g"):
        opt.step(closure)
    assert all(x.isnan() for x in extra)
    assert opt.stats()["zo"]["g"] == [0.0]


def test_a_failure_outside_of_a_step_leaves_the_base() -> None:
    model = decoder()
    opt = host(model, lr=0.1)
    opt.step(lambda: zo_loss(model, zo_ids(0)))
    base = [p.detach().clone() for p in model.parameters()]
    for kind in (RuntimeError, KeyboardInterrupt):

        def fail(*_: object, kind: type = kind) -> None:
            raise kind

        handle = model.layers[1].up.register_forward_hook(fail)
        with pytest.raises(kind):
            model(zo_ids(0))
        handle.remove()
        once = model(zo_ids(0))
        assert torch.equal(once, model(zo_ids(0)))
        assert not once.requires_grad
        assert torch.is_grad_enabled()
        assert all(map(torch.equal, model.parameters(), base))
        assert all(p.requires_grad for p in model.parameters())
    opt.step(lambda: zo_loss(model, zo_ids(0)))


def test_a_closed_optimizer_says_so() -> None:
    model = decoder()
    opt = host(model, lr=0.1)
    opt.step(lambda: zo_loss(model, zo_ids(0)))
    theta = copy.deepcopy(model.state_dict())
    opt.close()
    opt.close()
    assert all(torch.equal(p, theta[name]) for name, p in model.named_parameters())
    with pytest.raises(sluiceway.InvalidArgument, match="it is closed, expected an open"):
        opt.step(lambda: zo_loss(model, zo_ids(0)))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(sluiceway.Unavailable, match="device is 'cuda:7', this build"):
        host(decoder(), device="cuda:7")
    model = decoder()
    opt = host(model, budget=sluiceway.Budget(device=1000))
    with pytest.raises(sluiceway.OutOfMemory, match="ring"):
        opt.step(lambda: zo_loss(model, zo_ids(0)))
