"""Training runs: the loop, evaluation, the run directory, and the assembly of a run."""
