"""Loggers: send the metrics, forecasts and pictures of a run to experiment trackers. Does not import torch."""
