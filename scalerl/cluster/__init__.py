"""A run's processes as Ray actors: the only package that knows Ray."""
