"""How gathered gradients are scaled before a step, and what tells of it."""
