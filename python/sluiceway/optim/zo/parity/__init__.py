"""Weights in host memory that each step is written into."""
