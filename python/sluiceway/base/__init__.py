"""What every package stands on; knows nothing of models, runs or torch."""
