"""SubspaceAdamW: AdamW on compressed gradients."""
