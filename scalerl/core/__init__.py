"""Foundations: errors, files, random streams, processes, and calls of user code. Nothing above is imported."""
