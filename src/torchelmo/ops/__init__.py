"""Pure functions on tensors; `reference` is the readable version of each."""
