"""Pieces that run inside other trainers. Nothing here is loaded unless it is asked for by name."""
