"""Writes saves, beside steps if the engine can."""
