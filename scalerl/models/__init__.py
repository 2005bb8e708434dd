"""Policies: a causal LM as the recipe needs it, its weights by name, its FLOPs."""
