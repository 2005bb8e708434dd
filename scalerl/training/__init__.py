"""For whoever trains: the configuration, the recipe, and the processes of a run."""
