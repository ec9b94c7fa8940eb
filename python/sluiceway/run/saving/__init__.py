"""Writes saves, while steps run if the engine supports that."""
