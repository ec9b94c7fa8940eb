"""One section for each kind of engine."""
