"""Generates groups of completions for prompts, with the log-probability and policy version of every token."""
