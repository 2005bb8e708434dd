"""Training runs: the loop, the learner, checkpoints, the run directory and processes."""
