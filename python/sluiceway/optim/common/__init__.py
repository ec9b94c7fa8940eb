"""The adapter to torch that our optimizers share; docs/contract.md lists its promises."""
