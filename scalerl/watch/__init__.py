"""Follows runs and studies while they train: their states, their rows, and a live page."""
