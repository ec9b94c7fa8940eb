"""The keys of a run's YAML file: how they are read and checked, and which may change."""
