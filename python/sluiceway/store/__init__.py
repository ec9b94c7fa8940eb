"""Chunk stores of the disk tier, as Python holds them."""
