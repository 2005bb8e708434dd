"""Faster products and attention for CPUs; loaded on CPUs only."""
