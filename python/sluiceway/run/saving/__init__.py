"""How saves are written: beside steps where the engine can."""
