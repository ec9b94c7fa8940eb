"""Tier disk: weights in a store, streamed through host memory, and new bases."""
