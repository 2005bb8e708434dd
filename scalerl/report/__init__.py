"""Curves for people: pictures and words over fits. Loads no torch; matplotlib only where a picture is drawn."""
