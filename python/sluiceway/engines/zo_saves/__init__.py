"""What a run of `kind: zo` saves, and weights that are made of it."""
