"""Faster products, norms and attention on CPUs; imported on CPUs only."""
