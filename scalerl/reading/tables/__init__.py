"""Reads whatever a trainer writes into a `Table`: files, directories, trackers. Does not know trainers or metrics."""
