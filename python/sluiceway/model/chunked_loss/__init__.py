"""The loss of a language model in f32, from slices of its logits."""
