"""Plugins with which other trainers use Sluiceway's optimizers."""
