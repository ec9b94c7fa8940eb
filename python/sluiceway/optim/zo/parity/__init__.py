"""Mode parity: weights in host memory, into which each step is written."""
