"""Foundations: errors, files, random streams, processes, and calls of user code. Nothing above is imported."""

VERSION = "0.1.0"
"""Version of the package, here for readers that must not import its top level."""
