"""Where a run computes, and what this machine can do."""
