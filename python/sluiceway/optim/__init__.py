"""The optimizers that users create: one package for each, and the code that they share."""
