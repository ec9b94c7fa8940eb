"""Directions of low rank, of weights that stay on the device."""
