"""One rank of several that train one model by losses alone; see test_zo_ranks.py."""

from __future__ import annotations

import datetime
import hashlib
import signal
import time

import sluiceway
import torch
from rank_jobs import ThisRank
from sluiceway.errors import Error
from zo_models import OPTIONS, decoder, zo_ids, zo_loss

STEPS = 12
FIVE = {**OPTIONS, "directions": 5, "across_ranks": "directions"}


def bits(model):
    """Hash the weights, which tiers host and disk compute for `state_dict()`."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def history(opt, model, closures_of, steps=range(STEPS)):
    """Train, and return the loss of each step and the bits of the weights at the end."""
    losses = [opt.step(closures_of(step)).item() for step in steps]
    return [losses, bits(model)]


def same_batch(model):
    return lambda step: lambda: zo_loss(model, zo_ids(step))


def part_of(model, rank, ranks):
    """Rows of the rank in a batch of two rows a rank."""
    rows = slice(2 * rank, 2 * rank + 2)
    return lambda step: lambda: zo_loss(model, zo_ids(step, 2 * ranks)[rows])


def together(directions_of_all, **options):
    here.meet()
    model = decoder()
    with sluiceway.ZoSgd(model, **options) as opt:
        closures = same_batch(model) if directions_of_all else part_of(model, here.rank, here.ranks)
        found = history(opt, model, closures)
        return [*found, opt.stats()["ranks"]]


def directions_on_device():
    return together(True, **FIVE)


def directions_on_host():
    return together(True, **FIVE, tier="host")


def directions_of_low_rank():
    return together(True, **FIVE, tier="host", noise="lowrank", period=5)


def batch_on_device():
    return together(False, **OPTIONS)


def batch_on_host():
    return together(False, **OPTIONS, tier="host")


def other_weights():
    here.meet()
    model = decoder()
    if here.rank == 1:
        with torch.no_grad():
            model.layers[1].up.weight[0, 0] += 1
    sluiceway.ZoSgd(model, **OPTIONS)


def other_seed():
    here.meet()
    sluiceway.ZoSgd(decoder(), **{**OPTIONS, "seed": here.rank})


def rate_that_falls():
    """A scheduler of rank 1 alone lowers the rate, as one that follows its own loss would."""
    here.meet()
    model = decoder()
    with sluiceway.ZoSgd(model, **OPTIONS) as opt:
        opt.step(same_batch(model)(0))
        opt.param_groups[0]["lr"] /= 1 + here.rank
        opt.step(same_batch(model)(1))


def too_few_directions():
    here.meet()
    sluiceway.ZoSgd(decoder(), directions=1, across_ranks="directions")


def store_of_each():
    here.meet()
    sluiceway.ZoSgd(decoder(), tier="disk", store=sluiceway.StoreOptions(path=here.folder / "s"))


def written_back():
    here.meet()
    sluiceway.ZoSgd(decoder(), tier="host", mode="write_back")


def group_made_later():
    model = decoder()
    with sluiceway.ZoSgd(model, **OPTIONS) as opt:
        here.meet()
        opt.step(same_batch(model)(0))


def one_fails():
    """A closure of rank 1 raises in the third step; all of them make it again afterwards."""
    here.meet()
    model = decoder()
    with sluiceway.ZoSgd(model, **OPTIONS) as opt:
        closures = part_of(model, here.rank, here.ranks)
        first = history(opt, model, closures, range(2))

        def fails():
            raise KeyError("a batch is missing")

        try:
            opt.step(fails if here.rank == 1 else closures(2))
            said = "no error"
        except (Error, KeyError) as error:
            said = f"{type(error).__name__}: {error}"
        assert bits(model) == first[1], "a step was made"
        assert opt.committed_steps == 2, "a step was counted"
        return [said, history(opt, model, closures, range(2, STEPS))[1]]


def interrupted():
    """Ctrl-C reaches all ranks in the third step, which all of them make."""
    here.meet()
    model = decoder()
    with sluiceway.ZoSgd(model, **OPTIONS) as opt:
        closures = part_of(model, here.rank, here.ranks)
        history(opt, model, closures, range(2))

        def pressed():
            if not interrupts:
                interrupts.append(signal.raise_signal(signal.SIGINT))
            return closures(2)()

        interrupts: list[None] = []
        try:
            opt.step(pressed)
            said = "no interrupt"
        except KeyboardInterrupt:
            said = "interrupted"
        return [said, opt.committed_steps, history(opt, model, closures, range(3, STEPS))[1]]


def late_rank():
    """Rank 1 joins a log of five steps, and both go on."""
    alone = decoder()
    options = {**OPTIONS, "tier": "host", "path": here.folder / "late"}
    if here.rank == 0:
        with sluiceway.ZoSgd(alone, **options) as opt:
            history(opt, alone, same_batch(alone), range(5))
    here.wait_for_all("began")
    here.meet()
    model = decoder()
    with sluiceway.ZoSgd(model, **options) as opt:
        assert opt.committed_steps == 5, f"{opt.committed_steps} steps, expected 5"
        return history(opt, model, same_batch(model), range(5, STEPS))


def logs_of_two_runs():
    """Each rank has a log of its own run, of as many steps."""
    alone = decoder()
    place = here.folder / "two" if here.rank == 0 else here.folder / "two" / "rank1"
    with sluiceway.ZoSgd(alone, **OPTIONS, tier="host", path=place) as opt:
        history(opt, alone, part_of(alone, here.rank, here.ranks), range(3))
    here.wait_for_all("began")
    here.meet()
    sluiceway.ZoSgd(decoder(), **OPTIONS, tier="host", path=here.folder / "two")


def one_ends():
    here.meet()
    model = decoder()
    opt = sluiceway.ZoSgd(model, **OPTIONS)
    closures = same_batch(model)
    opt.step(closures(0))
    if here.rank == 1:
        here.end()
    opt.step(closures(1))


def one_hangs():
    here.meet(datetime.timedelta(seconds=2))
    model = decoder()
    opt = sluiceway.ZoSgd(model, **OPTIONS)
    closures = same_batch(model)
    opt.step(closures(0))
    if here.rank == 1:
        time.sleep(10)
        here.end()
    opt.step(closures(1))


if __name__ == "__main__":
    here = ThisRank()
    here.run_cases(globals())
