"""The list of turns in order: if time is short, the requested ones come first.

The targets are set for 3b and 7b at 2k to 8k tokens a step over a desktop's link and over the
card's own, and for whole gradients at 2k. Every round of these comes before the first of the rest.
Each begins with 2k, paced as named and with activations kept: a dozen turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.step.block_models import Case

NATIVE = "native"
WHOLE = "full gradients, barriers"
UNTHROTTLED = "unthrottled"
DESKTOP_LINK = "PCIe 4.0 x16"
ABSOLUTE, BY_RATIO = "absolute", "ratio"
PACINGS = (ABSOLUTE, BY_RATIO)

_SHAPES, _TOKENS, _FIRST_TOKENS = ("3b", "7b"), (2048, 4096, 8192), 2048
_REST = 4


@dataclass(frozen=True)
class Turn:
    """One way over one link, in one round."""

    number: int
    way: str
    link: str | None  # None: native uses no link.
    pacing: str | None  # None: no link to pace.

    @property
    def key(self) -> dict[str, Any]:
        """Values that identify a row of results."""
        return {"round": self.number, "way": self.way, "link": self.link, "pacing": self.pacing}


def turns_of_round(
    number: int, ways: list[str], links: list[str], pacings: list[str]
) -> list[Turn]:
    """List every way once over every link; rounds differ in the first way, round 0 has native."""
    found = [Turn(number, NATIVE, None, None)]
    for way in ways:
        for link in links if way != NATIVE else ():
            paced = (None,) if link == UNTHROTTLED else pacings
            found += [Turn(number, way, link, pacing) for pacing in paced]
    first = number % len(found)
    return found[first:] + found[:first]


def in_order(
    cases: Iterable[Case], rounds: int, ways: list[str], links: list[str], pacings: list[str]
) -> list[tuple[Case, Turn]]:
    """List all turns; native's first turn of a case comes before those paced by its rate."""
    cases = list(cases)
    found = [
        (case, turn)
        for number in range(rounds)
        for case in cases
        for turn in turns_of_round(number, ways, links, pacings)
    ]

    def place(one: tuple[Case, Turn]) -> tuple[bool, int, int]:
        wave = _wave(*one)
        return wave == _REST, one[1].number, wave

    return sorted(found, key=place)


def _wave(case: Case, turn: Turn) -> int:
    """Rank of a turn in its round: first cases with targets, with activations kept."""
    asked = case.shape in _SHAPES and case.tokens in _TOKENS
    if turn.way == WHOLE:
        asked &= case.tokens == _FIRST_TOKENS and turn.pacing == ABSOLUTE
    if not asked or turn.link not in (None, UNTHROTTLED, DESKTOP_LINK):
        return _REST
    if case.checkpointing:
        return 3
    if turn.pacing == BY_RATIO:
        return 2
    return 0 if case.tokens == _FIRST_TOKENS else 1
