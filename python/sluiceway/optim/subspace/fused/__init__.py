"""Linear layers that compute cores in backward, without forming gradients."""
