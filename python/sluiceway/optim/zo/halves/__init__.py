"""Measures many losses in one run of a model: forwards in threads that share its weights."""
