"""Folders of models, their weights, and which of them are trained."""
