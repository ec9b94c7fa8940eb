"""One run of a model for many losses: halves that meet wherever weights are read."""
