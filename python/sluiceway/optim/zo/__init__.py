"""Zeroth-order training: forward passes only, no gradient anywhere."""
