"""OffloadAdamW: AdamW whose states lie in a store, on disk or in host memory."""
