"""Policies: causal LMs with log-probabilities, weights by name, and FLOPs."""
