"""What an optimizer refuses of models, processes and parameters, before and while it trains."""
