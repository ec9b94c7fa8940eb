"""Small tools that every package uses; they know nothing of models, runs or torch."""
