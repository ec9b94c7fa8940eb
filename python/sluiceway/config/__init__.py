"""What one YAML file may say, how it is read, and what may change."""
