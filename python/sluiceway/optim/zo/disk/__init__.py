"""Weights in a store on disk, streamed through host memory, and new bases of them."""
