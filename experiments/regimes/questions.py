"""List the questions in the order in which answers decide most; each has a table.

Each question changes one factor of small / Perl / 256 tokens a step / 200 steps. A way gets the
rates of RATES with one seed, on `pick`, and more rates for as long as the best one is at an edge.
Then fresh seeds run at the chosen rate, on `final`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from experiments.fidelity.stages import Found, tuned
from experiments.regimes.fine_tunes import Run, Setting, Way, run_of, seeds_of

RATES = (1e-3, 2e-3, 4e-3)
SEEDS, LONG_SEEDS = 5, 3


def added(way: Way, what: str) -> Way:
    """Return the way with one of ways.ADDED."""
    return replace(way, method=f"{way.method}+{what}")


def at(way: Way, ratio: float = 0.25, refresh: str = "never") -> Way:
    """Return the way with another f, or with projectors that are replaced."""
    return replace(way, ratio=ratio, refresh=refresh)


ADAMW, ADAFACTOR = Way("adamw"), Way("adafactor")
PLAIN_ADAMW, ADAFACTOR_B1 = Way("adamw+b1=0"), Way("adafactor+momentum")
RESIDUAL = Way("none+residual")  # Ways that offload nothing.
CORE = Way("block_random+residual+factored_v")  # The default before these runs.
CORE_ALONE = Way("block_random+factored_v")
SVD = Way("svd+residual+factored_v")
PAPER = Way("sparse_learned")
SIMULATED = Way("sim_block+residual")  # The same as CORE, with other draws.
LEADS = (
    SIMULATED,
    *(Way("sim_block+residual", refresh=every) for every in ("1", "50")),
    *(Way("sim_block+feedback", refresh=every) for every in ("1", "50")),
    Way("sim_none+residual+momentum8"), Way("sim_block+residual+momentum8"),
    *(Way(f"sim_block+residual+turns{k}") for k in (2, 4, 8)),
    *(Way(f"sim_learned{more}", refresh="50")
      for more in ("", "+orthonormal", "+orthonormal+residual")),
)  # fmt: skip
# Rivals that a core has to beat, in each regime.
BESIDE = (ADAMW, RESIDUAL, CORE, PLAIN_ADAMW, ADAFACTOR, ADAFACTOR_B1, PAPER)
RATED = added(RESIDUAL, "kw")  # The choice of `auto` in steps of up to 1,024 tokens.
HALF_SVD = at(SVD, 0.5)  # The choice of `auto` in larger steps, with "kw".
LONG_WAYS = (ADAMW, RATED, added(HALF_SVD, "kw"), ADAFACTOR)
OLD_TOKENS = 1024  # Tokens a step in experiments/fidelity.
LARGE_TOKENS = 4096


@dataclass(frozen=True)
class Question:
    """A question that compares ways in some settings.

    Parameters
    ----------
    name : str
        Name for `--only`.
    asks : str
        Heading of the question's table.
    settings, ways
        Every pair of these runs.
    references : tuple of Way
        Members of `ways` that are subtracted from the others.
    seeds, first_seed : int
        Number of seeds after the one that chooses the rate, and the first of them.
    """

    name: str
    asks: str
    settings: tuple[Setting, ...]
    ways: tuple[Way, ...]
    references: tuple[Way, ...] = (RESIDUAL, ADAMW)
    seeds: int = SEEDS
    first_seed: int = 0


USUAL = (Setting(),)
TEXTS = ("perl", "prose", "cpp")
# Questions whose first two settings differ in steps alone.
WORTHS = ("worth", "worth_of_large")
QUESTIONS = (
    Question("core", "Does a core add anything to the residual alone?", USUAL,
             (ADAMW, RESIDUAL, CORE)),
    Question("b1", "Is a core's momentum what pays, or what costs?", USUAL,
             (RESIDUAL, CORE, added(CORE, "b1=0"), SVD, added(SVD, "b1=0"), ADAMW, PLAIN_ADAMW),
             (RESIDUAL, CORE)),
    Question("f", "How large must a core be?", USUAL,
             (RESIDUAL, ADAMW, *(at(w, f) for w in (CORE, SVD) for f in (0.5, 0.25, 0.125)))),
    Question("kinds", "Which projectors, and do they go stale?", USUAL,
             (RESIDUAL, ADAMW, CORE, CORE_ALONE,
              *(at(w, refresh=r) for w in (SVD, PAPER) for r in ("never", "50")))),
    Question("rivals", "Who else is there?", USUAL, BESIDE),
    Question("tokens", "Do more tokens a step leave less for a core to do?",
             tuple(Setting(tokens=t) for t in (256, 512, OLD_TOKENS)), (*BESIDE, SVD)),
    Question("texts", "Is it the text?", tuple(Setting(shift=s) for s in TEXTS),
             (*BESIDE, SVD)),
    Question("factor", "Does a fixed factor for each weight gain anything?",
             tuple(Setting(shift=s) for s in TEXTS),
             (RESIDUAL, CORE, ADAMW, *(added(w, "kw") for w in (RESIDUAL, CORE, ADAMW))),
             (RESIDUAL, CORE)),
    Question("further", "And from a base that knows less?",
             (Setting(), Setting(start="young")), BESIDE),
    Question("accumulation", "And where a step's gradient is a sum?",
             (Setting(tokens=OLD_TOKENS), Setting(tokens=OLD_TOKENS, accumulate=4)), BESIDE),
    Question("dtype", "And with 16-bit weights, rounded stochastically?",
             (Setting(), Setting(dtype="bf16")), BESIDE),
    Question("leads", "What would what no engine does yet gain?",
             (Setting(), Setting(shift="prose")), (RESIDUAL, CORE, ADAMW, *LEADS),
             (RESIDUAL, CORE)),
    Question("steps", "And after 1,000 steps?", (Setting(steps=1000),),
             (*LONG_WAYS, RESIDUAL, CORE), seeds=LONG_SEEDS),
    Question("stale", "Does a core of half of each side still pay after 1,000 steps?",
             (Setting(tokens=OLD_TOKENS, steps=1000),),
             (RATED, *(at(added(SVD, "kw"), 0.5, refresh) for refresh in ("never", "200"))),
             (RATED,), seeds=LONG_SEEDS),
    Question("long", "And after 3,000?", (Setting(steps=3000),), LONG_WAYS,
             (RATED, ADAMW), seeds=LONG_SEEDS),
    Question("ahead", "Is Adafactor ahead there by its decay and its norms, both at 8 times?",
             (Setting(steps=3000),),
             (RATED, ADAFACTOR, *(added(RATED, more) for more in
                                  ("decay8", "norms8", "norms8+decay8"))),
             (RATED, ADAFACTOR), seeds=LONG_SEEDS),
    Question("scratch", "And with layers drawn anew?",
             (Setting(start="scratch", steps=3000),), LONG_WAYS, (RATED, ADAMW),
             seeds=LONG_SEEDS),
    Question("alternatives", "README's table: as many tokens as in experiments/fidelity",
             tuple(Setting(shift=s, tokens=OLD_TOKENS) for s in TEXTS),
             (ADAMW, RESIDUAL, RATED, CORE, added(HALF_SVD, "kw"), SVD, ADAFACTOR, Way("lora32"),
              Way("galore"), Way("apollo"), CORE_ALONE)),
    Question("confirm", "What could become a default, on seeds that chose nothing",
             (Setting(), Setting(tokens=OLD_TOKENS), Setting(tokens=OLD_TOKENS, accumulate=4),
              Setting(dtype="bf16")),
             (ADAMW, RESIDUAL, CORE, SVD, HALF_SVD, added(CORE, "b1=0"),
              *(added(w, "kw") for w in (RESIDUAL, CORE, SVD, HALF_SVD))),
             (RATED, RESIDUAL, CORE), first_seed=SEEDS),
    Question("halves", "Where does a core of half of each side pay?",
             (Setting(tokens=512), *(Setting(shift=s, tokens=OLD_TOKENS) for s in TEXTS),
              Setting(tokens=OLD_TOKENS, dtype="bf16")),
             (ADAMW, RESIDUAL, RATED, HALF_SVD, added(HALF_SVD, "kw")), (RATED, ADAMW),
             first_seed=SEEDS),
    Question("worth", "How many more steps are as good as such a core?",
             tuple(Setting(tokens=OLD_TOKENS, steps=s) for s in (200, 220, 240)),
             (RATED, added(HALF_SVD, "kw")), (RATED,), first_seed=SEEDS),
    Question("lasting", "Is such a core still worth anything after 1,000 steps, or 500?",
             (*(Setting(shift=s, tokens=OLD_TOKENS, steps=1000) for s in TEXTS),
              Setting(steps=1000), Setting(tokens=OLD_TOKENS, steps=500)),
             (RATED, added(HALF_SVD, "kw")), (RATED,), first_seed=SEEDS),
    Question("large", "And of large steps, where a core costs least?",
             tuple(Setting(shift=s, tokens=LARGE_TOKENS) for s in TEXTS),
             (ADAMW, RATED, added(HALF_SVD, "kw")), (RATED, ADAMW), first_seed=SEEDS),
    Question("worth_of_large", "How many more steps are as good there?",
             tuple(Setting(tokens=LARGE_TOKENS, steps=s) for s in (200, 240, 280)), (RATED,),
             (RATED,), first_seed=SEEDS),
    Question("rematch", "The same on other seeds; cores at f = 1/4, AdamW without momentum",
             tuple(Setting(shift=s, tokens=OLD_TOKENS) for s in TEXTS),
             (ADAMW, RESIDUAL, RATED, CORE, added(HALF_SVD, "kw"), ADAFACTOR, Way("lora32"),
              Way("galore"), Way("apollo"), PAPER, PLAIN_ADAMW, added(PLAIN_ADAMW, "kw"),
              added(CORE, "kw"), added(SVD, "kw")),
             (ADAMW, RATED), first_seed=SEEDS),
    Question("norms", "Is a higher rate of what is no matrix as good as k_w is for matrices?",
             (Setting(), *(Setting(shift=s, tokens=OLD_TOKENS) for s in TEXTS),
              Setting(tokens=OLD_TOKENS, dtype="bf16"), Setting(steps=1000)),
             (RATED, *(added(RATED, name) for name in ("norms4", "norms8"))), (RATED,),
             first_seed=SEEDS),
)  # fmt: skip


def cells(question: Question) -> Iterable[tuple[Setting, Way]]:
    """Yield the setting and way of every row of the table."""
    return ((setting, way) for setting in question.settings for way in question.ways)


def chosen_rate(found: Found, setting: Setting, way: Way) -> float | None:
    """Return the best rate of a row on `pick`; None while a better one is possible."""
    return found.tuned_rate(run_of(setting, way), RATES)


def final_runs(found: Found, question: Question, setting: Setting, way: Way) -> list[Run]:
    """Return the runs that a row shows; their rate is zero until one is chosen."""
    rate = chosen_rate(found, setting, way)
    run = replace(run_of(setting, way), lr=rate or 0.0)
    return seeds_of(run, question.seeds, question.first_seed)


def wanted(question: Question, found: Found) -> list[Run]:
    """Runs at all rates known to be needed, and the fresh seeds once a rate is chosen."""
    runs: list[Run] = []
    for setting, way in cells(question):
        runs += tuned(found, run_of(setting, way), RATES)
        finals = final_runs(found, question, setting, way)
        runs += finals if finals[0].lr else []
    return list(dict.fromkeys(runs))
