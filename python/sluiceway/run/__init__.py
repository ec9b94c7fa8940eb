"""One run: its loop, its folder, its saves."""
