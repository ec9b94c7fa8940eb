"""Options of ranks that train one model by losses alone: those in common, and those of each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sluiceway.errors import InvalidArgument, Unavailable
from sluiceway.optim.common.ranks import Ranks
from sluiceway.optim.zo.arguments import ZoArguments

# Options by which ranks may differ: places, and how much of its own memory each one takes.
_OF_EACH = {"device", "path", "store", "link", "budget", "trace", "pin", "opens", "depth",
            "perturb_lanes", "resident"}  # fmt: skip


def of_rank(owner: str, options: ZoArguments, ranks: Ranks) -> ZoArguments:
    """Return the options of this rank: log and trace of all but the first have names of their own.

    Raises
    ------
    Unavailable, InvalidArgument
        Several ranks cannot train so.
    """
    if options.tier == "disk":
        raise Unavailable(
            f"{owner}: tier is 'disk' in a process group of {ranks.count} ranks, which would each "
            "need a store of the weights; take tier 'host' or 'device'"
        )
    if options.mode == "write_back":
        raise Unavailable(
            f"{owner}: mode is 'write_back' in a process group of {ranks.count} ranks; take mode "
            "'log', whose log each rank can replay"
        )
    if options.across_ranks == "directions" and options.direction_count < ranks.count:
        raise InvalidArgument(
            f"{owner}: directions is {options.directions} and across_ranks is 'directions', "
            f"expected at least {ranks.count}, one for each rank"
        )
    if ranks.rank == 0:
        return options
    changes: dict[str, Any] = {}
    if options.path is not None:
        changes["path"] = Path(options.path) / f"rank{ranks.rank}"
    if options.trace is not None:
        path = Path(os.fspath(options.trace))
        changes["trace"] = path.with_stem(f"{path.stem}.rank{ranks.rank}")
    return options.model_copy(update=changes)


def facts_of_options(options: ZoArguments, groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what all ranks must have alike beside their weights."""
    rates = [(float(group["lr"]), float(group["weight_decay"])) for group in groups]
    return {**options.model_dump(exclude=_OF_EACH), "rates of param_groups": rates}
