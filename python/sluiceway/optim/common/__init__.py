"""The adapter to torch that our optimizers share; docs/contract.md says what it promises."""
