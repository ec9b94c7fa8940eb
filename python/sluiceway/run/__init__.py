"""One run: its plan, its loop, its folder, its saves."""
