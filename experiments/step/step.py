"""Time a step of native AdamW, of whole gradients offloaded with barriers, and of Sluiceway.

    python -m experiments.step.step --device host --out FILE      # a small shape
    python -m experiments.step.step --device cuda:0 --out FILE    # 7b, 3b and 1b
    python -m experiments.step.step --out FILE --table            # prints what FILE has

Every way runs once in each round, over every link, and each round begins with another way. A ratio
to native compares two turns of one round. A turn makes model and optimizer anew, so that it has its
own peaks. The script writes FILE after each turn. It repeats no turn in FILE; a turn that failed is
a row that says why. It refuses a FILE whose rows depend on other options. `step_order.py` has the
order.

Exit status: 0, even if --seconds were not enough for all turns; 1 if a way failed in every try; 3
if --turns were taken and others are left, or if the device no longer answers. A turn that does not
end makes SIGALRM end the process. After that, or after 3, repeat the same command to continue
behind that turn.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from sluiceway.base.sizes import parse_bytes
from sluiceway.run.summary import machine

from experiments.harness import check_document, read_documents, read_rows, write_rows
from experiments.step.block_models import SHAPES, Case, cases
from experiments.step.step_order import ABSOLUTE, NATIVE, PACINGS, Turn, in_order
from experiments.step.step_table import table
from experiments.step.step_turn import clear, failure, measure, torch_device
from experiments.step.step_ways import LINKS, MAIN_WAYS, WAYS, Pace, real_link_gbps

ON_HOST = {"shapes": ["small"], "tokens": [256, 512], "sequence": 128, "budget": 1 << 30}
ON_CARD = {"shapes": ["7b", "3b", "1b"], "tokens": [2048, 8192, 4096, 1024, 16384],
           "sequence": 1024}  # fmt: skip
_OF_CARD = 0.85  # Share of free memory; the rest is for memory that no tensor accounts for.
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_START_AGAIN = 3
# Options that every row depends on and none records: all rows of a file have the same.
_OF_ALL_ROWS = ("device", "dtype", "sequence", "budget", "warmup", "steps")


@contextlib.contextmanager
def ended_after(seconds: int) -> Iterator[None]:
    """End the process after `seconds` and print where it was; 0 means never."""
    if not seconds:
        yield
        return
    # The handler prints the traceback, and then the signal's default action ends the process.
    faulthandler.register(signal.SIGALRM, all_threads=False, chain=True)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        faulthandler.unregister(signal.SIGALRM)


class Sitting:
    """The turns of one file; takes those that are left one after the other."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._device = torch_device(args.device)
        self._end, self._taken = time.monotonic() + args.seconds, 0
        self._real_gbps = real_link_gbps(self._device)
        self._sizes: dict[Case, tuple[int, int]] = {}
        self.rows = [row for row in read_rows(args.out) if not (args.retry and "failed" in row)]
        every = cases(args.shapes, args.tokens, args.sequence, _DTYPES[args.dtype])
        self.left = [
            (case, turn)
            for case, turn in in_order(every, args.rounds, args.ways, args.links, args.pacing)
            if self._row({**case.key, **turn.key}) is None
        ]

    def go_on(self) -> None:
        """Take what is left, until the time is over or --turns were taken."""
        self._write()
        while self.has_time and self._taken < self._args.turns:
            self._taken += 1
            case, turn = self.left[0]
            key = {**case.key, **turn.key}
            self._write({**key, "failed": "did not end"})
            try:
                with ended_after(self._args.turn_limit):
                    found = failure(lambda case=case, turn=turn: self._take(case, turn))
            except BaseException:
                self._write()
                raise
            del self.left[0]
            self.rows.append({**key, **found})
            print(json.dumps(self.rows[-1]), flush=True)
            self._write()
            if not clear(self._device):
                print("step.py: the device no longer answers; repeat the command", file=sys.stderr)
                sys.stderr.flush()
                os._exit(_START_AGAIN)  # The ordinary exit would wait for the device.

    @property
    def has_time(self) -> bool:
        """Say whether a turn is left, and time to begin it."""
        return bool(self.left) and time.monotonic() < self._end

    def ways_that_only_failed(self) -> list[str]:
        """Ways that were tried and never ran."""
        tried = {row["way"] for row in self.rows}
        return sorted(tried - {row["way"] for row in self.rows if "failed" not in row})

    def _take(self, case: Case, turn: Turn) -> dict[str, Any]:
        blocks, flops = self._size(case)
        sizes = {"blocks": blocks, "layers": case.layers, "flops": flops}
        if not blocks:
            return {**sizes, "failed": "one block is above --budget"}
        gbps = None
        if turn.pacing is not None:
            native = self._row({**case.key, "round": 0, "way": NATIVE})
            if native is None or "failed" in native:
                return {**sizes, "failed": "native has no turn in round 0 to pace the links by"}
            rate = flops / native["seconds"]
            gbps = Pace(rate, self._real_gbps).gbps(turn.link, turn.pacing)
        return {**sizes, "gbps": gbps, **measure(case, blocks, turn.way, gbps, self._args)}

    def _size(self, case: Case) -> tuple[int, int]:
        """Blocks that fit, and operations of their step; they are equal in all turns of a case."""
        if case not in self._sizes:
            known = next((row for row in self.rows if case.key.items() <= row.items()
                          and "flops" in row), None)  # fmt: skip
            if known is not None:
                self._sizes[case] = known["blocks"], known["flops"]
            else:
                blocks = case.blocks_within(self._args.budget)
                work = case.rehearsal(max(blocks, 1))
                self._sizes[case] = blocks, work.forward_flops + work.backward_flops
        return self._sizes[case]

    def _row(self, key: dict[str, Any]) -> dict[str, Any] | None:
        return next((row for row in self.rows if key.items() <= row.items()), None)

    def _write(self, *begun: dict[str, Any]) -> None:
        """Write the rows and the turn that has begun, which stays if it ends the process."""
        rows = [*self.rows, *begun]
        write_rows(self._args.out, rows, left=len(self.left) - len(begun), **self._about())

    def _about(self) -> dict[str, Any]:
        """Describe the machine and the method of measurement."""
        real = self._real_gbps
        return {
            "machine": machine(),
            **{name: getattr(self._args, name) for name in _OF_ALL_ROWS},
            "real_link_gbps": real if real < float("inf") else None,
            "scaled": "ms of the measured blocks x layers / blocks; no embedding, no head",
        }


