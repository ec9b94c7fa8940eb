"""Makes the engine that a config names, a built-in one or one from another distribution."""

from __future__ import annotations

from importlib import import_module

from sluiceway.config.engines import is_built_in, load_registered
from sluiceway.config.schema import Config
from sluiceway.engines.engine import Engine
from sluiceway.errors import InvalidArgument


def engine_of(config: Config) -> Engine:
    """Make the engine of a run, which opens no file yet.

    A built-in kind is a file here, `<kind>.py` with a class `<Kind>`.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        The engine of another distribution is no `Engine`, or lacks one of its abstract methods.
    """
    kind = config.engine.kind
    if is_built_in(kind):
        return getattr(import_module(f"{__name__}.{kind}"), kind.capitalize())(config)
    made = load_registered(kind)
    if not issubclass(made, Engine):
        raise InvalidArgument(
            f"engine.kind {kind}: {made!r} is no sluiceway.engines.engine.Engine; let it inherit "
            "from GradientEngine"
        )
    if missing := sorted(made.__abstractmethods__):
        raise InvalidArgument(
            f"engine.kind {kind}: {made!r} does not define {', '.join(missing)}, which "
            "sluiceway.engines.engine.Engine or its subclass leaves to it; define it, or let the "
            "class inherit from GradientEngine"
        )
    return made(config)


def native_twin(config: Config) -> Config:
    """Return the run's config with plain AdamW, which `compare: native` measures.

    It makes all steps, saves nothing, and reports to no tracker.
    """
    less = {"save_every": 0, "early_stopping_patience": None, "keep_best": False, "report_to": []}
    train = config.train.model_copy(update=less)
    engine = engine_of(config).twin()
    return config.model_copy(update={"engine": engine, "train": train, "compare": None})
