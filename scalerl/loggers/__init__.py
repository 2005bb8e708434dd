"""Loggers: the metrics, forecasts and pictures of a run, in the tracker that a team uses. Does not import torch."""
