"""What a run asks of the engine that its config names."""
