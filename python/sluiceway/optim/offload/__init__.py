"""OffloadAdamW: AdamW that keeps its states in a store, on disk or in host memory."""
