"""Computes a language model's loss in f32 from slices of its logits."""
