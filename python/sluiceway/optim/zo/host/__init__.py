"""Tier host: weights in host memory, streamed to the device, and the log of their updates."""
