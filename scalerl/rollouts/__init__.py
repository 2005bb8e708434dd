"""Prompts to groups of completions, with the log-probability and policy version of every token."""
