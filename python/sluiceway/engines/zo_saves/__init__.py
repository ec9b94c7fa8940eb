"""Saves of a run of `kind: zo`, and the weights computed from them."""
