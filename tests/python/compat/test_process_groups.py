"""Training in several processes makes the same weights, or is refused by name, in every order."""

from __future__ import annotations

import datetime
import functools
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import sluiceway as sw
import torch
from small_models import Stack, loss_of, make
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from twins import identity

RANKS = 2
SECONDS = 60  # Of a rank that waits for one that is gone.


def wrapped_first(wrap: Callable[[nn.Module], nn.Module]):
    """The optimizer takes what the wrapper returned."""
    model = wrap(make(Stack))
    return model, identity(model)


def wrapped_first_inner(wrap: Callable[[nn.Module], nn.Module]):
    """The optimizer takes the model that was wrapped."""
    inner = make(Stack)
    return wrap(inner), identity(inner)


def wrapped_later(wrap: Callable[[nn.Module], nn.Module]):
    inner = make(Stack)
    opt = identity(inner)
    return wrap(inner), opt


def static(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, static_graph=True)


def sharded(model: nn.Module) -> nn.Module:
    return fully_shard(model, mesh=distributed.device_mesh.init_device_mesh("cpu", (RANKS,)))


WRAPPERS = {
    "DistributedDataParallel": DistributedDataParallel, "static-graph": static,
    "fully_shard": sharded,
}  # fmt: skip
ORDERS = {"first": wrapped_first, "first-inner": wrapped_first_inner, "later": wrapped_later}
WRAPPED = [f"{wrapper}/{order}" for wrapper in WRAPPERS for order in ORDERS]
TRAINED = {"group-before-optimizer", "DistributedDataParallel/later", "static-graph/later"}
CASES = ["group-after-optimizer", "group-before-optimizer", *WRAPPED]


def outcome_of(
    make_twin: Callable[[], tuple[nn.Module, sw.SubspaceAdamW]], rank: int
) -> tuple[str, str]:
    """Train two steps; the kind of the error and its text, or the sum of all weights' bits."""
    try:
        model, opt = make_twin()
        for step in range(2):
            # Ranks that see other batches would drift apart.
            loss_of(model, RANKS * step + rank).backward()
            opt.step()
            opt.zero_grad()
        opt.synchronize()
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        return "trained", str(weights.view(torch.int32).sum(dtype=torch.int64).item())
    except sw.Error as error:
        return "refused", str(error)
    except Exception as error:
        return type(error).__name__, str(error)


def run_rank(rank: int, port: int, folder: Path) -> None:
    def note(make_twin) -> None:
        with (folder / f"{rank}.jsonl").open("a") as file:
            file.write(json.dumps(outcome_of(make_twin, rank)) + "\n")
        distributed.barrier()

    early = wrapped_first(nn.Sequential)
    distributed.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS,
        timeout=datetime.timedelta(seconds=SECONDS),
    )  # fmt: skip
    note(lambda: early)
    note(functools.partial(wrapped_first, nn.Sequential))
    for case in WRAPPED:
        wrapper, order = case.split("/")
        note(functools.partial(ORDERS[order], WRAPPERS[wrapper]))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, list[tuple[str, str]]]:
    """Outcome of each case in each rank."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = torch.multiprocessing.spawn(run_rank, (port, folder), nprocs=RANKS, join=False)
    try:
        while not ranks.join(timeout=2 * SECONDS):
            pass
    finally:
        for rank in ranks.processes:
            rank.kill()
    lines = [(folder / f"{rank}.jsonl").read_text().splitlines() for rank in range(RANKS)]
    return {case: [json.loads(line[i]) for line in lines] for i, case in enumerate(CASES)}


@pytest.mark.parametrize("case", sorted(TRAINED))
def test_ranks_end_in_the_same_bits(outcomes, case):
    (kind, bits), second = outcomes[case]
    assert kind == "trained", bits
    assert [kind, bits] == second


@pytest.mark.parametrize("case", sorted({*CASES} - TRAINED))
def test_each_rank_refuses_by_name(outcomes, case):
    for kind, text in outcomes[case]:
        assert kind == "refused", text
        assert "process" in text or "DistributedDataParallel" in text or "DTensor" in text


def test_data_parallel_is_refused():
    # Around a model that an optimizer has, torch runs the model itself where there is no GPU.
    kind, text = outcome_of(functools.partial(ORDERS["first"], nn.DataParallel), rank=0)
    assert kind == "refused"
    assert "DataParallel" in text
