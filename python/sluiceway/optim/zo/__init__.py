"""Zeroth-order training, with forward passes alone and no gradients."""
