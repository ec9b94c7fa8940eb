"""Run what the questions need, several at a time, the first question first, within a budget.

A run is asked for once it is known: the rates of a row one after another while the best is at an
edge, then its seeds. A free place takes the first known run that nobody has begun, so no place
waits for the end of a question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from itertools import chain

from experiments.fidelity.row_lines import Row
from experiments.fidelity.stages import Found
from experiments.regimes.fine_tunes import Run, Setting, Way
from experiments.regimes.hours import Hours
from experiments.regimes.questions import Question, wanted
from experiments.regimes.shelf import Shelf

UnderWay = dict[Future, tuple[str, Run]]


@dataclass
class Outcome:
    """Outcome of a call of work_off()."""

    done: int = 0
    core_seconds: float = 0.0
    failed: dict[Run, Exception] = field(default_factory=dict)
    stopped: bool = False  # Stopped at the budget.


@dataclass(frozen=True)
class Left:
    """Runs that a question still needs, without those that an earlier one has."""

    question: Question
    done: int
    known: tuple[Run, ...]
    to_come: tuple[Run, ...]  # Their rate is not chosen: a run of the same length stands for each.


def left(questions: Iterable[Question], found: Found) -> list[Left]:
    """List the rest of each question, in order."""
    seen: set[Run] = set()
    lines = []
    for question in questions:
        asked = wanted(found, question)
        known = [run for run in asked.known if not found.has(run) and run not in seen]
        to_come = [run for run in asked.to_come if run not in seen]
        seen.update(known, to_come)
        done = sum(map(found.has, asked.known))
        lines.append(Left(question, done, tuple(known), tuple(to_come)))
    return lines


def plan(lines: Iterable[Left], hours: Hours) -> str:
    """Format the count of runs and core-hours, for a terminal."""
    text = [f"{'question':14}{'done':>6}{'left':>6}  core-hours"]
    runs: list[Run] = []
    rows: dict[tuple[Setting, Way], Run] = {}  # One for each row whose rate is not chosen.
    for line in lines:
        mine = [*line.known, *line.to_come]
        text.append(f"{line.question.name:14}{line.done:6}{len(mine):6}{hours.hours(mine):12.2f}")
        runs += mine
        rows |= {(run.setting, run.way): run for run in line.to_come}
    guessed = hours.guessed(runs)
    text.append(f"{'all':14}{'':6}{len(runs):6}{hours.hours(runs):12.2f}")
    text.append(f"{'further rates':14}{'':6}{len(rows):6}{hours.hours(rows.values()):12.2f}")
    text.append("Further rates: one for each row whose rate is not chosen; those whose best is at "
                f"an edge need it, or more.\nSeconds of {len(runs) - guessed} runs are those of "
                f"rows of their shape, of {guessed} a guess.")  # fmt: skip
    return "\n".join(text)


def next_run(questions: Iterable[Question], found: Found, taken: set[Run]
             ) -> tuple[str, Run] | None:  # fmt: skip
    """Return the first run that is known, not done and not taken, with its question's name."""
    for question in questions:
        for run in wanted(found, question).known:
            if run not in taken and not found.has(run):
                return question.name, run
    return None


def work_off(questions: Sequence[Question], shelf: Shelf, pool: Executor, places: int,
             measure: Callable[[Run], Row], most_core_hours: float,
             say: Callable[[str], None] = print) -> Outcome:  # fmt: skip
    """Run everything, or until the next run would exceed the budget.

    Parameters
    ----------
    pool : Executor
        Calls `measure`, `places` times at once.
    most_core_hours : float
        Budget that includes all existing rows. Runs in progress count as estimated, finished ones
        as measured.
    """
    spent = sum(row["core_seconds"] for row in shelf.all_rows().values())
    outcome, under_way = Outcome(core_seconds=spent), {}
    for question in questions:
        shelf.share(question)
    while True:
        if not outcome.stopped:
            _fill(questions, shelf, pool, places, measure, most_core_hours, outcome, under_way)
        if not under_way:
            break
        ended, _ = wait(under_way, return_when=FIRST_COMPLETED)
        for future in ended:
            _take(future, *under_way.pop(future), shelf, outcome, say)
    for question in questions:
        shelf.share(question)
    return outcome


def _fill(questions: Sequence[Question], shelf: Shelf, pool: Executor, places: int,
          measure: Callable[[Run], Row], most_core_hours: float, outcome: Outcome,
          under_way: UnderWay) -> None:  # fmt: skip
    """Start runs until every place has one."""
    while len(under_way) < places:
        found, hours = shelf.found(), Hours(shelf.all_rows().values())
        running = [run for _, run in under_way.values()]
        one = next_run(questions, found, {*running, *outcome.failed})
        if one is None:
            return
        spent = outcome.core_seconds / 3600 + hours.hours([*running, one[1]])
        if spent > most_core_hours:
            outcome.stopped = True
            return
        under_way[pool.submit(measure, one[1])] = one


def _take(future: Future, name: str, run: Run, shelf: Shelf, outcome: Outcome,
          say: Callable[[str], None]) -> None:  # fmt: skip
    """Write the row of a run that ended; keep an exception it raised, and let other runs go on."""
    try:
        row = future.result()
    except Exception as error:
        outcome.failed[run] = error
        say(f"  failed: {run.name}: {error}")
        return
    shelf.add(name, row)
    outcome.done += 1
    outcome.core_seconds += row["core_seconds"]
    say(f"  {name} {outcome.done}, {outcome.core_seconds / 3600:.2f} core-hours: {run.name}: "
        f"{next(iter(row['after'].values())):.4f}")  # fmt: skip


def starts_of(runs: Iterable[Left]) -> set[str]:
    """Return the starts that the runs left need."""
    return {run.start for line in runs for run in chain(line.known, line.to_come)}


def texts_of(runs: Iterable[Left]) -> set[str]:
    """Return the texts that the runs left need."""
    return {run.shift for line in runs for run in chain(line.known, line.to_come)}
