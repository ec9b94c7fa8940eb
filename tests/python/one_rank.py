"""One rank of a job that trains a model in ways that are refused; see test_ranks.py.

Its arguments are a folder to meet in, the number of ranks, its rank, and the cases, which are
functions of this file. It prints what came of each.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from small_models import loss_of, make
from torch.nn.parallel import DataParallel, DistributedDataParallel
from twins import identity

folder, ranks, rank, cases = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]


LIMIT = datetime.timedelta(seconds=60)


def leave_together():
    """Wait for the others: a rank that leaves first would hang those that still connect to it."""
    Path(folder, f"{case}.{rank}").touch()
    deadline = time.monotonic() + LIMIT.total_seconds()
    while not all(Path(folder, f"{case}.{other}").exists() for other in range(ranks)):
        assert time.monotonic() < deadline, f"{case}: another rank did not come, expected all"
        time.sleep(0.01)


def meet():
    at = f"file://{folder}/{case}"
    dist.init_process_group("gloo", at, LIMIT, world_size=ranks, rank=rank)


def train(model, opt, first=0):
    for step in range(first, first + 2):
        loss_of(model, 2 * step + rank).backward()
        opt.step()
        opt.zero_grad()


def wrapped_before(**arguments):
    meet()
    ddp = DistributedDataParallel(make(), **arguments)
    with identity(ddp) as opt:
        train(ddp, opt)


def inner_of_wrapped():
    meet()
    ddp = DistributedDataParallel(make(), static_graph=True)
    with identity(ddp.module) as opt:
        train(ddp, opt)


def wrapped_after(**arguments):
    model = make()
    with identity(model) as opt:
        meet()
        train(DistributedDataParallel(model, **arguments), opt)


def wrapped_in_the_middle():
    model = make()
    with identity(model) as opt:
        train(model, opt)
        meet()
        train(DistributedDataParallel(model), opt)


def group_before_backward():
    model = make()
    with identity(model):
        loss = loss_of(model, rank)
        meet()
        loss.backward()


def group_before_step():
    model = make()
    with identity(model) as opt:
        loss_of(model, rank).backward()
        meet()
        opt.step()


def group_alone():
    meet()
    identity(make())


def sharded_before():
    from torch.distributed.fsdp import fully_shard

    meet()
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    model = make()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    identity(model)


def sharded_after():
    from torch.distributed.fsdp import fully_shard

    model = make()
    with identity(model) as opt:
        meet()
        mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        train(model, opt)


def dtensor():
    from torch.distributed.tensor import Replicate, distribute_tensor

    meet()
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    model = make()
    up = model.blocks[1].up
    up.weight = torch.nn.Parameter(distribute_tensor(up.weight.detach(), mesh, [Replicate()]))
    identity(model)


def fsdp1_before():
    from torch.distributed.fsdp import FullyShardedDataParallel

    meet()
    identity(FullyShardedDataParallel(make(), device_id=torch.device("cpu")))


def fsdp1_after(**arguments):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = make()
    with identity(model) as opt:
        meet()
        fsdp = FullyShardedDataParallel(model, device_id=torch.device("cpu"), **arguments)
        train(fsdp, opt)


def data_parallel():
    identity(DataParallel(make()))


def alone_in_a_group():
    meet()
    model = make()
    with identity(model) as opt:
        train(model, opt)


def wrapped_before_static():
    wrapped_before(static_graph=True)


def wrapped_after_static():
    wrapped_after(static_graph=True)


def wrapped_before_views():
    wrapped_before(gradient_as_bucket_view=True)


def wrapped_after_views():
    wrapped_after(gradient_as_bucket_view=True)


def fsdp1_after_original():
    fsdp1_after(use_orig_params=True)


for case in cases:
    try:
        globals()[case]()
        said = "trained"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps([case, said]), flush=True)
    leave_together()
    if dist.is_initialized():
        dist.destroy_process_group()
