"""Low-rank directions for weights that stay on the device."""
