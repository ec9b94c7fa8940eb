"""Folders of models, their weights, and the choice of weights to train."""
