"""Runs the processes of a run as Ray actors; all Ray-specific code is in this package."""
