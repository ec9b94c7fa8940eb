"""The engine that a config names: what it is asked for, and where it comes from."""

from __future__ import annotations

from importlib import import_module

from sluiceway.config.engines import is_built_in, load_registered
from sluiceway.config.schema import Config
from sluiceway.engines.protocol import Engine
from sluiceway.errors import InvalidArgument


def engine_of(config: Config) -> Engine:
    """The engine of a run, nothing opened yet.

    A built-in kind is a file here, `<kind>.py` with a class `<Kind>`.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        Another distribution's engine lacks a method of `Engine`.
    """
    kind = config.engine.kind
    if is_built_in(kind):
        return getattr(import_module(f"{__name__}.{kind}"), kind.capitalize())(config)
    made = load_registered(kind)
    asked = [name for name in vars(Engine) if not name.startswith("_")]
    missing = [name for name in asked if not callable(getattr(made, name, None))]
    if missing:
        raise InvalidArgument(
            f"engine.kind {kind}: {made!r} has no {', '.join(missing)}, expected every method of "
            "sluiceway.engines.protocol.Engine; inherit from GradientEngine"
        )
    return made(config)


def native_twin(config: Config) -> Config:
    """The run that `compare: native` measures first: equal but for the engine and the saves."""
    train = config.train.model_copy(update={"save_every": 0})
    engine = engine_of(config).twin()
    return config.model_copy(update={"engine": engine, "train": train, "compare": None})