def parsed() -> argparse.Namespace:
    """Parse the command line, with defaults that depend on the device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="host", help="host or cuda:0")
    parser.add_argument("--out", type=Path, required=True, help="JSON file, continued if it exists")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES)
    parser.add_argument("--tokens", nargs="+", type=int, help="tokens of a step")
    parser.add_argument("--sequence", type=int, help="tokens of a sequence")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(MAIN_WAYS))
    parser.add_argument("--links", nargs="+", choices=LINKS, default=list(LINKS))
    pacing = "links as named, or scaled to this device's compute rate"
    parser.add_argument("--pacing", nargs="+", choices=PACINGS, default=[ABSOLUTE], help=pacing)
    parser.add_argument("--budget", type=parse_bytes, help="device bytes for the blocks")
    parser.add_argument("--dtype", choices=list(_DTYPES), default="bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=3, help="steps that are not timed")
    parser.add_argument("--steps", type=int, default=8)
    patience = "seconds after which a turn takes at most two steps"
    parser.add_argument("--patience", type=float, default=float("inf"), help=patience)
    limit = "seconds of a turn, after which the process ends"
    parser.add_argument("--turn-limit", type=int, default=0, help=limit)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none afterwards")
    most = "take at most so many turns; 1 gives each turn a process of its own"
    parser.add_argument("--turns", type=int, default=sys.maxsize, help=most)
    parser.add_argument("--retry", action="store_true", help="repeat failed turns")
    seen = "try one short round: two steps, the fewest tokens, two links"
    parser.add_argument("--once", action="store_true", help=seen)
    parser.add_argument("--table", action="store_true", help="print FILE and measure nothing")
    args = parser.parse_args()
    for name, value in (ON_HOST if args.device == "host" else ON_CARD).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.once:
        args.tokens, args.links = [min(args.tokens)], args.links[:2]
        args.rounds, args.warmup, args.steps = 1, 1, 2
    return args


def main() -> int:
    """Measure what is missing, and print the table."""
    args = parsed()
    if args.table:
        print("\n\n".join(map(table, read_documents(args.out).values())))
        return 0
    found = check_document(args.out, **{name: getattr(args, name) for name in _OF_ALL_ROWS})
    if args.budget is None:
        args.budget = found.get("budget")
    if args.budget is None:
        args.budget = int(_OF_CARD * torch.cuda.mem_get_info(torch_device(args.device))[0])
    sitting = Sitting(args)
    sitting.go_on()
    if sitting.has_time:
        return _START_AGAIN
    only_failed = sitting.ways_that_only_failed()
    if sitting.left:
        print(f"step.py: {len(sitting.left)} turns are left; repeat the command")
    print(table(json.loads(args.out.read_text())))
    for way in only_failed:
        print(f"step.py: {way}: failed in every try", file=sys.stderr)
    return 1 if only_failed else 0


if __name__ == "__main__":
    sys.exit(main())
