"""Saves of a run of `kind: zo`, and weights that are made from them."""
