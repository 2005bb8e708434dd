"""Estimates the memory, GPUs and speed of a run before it starts, without loading torch."""
