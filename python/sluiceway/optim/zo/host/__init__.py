"""Weights in host memory, streamed to the device, and a log that makes them theta."""
