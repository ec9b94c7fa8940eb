"""The optimizers that people hold."""
