"""Prompts: reading and splitting data sets, and the curriculum over them."""
