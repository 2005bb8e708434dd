"""Verifiers of tasks, one per file, and the scoring of completions with them."""
